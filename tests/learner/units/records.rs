//! Functions of samples and records.

use thalweg_bpf_types::raw as abi;
use thalweg_tests::{Request, raw};

use super::{ARMS, MAX, MIB, ONE_U64, Unit, narrow, plain, unit};
use crate::random_inputs::{
    NO_ARM, ONE, Random, SECOND_NS, SWITCH, Samples, TIMEOUT, bulk, extreme, jumping, limited,
    members, odd, overflowing, queueing,
};

pub fn judged() -> Unit {
    fn request([value, caution, is_system, harmful, unsteady, system_value]: [u64; 6]) -> Request {
        // Any two arms.
        let (judged, other) = (3, 9);
        let system = if is_system == 1 { judged } else { other };
        let mut request = plain(raw::VECTOR_JUDGED, [judged, system]);
        request.host.arms[judged as usize].caution_q16 = narrow(caution);
        request.host.arms[other as usize].value = narrow(system_value);
        request.host.arms[judged as usize].value = narrow(value);
        request.host.harmful = (harmful << judged) as u16;
        request.host.unsteady = (unsteady << judged) as u16;
        request
    }
    // The system's own as it is, others with their handicap. A harmful arm: 4 bits above itself, or
    // above the system's if that is more. An unsteady one: 1 1/2 bits.
    let by_hand = [
        ([1000, 200, 1, 0, 0, 0], [1000]),
        ([1000, 200, 0, 0, 0, 0], [1200]),
        (
            [1000, ONE_U64 / 2, 0, 1, 0, 600],
            [1000 + 4 * ONE_U64 + ONE_U64 / 2],
        ),
        (
            [1000, ONE_U64 / 4, 0, 1, 0, 1600],
            [1600 + 4 * ONE_U64 + ONE_U64 / 4],
        ),
        ([1000, 200, 0, 0, 1, 0], [1200 + ONE_U64 + ONE_U64 / 2]),
        (
            [1000, 200, 0, 1, 1, 600],
            [1200 + 5 * ONE_U64 + ONE_U64 / 2],
        ),
        ([1000, 200, 1, 1, 1, 0], [1000]),
    ];
    unit("judged", request, by_hand, [], |r| {
        let (value, caution, system_value) = (r.wide(32), r.wide(32), r.wide(32));
        let [is_system, harmful, unsteady] = [(); 3].map(|()| r.below(2));
        request([value, caution, is_system, harmful, unsteady, system_value])
    })
}

/// A request about a sample.
fn of_sample(function: u32, sample: abi::thalweg_sample) -> Request {
    Request {
        sample,
        ..plain(function, [])
    }
}

pub fn weight() -> Unit {
    fn request([bytes, end, full_bytes]: [u64; 3]) -> Request {
        let sample = abi::thalweg_sample {
            bytes,
            end: end as u16,
            ..Default::default()
        };
        let mut request = of_sample(raw::VECTOR_WEIGHT, sample);
        request.params.score_full_bytes = full_bytes;
        request
    }
    let timeout = u64::from(TIMEOUT);
    // Half of the full size is half the weight; 1/16 at least; a time-out 1/2 at least.
    let by_hand = [
        ([MIB / 2, 0, MIB], [ONE_U64 / 2]),
        ([MIB, 0, MIB], [ONE_U64]),
        ([0, 0, MIB], [ONE_U64 / 16]),
        ([0, timeout, MIB], [ONE_U64 / 2]),
        ([MIB * 3 / 4, timeout, MIB], [ONE_U64 * 3 / 4]),
        ([0, 0, 0], [ONE_U64]),
    ];
    // Beyond 2^47 bytes the product has no room.
    let most = 1 << 47;
    let mut unit = unit("weight", request, by_hand, [], |r| {
        let end = r.below(6);
        request(match r.one_in(2) {
            true => [r.wide(64), end, r.wide(64)],
            false => [r.below(2 * MIB), end, MIB],
        })
    });
    for bytes in [most - 1, most, MAX] {
        let full = [most - 1, most, most + 1, MAX];
        unit.limits
            .extend(full.map(|full| request([bytes, 0, full])));
    }
    unit
}

