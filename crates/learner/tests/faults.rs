//! Faults of the published tuner in choosing and scoring. Each test runs one situation in both
//! modes. It shows that `classic` has the fault and `thalweg` does not.

use thalweg_learner::{
    Decision, End, Flow, Host, Mode, ONE_Q16, Outcome, Params, Reason, Sample, Verdict, best_arm,
    change_due, decide, halve_evidence, propensities_q16, score,
};

/// Arms by their index in the published table.
const CUBIC: usize = 0;
const BBR: usize = 1;
const HTCP: usize = 2;

const MBIT: u64 = 1_000_000;
const MIB: u64 = 1 << 20;
const SECOND_NS: u64 = 1_000_000_000;

/// One agent with one host; cubic is the system's arm.
struct Agent {
    params: Params,
    host: Host,
    allowed: u16,
    now_ns: u64,
    random: u64,
}

impl Agent {
    fn new(mode: Mode, allowed: &[usize]) -> Self {
        Self {
            params: Params {
                mode,
                rescue_arm: Some(BBR),
                ..Params::default()
            },
            host: Host::default(),
            allowed: allowed.iter().fold(0, |mask, arm| mask | 1 << arm),
            now_ns: SECOND_NS,
            random: 1,
        }
    }

    fn both(allowed: &[usize]) -> [Self; 2] {
        [Mode::Classic, Mode::Thalweg].map(|mode| Self::new(mode, allowed))
    }

    fn seeded(self, seed: u64) -> Self {
        Self {
            random: seed,
            ..self
        }
    }

    /// The upper half of a 64-bit linear congruential generator (Knuth's MMIX constants).
    fn draw(&mut self) -> u32 {
        self.random = self
            .random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.random >> 32) as u32
    }

    /// A new connection, one second after the last.
    fn connect(&mut self) -> Decision {
        self.now_ns += SECOND_NS;
        halve_evidence(&mut self.host, &self.params, self.now_ns);
        self.host.connections += 1;
        // The low bits of such a generator are poor, and both modes use them.
        let random = [0; 3].map(|_: u32| self.draw().rotate_left(16) ^ self.draw());
        let decision = decide(
            &self.host,
            Some(CUBIC),
            self.allowed,
            &self.params,
            random,
            self.now_ns,
        );
        self.host.count_decision(&decision);
        if decision.reason.is_trial() {
            self.host.begin_trial(self.now_ns);
        }
        decision
    }

    /// One connection at a time: an open trial is this one.
    fn score(&mut self, arm: usize, sample: &Sample) -> Verdict {
        self.host.end_trial();
        score(
            &mut self.host,
            arm,
            Some(CUBIC),
            sample,
            &self.params,
            self.now_ns,
        )
    }

    /// The arm to which a connection on cubic moves after it lost `retrans` of `segs` segments.
    fn moved(&self, segs: u64, retrans: u64, allowed: u16) -> Option<usize> {
        let flow = Flow {
            arm: Some(CUBIC),
            system_arm: Some(CUBIC),
            segs,
            retrans,
        };
        let decision = change_due(&self.host, &flow, allowed, &self.params, 0)?;
        decision.arm.filter(|&arm| arm != CUBIC)
    }

    /// Connects, and scores the measurement on the chosen arm; returns the arm.
    fn transfer(&mut self, path: impl Fn(usize) -> Sample) -> usize {
        let arm = self.connect().arm.unwrap_or(CUBIC);
        self.score(arm, &path(arm));
        arm
    }

    fn share_q16(&self, arm: usize) -> u32 {
        let (host, now_ns) = (&self.host, self.now_ns);
        propensities_q16(host, Some(CUBIC), self.allowed, &self.params, now_ns)[arm]
    }

    fn best(&self) -> Option<usize> {
        best_arm(&self.host, Some(CUBIC), self.allowed, &self.params)
    }
}

/// A bulk transfer of ten seconds over a path of 20 ms.
fn bulk(rate_bps: u64) -> Sample {
    let bytes_per_second = rate_bps / 8;
    Sample {
        bytes: bytes_per_second * 10,
        duration_us: 10_000_000,
        rate_delivered_bytes: bytes_per_second / 10,
        rate_interval_us: 100_000,
        srtt_us: 20_000,
        min_rtt_us: 20_000,
        segs_out: (bytes_per_second * 10 / 1448) as u32,
        retrans: 0,
        steady_segs: (bytes_per_second * 10 / 1448) as u32,
        steady_retrans: 0,
        loss_srtt_us: 0,
        limited_us: 0,
        busy_time: false,
        end: End::FinLocal,
    }
}

