//! Initial windows: a second choice for a connection, by what its groups know.
//!
//! Most connections are so short that a congestion control hardly matters, but the first flight does.
//! The record has the form of a [group](crate::Level)'s, and its arms are windows: arm *i* is
//! [`arm_segments`]`(i)`. Arm [`OWN`] is the kernel's own window (RFC 6928), and takes the place of the
//! system's arm. A connection reports to all of its groups, the widest first ([`window_report`],
//! [`score_group`](crate::score_group), [`step_window`], [`adopt_wider`](crate::adopt), [`start_from_wider`]); the narrowest
//! that knows enough decides ([`decide_group`](crate::decide_group)) among the windows that it
//! [permits](permitted).

use crate::fixed::{ONE_Q16, log2_q16};
use crate::group::{OFFSET_Q16, Report};
use crate::host::Host;
use crate::sample::{End, Sample};
use crate::thalweg;

/// Number of windows.
pub const COUNT: usize = 12;
/// The kernel's own window, segments (RFC 6928).
pub const LEAST: u32 = 10;
/// The largest, segments.
pub const MOST: u32 = 32;
/// The arm of the kernel's own window.
pub const OWN: usize = 0;
/// The windows to choose from, as a mask of arms, unless the operator says otherwise: 10, 16, 24 and
/// 32 segments.
pub const DEFAULT_MASK: u16 = 1 << OWN | 1 << 3 | 1 << 7 | 1 << 11;
/// Transfers of more bytes say little about the first round trip.
const BYTES_MAX: u64 = 256 * 1024;
/// Scored connections before the first step up.
const FIRST: u32 = 128;
/// Scored connections before every other step up.
const STEP: u32 = 1000;
/// Evidence of the largest window below which there is no step up: 8 measurements.
const KNOWN_Q16: u32 = 8 << 16;
/// Excess of a window's retransmissions over those of the kernel's own window that makes it too
/// large: segments in a thousand, besides the allowance for chance.
const EXCESS: u64 = 3;
/// Allowance for chance in a window's retransmissions: 2^(this/2) times the root of the expected
/// number.
const CHANCE_SHIFT: u32 = 3;
/// No verdict on fewer segments.
const SEGS: u64 = 2000;
/// The counts of a window's segments and retransmissions are halved at this many segments. A share of
/// them per connection would round to no retransmission at all.
const SEGS_MAX: u32 = 1 << 15;

/// The window of an arm, segments.
pub fn arm_segments(arm: usize) -> u32 {
    LEAST + 2 * arm as u32
}

/// The arm of a window; `None` if it cannot be chosen: 10 to 32 segments, even.
pub fn window_arm(segments: u32) -> Option<usize> {
    let fits = (LEAST..=MOST).contains(&segments) && segments.is_multiple_of(2);
    fits.then(|| ((segments - LEAST) / 2) as usize)
}

/// A connection's report of its initial window, and the sample to score; `None`: nothing. The
/// connection must be over, without a time-out, have sent more than the kernel's own window, and
/// 256 KiB at most.
///
/// The cost is the time with data outstanding in units of the round trips that slow start needs with
/// the kernel's own window, log2(1 + segments / 10), in bits; retransmissions cost as for congestion
/// controls. The reference does not depend on the window, so it only takes away what the size explains.
pub fn window_report(sample: &Sample) -> Option<(Report, Sample)> {
    let over = matches!(sample.end, End::FinLocal | End::FinRemote | End::Reset);
    let segs = u64::from(sample.segs_out).checked_sub(sample.retrans.into())?;
    let tells = segs > LEAST.into() && sample.bytes <= BYTES_MAX;
    if !over || !tells || sample.min_rtt_us == 0 || sample.duration_us == 0 {
        return None;
    }
    let rounds_q16 = log2_q16(segs + u64::from(LEAST)) - log2_q16(LEAST.into());
    let time_q16 = u64::from(OFFSET_Q16) + u64::from(log2_q16(sample.duration_us));
    let cost = time_q16 + thalweg::waste_q16(sample);
    // The number of rounds is in Q16, so its logarithm has 16 bits more.
    let system_q16 =
        OFFSET_Q16 - (16 << 16) + log2_q16(sample.min_rtt_us.into()) + log2_q16(rounds_q16.into());
    let report = Report {
        cost_q16: cost.min(u32::MAX.into()) as u32,
        // A rate tells nothing beside the time.
        log_rate_q16: 1,
        weight_q16: ONE_Q16,
        system_q16,
        system_log_rate_q16: 1,
        queue_q16: 0,
    };
    // Losses in slow start count: it is what the window changes.
    let sample = Sample {
        steady_segs: sample.segs_out,
        steady_retrans: sample.retrans,
        ..*sample
    };
    Some((report, sample))
}

