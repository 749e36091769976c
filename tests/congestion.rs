//! The arithmetic of H-TCP and DCTCP against values computed by hand from their sources.

use proptest::prelude::*;
use thalweg_tests::cc::{
    dctcp_alpha_q16, dctcp_ssthresh, htcp_acks_per_segment, htcp_alpha_q7, htcp_beta_q7,
    htcp_ssthresh,
};

const HALF_Q7: u32 = 64;
const ONE_Q16: u32 = 65536;

#[test]
fn htcp_grows_as_reno_for_a_second_and_then_by_the_polynomial() {
    // 2 (1 - 1/2) = 1, so alpha is 1 + 10 t + t²/4 itself; 100 ms scale by 1.
    let alpha = |seconds_beyond: u64| {
        let elapsed_us = (1 + seconds_beyond) * 1_000_000;
        f64::from(htcp_alpha_q7(elapsed_us, HALF_Q7, 100_000)) / 128.0
    };
    assert_eq!(htcp_alpha_q7(0, HALF_Q7, 100_000), 128);
    assert_eq!(alpha(0), 1.0);
    assert_eq!(alpha(1), 11.25);
    assert_eq!(alpha(2), 22.0);
    assert_eq!(alpha(10), 126.0);
    // 1.5 s: 1 + 5 + 1/16.
    assert_eq!(htcp_alpha_q7(1_500_000, HALF_Q7, 100_000), 776);
}

#[test]
fn htcp_grows_less_where_it_was_cut_less() {
    // 0.8 is 102/128: 2 (1 - 102/128) = 52/128, of 11.25.
    assert_eq!(htcp_alpha_q7(2_000_000, 102, 100_000), 585);
    // Values beyond the bounds are limited.
    assert_eq!(htcp_alpha_q7(2_000_000, 127, 100_000), 585);
    assert_eq!(htcp_alpha_q7(2_000_000, 0, 100_000), 1440);
}

#[test]
fn htcp_scales_by_the_round_trip_within_a_tenth_and_two() {
    let at = |rtt_us| htcp_alpha_q7(11_000_000, HALF_Q7, rtt_us);
    assert_eq!(at(0), 126 * 128);
    assert_eq!(at(50_000), 63 * 128);
    assert_eq!(at(200_000), 252 * 128);
    assert_eq!(at(900_000), 252 * 128);
    // 12.6 segments.
    assert_eq!(at(10_000), 1612);
    assert_eq!(at(100), 1612);
    // Never slower than Reno.
    assert_eq!(htcp_alpha_q7(1_100_000, HALF_Q7, 100), 128);
}

#[test]
fn htcp_survives_a_year_without_loss() {
    let year_us = 365 * 24 * 3600 * 1_000_000;
    // At 1000 s beyond the first: 1 + 10,000 + 250,000, doubled for the round-trip time.
    assert_eq!(htcp_alpha_q7(year_us, HALF_Q7, 200_000), 2 * 260_001 * 128);
    assert_eq!(
        htcp_alpha_q7(u64::MAX, HALF_Q7, u32::MAX),
        2 * 260_001 * 128
    );
}

#[test]
fn htcp_cuts_by_what_was_queue_while_the_rate_is_steady() {
    // 75 of 100 ms are the path: 0.75 is 96/128.
    assert_eq!(htcp_beta_q7(75_000, 100_000, 1000, 1000), 96);
    assert_eq!(htcp_beta_q7(99_000, 100_000, 1000, 1000), 102);
    assert_eq!(htcp_beta_q7(20_000, 100_000, 1000, 1000), 64);
    // Up to a fifth more or less is steady.
    for (rate, expected) in [(800, 96), (1200, 96), (799, 64), (1201, 64)] {
        assert_eq!(
            htcp_beta_q7(75_000, 100_000, rate, 1000),
            expected,
            "{rate}"
        );
    }
    for unknown in [(0, 1, 1, 1), (1, 0, 1, 1), (1, 1, 0, 1), (1, 1, 1, 0)] {
        let (min, max, rate, previous) = unknown;
        assert_eq!(htcp_beta_q7(min, max, rate, previous), 64, "{unknown:?}");
    }
    assert_eq!(htcp_beta_q7(u32::MAX, u32::MAX, u32::MAX, u32::MAX), 102);
}

