//! Worlds like servers': many hosts of few visits, rare connections, small transfers, pauses,
//! vanished clients, a shared uplink. Each host has a learner of its own, and time passes.

use thalweg_learner::{End, Sample};

use crate::random::Random;

/// Bytes of one segment.
const SEGMENT: f64 = 1448.0;
/// Segments of the initial window.
const WINDOW: f64 = 10.0;
/// Rate at 0 bits, bytes per second.
const BASE_RATE: f64 = 4e6;
/// Base RTT of the median host, µs.
const RTT_US: f64 = 30_000.0;
/// Spread of hosts' rates and RTTs, bits.
const HOST_SPREAD_BITS: f64 = 1.0;
/// Spread of one connection's RTT, bits.
const RTT_SPREAD_BITS: f64 = 0.1;
/// Time until TCP gives up on a client that vanished, s.
const GIVES_UP_S: f64 = 900.0;
const HOUR_S: f64 = 3600.0;
/// Most arms of a world.
const ARMS_MAX: usize = 4;

/// Bytes of a transfer.
#[derive(Clone, Copy)]
pub enum Sizes {
    /// All the same.
    Fixed(f64),
    /// Lognormal: median 12 packets, mean 240, as a large CDN reports.
    Cdn,
    /// This many such responses over one connection.
    Responses(usize),
}

/// What a learner may lose or break in a world. Shares of goodput, unless stated otherwise.
pub struct Bounds {
    /// Lost against the best arm, mean.
    pub best: f64,
    /// Lost against the default, mean over seeds.
    pub mean: f64,
    /// Lost against the default, mean over the worst 5 % of seeds.
    pub worst: f64,
    /// 99th percentile of the transfers' time, as a multiple of the default's.
    pub p99: f64,
    /// Lost by neighbours at the uplink.
    pub harm: f64,
    /// Share of connections on another arm than the best.
    pub wrong: f64,
    /// At least: share of the best arm's gain over the default.
    pub gained: f64,
    /// At least: share of hosts whose first connection is on the best arm, first half left out.
    pub first: f64,
}

/// The bounds of a world without reason for others.
const PROMISE: Bounds = Bounds {
    best: 1.0,
    mean: 0.03,
    worst: 0.08,
    p99: f64::INFINITY,
    harm: 0.02,
    wrong: 1.0,
    gained: f64::NEG_INFINITY,
    first: 0.0,
};

/// The same for a host's best arm, which must be found.
const fn finds(best: f64) -> Bounds {
    Bounds { best, ..PROMISE }
}

/// The same, with a bound on the slowest transfers.
const PROMPT: Bounds = Bounds {
    p99: 1.1,
    ..PROMISE
};

/// A world.
pub struct Server {
    /// Name in the table.
    pub name: &'static str,
    /// Remote hosts, and connections to each.
    pub hosts: usize,
    pub visits: usize,
    /// Hosts of one prefix.
    pub together: usize,
    /// Time between the first connections of two hosts, s; 0: all begin at once.
    pub arrive_s: f64,
    /// Mean pause between two connections to one host, s.
    pub every_s: f64,
    /// Time for which a connection is open, s: think time between its transfers.
    pub open_s: f64,
    /// log2 of the arms' rates, from the given visit on; arm 0 is the default.
    pub phases: &'static [(usize, &'static [f64])],
    /// Prefixes by turns have arms other than 0 this much better, bits.
    pub prefixes: &'static [&'static [f64]],
    /// Deviation of each host's rates on the arms, bits.
    pub differ_bits: f64,
    /// Deviation of a connection's rate, bits.
    pub spread_bits: f64,
    pub sizes: Sizes,
    /// Highest rate of the application, bytes per second.
    pub application: f64,
    /// Highest rate that the receiver's window allows, bytes per second.
    pub window: f64,
    /// Share of receivers that read slowly, on any arm, and by how many bits below 0.
    pub readers: (f64, f64),
    /// Share of arm 1's connections that are slower, and by how many bits.
    pub tail: (f64, f64),
    /// Share of segments that the path loses at random, on any arm.
    pub loss: f64,
    /// Share of clients that vanish midway, on any arm.
    pub vanish: f64,
    /// The hosts share an uplink with neighbours, from which arm 1 takes.
    pub uplink: bool,
    /// Half the range of the load through the day, bits.
    pub day_bits: f64,
    pub bounds: Bounds,
}