/// Fault: an arm that the kernel lacks is never scored. It keeps the value 0, which no other arm
/// can undercut, and is chosen for ever. The connections use the system's arm.
#[test]
fn an_arm_that_is_never_scored() {
    let [classic, thalweg] = Agent::both(&[CUBIC, BBR, HTCP]).map(|mut agent| {
        let mut chosen = [0; 3];
        for _ in 0..1000 {
            let arm = agent.connect().arm.unwrap_or(CUBIC);
            chosen[arm] += 1;
            match arm {
                CUBIC => agent.score(arm, &bulk(90 * MBIT)),
                BBR => agent.score(
                    arm,
                    &Sample {
                        min_rtt_us: 20_500,
                        ..bulk(4800 * MBIT)
                    },
                ),
                _ => continue, // refused by the kernel
            };
        }
        (agent, chosen)
    });
    assert!(classic.1[HTCP] > 900, "{:?}", classic.1);
    assert!(classic.0.share_q16(HTCP) > ONE_Q16 * 9 / 10);

    // First trials without a measurement fade, and measurements decide the rest.
    assert!(thalweg.1[BBR] > 750, "{:?}", thalweg.1);
    assert_eq!(thalweg.0.share_q16(HTCP), ONE_Q16 / 16);
    assert_eq!(thalweg.0.best(), Some(BBR));
}

/// Fault: the minimum RTT is measured near the handshake. It does not show the queue that the
/// congestion control then builds.
#[test]
fn a_queue_above_the_minimum_rtt() {
    let [classic, thalweg] = Agent::both(&[CUBIC, BBR]).map(|mut agent| {
        let bloated = Sample {
            srtt_us: 400_000,
            ..bulk(80 * MBIT)
        };
        let costs = [
            agent.score(CUBIC, &bloated),
            agent.score(BBR, &bulk(80 * MBIT)),
        ];
        (agent.best(), costs.map(|verdict| verdict.cost))
    });
    assert_eq!(classic.1[0], classic.1[1]);
    assert!(thalweg.1[0] > thalweg.1[1]);
    assert_eq!(thalweg.0, Some(BBR));
}

/// Fault: the rate of an arm is the highest it ever had. One good connection outweighs any number
/// of bad ones after it.
#[test]
fn a_maximum_that_never_decays() {
    let [classic, thalweg] = Agent::both(&[CUBIC, BBR]).map(|mut agent| {
        agent.host.connections = 100;
        agent.score(BBR, &bulk(800 * MBIT));
        for _ in 0..200 {
            agent.score(BBR, &bulk(8 * MBIT));
            agent.score(CUBIC, &bulk(400 * MBIT));
        }
        agent
    });
    assert!(classic.share_q16(BBR) > ONE_Q16 * 9 / 10);
    assert!(thalweg.share_q16(CUBIC) > ONE_Q16 * 9 / 10);
}

/// Fault: a maximum grows with the number of trials. Of two equal arms, the one tried more often
/// looks better.
#[test]
fn equal_arms_tried_unequally() {
    let rates = [80, 160, 120, 100, 140].map(|rate| rate * MBIT);
    let [classic, thalweg] = Agent::both(&[CUBIC, BBR]).map(|mut agent| {
        for round in 0..100 {
            agent.score(CUBIC, &bulk(rates[round % 5]));
        }
        agent.score(BBR, &bulk(120 * MBIT));
        agent.host.arms.map(|arm| arm.value)
    });
    assert_eq!(classic[CUBIC], 0, "perfect");
    assert_eq!(classic[BBR], 250_000, "a quarter below the best rate");
    // A sixth of a bit: one part in nine of the rate.
    assert!(
        thalweg[CUBIC].abs_diff(thalweg[BBR]) < u64::from(ONE_Q16) / 6,
        "{thalweg:?}"
    );
}

/// Fault: a connection whose application paused says nothing about the path's capacity, but is
/// still scored.
#[test]
fn an_application_that_pauses() {
    let [classic, thalweg] = Agent::both(&[CUBIC, BBR]).map(|mut agent| {
        agent.score(CUBIC, &bulk(400 * MBIT));
        let before = agent.host.arms;
        let paused = Sample {
            bytes: MIB,
            ..bulk(80 * MBIT)
        };
        let verdict = agent.score(
            CUBIC,
            &Sample {
                min_rtt_us: 40_000,
                ..paused
            },
        );
        (verdict.outcome, agent.host.arms == before)
    });
    assert_eq!(classic, (Outcome::Scored, false));
    assert_eq!(thalweg, (Outcome::AppLimited, true));
}