pub fn assess() -> Unit {
    fn request(sample: abi::thalweg_sample, least_bytes: u64) -> Request {
        let mut request = of_sample(raw::VECTOR_ASSESS, sample);
        request.params.score_min_bytes = least_bytes;
        request
    }
    let scored = abi::THALWEG_SCORED;
    let [small, limited] = [abi::THALWEG_SKIPPED_SMALL, abi::THALWEG_SKIPPED_APP_LIMITED];
    // 1 MB in 1 s is 1 MB/s; a burst of 17 MB/s is above 16 times that.
    let burst = abi::thalweg_sample {
        bytes: 1_000_000,
        duration_us: 1_000_000,
        rate_delivered_bytes: 17_000,
        rate_interval_us: 1000,
        segs_out: 700,
        ..Default::default()
    };
    let with = |change: fn(&mut abi::thalweg_sample)| {
        let mut sample = burst;
        change(&mut sample);
        sample
    };
    let sized = |bytes, segs_out, end: u32| abi::thalweg_sample {
        bytes,
        segs_out,
        end: end as u16,
        ..Default::default()
    };
    let by_hand = [
        (burst, limited),
        (with(|it| it.rate_delivered_bytes = 16_000), scored),
        (with(|it| it.retrans = 2), limited),
        (with(|it| it.retrans = 3), scored),
        // One in 256 or fewer is no loss to speak of: 2 of 512, but not 2 of 511.
        (with(|it| (it.segs_out, it.retrans) = (512, 2)), limited),
        (with(|it| (it.segs_out, it.retrans) = (511, 2)), scored),
        (with(|it| it.end = TIMEOUT as u16), scored),
        (with(|it| it.rate_interval_us = 0), scored),
        (sized(999, 0, 0), small),
        (sized(999, 31, TIMEOUT), small),
        (sized(999, 32, TIMEOUT), scored),
        (sized(999, 32, SWITCH), scored),
        (sized(1000, 0, 0), scored),
    ];
    Unit {
        name: "assess",
        by_hand: by_hand
            .map(|(sample, outcome)| (request(sample, 1000), vec![outcome.into()]))
            .into(),
        limits: Vec::new(),
        draw: |r| match r.one_in(2) {
            true => request(extreme(r, 0, 0), r.wide(64)),
            false => {
                let arm = r.below(4) as u32;
                request(odd(r, arm, 50), 128 << 10)
            }
        },
        draws: 100,
    }
}

pub fn forget() -> Unit {
    fn request(half_life_ns: u64, forgot_ns: u64, now_ns: u64, weights: [u32; ARMS]) -> Request {
        let mut request = plain(raw::VECTOR_FORGET, [now_ns]);
        request.params.half_life_ns = half_life_ns;
        request.host.forgot_ns = forgot_ns;
        request.host.used = ARMS as u16;
        for (arm, weight_q16) in request.host.arms.iter_mut().zip(weights) {
            arm.weight_q16 = weight_q16;
        }
        request
    }
    fn weights(r: &mut Random) -> [u32; ARMS] {
        std::array::from_fn(|_| r.wide_u32())
    }
    // 25 ns at a half-life of 10 are two halvings, and the clock stands at 20 more.
    let by_hand = [
        ([10, 100, 125], 8, 120, 2),
        ([10, 0, 125], 8, 125, 8),
        ([0, 100, 125], 8, 125, 8),
        ([10, 100, 99], 8, 100, 8),
        ([10, 100, 109], 8, 100, 8),
        ([1, 1, 32], u32::MAX, 32, 1),
        // A trace is left.
        ([1, 1, 33], u32::MAX, 33, 1),
    ];
    let mut limits = vec![request(1, 1, MAX, [u32::MAX; ARMS])];
    for halvings in [
        0,
        1,
        2,
        30,
        31,
        32,
        33,
        63,
        64,
        65,
        1000,
        1 << 32,
        (1 << 32) + 1,
    ] {
        let weights = std::array::from_fn(|arm| u32::MAX >> (2 * arm));
        for beyond in [0, 6] {
            limits.push(request(7, 50, 50 + 7 * halvings + beyond, weights));
        }
    }
    Unit {
        name: "forget",
        by_hand: by_hand
            .map(|([half_life, forgot, now], weight, then, left)| {
                let outputs = std::iter::once(then).chain([left; ARMS]).collect();
                (request(half_life, forgot, now, [weight; ARMS]), outputs)
            })
            .into(),
        limits,
        draw: |r| {
            let weights = weights(r);
            request(r.wide(64), r.wide(64), r.wide(64), weights)
        },
        draws: 50,
    }
}