/// A host that is visited once a minute by bulk transfers.
const PLAIN: Server = Server {
    name: "",
    hosts: 1,
    visits: 300,
    together: 20,
    arrive_s: 0.0,
    every_s: 60.0,
    open_s: 0.0,
    phases: &[],
    prefixes: &[],
    differ_bits: 0.0,
    spread_bits: 0.5,
    sizes: Sizes::Fixed(1e6),
    application: 1e12,
    window: 1e12,
    readers: (0.0, 0.0),
    tail: (0.0, 0.0),
    loss: 0.0,
    vanish: 0.0,
    uplink: false,
    day_bits: 0.0,
    bounds: PROMISE,
};

/// The default is 3 bits above all others, or 0.3 bits.
const FAR_BEST: &[(usize, &[f64])] = &[(0, &[0.0, -3.0, -3.0, -3.0])];
const NEAR_BEST: &[(usize, &[f64])] = &[(0, &[0.0, -0.3, -0.3, -0.3])];
/// Another arm carries twice as much.
const SECOND_BEST: &[(usize, &[f64])] = &[(0, &[0.0, 1.0, -1.0, -0.5])];
/// The other arm is twice as fast, then half as fast, and so on.
const FLIPS: &[(usize, &[f64])] = &[
    (0, &[0.0, 1.0]),
    (100, &[0.0, -1.0]),
    (200, &[0.0, 1.0]),
    (300, &[0.0, -1.0]),
];

/// Another arm carries 0.5 bits more, or 0.3 less.
const SECOND_HALF_BIT: &[(usize, &[f64])] = &[(0, &[0.0, 0.56, -0.3, -0.3])];
/// In every other prefix the second arm is 0.5 bits better than the default, in the others worse.
const BY_PREFIX: &[&[f64]] = &[&[0.56, -0.3, -0.3], &[-0.56, -0.3, -0.3]];

/// Many hosts of few visits, one more every second.
const NETWORK: Server = Server {
    hosts: 10_000,
    visits: 3,
    together: 100,
    arrive_s: 1.0,
    every_s: 600.0,
    spread_bits: 1.0,
    sizes: Sizes::Fixed(8e6),
    ..PLAIN
};
/// Another arm is better on each host: it must be found.
const FOUND: Bounds = Bounds {
    gained: 0.85,
    first: 0.85,
    ..PROMISE
};
/// The default is best on each host.
const KEPT: Bounds = Bounds {
    mean: 0.01,
    ..PROMISE
};