/// Mask of the windows that a record permits, of those that the operator permits.
pub fn permitted_windows(group: &Host, windows: u16) -> u16 {
    let up_to = (2u32 << (group.step & 15)) - 1;
    (u32::from(windows) & up_to) as u16
}

/// Whether a window causes losses of its own.
fn causes_losses(group: &Host, arm: usize) -> bool {
    let own = &group.arms[OWN];
    let (segs, own_segs) = (u64::from(group.arms[arm].segs), u64::from(own.segs));
    if segs < SEGS || own_segs < SEGS {
        return false;
    }
    let expected = (u64::from(own.retrans) + 1) * segs / own_segs;
    let usual = expected + segs * EXCESS / 1000;
    let beyond = u64::from(group.arms[arm].retrans).saturating_sub(usual);
    beyond * beyond > expected << CHANCE_SHIFT
}

/// Halves the counts of segments that are full, and takes a step after a measurement. Down, below the smallest window that causes losses of its own. Up,
/// by one window, if the largest that may be chosen is the best one: after 128 measurements at first,
/// then after 1,000 since the last step. What was counted of the new one before is forgotten, so that
/// it is tried anew.
pub fn step_window(group: &mut Host, windows: u16) {
    for state in group.arms[..COUNT]
        .iter_mut()
        .filter(|arm| arm.segs >= SEGS_MAX)
    {
        (state.segs, state.retrans) = (state.segs / 2, state.retrans / 2);
    }
    let is_set = |&i: &usize| windows >> i & 1 != 0;
    let chosen = |i: &usize| *i <= group.step as usize;
    let mut tried = (1..COUNT).filter(is_set).filter(chosen);
    if let Some(harmful) = tried.clone().find(|&i| causes_losses(group, i)) {
        let below = (1..harmful).rev().find(is_set).unwrap_or(OWN);
        (group.step, group.step_scored) = (below as u32, group.scored);
        return;
    }
    let top = &group.arms[tried.clone().next_back().unwrap_or(OWN)];
    let is_best = top.value <= group.arms[OWN].value
        && tried.all(|i| group.arms[i].weight_q16 == 0 || top.value <= group.arms[i].value);
    let wait = if group.step_scored == 0 { FIRST } else { STEP };
    let above = (1..COUNT).filter(is_set).find(|i| !chosen(i));
    if let Some(above) = above
        && is_best
        && top.weight_q16 >= KNOWN_Q16
        && group.scored.wrapping_sub(group.step_scored) >= wait
    {
        (group.step, group.step_scored) = (above as u32, group.scored);
        let state = &mut group.arms[above];
        (state.segs, state.retrans) = (0, 0);
        // A trace is left, as with time.
        state.weight_q16 = state.weight_q16.min(1);
        state.own_weight_q16 = state.own_weight_q16.min(1);
    }
}

/// A new record begins where the wider one is.
pub fn start_from_wider(group: &mut Host, wider: &Host) {
    if group.scored <= 1 && group.step < wider.step {
        (group.step, group.step_scored) = (wider.step, group.scored);
    }
}
