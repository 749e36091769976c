//! Hosts of very different activity behind paths of very different speed, and their connections.

use thalweg_gain::Connection;
use thalweg_units::random::Random;

pub struct Host {
    an_hour: f64,
    bits_per_us: f64,
    rtt_us: f64,
}

pub fn normal(random: &mut Random) -> f64 {
    let radius = (-2.0 * (1.0 - random.fraction()).ln()).sqrt();
    radius * (std::f64::consts::TAU * random.fraction()).cos()
}

/// Of small means; large ones are rounded normal numbers.
fn poisson(random: &mut Random, mean: f64) -> u32 {
    if mean > 30.0 {
        return (mean + mean.sqrt() * normal(random)).round().max(0.0) as u32;
    }
    let (limit, mut product, mut count) = ((-mean).exp(), random.fraction(), 0);
    while product > limit {
        product *= random.fraction();
        count += 1;
    }
    count
}

/// Hosts, drawn.
pub fn hosts(random: &mut Random, number: usize) -> Vec<Host> {
    let host = |_| Host {
        // Median 0.5 connections an hour, one host in a hundred above 40.
        an_hour: 0.5 * (1.9 * normal(random)).exp(),
        bits_per_us: 20.0 * (1.2 * normal(random)).exp(),
        rtt_us: 25_000.0 * normal(random).exp(),
    };
    (0..number).map(host).collect()
}

impl Host {
    /// Its connections in an hour of the day.
    pub fn connections(&self, random: &mut Random, hour: u32) -> u32 {
        let day = 1.0 + 0.8 * (f64::from(hour) * std::f64::consts::TAU / 24.0).sin();
        poisson(random, self.an_hour * day).min(200)
    }

    /// As a content network reports: median 18 kB, mean 350 kB. Time scatters by 1.2 bits around
    /// that of the path in this hour, and one in a hundred stalls for 16 times as long. All of it
    /// is multiplied by a factor.
    pub fn connection(&self, random: &mut Random, path: f64, factor: f64) -> Connection {
        let Self {
            bits_per_us,
            rtt_us,
            ..
        } = *self;
        let bytes = (18_000.0 * (2.44 * normal(random)).exp()).clamp(50.0, 2e9);
        let segs = (bytes / 1448.0).ceil();
        let rounds = (segs / 10.0 + 1.0).log2().ceil().max(1.0);
        let stall = if random.below(100) == 0 { 16.0 } else { 1.0 };
        let noise = (path + 1.2 * normal(random)).exp2();
        let plain_us = (rounds * rtt_us + bytes * 8.0 / bits_per_us) * noise * stall;
        let lost = if random.below(4) == 0 { 0.03 } else { 0.001 };
        let queue = (normal(random) - 1.0).exp();
        Connection {
            bytes: bytes as u64,
            busy_us: (plain_us * factor) as u64,
            segs_out: segs as u32,
            retrans: poisson(random, segs.min(1e5) * lost).min(segs as u32),
            srtt_us: (rtt_us * (1.0 + queue)) as u32,
            min_rtt_us: rtt_us as u32,
            handshake_rtt_us: (rtt_us * (1.0 + 0.1 * queue)) as u32,
            failed: Some(random.below(300) == 0),
            held: None,
        }
    }
}
