//! Drawn parameters and samples, the same for a seed on every machine.

use thalweg_bpf_types::raw as abi;

/// 1 in Q16.
pub const ONE: u32 = 1 << 16;
pub const SECOND_NS: u64 = 1_000_000_000;
pub const MINUTE_NS: u64 = 60 * SECOND_NS;
pub const HOUR_NS: u64 = 60 * MINUTE_NS;
pub const NO_ARM: u32 = abi::THALWEG_NO_ARM;
pub const FIN_LOCAL: u32 = abi::THALWEG_END_FIN_LOCAL;
pub const FIN_REMOTE: u32 = abi::THALWEG_END_FIN_REMOTE;
pub const RESET: u32 = abi::THALWEG_END_RESET;
pub const TIMEOUT: u32 = abi::THALWEG_END_TIMEOUT;
pub const SWITCH: u32 = abi::THALWEG_END_SWITCH;
pub const STRETCH: u32 = abi::THALWEG_END_STRETCH;

/// FNV-1a, continued from a hash of earlier bytes.
pub fn fnv1a(hash: u64, bytes: &[u8]) -> u64 {
    bytes.iter().fold(hash, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

/// FNV-1a of nothing.
pub const FNV_START: u64 = 0xcbf2_9ce4_8422_2325;

/// SplitMix64.
pub struct Random(u64);

impl Random {
    /// Draws of a plan: other plans, and changes of them, do not matter.
    pub fn new(plan: &str, seed: u64) -> Self {
        Self(fnv1a(
            fnv1a(FNV_START, plan.as_bytes()),
            &seed.to_le_bytes(),
        ))
    }

    pub fn u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    pub fn u32(&mut self) -> u32 {
        (self.u64() >> 32) as u32
    }

    pub fn below(&mut self, end: u64) -> u64 {
        self.u64() % end
    }

    /// A number of a range that includes its end.
    pub fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.below(high - low + 1)
    }

    pub fn pick<T: Copy>(&mut self, items: &[T]) -> T {
        items[self.below(items.len() as u64) as usize]
    }

    pub fn one_in(&mut self, count: u64) -> bool {
        self.below(count) == 0
    }

    /// A number of up to `bits` bits, each length alike, and often an end of the range.
    pub fn wide(&mut self, bits: u32) -> u64 {
        let last = u64::MAX >> (64 - bits);
        if self.one_in(3) {
            return self.pick(&[0, 1, last, last - 1, last / 2 + 1]);
        }
        self.u64() >> (64 - self.between(1, bits.into()))
    }

    pub fn wide_u32(&mut self) -> u32 {
        self.wide(32) as u32
    }
}

/// The arms of a mask.
pub fn members(mask: u32) -> Vec<u32> {
    let arms = 0..abi::THALWEG_MAX_ARMS;
    arms.filter(|arm| mask >> arm & 1 == 1).collect()
}

/// The defaults.
pub fn default_params() -> abi::thalweg_params {
    abi::thalweg_params {
        mode: abi::THALWEG_MODE_THALWEG,
        warm_up: 1,
        gap_scale: 256,
        weight_max_q16: 8 * ONE,
        idle_shift: 6,
        half_life_ns: 30 * MINUTE_NS,
        latency_weight_q16: ONE / 4,
        latency_guard_us: 10_000,
        score_min_bytes: 128 << 10,
        score_full_bytes: 1 << 20,
        loss_shift: 6,
        loss_min_segs: 128,
        rescue_arm: NO_ARM,
        ..Default::default()
    }
}

/// Draws a sample of an arm; the last argument is a noise in percent.
pub type Samples = fn(&mut Random, u32, u64) -> abi::thalweg_sample;

/// A transfer on a path where arms differ by up to a factor of 2^(arm % 4).
pub fn bulk(r: &mut Random, arm: u32, noise: u64) -> abi::thalweg_sample {
    let bytes = r.between(64 << 10, 4 << 20);
    let per_second = (5_000_000 << (arm % 4)) * r.between(100, 100 + noise) / 100;
    let segs = bytes / 1448 + 1;
    let srtt_us = r.between(20_000, 20_000 + 1_000 * noise);
    let min_rtt_us = r.between(18_000, srtt_us);
    let retrans = (segs / r.between(20, 2_000)) as u32;
    abi::thalweg_sample {
        bytes,
        duration_us: bytes * 1_000_000 / per_second + 1,
        rate_delivered_bytes: 14_480,
        rate_interval_us: 14_480 * 1_000_000 / per_second + 1,
        srtt_us: srtt_us as u32,
        min_rtt_us: min_rtt_us as u32,
        segs_out: segs as u32,
        retrans,
        steady_segs: segs as u32,
        steady_retrans: retrans,
        flags: r.below(2) as u16,
        end: r.pick(&[FIN_LOCAL, FIN_REMOTE, RESET, SWITCH]) as u16,
        ..Default::default()
    }
}

/// One transfer, equal on every arm: estimates tie.
pub fn equal(_: &mut Random, _: u32, _: u64) -> abi::thalweg_sample {
    abi::thalweg_sample {
        bytes: 2_000_000,
        duration_us: 1_000_000,
        rate_delivered_bytes: 14_480,
        rate_interval_us: 7_240,
        srtt_us: 30_000,
        min_rtt_us: 25_000,
        segs_out: 1_400,
        retrans: 3,
        steady_segs: 1_400,
        steady_retrans: 3,
        ..Default::default()
    }
}

/// Transfers that lose a little at random, and arms with odd numbers a lot by themselves.
pub fn overflowing(r: &mut Random, arm: u32, noise: u64) -> abi::thalweg_sample {
    let segs = r.pick(&[200, 2_000, 20_000]);
    let steady = segs - r.below(segs / 2);
    let own = if arm % 2 == 1 { r.between(20, 60) } else { 0 };
    let steady_retrans = steady * (r.between(5, 20) + own) / 1_000;
    abi::thalweg_sample {
        segs_out: segs as u32,
        retrans: (steady_retrans + r.below(9)) as u32,
        steady_segs: steady as u32,
        steady_retrans: steady_retrans as u32,
        ..bulk(r, arm, noise)
    }
}

/// Transfers on a path whose queue is mostly full.
pub fn queueing(r: &mut Random, arm: u32, noise: u64) -> abi::thalweg_sample {
    abi::thalweg_sample {
        min_rtt_us: r.pick(&[10_000, 11_000, 14_000, 30_000]),
        srtt_us: r.pick(&[9_000, 12_000, 14_000, 25_000, 40_000]),
        loss_srtt_us: r.pick(&[0, 0, 9_500, 13_000, 30_000]),
        ..bulk(r, arm, noise)
    }
}

/// Short transfers, time-outs and applications that pause.
pub fn odd(r: &mut Random, arm: u32, noise: u64) -> abi::thalweg_sample {
    let mut sample = bulk(r, arm, noise);
    match r.below(5) {
        0 => sample.bytes = r.below(200_000),
        1 => {
            sample.bytes = r.below(200_000);
            sample.end = r.pick(&[TIMEOUT, TIMEOUT, SWITCH]) as u16;
            sample.segs_out = r.between(30, 34) as u32;
            sample.retrans = r.between(0, 12) as u32;
        }
        kind @ (2 | 3) => {
            sample.duration_us *= r.between(15, 19);
            sample.retrans = sample.segs_out / 256 + r.below(2) as u32;
            if kind == 3 && r.one_in(2) {
                sample.end = TIMEOUT as u16;
            }
        }
        _ => (sample.rate_interval_us, sample.min_rtt_us) = (0, 0),
    }
    sample
}

/// Rates far apart on one arm: both sides of the clip.
pub fn jumping(r: &mut Random, arm: u32, noise: u64) -> abi::thalweg_sample {
    let sample = bulk(r, arm, noise);
    abi::thalweg_sample {
        duration_us: ((sample.duration_us << r.below(14)) >> 7).max(1),
        rate_interval_us: 0,
        ..sample
    }
}

/// Transfers of which some take several times as long, more of them on arms with odd numbers.
pub fn stalling(r: &mut Random, arm: u32, noise: u64) -> abi::thalweg_sample {
    let mut sample = bulk(r, arm - arm % 4, noise);
    if r.one_in(if arm % 2 == 1 { 6 } else { 40 }) {
        sample.duration_us *= r.pick(&[5, 8, 12, 40]);
    }
    sample.flags = abi::THALWEG_SAMPLE_BUSY_TIME as u16;
    sample
}

/// Parts of long connections, and ends of short ones.
pub fn stretches(r: &mut Random, arm: u32, noise: u64) -> abi::thalweg_sample {
    let mut sample = bulk(r, arm, noise);
    if r.below(3) > 0 {
        sample.end = STRETCH as u16;
    }
    sample
}

/// Transfers whose receiver, or whose send buffer, is full for a part of the time.
pub fn limited(r: &mut Random, arm: u32, noise: u64) -> abi::thalweg_sample {
    let mut sample = bulk(r, arm, noise);
    let eighth = (sample.duration_us / 8) as u32;
    sample.receiver_us = eighth * r.pick(&[0, 0, 1, 2, 3, 8]);
    sample.buffer_us = eighth * r.pick(&[0, 0, 1, 2]);
    if r.one_in(8) {
        sample.end = TIMEOUT as u16;
        (sample.segs_out, sample.retrans) = (40, 9);
    }
    sample
}

/// Any number in every field.
pub fn extreme(r: &mut Random, _: u32, _: u64) -> abi::thalweg_sample {
    abi::thalweg_sample {
        bytes: r.wide(64),
        duration_us: r.wide(64),
        rate_delivered_bytes: r.wide(64),
        rate_interval_us: r.wide(64),
        srtt_us: r.wide_u32(),
        min_rtt_us: r.wide_u32(),
        segs_out: r.wide_u32(),
        retrans: r.wide_u32(),
        steady_segs: r.wide_u32(),
        steady_retrans: r.wide_u32(),
        loss_srtt_us: r.wide_u32(),
        flags: r.wide(16) as u16,
        end: r.below(u64::from(STRETCH) + 1) as u16,
        receiver_us: r.wide_u32(),
        buffer_us: r.wide_u32(),
    }
}

/// A transfer of which one field is at an end of its range.
pub fn corners(r: &mut Random, arm: u32, noise: u64) -> abi::thalweg_sample {
    let sample = bulk(r, arm, noise);
    let field = r.below(14);
    at_end(sample, field, r.pick(&[0, 1, u64::MAX]))
}

/// A sample of which one field, any but `end`, is a number, or as much of it as it holds.
pub fn at_end(mut sample: abi::thalweg_sample, field: u64, number: u64) -> abi::thalweg_sample {
    let number_u32 = number as u32;
    match field {
        0 => sample.bytes = number,
        1 => sample.duration_us = number,
        2 => sample.rate_delivered_bytes = number,
        3 => sample.rate_interval_us = number,
        4 => sample.srtt_us = number_u32,
        5 => sample.min_rtt_us = number_u32,
        6 => sample.segs_out = number_u32,
        7 => sample.retrans = number_u32,
        8 => sample.steady_segs = number_u32,
        9 => sample.steady_retrans = number_u32,
        10 => sample.loss_srtt_us = number_u32,
        11 => sample.flags = number as u16,
        12 => sample.receiver_us = number_u32,
        _ => sample.buffer_us = number_u32,
    }
    sample
}