#[test]
fn htcp_windows() {
    assert_eq!(htcp_ssthresh(100, 96), 75);
    assert_eq!(htcp_ssthresh(3, 64), 2);
    assert_eq!(htcp_ssthresh(1_000_000_000, 102), 796_875_000);
    // 100 segments, growth of 11.25 per round trip: one per 8.9 acknowledged.
    assert_eq!(htcp_acks_per_segment(100, 1440), 8);
    assert_eq!(htcp_acks_per_segment(100, 128), 100);
    // Not faster than slow start, no division by zero.
    assert_eq!(htcp_acks_per_segment(1, u32::MAX), 1);
    assert_eq!(htcp_acks_per_segment(7, 0), 7);
}

#[test]
fn dctcp_follows_the_share_of_marks() {
    // (1 - 1/16) alpha + 1/16 M.
    assert_eq!(dctcp_alpha_q16(ONE_Q16, 0, 10), 61_440);
    assert_eq!(dctcp_alpha_q16(0, 10, 10), 4096);
    assert_eq!(dctcp_alpha_q16(ONE_Q16, 10, 10), ONE_Q16);
    // alpha 1/2, M 1/4: 15/32 + 1/64 = 31/64.
    assert_eq!(dctcp_alpha_q16(32_768, 1, 4), 31_744);
    // Nothing acknowledged, and more marks than segments.
    assert_eq!(dctcp_alpha_q16(0, 5, 0), 0);
    assert_eq!(dctcp_alpha_q16(0, 20, 10), 4096);
}

#[test]
fn dctcp_forgets_marks_entirely() {
    let mut alpha = ONE_Q16;
    let mut windows = 0;
    while alpha > 0 {
        let next = dctcp_alpha_q16(alpha, 0, 100);
        assert!(next < alpha, "stuck at {alpha}");
        alpha = next;
        windows += 1;
    }
    // ln(65536) / -ln(15/16) is 172; rounding slows the decay of small values.
    assert!((130..250).contains(&windows), "{windows}");
}

#[test]
fn dctcp_cuts_by_half_the_share() {
    assert_eq!(dctcp_ssthresh(100, ONE_Q16), 50);
    assert_eq!(dctcp_ssthresh(100, ONE_Q16 / 2), 75);
    assert_eq!(dctcp_ssthresh(100, 0), 100);
    assert_eq!(dctcp_ssthresh(3, ONE_Q16), 2);
    assert_eq!(dctcp_ssthresh(1, 0), 2);
    assert_eq!(dctcp_ssthresh(u32::MAX, ONE_Q16), 2_147_483_648);
}

/// RFC 8257, section 3.3, in floating point: DCTCP.Alpha after each window, g = 1/16.
fn formula(alpha: f64, marked: u32, acked: u32) -> f64 {
    const G: f64 = 1.0 / 16.0;
    alpha * (1.0 - G) + G * f64::from(marked) / f64::from(acked)
}

proptest! {
    /// The integers follow the formula for windows of any size with any marks, from the start of a
    /// connection (alpha 1). A step rounds the decay down and the share twice. The rounding changes
    /// alpha by less than 2^-16 each time, or by at least 1 where the formula hardly changes it. A
    /// step also forgets a sixteenth of the earlier error. So the error stays below 3 * 16 units of
    /// 2^-16.
    #[test]
    fn dctcp_follows_the_formula_through_any_marks(
        windows in prop::collection::vec((1u32..5000, 0.0f64..=1.0, 1usize..40), 1..60),
    ) {
        let (mut ours, mut theirs) = (ONE_Q16, 1.0);
        for (acked, share, times) in windows {
            let marked = (f64::from(acked) * share) as u32;
            for _ in 0..times {
                ours = dctcp_alpha_q16(ours, marked, acked);
                theirs = formula(theirs, marked, acked);
                let error = f64::from(ours) - theirs * f64::from(ONE_Q16);
                prop_assert!(error.abs() < 48.0, "{ours} against {theirs}");
                // The window after marks: cwnd (1 - alpha/2), to the segment (3.4).
                let cwnd = 2 * acked;
                let exact = f64::from(cwnd) * (1.0 - theirs / 2.0);
                let left = f64::from(dctcp_ssthresh(cwnd, ours));
                let bound = 1.0 + f64::from(cwnd) * 24.0 / f64::from(ONE_Q16);
                prop_assert!(left >= 2.0 && (left - exact.max(2.0)).abs() <= bound);
            }
        }
    }
}
