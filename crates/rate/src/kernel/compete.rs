//! Beside flows that fill the queue: `bpf/include/rate_compete.h`. The reasons stand there.

use thalweg_learner::ONE_Q16;

use super::round::Round;
use super::state::{
    FIRST_WINDOW, MEAN_SHIFT, Phase, Rate, THALWEG_RATE_FLOOR, TcpSock, US_PER_S, WINDOW_MAX,
    mss_of,
};
use crate::MAX_RATE;

/// The window of RFC 9438, 4.3: what a loss leaves, and what a round without one adds.
pub(super) const FAIR_KEEP_Q16: u32 = 45_875;
const FAIR_ADD: u32 = 542;
/// Fractional bits of a fair window: its unit is segments / 1024.
pub(super) const FAIR_SHIFT: u32 = 10;
const FAIR_MAX: u64 = WINDOW_MAX << FAIR_SHIFT;
const FAIR_MIN: u32 = 2 << FAIR_SHIFT;
const FAIR_FIRST: u64 = FIRST_WINDOW << FAIR_SHIFT;
/// Part of the queue before a probe; a probe that leaves less than this part has drained the queue.
const DRAINED_PART: u32 = 4;
/// Queue that counts as drained, µs, unless the flow is starved. Half the base RTT counts as
/// drained in any case.
const SHORT_QUEUE_US: u32 = 8_000;
/// Common probes that find a queue, after which it counts as part of the path.
pub(super) const UNDRAINED_MAX: u8 = 4;

/// Whether the flow competes, or will after its probe.
pub(super) fn is_competing(ca: &Rate) -> bool {
    ca.phase == Phase::Compete || (ca.phase == Phase::ProbeRtt && ca.resumed == Phase::Compete)
}

/// Whether the common probe that ends has left a queue, which is that of others.
pub(super) fn is_undrained(ca: &Rate, prior_us: u32, base_us: u32) -> bool {
    let short_us = match ca.flags.starved {
        true => base_us / 2,
        false => (base_us / 2).max(SHORT_QUEUE_US),
    };
    ca.flags.sure
        && ca.flags.late
        && ca.undrained < UNDRAINED_MAX
        && ca.round_rtt_us > prior_us + short_us
        && ca.prior_mean_us > prior_us
        && (ca.round_rtt_us - prior_us) * DRAINED_PART > ca.prior_mean_us - prior_us
}

/// Makes TCP send its fair window, a little ahead of ACKs.
pub(super) fn apply_fair(ca: &mut Rate, tp: &mut TcpSock) {
    let rate = match ca.flags.ramp {
        true => 2 * ca.rate,
        false => ca.rate + ca.rate / 4,
    };
    ca.window = (ca.fair_window >> FAIR_SHIFT).min(tp.snd_cwnd_clamp).max(1);
    tp.sk_pacing_rate = rate.min(tp.sk_max_pacing_rate);
}

/// The first fair window: that of the present rate.
pub(super) fn start_competing(ca: &mut Rate, tp: &TcpSock) {
    let bytes = ca.rate * u64::from(ca.prior_mean_us) / US_PER_S;
    let window = (bytes << FAIR_SHIFT) / mss_of(tp);
    ca.fair_window = window.clamp(FAIR_FIRST, FAIR_MAX) as u32;
    ca.flags.ramp = true;
}

/// A round of `COMPETE`: sets the bounds of the rate to what its window sends.
pub(super) fn compete_round(ca: &mut Rate, tp: &TcpSock, round: &mut Round) {
    let rtt_us = u64::from((ca.mean_rtt >> MEAN_SHIFT).max(1));
    let is_full = tp.lost != ca.round_lost || tp.delivered_ce != ca.round_marked;
    round.keep_q16 = ONE_Q16;
    let mut window = ca.fair_window;
    if is_full && !ca.flags.cut {
        round.keep_q16 = FAIR_KEEP_Q16;
        ca.flags.ramp = false;
    } else if !ca.flags.limited {
        window += if ca.flags.ramp { window / 2 } else { FAIR_ADD };
    }
    let window = u64::from(window).min(FAIR_MAX);
    let rate = ((window * mss_of(tp)) >> FAIR_SHIFT) * US_PER_S / rtt_us;
    round.floor = rate.clamp(THALWEG_RATE_FLOOR, MAX_RATE);
    round.cap = round.floor;
    let kept = (window * u64::from(round.keep_q16)) >> 16;
    ca.fair_window = (kept as u32).max(FAIR_MIN);
}

/// A time-out: half the window.
pub(super) fn halve_fair(ca: &mut Rate) {
    ca.fair_window = (ca.fair_window / 2).max(FAIR_MIN);
}
