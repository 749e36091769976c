//! The scenarios, and the measurements of connections in them.

use thalweg_learner::{End, Sample};

use crate::random::Random;

/// Connections in one run.
pub const HORIZON: usize = 600;
/// The first connections: those that a user of a new host notices.
pub const EARLY: usize = 60;

/// Bytes of every transfer: enough for full weight.
const TRANSFER_BYTES: u64 = 4 << 20;
/// Rate at 0 bits, bytes per second.
const BASE_RATE: f64 = 4e6;
/// Round-trip time of the path, µs, for every arm.
const RTT_US: f64 = 20_000.0;
/// Spread of the measured RTT, bits.
const RTT_SPREAD_BITS: f64 = 0.1;
/// Share of outliers, connections that are slow on any arm, and their loss: log2(10).
const OUTLIER_SHARE: f64 = 0.02;
const OUTLIER_BITS: f64 = 3.32;

/// A path, as the rates of its arms. Arm 0 is the system's default.
pub struct Scenario {
    /// Name in the table.
    pub name: &'static str,
    /// log2 of the arms' rates is `.1` from connection `.0` on; the first phase starts at 0.
    pub phases: &'static [(usize, &'static [f64])],
    /// Standard deviation of a connection's rate around its arm's, bits.
    pub spread_bits: f64,
    /// Standard deviation of each arm's random walk, bits a connection.
    pub drift_bits: f64,
    /// Open connections: this many decisions await their results.
    pub in_flight: usize,
}

/// A still path, one connection at a time, the usual spread.
const STILL: Scenario = Scenario {
    name: "",
    phases: &[],
    spread_bits: 0.3,
    drift_bits: 0.0,
    in_flight: 1,
};

/// 5 % random loss: bbr some 50 times (5.64 bits) above the loss-based arms.
const LOSSY_3: &[f64] = &[0.0, -0.1, 5.64];
const LOSSY_4: &[f64] = &[0.0, 5.64, 0.2, -0.2];
const LOSSY_16: &[f64] = &[
    0.0, 0.1, -0.1, 0.2, -0.2, 0.0, 0.1, 5.64, -0.1, 0.2, -0.2, 0.0, 0.1, -0.1, 0.2, -0.2,
];
/// The default 30 % (0.38 bits) above the others.
const DEFAULT_BEST_3: &[f64] = &[0.38, 0.0, 0.0];
const DEFAULT_BEST_16: &[f64] = &[
    0.38, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0,
];
/// The same rates, with another arm as the default.
const ANOTHER_BEST_3: &[f64] = &[0.0, 0.0, 0.38];
const ANOTHER_BEST_16: &[f64] = &[
    0.0, 0.0, 0.0, 0.0, 0.0, 0.38, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0,
];
/// Loss starts at 200 and ends at 400: the default is best, then bbr, then the default.
const LOSS_COMES: &[(usize, &[f64])] = &[
    (0, &[0.2, 0.0, 0.1, -0.2]),
    (200, &[-5.0, 0.0, -4.8, -5.2]),
    (400, &[0.2, 0.0, 0.1, -0.2]),
];
/// At 200 the worst arm overtakes the best. The best arm's rate is unchanged, so only exploration
/// shows it. At 400 the new best arm collapses.
const HIDDEN: &[(usize, &[f64])] = &[
    (0, &[0.0, 2.0, -2.0, -1.0]),
    (200, &[0.0, 2.0, 4.0, -1.0]),
    (400, &[0.0, 2.0, -2.0, -1.0]),
];