/// Every world.
pub const SERVERS: &[Server] = &[
    Server {
        name: "a network, three visits a host, default 0.3 bits best",
        phases: NEAR_BEST,
        bounds: KEPT,
        ..NETWORK
    },
    Server {
        name: "a network, three visits a host, default 3 bits best",
        phases: FAR_BEST,
        bounds: KEPT,
        ..NETWORK
    },
    Server {
        name: "a network, three visits a host, another 0.5 bits better",
        phases: SECOND_HALF_BIT,
        bounds: FOUND,
        ..NETWORK
    },
    Server {
        name: "a network, three visits a host, another 0.5 bits better, hosts differ",
        phases: SECOND_HALF_BIT,
        differ_bits: 0.5,
        ..NETWORK
    },
    Server {
        name: "a network, three visits a host, CDN sizes, another 0.5 bits better",
        phases: SECOND_HALF_BIT,
        sizes: Sizes::Cdn,
        ..NETWORK
    },
    Server {
        name: "networks of 100 hosts, another 0.5 bits better in every other one",
        phases: &[(0, &[0.0; 4])],
        prefixes: BY_PREFIX,
        bounds: Bounds {
            first: 0.85,
            ..PROMISE
        },
        ..NETWORK
    },
    Server {
        name: "networks of 100 hosts, one another 5.6 bits better, by loss",
        phases: &[(0, &[0.0; 4])],
        prefixes: &[
            &[5.64, -0.1, 0.1],
            &[-0.3, -0.3, -0.3],
            &[-0.3, -0.3, -0.3],
            &[-0.3, -0.3, -0.3],
        ],
        ..NETWORK
    },
    Server {
        name: "three visits, default 0.3 bits best",
        hosts: 50,
        visits: 3,
        every_s: 600.0,
        phases: NEAR_BEST,
        spread_bits: 1.0,
        ..PLAIN
    },
    Server {
        name: "three visits, default 3 bits best",
        hosts: 50,
        visits: 3,
        every_s: 600.0,
        phases: FAR_BEST,
        spread_bits: 1.0,
        ..PLAIN
    },
    Server {
        name: "three visits, another twice as fast",
        hosts: 50,
        visits: 3,
        every_s: 600.0,
        phases: SECOND_BEST,
        spread_bits: 1.0,
        ..PLAIN
    },
    Server {
        name: "one an hour, default 3 bits best",
        every_s: HOUR_S,
        phases: FAR_BEST,
        spread_bits: 1.0,
        bounds: Bounds {
            wrong: 0.06,
            ..PROMISE
        },
        ..PLAIN
    },
    Server {
        name: "one an hour, another twice as fast",
        every_s: HOUR_S,
        phases: SECOND_BEST,
        spread_bits: 1.0,
        bounds: finds(0.22),
        ..PLAIN
    },
    Server {
        name: "sizes of a CDN, default 0.3 bits best",
        visits: 2000,
        every_s: 10.0,
        phases: NEAR_BEST,
        sizes: Sizes::Cdn,
        ..PLAIN
    },
    Server {
        name: "sizes of a CDN, another twice as fast",
        visits: 2000,
        every_s: 10.0,
        phases: SECOND_BEST,
        sizes: Sizes::Cdn,
        ..PLAIN
    },
    Server {
        name: "bulk, another twice as fast",
        phases: SECOND_BEST,
        bounds: finds(0.05),
        ..PLAIN
    },
    Server {
        name: "5 % loss, bbr 50 x faster",
        phases: &[(0, &[0.0, 5.64, -0.1, 0.1])],
        sizes: Sizes::Fixed(4e6),
        loss: 0.05,
        bounds: finds(0.1),
        ..PLAIN
    },
    Server {
        name: "video, the application limits",
        phases: &[(0, &[0.0, -1.0, -2.0, 0.0])],
        application: 1.5e6,
        ..PLAIN
    },
    Server {
        name: "the receiver's window limits, another twice as fast",
        phases: SECOND_BEST,
        window: 6e6,
        bounds: finds(0.05),
        ..PLAIN
    },
    Server {
        name: "5 % loss, the receiver's window limits bbr",
        phases: &[(0, &[0.0, 5.64, -0.1, 0.1])],
        sizes: Sizes::Fixed(4e6),
        loss: 0.05,
        window: 24e6,
        bounds: finds(0.1),
        ..PLAIN
    },
    Server {
        name: "slow readers, default 0.3 bits best",
        phases: NEAR_BEST,
        readers: (0.3, 3.0),
        ..PLAIN
    },
    Server {
        name: "slow readers, another twice as fast",
        phases: SECOND_BEST,
        readers: (0.3, 3.0),
        bounds: finds(0.05),
        ..PLAIN
    },
    Server {
        name: "responses over two hours",
        visits: 100,
        every_s: 900.0,
        open_s: 2.0 * HOUR_S,
        phases: NEAR_BEST,
        sizes: Sizes::Responses(100),
        ..PLAIN
    },
    Server {
        name: "replication, two endless flows",
        visits: 60,
        every_s: 12.0 * HOUR_S,
        open_s: 24.0 * HOUR_S,
        phases: FAR_BEST,
        sizes: Sizes::Fixed(1e10),
        ..PLAIN
    },
    Server {
        name: "replication, another twice as fast",
        visits: 60,
        every_s: 12.0 * HOUR_S,
        open_s: 24.0 * HOUR_S,
        phases: SECOND_BEST,
        sizes: Sizes::Fixed(1e10),
        bounds: finds(0.3),
        ..PLAIN
    },
    Server {
        name: "heavy tail: 19 % faster, one in ten 16 x slower",
        phases: &[(0, &[0.0, 0.25])],
        visits: 600,
        spread_bits: 1.0,
        tail: (0.1, 4.25),
        bounds: PROMPT,
        ..PLAIN
    },
    Server {
        name: "one client in ten vanishes",
        phases: &[(0, &[0.0, -1.0, -1.0])],
        vanish: 0.1,
        ..PLAIN
    },
    Server {
        name: "shared uplink, arm 1 takes",
        hosts: 20,
        visits: 100,
        phases: &[(0, &[0.0, 0.0])],
        uplink: true,
        bounds: PROMPT,
        ..PLAIN
    },
    Server {
        name: "load of the day, default 0.3 bits best",
        every_s: 300.0,
        visits: 900,
        phases: NEAR_BEST,
        day_bits: 1.5,
        ..PLAIN
    },
    Server {
        name: "path flips every 100 connections",
        visits: 400,
        phases: FLIPS,
        ..PLAIN
    },
];