/// Two arms: what is known of them, and the segments and retransmissions of the first, the system's.
#[derive(Clone, Copy)]
struct Pair {
    values: [u32; 2],
    weights_q16: [u32; 2],
    system: [u32; 2],
}

pub fn change() -> Unit {
    fn request(
        allowed: u32,
        arm: u32,
        [segs, retrans]: [u64; 2],
        random: u32,
        pair: Pair,
    ) -> Request {
        let mut request = Request {
            allowed,
            arm,
            segs,
            retrans,
            random: [random, 0, 0],
            ..plain(raw::VECTOR_CHANGE, [])
        };
        let host = &mut request.host;
        host.used = 2;
        for arm in 0..2 {
            host.arms[arm].value = pair.values[arm];
            host.arms[arm].weight_q16 = pair.weights_q16[arm];
        }
        let system = &mut host.statistics[0];
        [system.segs, system.retrans] = pair.system;
        request
    }
    // Over 1/64 retransmitted, 128 segments, 32768 (half a bit) cheaper, both known, a draw below
    // 3/4. On arm 1 it goes back to arm 0 where it retransmits more than 1.5 times what that does
    // (with 4 on top), plus one in 256, plus 8.
    let (high, low) = (40 * ONE, 39 * ONE);
    let (moves, stays, none) = (ONE * 3 / 4 - 1, ONE * 3 / 4, u64::from(NO_ARM));
    let moved = vec![1, abi::THALWEG_REASON_LOSS.into(), ONE_U64 * 3 / 4];
    let stayed = vec![0, abi::THALWEG_REASON_LOSS.into(), ONE_U64 / 4];
    let back = vec![0, abi::THALWEG_REASON_WITHDRAWN.into(), ONE_U64];
    let nothing = vec![none, 0, 0];
    let pair = Pair {
        values: [high, low],
        weights_q16: [ONE; 2],
        system: [0; 2],
    };
    let valued = |value| Pair {
        values: [high, value],
        ..pair
    };
    let known = |weights_q16| Pair {
        weights_q16,
        ..pair
    };
    let loses = |system| Pair { system, ..pair };
    let by_hand = vec![
        (request(3, 0, [128, 3], moves, pair), moved.clone()),
        (request(3, 0, [128, 3], stays, pair), stayed.clone()),
        (request(3, 0, [128, 3], u32::MAX, pair), stayed),
        (request(3, 0, [128, 2], moves, pair), nothing.clone()),
        (request(3, 0, [127, 100], moves, pair), nothing.clone()),
        (request(2, 0, [128, 3], moves, pair), moved.clone()),
        (request(1, 0, [128, 3], moves, pair), nothing.clone()),
        (request(0, 0, [128, 3], moves, pair), nothing.clone()),
        (request(3, 0, [128, 3], moves, valued(high - 32_768)), moved),
        (
            request(3, 0, [128, 3], moves, valued(high - 32_767)),
            nothing.clone(),
        ),
        // Nothing is known of the target, or of the arm that it has.
        (
            request(3, 0, [128, 3], moves, known([ONE, 0])),
            nothing.clone(),
        ),
        (
            request(3, 0, [128, 3], moves, known([0, ONE])),
            nothing.clone(),
        ),
        // 1000 segments: (16 + 4) * 1.5 + 3 + 8 = 41 are the path's, and what chance adds is the root
        // of (16 + 4) * 256, 71.6.
        (
            request(3, 1, [1000, 112], moves, loses([1000, 16])),
            nothing.clone(),
        ),
        (request(3, 1, [1000, 113], moves, loses([1000, 16])), back),
        (
            request(2, 1, [1000, 113], moves, loses([1000, 16])),
            nothing.clone(),
        ),
        // Nothing is known of what the path loses.
        (request(3, 1, [1000, 900], moves, pair), nothing),
    ];
    Unit {
        name: "change",
        by_hand,
        limits: Vec::new(),
        draw: |r| {
            let (high, low) = (40 * ONE_U64, 39 * ONE_U64);
            let mut pair = Pair {
                values: [(); 2].map(|()| r.between(low, high) as u32),
                weights_q16: [(); 2].map(|()| r.pick(&[0, 1, ONE])),
                system: [r.pick(&[0, 1, 1000, 65_543]), r.below(60) as u32],
            };
            if r.one_in(4) {
                pair.system = [(); 2].map(|()| r.wide(16) as u32);
                return request(3, 1, [r.wide(32), r.wide(32)], 0, pair);
            }
            let (allowed, arm) = (r.below(4) as u32, r.below(2) as u32);
            let flow = [r.between(100, 200), r.below(100)];
            request(allowed, arm, flow, r.u32(), pair)
        },
        draws: 200,
    }
}