/// Fault: rates are whole bytes per µs, so that all below 8 Mbit/s are equal.
#[test]
fn rates_below_eight_megabits() {
    let [classic, thalweg] = Agent::both(&[CUBIC, BBR]).map(|mut agent| {
        let slow = agent.score(CUBIC, &bulk(MBIT));
        let fast = agent.score(BBR, &bulk(7 * MBIT));
        [slow.cost, fast.cost]
    });
    assert_eq!(classic[0], classic[1]);
    let bits = (thalweg[0] - thalweg[1]) as f64 / f64::from(ONE_Q16);
    assert!(
        (bits - 7_f64.log2()).abs() < 0.02,
        "seven times the rate: {bits} bits"
    );
}

/// Fault: a cost of 0 also means "unset". The next sample of a perfect arm replaces all before it.
/// It should move the estimate by at most a quarter.
#[test]
fn a_perfect_arm_and_one_bad_sample() {
    let [classic, thalweg] = Agent::both(&[CUBIC, BBR]).map(|mut agent| {
        for _ in 0..1000 {
            agent.score(BBR, &bulk(80 * MBIT));
        }
        let before = agent.host.arms[BBR].value;
        let bad = Sample {
            min_rtt_us: 40_000,
            srtt_us: 40_000,
            ..bulk(8 * MBIT)
        };
        let cost = agent.score(BBR, &bad).cost;
        (agent.host.arms[BBR].value - before, cost - before)
    });
    let (moved, distance) = classic;
    assert_eq!((moved, distance), (1_000_000, 1_000_000));
    let (moved, distance) = thalweg;
    assert!(0 < moved && moved <= distance / 4, "{moved} of {distance}");
}

/// Fault: a single retransmission moves a connection of fewer than 64 segments to bbr.
#[test]
fn one_retransmission_of_a_short_connection() {
    for segs in 1..64 {
        let [classic, thalweg] = Agent::both(&[CUBIC, BBR]).map(|mut agent| {
            agent.score(CUBIC, &bulk(8 * MBIT));
            agent.score(BBR, &bulk(80 * MBIT));
            agent.moved(segs, 1, agent.allowed)
        });
        assert_eq!(classic, Some(BBR), "{segs} segments");
        assert_eq!(thalweg, None, "{segs} segments");
    }
    // If loss is plain and bbr is known to be better, both modes act.
    for mut agent in Agent::both(&[CUBIC, BBR]) {
        agent.score(CUBIC, &bulk(8 * MBIT));
        agent.score(BBR, &bulk(80 * MBIT));
        assert_eq!(agent.moved(1000, 50, agent.allowed), Some(BBR));
    }
}

/// Fault: the loss rule moves to bbr even if nothing is known of the host. But congestion also
/// causes loss.
#[test]
fn a_rescue_into_the_unknown() {
    let [classic, thalweg] = Agent::both(&[CUBIC, BBR]).map(|mut agent| {
        let new = agent.moved(1000, 50, agent.allowed);
        agent.score(CUBIC, &bulk(8 * MBIT));
        [new, agent.moved(1000, 50, agent.allowed)]
    });
    assert_eq!(classic, [Some(BBR); 2]);
    assert_eq!(thalweg, [None; 2]);
}

/// Fault: the loss rule moves to bbr even if bbr is known to be worse, or is not available.
#[test]
fn a_rescue_that_makes_it_worse() {
    let [classic, thalweg] = Agent::both(&[CUBIC, BBR]).map(|mut agent| {
        for _ in 0..20 {
            agent.score(CUBIC, &bulk(80 * MBIT));
            agent.score(BBR, &bulk(8 * MBIT));
        }
        [0b11, 0b01].map(|allowed| agent.moved(1000, 50, allowed))
    });
    assert_eq!(classic, [Some(BBR); 2]);
    assert_eq!(thalweg, [None; 2]);
}

/// Fault: tiny transfers, and receivers that sent next to nothing, are scored like bulk
/// senders.
#[test]
fn tiny_transfers_and_receivers() {
    let tiny = Sample {
        bytes: 10_000,
        duration_us: 40_000,
        segs_out: 8,
        min_rtt_us: 24_000,
        ..bulk(8 * MBIT)
    };
    let receiver = Sample {
        bytes: 200,
        rate_delivered_bytes: 0,
        rate_interval_us: 0,
        ..tiny
    };
    for sample in [tiny, receiver] {
        let [classic, thalweg] = Agent::both(&[CUBIC, BBR]).map(|mut agent| {
            agent.score(BBR, &bulk(400 * MBIT));
            let before = agent.host.arms;
            let outcome = agent.score(BBR, &sample).outcome;
            (outcome, agent.host.arms == before)
        });
        assert_eq!(classic, (Outcome::Scored, false));
        assert_eq!(thalweg, (Outcome::Small, true));
    }
}