/// Relative rate of a flow on arm 1 at the shared uplink: it takes three times its share …
const TAKES: f64 = 3.0;
/// … and wastes this part of the capacity, in retransmissions.
const WASTES: f64 = 0.3;
/// Retransmitted by the default at the uplink, by each share of arm 1, and by arm 1.
const UPLINK_LOSS: f64 = 0.01;
const UPLINK_LOSS_MORE: f64 = 0.03;
const TAKER_LOSS: f64 = 0.08;
/// Standing queue of the uplink, µs, which the default fills as well.
const UPLINK_QUEUE_US: f64 = 30_000.0;

/// One connection's luck, the same on every arm.
pub struct Visit {
    bits: f64,
    /// How much better the arms are on the host than elsewhere, bits.
    apart: [f64; ARMS_MAX],
    rtt_us: f64,
    /// Bytes of its transfers.
    pub sizes: Vec<f64>,
    tail: bool,
    vanishes: bool,
    reads_slowly: bool,
    noise: f64,
    /// Pause before it, s.
    pub pause_s: f64,
}

impl Visit {
    /// Draws the luck of a host's connection.
    pub fn draw(server: &Server, seed: u64, host: usize, visit: usize) -> Self {
        let base = seed * 1_000_003 + host as u64;
        let mut of_host = Random::new(base, 3);
        let (rate, rtt) = (of_host.normal(), of_host.normal());
        let mut random = Random::new(base * 65_537 + visit as u64, 4);
        let mut of_reader = Random::new(base * 65_537 + visit as u64, 7);
        let mut apart = [0.0; ARMS_MAX];
        for (arm, bits) in apart.iter_mut().enumerate().skip(1) {
            if !server.prefixes.is_empty() {
                let prefix = host / server.together;
                *bits = server.prefixes[prefix % server.prefixes.len()][arm - 1];
            }
            if server.differ_bits > 0.0 {
                *bits += of_host.normal() * server.differ_bits;
            }
        }
        let luck = random.normal() * server.spread_bits;
        let rtt_bits = rtt * HOST_SPREAD_BITS + random.normal() * RTT_SPREAD_BITS;
        let mut drawn = Self {
            bits: rate * HOST_SPREAD_BITS + luck,
            apart,
            rtt_us: RTT_US * rtt_bits.exp2(),
            sizes: vec![],
            tail: random.unit() <= server.tail.0,
            vanishes: random.unit() <= server.vanish,
            reads_slowly: of_reader.unit() <= server.readers.0,
            noise: random.normal(),
            pause_s: -server.every_s * random.unit().ln(),
        };
        drawn.sizes = match server.sizes {
            Sizes::Fixed(bytes) => vec![bytes],
            Sizes::Cdn => vec![cdn(&mut random)],
            Sizes::Responses(count) => (0..count).map(|_| cdn(&mut random)).collect(),
        };
        drawn
    }

    /// A part of it: so many bytes, at a rate this much higher, bits.
    pub fn part(&self, bytes: f64, bits: f64) -> Self {
        Self {
            bits: self.bits + bits,
            sizes: vec![bytes],
            ..*self
        }
    }
}

/// Lognormal with mean/median = 20, so a deviation of `√(2 ln 20)`.
fn cdn(random: &mut Random) -> f64 {
    let deviation = (2.0 * 20f64.ln()).sqrt();
    (12.0 * SEGMENT * (deviation * random.normal()).exp()).clamp(200.0, 1e9)
}

/// What a connection gets on an arm.
pub struct Service {
    /// Time of its transfers, s.
    pub time_s: f64,
    /// Mean rate of the neighbours at the uplink; 1 if all use the default.
    pub neighbours: f64,
    pub sample: Sample,
    /// Whether its time says anything: its client did not vanish.
    pub counts: bool,
}

