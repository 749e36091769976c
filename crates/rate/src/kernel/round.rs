//! The measurements of a round, and the resulting bounds for the next rate:
//! `bpf/include/rate_round.h`. The reasons stand there.

use thalweg_learner::ONE_Q16;

use super::state::{
    MEAN_SHIFT, Phase, Rate, Settings, THALWEG_RATE_FLOOR, TcpSock, US_PER_S, mss_of,
};
use crate::{MAX_RATE, Measurement};

/// Largest burst of TCP, whatever the rate: the resolution of measurements.
const BURST_BYTES: u64 = 65_536;
/// Base round trips in which a queue should drain.
const DRAIN_ROUNDS: u64 = 4;
/// Less than one packet lost in this many counts as random loss. Without a queue it is one in
/// `CLEAR_LOSS_SHARE`, and `CLEAR_LOSSES` beside.
const LOSS_SHARE: u64 = 50;
const CLEAR_LOSS_SHARE: u64 = 10;
const CLEAR_LOSSES: u64 = 2;
/// A queue is seen from this part of the target on.
const QUEUE_PART: u64 = 4;
/// With fewer bytes in a base round trip, a round has one burst or two.
const COARSE_BYTES: u64 = 16_384;
/// Others fill the queue of a flow that is at the lowest rates and above its target, or so far
/// above it after so many decisions that reduced the rate.
const STARVED_RATE: u64 = 2 * THALWEG_RATE_FLOOR;
const STARVED_TARGETS: u64 = 4;
const STARVED_FALLS: u32 = 12;

/// A finished round: its measurements, and their consequences for the rate.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Round {
    pub delivered_rate: u64,
    /// The higher rate of two rounds, because ACKs of both may come in one.
    pub arriving: u64,
    pub floor: u64,
    pub cap: u64,
    /// The base plus the queue.
    pub rtt_us: u32,
    pub base_us: u32,
    pub keep_q16: u32,
    /// `THALWEG_RATE_LIMITED`.
    pub limited: bool,
    /// `THALWEG_RATE_HELD`.
    pub held: bool,
    /// `THALWEG_RATE_PROBING`.
    pub probing: bool,
    pub coarse: bool,
    pub at_target: bool,
    /// Others seem to fill the queue.
    pub starved: bool,
}

/// The model's signal for this rate and queue, Q24.
pub(super) fn signal_q24(set: &Settings<'_>, rate: u64, rtt_us: u32, base_us: u32) -> u64 {
    set.model.features().signal_q24(&Measurement {
        rtt_ns: u64::from(rtt_us) * 1000,
        base_rtt_ns: u64::from(base_us) * 1000,
        rate,
        line_rate: set.reference_rate,
    })
}

/// Whether the rate is so low that a round has only a burst or two.
pub(super) fn is_coarse(ca: &Rate, base_us: u32) -> bool {
    ca.phase != Phase::Startup && ca.rate * u64::from(base_us) < COARSE_BYTES * US_PER_S
}

/// Share of the rate that is kept after the round's losses and marks, Q16.
fn keep_q16(ca: &Rate, delivered: u64, lost: u64, marked: u64, queue: bool) -> u32 {
    let one = u64::from(ONE_Q16);
    let all = delivered + lost;
    if ca.flags.cut || all == 0 {
        return ONE_Q16;
    }
    let mut keep = one;
    let is_overflow = match queue {
        true => lost > 0 && lost * LOSS_SHARE >= all,
        false => lost > CLEAR_LOSSES && (lost - CLEAR_LOSSES) * CLEAR_LOSS_SHARE >= all,
    };
    if is_overflow {
        keep = one.saturating_sub(lost * one / all);
    }
    keep = keep.max(one / 2);
    // A round with nothing but marks costs a fifth (RFC 8511).
    let marked = marked.min(all);
    (keep - keep * marked / (5 * all)) as u32
}

/// The mean of the round, or of the one before if all its ACKs were delayed.
fn queue_us(ca: &Rate) -> u32 {
    (ca.mean_rtt >> MEAN_SHIFT).saturating_sub(ca.min_rtt_us)
}

/// The measurements of the round.
pub(super) fn measure_round(
    ca: &mut Rate,
    tp: &TcpSock,
    set: &Settings<'_>,
    base_us: u32,
) -> Round {
    let elapsed_us = (tp.tcp_mstamp as u32).wrapping_sub(ca.round_us).max(1);
    let delivered = u64::from(tp.delivered.wrapping_sub(ca.round_delivered));
    let delivered_rate = delivered * mss_of(tp) * US_PER_S / u64::from(elapsed_us);
    let arriving = match ca.phase {
        Phase::Compete => delivered_rate,
        _ => delivered_rate.max(u64::from(ca.last_delivered) << 10),
    };
    if ca.phase == Phase::Steady {
        ca.last_delivered = (delivered_rate >> 10).min(u32::MAX.into()) as u32;
    }
    let lost = u64::from(tp.lost.wrapping_sub(ca.round_lost));
    let marked = u64::from(tp.delivered_ce.wrapping_sub(ca.round_marked));
    let coarse = is_coarse(ca, base_us);
    let rtt_us = base_us + queue_us(ca);
    let signal = signal_q24(set, ca.rate, rtt_us, base_us);
    let target = u64::from(set.model.features().target_q24());
    let keep_q16 = keep_q16(ca, delivered, lost, marked, signal * QUEUE_PART >= target);
    let at_target = signal >= target;
    let starved = ca.phase == Phase::Steady
        && at_target
        && (ca.rate <= STARVED_RATE
            || (ca.counter >= STARVED_FALLS && signal >= STARVED_TARGETS * target));
    Round {
        delivered_rate,
        arriving,
        rtt_us,
        base_us,
        keep_q16,
        coarse,
        at_target,
        starved,
        limited: ca.flags.limited,
        ..Round::default()
    }
}

/// The bounds of the next rate.
pub(super) fn bound_next_rate(ca: &Rate, tp: &TcpSock, round: &mut Round) {
    let arriving = round.arriving;
    let base_us = u64::from(round.base_us);
    // An unused rate does not grow, however empty the model sees the queue, and decays after a
    // while. The decay is left out if the application limits the rate.
    let burst = BURST_BYTES.min(u64::from(ca.window) * mss_of(tp));
    let used = 2 * arriving + burst * US_PER_S / base_us;
    round.cap = ca.rate - if ca.flags.limited { 0 } else { ca.rate / 8 };
    round.cap = round.cap.max(used).min(MAX_RATE);
    // Below the delivery rate only by what drains the queue in `DRAIN_ROUNDS`: a quarter at most,
    // and a sixteenth if no queue is seen.
    let queue = (u64::from(round.rtt_us) - base_us)
        .max(base_us / 4)
        .min(base_us);
    let drained = arriving - arriving * queue / (DRAIN_ROUNDS * base_us);
    round.floor = ca.rate.min(drained).max(THALWEG_RATE_FLOOR);
    // Both bounds hold a flow to its present rate. With a delivery rate known only to a burst they
    // would change rates by chance.
    if round.coarse {
        round.floor = THALWEG_RATE_FLOOR;
    }
    // While there is a queue, a rate above the delivery rate only lengthens it.
    if ca.phase != Phase::Startup && round.at_target && !round.coarse {
        round.cap = round.cap.min((arriving * 9 / 8).max(ca.rate / 2));
    }
    if ca.flags.limited || round.keep_q16 < ONE_Q16 {
        round.held = true;
        round.cap = ca.rate.min(round.cap);
    }
}