/// A record near the rule's limits: evidence, gaps, credit, fruitless trials, segments, queues.
fn drawn_record(r: &mut Random) -> abi::thalweg_host {
    let mut host = abi::thalweg_host {
        connections: r.below(100) as u32,
        scored: r.pick(&[0, 1, 5, 40]),
        credit_q16: r.pick(&[ONE / 2, 5 * ONE]),
        queue_q16: r.below(ONE_U64) as u32,
        base_rtt_us: r.pick(&[0, 2_000, 20_000]),
        trials: r.below(3) as u16,
        trial_ns: r.below(20) * SECOND_NS,
        used: ARMS as u16,
        harmful: (r.u32() & r.u32() & r.u32()) as u16,
        unsteady: (r.u32() & r.u32() & r.u32()) as u16,
        ..Default::default()
    };
    host.credit_q16 = r.below(host.credit_q16.into()) as u32;
    let gap = r.pick(&[1, 8]) * ONE_U64;
    for (arm, statistics) in host.arms.iter_mut().zip(&mut host.statistics) {
        arm.value = 40 * ONE + r.below(gap) as u32;
        arm.weight_q16 = r.pick(&[0, 0, 1, 270, ONE / 4, ONE / 2, ONE, 2 * ONE, 8 * ONE]);
        arm.weight_q16 -= r.below(u64::from(arm.weight_q16) / 8 + 1) as u32;
        arm.chosen = r.below(80) as u32;
        arm.caution_q16 = r.below(ONE_U64 / 2) as u32;
        statistics.deviation_q16 = r.below(ONE_U64) as u32;
        statistics.log_rate_q16 = 22 * ONE + r.below(2 * ONE_U64) as u32;
        statistics.scored = r.below(10) as u32;
        statistics.segs = r.pick(&[0, 500, 4_000, 60_000]);
        statistics.retrans = (statistics.segs >> r.between(4, 9)) + r.below(6) as u32;
        statistics.retrans = statistics.retrans.min(statistics.segs);
        statistics.counted = r.pick(&[0, 5, 40, 255]);
        statistics.slow = r.below(u64::from(statistics.counted) / 4 + 3) as u16;
    }
    host
}

/// A request about a drawn record.
fn of_record(function: u32, r: &mut Random) -> Request {
    let allowed = r.pick(&[0x3, 0xf, 0xffff]);
    let mut request = Request {
        allowed,
        system_arm: r.pick(&members(allowed)),
        arm: r.pick(&members(allowed)),
        random: [r.u32() | r.pick(&[0, 0xff00]), 0, 0],
        now_ns: 20 * SECOND_NS,
        host: drawn_record(r),
        ..plain(function, [])
    };
    request.params.rescue_arm = r.pick(&[1, NO_ARM]);
    request
}

/// New connections to hosts with drawn records.
pub fn connect() -> Unit {
    Unit {
        name: "connect",
        by_hand: Vec::new(),
        limits: Vec::new(),
        draw: |r| of_record(raw::VECTOR_CONNECT, r),
        draws: 400,
    }
}

/// Measurements of hosts with drawn records.
pub fn score() -> Unit {
    Unit {
        name: "score",
        by_hand: Vec::new(),
        limits: Vec::new(),
        draw: |r| {
            let request = of_record(raw::VECTOR_SCORE, r);
            let samples = r.pick(&[
                bulk as Samples,
                overflowing,
                queueing,
                odd,
                limited,
                jumping,
            ]);
            Request {
                sample: samples(r, request.arm, 50),
                ..request
            }
        },
        draws: 400,
    }
}

/// Reviews of long connections to hosts with drawn records.
pub fn review() -> Unit {
    Unit {
        name: "review",
        by_hand: Vec::new(),
        limits: Vec::new(),
        draw: |r| of_record(raw::VECTOR_REVIEW, r),
        draws: 200,
    }
}