impl Server {
    /// Number of arms.
    pub fn arms(&self) -> usize {
        self.phases[0].1.len()
    }

    fn level(&self, drawn: &Visit, visit: usize, arm: usize) -> f64 {
        let phase = self.phases.iter().rev().find(|phase| phase.0 <= visit);
        phase.map_or(0.0, |phase| phase.1[arm]) + drawn.apart[arm]
    }

    /// The arm with the least expected time at a visit. A tail makes arm 1 the slower one.
    pub fn best(&self, drawn: &Visit, visit: usize) -> usize {
        let candidates = if self.tail.0 > 0.0 || self.uplink {
            1
        } else {
            self.arms()
        };
        (0..candidates).fold(0, |best, arm| {
            if self.level(drawn, visit, arm) > self.level(drawn, visit, best) {
                arm
            } else {
                best
            }
        })
    }

    /// The service of a connection that starts at `now_s`, on an arm, where `takers` of the other
    /// connections are on arm 1.
    pub fn serve(
        &self,
        drawn: &Visit,
        visit: usize,
        arm: usize,
        now_s: f64,
        takers: f64,
    ) -> Service {
        let mut bits = drawn.bits + self.level(drawn, visit, arm);
        bits -= self.day_bits * (std::f64::consts::TAU * now_s / (24.0 * HOUR_S)).sin();
        if arm == 1 && drawn.tail {
            bits -= self.tail.1;
        }
        let (mut lost, mut neighbours) = (self.loss, 1.0);
        if self.uplink {
            let share = (1.0 - WASTES * takers) / (1.0 + (TAKES - 1.0) * takers);
            bits += share.log2() + if arm == 1 { TAKES.log2() } else { 0.0 };
            neighbours = share;
            lost = UPLINK_LOSS + UPLINK_LOSS_MORE * takers;
            if arm == 1 {
                lost = TAKER_LOSS;
            }
        }
        let mut window = self.window;
        if drawn.reads_slowly {
            window = window.min(BASE_RATE * (-self.readers.1).exp2());
        }
        let rate = (BASE_RATE * bits.exp2()).min(self.application);
        let is_limited = rate > window;
        let rate = rate.min(window);
        let rtt_s = drawn.rtt_us / 1e6;
        let times = drawn.sizes.iter().map(|bytes| {
            let rounds = (1.0 + bytes / SEGMENT / WINDOW).log2();
            rtt_s * rounds + bytes / rate
        });
        let time_s: f64 = times.sum();
        let bytes: f64 = drawn.sizes.iter().sum();
        let segs = (bytes / SEGMENT).ceil();
        let retrans = (segs * lost + drawn.noise * (segs * lost).sqrt()).max(0.0) as u32;
        let queue_us = if self.uplink { UPLINK_QUEUE_US } else { 0.0 };
        let mut sample = Sample {
            bytes: bytes as u64,
            duration_us: (time_s * 1e6) as u64,
            rate_delivered_bytes: bytes as u64,
            rate_interval_us: (time_s * 1e6) as u64,
            srtt_us: (drawn.rtt_us + queue_us) as u32,
            min_rtt_us: (drawn.rtt_us * 0.9) as u32,
            segs_out: segs as u32 + retrans,
            retrans,
            steady_segs: segs as u32 + retrans,
            steady_retrans: retrans,
            loss_srtt_us: 0,
            limited_us: if is_limited { (time_s * 1e6) as u64 } else { 0 },
            busy_time: true,
            end: End::FinLocal,
        };
        if drawn.vanishes {
            sample.bytes = 20_000.min(sample.bytes);
            sample.duration_us = (GIVES_UP_S * 1e6) as u64;
            sample.segs_out = 40;
            sample.retrans = 15;
            sample.steady_segs = 40;
            sample.steady_retrans = 15;
            sample.end = End::Timeout;
        }
        Service {
            time_s,
            neighbours,
            sample,
            counts: !drawn.vanishes,
        }
    }
}

impl Service {
    /// How long the connection is open, s.
    pub fn open_s(&self) -> f64 {
        if self.counts { self.time_s } else { GIVES_UP_S }
    }
}