/// Every scenario of the table.
pub const SCENARIOS: &[Scenario] = &[
    Scenario {
        name: "loss, 3 arms",
        phases: &[(0, LOSSY_3)],
        spread_bits: 0.5,
        ..STILL
    },
    Scenario {
        name: "loss, 4 arms",
        phases: &[(0, LOSSY_4)],
        spread_bits: 0.5,
        ..STILL
    },
    Scenario {
        name: "loss, 16 arms",
        phases: &[(0, LOSSY_16)],
        spread_bits: 0.5,
        ..STILL
    },
    Scenario {
        name: "10 % apart, default worst",
        phases: &[(0, &[0.0, 0.138, 0.275, 0.413])],
        ..STILL
    },
    Scenario {
        name: "10 % apart, default best",
        phases: &[(0, &[0.413, 0.275, 0.138, 0.0])],
        ..STILL
    },
    Scenario {
        name: "all equal, 4 arms",
        phases: &[(0, &[0.0; 4])],
        ..STILL
    },
    Scenario {
        name: "default 30 % best, 3 arms",
        phases: &[(0, DEFAULT_BEST_3)],
        ..STILL
    },
    Scenario {
        name: "default 30 % best, 16 arms",
        phases: &[(0, DEFAULT_BEST_16)],
        ..STILL
    },
    Scenario {
        name: "default 30 % best, little noise",
        phases: &[(0, DEFAULT_BEST_3)],
        spread_bits: 0.1,
        ..STILL
    },
    Scenario {
        name: "default 30 % best, much noise",
        phases: &[(0, DEFAULT_BEST_3)],
        spread_bits: 0.6,
        ..STILL
    },
    Scenario {
        name: "another 30 % best, 3 arms",
        phases: &[(0, ANOTHER_BEST_3)],
        ..STILL
    },
    Scenario {
        name: "another 30 % best, 16 arms",
        phases: &[(0, ANOTHER_BEST_16)],
        ..STILL
    },
    Scenario {
        name: "another 30 % best, much noise",
        phases: &[(0, ANOTHER_BEST_3)],
        spread_bits: 0.6,
        ..STILL
    },
    Scenario {
        name: "one bad arm of 4",
        phases: &[(0, &[0.0, -4.0, 0.0, 0.0])],
        ..STILL
    },
    Scenario {
        name: "drift, 4 arms",
        phases: &[(0, &[0.0; 4])],
        drift_bits: 0.05,
        ..STILL
    },
    Scenario {
        name: "loss comes and goes",
        phases: LOSS_COMES,
        ..STILL
    },
    Scenario {
        name: "hidden change",
        phases: HIDDEN,
        ..STILL
    },
    Scenario {
        name: "loss, 3 arms, 8 in flight",
        phases: &[(0, LOSSY_3)],
        spread_bits: 0.5,
        in_flight: 8,
        ..STILL
    },
    Scenario {
        name: "default 30 % best, 3 arms, 8 in flight",
        phases: &[(0, DEFAULT_BEST_3)],
        in_flight: 8,
        ..STILL
    },
    Scenario {
        name: "another 30 % best, 3 arms, 8 in flight",
        phases: &[(0, ANOTHER_BEST_3)],
        in_flight: 8,
        ..STILL
    },
    Scenario {
        name: "loss comes and goes, 8 in flight",
        phases: LOSS_COMES,
        in_flight: 8,
        ..STILL
    },
];

/// One seed's draw of a scenario, the same for every policy: the arms' rates, and the luck of each
/// connection on any arm.
pub struct World {
    /// log2 of the arms' rates, by connection.
    pub rates_bits: Vec<Vec<f64>>,
    luck_bits: Vec<f64>,
    srtt_us: Vec<f64>,
}

impl World {
    /// Draws the world of a seed.
    pub fn new(scenario: &Scenario, seed: u64) -> Self {
        let mut random = Random::new(seed, 1);
        let mut walk = vec![0.0; scenario.arms()];
        let mut world = Self {
            rates_bits: vec![],
            luck_bits: vec![],
            srtt_us: vec![],
        };
        for connection in 0..HORIZON {
            for position in &mut walk {
                *position += scenario.drift_bits * random.normal();
            }
            let levels = scenario.levels(connection);
            world
                .rates_bits
                .push(walk.iter().zip(levels).map(|(w, l)| w + l).collect());
            let outlier = if random.unit() <= OUTLIER_SHARE {
                OUTLIER_BITS
            } else {
                0.0
            };
            world
                .luck_bits
                .push(scenario.spread_bits * random.normal() - outlier);
            world
                .srtt_us
                .push(RTT_US * (RTT_SPREAD_BITS * random.normal()).exp2());
        }
        world
    }

    /// The arm with the highest expected rate: the noise is the same factor for all arms.
    pub fn best(&self, connection: usize) -> usize {
        let rates = &self.rates_bits[connection];
        (0..rates.len()).fold(
            0,
            |best, arm| if rates[arm] > rates[best] { arm } else { best },
        )
    }

    /// Measurement of `connection` on `arm`.
    pub fn sample(&self, connection: usize, arm: usize) -> Sample {
        let bits = self.rates_bits[connection][arm] + self.luck_bits[connection];
        let duration_us = (TRANSFER_BYTES as f64 * 1e6 / (BASE_RATE * bits.exp2())) as u64;
        let srtt_us = self.srtt_us[connection] as u32;
        Sample {
            bytes: TRANSFER_BYTES,
            duration_us,
            rate_delivered_bytes: TRANSFER_BYTES,
            rate_interval_us: duration_us,
            srtt_us,
            min_rtt_us: srtt_us - srtt_us / 8,
            segs_out: (TRANSFER_BYTES / 1448) as u32,
            steady_segs: (TRANSFER_BYTES / 1448) as u32,
            steady_retrans: 0,
            loss_srtt_us: 0,
            retrans: 0,
            limited_us: 0,
            busy_time: true,
            end: End::FinLocal,
        }
    }
}

impl Scenario {
    /// Number of arms.
    pub fn arms(&self) -> usize {
        self.levels(0).len()
    }

    /// First connection after the first change of the best arm; 0 without a change.
    pub fn first_change(&self) -> usize {
        self.phases.get(1).map_or(0, |phase| phase.0)
    }

    fn levels(&self, connection: usize) -> &'static [f64] {
        let phase = self.phases.iter().rev().find(|phase| phase.0 <= connection);
        phase.map_or(&[], |phase| phase.1)
    }
}