/// Fault: a connection that died of unacknowledged retransmissions is not scored. Even if it were,
/// minimum RTT and maximum rate would not show it.
#[test]
fn a_connection_that_dies() {
    let [classic, thalweg] = Agent::both(&[CUBIC, BBR]).map(|mut agent| {
        for _ in 0..20 {
            agent.score(CUBIC, &bulk(80 * MBIT));
        }
        let before = agent.host.arms[CUBIC].value;
        let dead = Sample {
            bytes: 20_000,
            duration_us: 900_000_000,
            segs_out: 40,
            retrans: 25,
            end: End::Timeout,
            ..bulk(80 * MBIT)
        };
        agent.score(CUBIC, &dead);
        agent.host.arms[CUBIC].value > before
    });
    assert_eq!([classic, thalweg], [false, true]);
}

/// Fault: estimates are never forgotten. When the best arm and the worst change places, the old
/// best is still chosen.
#[test]
fn a_path_that_changes() {
    let before = |arm| bulk(if arm == CUBIC { 96 } else { 16 } * MBIT);
    let after = |arm| bulk(if arm == CUBIC { 8 } else { 80 } * MBIT);
    for seed in 1..=20 {
        let [classic, thalweg] = Agent::both(&[CUBIC, BBR]).map(|agent| {
            let mut agent = agent.seeded(seed);
            // thalweg learns more in 50 connections than classic in 1000.
            let connections = if agent.params.mode == Mode::Thalweg {
                50
            } else {
                1000
            };
            for _ in 0..300 {
                agent.transfer(before);
            }
            assert!(
                agent.share_q16(CUBIC) > ONE_Q16 * 9 / 10,
                "seed {seed}: learned at first"
            );
            for _ in 0..connections {
                agent.transfer(after);
            }
            (0..100).filter(|_| agent.transfer(after) == BBR).count()
        });
        assert!(
            classic < 20,
            "seed {seed}: {classic} of 100 on the new best"
        );
        assert!(
            thalweg > 80,
            "seed {seed}: {thalweg} of 100 on the new best"
        );
    }
}

/// Fault: estimates of a day ago count like new ones.
#[test]
fn a_day_of_silence() {
    let [classic, thalweg] = Agent::both(&[CUBIC, BBR]).map(|mut agent| {
        for _ in 0..300 {
            agent.transfer(|arm| bulk(if arm == CUBIC { 96 } else { 16 } * MBIT));
        }
        let fresh = agent.share_q16(CUBIC);
        agent.now_ns += 24 * 3600 * SECOND_NS;
        let decision = agent.connect();
        let shares = (fresh, agent.share_q16(CUBIC));
        let cost = agent.score(CUBIC, &bulk(8 * MBIT)).cost;
        let moved = cost.abs_diff(agent.host.arms[CUBIC].value) < u64::from(ONE_Q16) / 100;
        (shares, decision.reason, moved)
    });
    assert_eq!(classic.0.0, classic.0.1);
    assert!(thalweg.0.0 > ONE_Q16 * 9 / 10);
    assert_eq!(
        thalweg.0.1, ONE_Q16,
        "no trial: its result would be forgotten"
    );
    assert_eq!(thalweg.1, Reason::Greedy);
    assert!(thalweg.2, "the first new measurement replaces the old mean");
}

/// Fault: after the path had turned bad for the arm in use, each bad measurement counted as luck.
/// It took some fifty connections to move on.
#[test]
fn a_path_that_turns_bad_is_found_out_within_twenty_connections() {
    for seed in 1..=20 {
        let mut agent = Agent::new(Mode::Thalweg, &[CUBIC, BBR]);
        for _ in 0..seed {
            agent.draw();
        }
        let clean = |arm| bulk(if arm == CUBIC { 950 * MBIT } else { 900 * MBIT });
        let lossy = |arm| bulk(if arm == CUBIC { 10 * MBIT } else { 100 * MBIT });
        for _ in 0..60 {
            agent.transfer(clean);
        }
        for _ in 0..20 {
            agent.transfer(lossy);
        }
        let good = (0..20).filter(|_| agent.transfer(lossy) == BBR).count();
        assert!(good >= 15, "seed {seed}: {good} of 20 on the better arm");
    }
}
