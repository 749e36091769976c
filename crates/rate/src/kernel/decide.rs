//! The model's decision: `bpf/include/rate_decide.h`, without the ring that reports it.

use super::compete::{apply_fair, compete_round};
use super::round::Round;
use super::state::{Phase, Rate, Settings, THALWEG_RATE_FLOOR, TcpSock, apply_rate};
use crate::{Measurement, next_rate};

/// The model's decision. The program may have to wait for the next ACK, because an interrupt holds
/// the CPU's slots; here a decision is always made. In `COMPETE` the window decides.
pub(super) fn make_decision(
    ca: &mut Rate,
    tp: &mut TcpSock,
    set: &Settings<'_>,
    round: &mut Round,
) {
    let measurement = Measurement {
        rtt_ns: u64::from(round.rtt_us) * 1000,
        base_rtt_ns: u64::from(round.base_us) * 1000,
        rate: ca.rate,
        line_rate: set.reference_rate,
    };
    let action = set.model.decide_action(&mut ca.network, &measurement);
    if ca.phase == Phase::Compete {
        compete_round(ca, tp, round);
    }
    ca.rate = next_rate(ca.rate, action, round.floor, round.cap);
    ca.rate = ((ca.rate * u64::from(round.keep_q16)) >> 16).max(THALWEG_RATE_FLOOR);
    if ca.phase == Phase::Compete {
        apply_fair(ca, tp);
        return;
    }
    ca.counter = if action < 0 { ca.counter + 1 } else { 0 };
    let rate = ca.rate;
    apply_rate(ca, tp, rate, round.base_us, round.rtt_us);
}
