//! The rules of the learned rate controller in TCP, as `bpf/rate.bpf.c` has them.
//!
//! The simulator runs them behind its Linux sender. Files, functions and order are those of the C,
//! so that a change there is easily carried over: `rate.bpf.c` is this file, `rate_state.h`,
//! `rate_round.h`, `rate_path.h`, `rate_compete.h` and `rate_decide.h` are `state.rs`, `round.rs`,
//! `path.rs`, `compete.rs` and `decide.rs`. The arithmetic is in integers of the same width.
//! Reasons stand in the C; `docs/reference/cc.md` explains the rules. Left out is what the kernel
//! needs alone: slots, the ring of decisions, maps.

mod compete;
mod decide;
mod path;
mod round;
mod state;
#[cfg(test)]
mod tests;

pub use path::Path;
pub use state::{
    Decide, Phase, Rate, RateSample, Settings, THALWEG_RATE_DEFAULT_REFERENCE,
    THALWEG_RATE_DEFAULT_REFERENCE_RTT_US, THALWEG_RATE_FLOOR, TcpSock,
};

use thalweg_learner::ONE_Q16;

use crate::MAX_RATE;
use compete::{apply_fair, halve_fair, is_competing, is_undrained, start_competing};
use decide::make_decision;
use path::{ask_path, tell_path};
use round::{Round, bound_next_rate, is_coarse, measure_round, signal_q24};
use state::{
    FIRST_WINDOW, MEAN_SHIFT, US_PER_S, apply_rate, base_rtt_us, mss_of, set_pacing, start_round,
};

/// Interval of probes for the shortest round-trip time, and their least duration.
const PROBE_PERIOD_NS: u64 = 5_000_000_000;
const PROBE_US: u32 = 20_000;
/// Longest time for the queue to drain.
const PROBE_QUEUE_US: u32 = 500_000;
/// A longer probe, after one that found nothing, waits for the fourth period.
const LONG_PROBE_US: u32 = 250_000;
/// Rounds with hardly more delivered after which `STARTUP` ends.
const FULL_ROUNDS: u32 = 3;
/// Decisions in a row that reduce the rate, after which the shortest round-trip time must have
/// changed.
const FALLING_MAX: u32 = 48;
/// Interval at which flows that others starve probe.
const STARVED_PERIOD_NS: u64 = 1_000_000_000;
/// A probe lasts so many times its duration at most, if nothing sent late in it arrives.
const LATE_PROBES: u32 = 4;
/// A pause after which a flow starts over.
const IDLE_US: u32 = 1_000_000;
/// A coarse flow waits for so many round-trip times, but no longer than so many base ones.
const COARSE_SAMPLES: u16 = 2;
const COARSE_ROUND_TRIPS: u32 = 4;
/// Samples of a round whose mean is exact; later ones weigh as the last of these.
const SAMPLES_MAX: u16 = 1024;

/// Events of `rate_cwnd_event`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CwndEvent {
    /// `CA_EVENT_LOSS`: a retransmission time-out.
    Loss,
    /// `CA_EVENT_TX_START`: the first packet after all were acknowledged.
    TxStart,
}

/// Advances at the same moments for all flows.
fn epoch_now(tai_ns: u64) -> u16 {
    (tai_ns / PROBE_PERIOD_NS) as u16
}

fn second_now(tai_ns: u64) -> u8 {
    (tai_ns / STARVED_PERIOD_NS) as u8
}

/// Duration of a probe: at half the rate a queue takes twice its length to drain.
fn probe_us(ca: &Rate, base_us: u32) -> u32 {
    2 * base_us + (2 * (ca.mean_rtt >> MEAN_SHIFT)).min(PROBE_QUEUE_US) + PROBE_US
}

/// A flow whose handshake is over. `tai_ns` is the clock that hosts agree on.
pub fn rate_init(tp: &mut TcpSock, set: &Settings<'_>, tai_ns: u64) -> Rate {
    let mut ca = Rate::default();
    let rtt_us = tp.srtt_us >> 3;
    ca.min_rtt_us = rtt_us;
    ca.epoch = epoch_now(tai_ns);
    ca.second = second_now(tai_ns);
    let epoch = ca.epoch;
    ask_path(&mut ca, tp, epoch);
    start_round(&mut ca, tp);
    let base_us = base_rtt_us(&ca, set);
    let rate = u64::from(tp.snd_cwnd) * mss_of(tp) * US_PER_S / u64::from(base_us);
    ca.rate = rate.clamp(THALWEG_RATE_FLOOR, MAX_RATE);
    let rate = ca.rate;
    apply_rate(&mut ca, tp, rate, base_us, rtt_us);
    tp.snd_ssthresh = 0x7fff_ffff;
    set_pacing(tp, true);
    ca
}

/// Starts a phase that a probe may follow.
fn enter(ca: &mut Rate, phase: Phase) {
    ca.phase = phase;
    ca.counter = 0;
}

/// Whether `STARTUP` has found the capacity: at twice the rate hardly more is delivered, round
/// after round. A round that the application limited tells nothing of the path.
fn is_full(ca: &mut Rate, round: &Round) -> bool {
    let delivered = round.delivered_rate >> 10;
    if round.limited {
        ca.counter = 0;
    } else if delivered * 4 >= u64::from(ca.last_delivered) * 5 {
        ca.last_delivered = delivered.min(u32::MAX.into()) as u32;
        ca.counter = 0;
    } else {
        ca.counter += 1;
    }
    ca.counter >= FULL_ROUNDS
}

/// A round of `STARTUP`: twice the rate, or on to `STEADY`.
fn start_up(ca: &mut Rate, tp: &mut TcpSock, set: &Settings<'_>, round: &mut Round, epoch: u16) {
    let full = is_full(ca, round);
    if full
        || round.keep_q16 < ONE_Q16
        || signal_q24(set, round.delivered_rate, round.rtt_us, round.base_us)
            >= set.model.features().target_q24().into()
    {
        // Full without a queue: the path seems longer than it is.
        round.probing |= full;
        // Flows that started at the same time may have found a shorter path meanwhile.
        ask_path(ca, tp, epoch);
        tell_path(ca, tp, epoch, false);
        enter(ca, Phase::Steady);
        if ca.rate > round.delivered_rate {
            ca.rate = round.delivered_rate.max(THALWEG_RATE_FLOOR);
        }
    } else {
        ca.rate = (2 * ca.rate).min(round.cap);
    }
    let rate = ca.rate;
    apply_rate(ca, tp, rate, round.base_us, round.rtt_us);
}

/// On to `PROBE_RTT`; `common`: all flows do so now.
fn begin_probe(ca: &mut Rate, tp: &mut TcpSock, round: &Round, common: bool) {
    // Half of the delivery rate, because the rate may exceed the flow's share. An application with
    // little to send makes no queue, and is not held up.
    let mut rate = ca.rate.min(round.arriving) / 2;
    if round.limited {
        rate = (ca.rate / 2).max(round.arriving);
    }
    // The result of a flow that probes alone may include the others' queue.
    ca.flags.sure = common;
    ca.flags.late = false;
    ca.flags.starved = round.starved;
    ca.resumed = ca.phase;
    ca.phase = Phase::ProbeRtt;
    ca.counter = ca.min_rtt_us;
    apply_rate(
        ca,
        tp,
        rate.max(THALWEG_RATE_FLOOR),
        round.base_us,
        round.base_us,
    );
}

/// A common probe left a queue: others fill it if a second one does, too.
fn end_undrained(ca: &mut Rate, tp: &mut TcpSock, base_us: u32) {
    if ca.resumed == Phase::Compete {
        ca.undrained += 1;
    } else if ca.flags.suspect {
        ca.resumed = Phase::Compete;
        start_competing(ca, tp);
    }
    ca.flags.suspect = true;
    let (resumed, rate, rtt_us) = (ca.resumed, ca.rate, ca.min_rtt_us);
    enter(ca, resumed);
    match resumed {
        Phase::Compete => apply_fair(ca, tp),
        _ => apply_rate(ca, tp, rate, base_us, rtt_us),
    }
    start_round(ca, tp);
}

/// Half the rate, long enough for the queue to drain: this is the remaining round-trip time.
fn end_probe(ca: &mut Rate, tp: &mut TcpSock, set: &Settings<'_>, tai_ns: u64) {
    let epoch = epoch_now(tai_ns);
    let prior_min_rtt_us = ca.counter;
    ca.min_rtt_us = prior_min_rtt_us;
    let base_us = base_rtt_us(ca, set);
    if is_undrained(ca, prior_min_rtt_us, base_us) {
        end_undrained(ca, tp, base_us);
        return;
    }
    ca.undrained = 0;
    ca.flags.suspect = false;
    if ca.resumed == Phase::Compete {
        ca.resumed = Phase::Steady;
        ca.last_delivered = 0;
    }
    if ca.round_rtt_us != 0 {
        ca.min_rtt_us = ca.round_rtt_us;
    }
    // A flow that probes alone finds the others' queue.
    if ca.flags.sure {
        tell_path(ca, tp, epoch, true);
    } else {
        ask_path(ca, tp, epoch);
    }
    if ca.min_rtt_us < prior_min_rtt_us - prior_min_rtt_us / 8 {
        ca.flags.sure = false;
    }
    let (resumed, rate, rtt_us) = (ca.resumed, ca.rate, ca.min_rtt_us);
    enter(ca, resumed);
    let base_us = base_rtt_us(ca, set);
    apply_rate(ca, tp, rate, base_us, rtt_us);
    start_round(ca, tp);
}

/// The round is over.
fn end_round(ca: &mut Rate, tp: &mut TcpSock, set: &Settings<'_>, base_us: u32, tai_ns: u64) {
    if ca.phase == Phase::ProbeRtt {
        end_probe(ca, tp, set, tai_ns);
        return;
    }
    let mut round = measure_round(ca, tp, set, base_us);
    bound_next_rate(ca, tp, &mut round);

    let epoch = epoch_now(tai_ns);
    let second = second_now(tai_ns);
    // The start of a flow that the application limits fills no queue.
    let mut common = ca.epoch != epoch
        && !(ca.phase == Phase::Startup && ca.flags.limited)
        && (!ca.flags.sure || epoch & 3 == 0 || probe_us(ca, base_us) < LONG_PROBE_US);
    // Others' queue starves all flows: they soon probe at the same moments, too.
    common |= round.starved && ca.second != second;
    round.probing |= common || (ca.phase == Phase::Steady && ca.counter >= FALLING_MAX);
    if ca.phase == Phase::Startup {
        start_up(ca, tp, set, &mut round, epoch);
    } else {
        make_decision(ca, tp, set, &mut round);
    }
    ca.epoch = epoch;
    ca.second = second;
    if round.probing {
        begin_probe(ca, tp, &round, common);
    }
    let needed = round.at_target || ca.phase == Phase::ProbeRtt || ca.rate < set.reference_rate;
    set_pacing(tp, needed);
    ca.flags.cut = round.keep_q16 < ONE_Q16;
    start_round(ca, tp);
    if ca.phase == Phase::ProbeRtt {
        ca.prior_mean_us = ca.mean_rtt >> MEAN_SHIFT;
    }
}

/// Takes a round-trip time. One that is much longer than usual counts as a base round trip more.
fn measure_rtt(ca: &mut Rate, rtt_us: u32, is_ack_delayed: bool, base_us: u32) {
    let mut now = rtt_us << MEAN_SHIFT;
    if is_ack_delayed && rtt_us > ca.min_rtt_us {
        return;
    }
    if ca.mean_rtt != 0 {
        now = now.min(ca.mean_rtt + (base_us << MEAN_SHIFT));
    }
    if ca.samples < SAMPLES_MAX {
        ca.samples += 1;
    }
    let samples = u32::from(ca.samples);
    if samples == 1 {
        ca.mean_rtt = now;
    } else if now > ca.mean_rtt {
        ca.mean_rtt += (now - ca.mean_rtt) / samples;
    } else {
        ca.mean_rtt -= (ca.mean_rtt - now) / samples;
    }
    if ca.round_rtt_us == 0 || rtt_us < ca.round_rtt_us {
        ca.round_rtt_us = rtt_us;
    }
    if ca.min_rtt_us == 0 || rtt_us < ca.min_rtt_us {
        ca.min_rtt_us = rtt_us;
    }
}

/// Whether a round that is long enough waits for one more round-trip time.
fn is_waiting(ca: &Rate, elapsed_us: u32, length_us: u32, base_us: u32) -> bool {
    if ca.phase == Phase::ProbeRtt {
        return !ca.flags.late && elapsed_us < LATE_PROBES * length_us;
    }
    ca.samples < COARSE_SAMPLES
        && is_coarse(ca, base_us)
        && elapsed_us < COARSE_ROUND_TRIPS * base_us
}

/// An ACK. `tai_ns` is the clock that hosts agree on.
pub fn rate_control(
    ca: &mut Rate,
    tp: &mut TcpSock,
    set: &Settings<'_>,
    sample: &RateSample,
    tai_ns: u64,
) {
    if let Some(rtt_us) = sample.rtt_us {
        let rtt_us = rtt_us.clamp(1, 10_000_000);
        measure_rtt(ca, rtt_us, sample.is_ack_delayed, base_rtt_us(ca, set));
    }
    ca.flags.limited |= sample.is_app_limited;

    let base_us = base_rtt_us(ca, set);
    let length_us = match ca.phase {
        Phase::ProbeRtt => probe_us(ca, base_us),
        _ => base_us,
    };
    let elapsed_us = (tp.tcp_mstamp as u32).wrapping_sub(ca.round_us);
    if ca.phase == Phase::ProbeRtt
        && !sample.is_ack_delayed
        && let Some(rtt_us) = sample.rtt_us
        && elapsed_us > rtt_us.saturating_add(length_us / 2)
    {
        ca.flags.late = true;
    }
    // The kernel's seq_before() of 32-bit counters.
    let is_of_round = (sample.prior_delivered)
        .is_some_and(|prior| prior.wrapping_sub(ca.round_delivered) as i32 >= 0);
    if is_of_round && elapsed_us >= length_us && !is_waiting(ca, elapsed_us, length_us, base_us) {
        end_round(ca, tp, set, base_us, tai_ns);
    }

    if tp.is_in_loss {
        // As much may enter the network as leaves it.
        tp.snd_cwnd = (tp.snd_cwnd + sample.acked_sacked).min(ca.window);
    } else {
        tp.snd_cwnd = ca.window;
    }
}

/// The rate after a pause: half for each second, but not below that of a new connection's first
/// window.
fn rate_after_pause(ca: &Rate, tp: &TcpSock, set: &Settings<'_>, idle_us: u32) -> u64 {
    let first = FIRST_WINDOW * mss_of(tp) * US_PER_S / u64::from(base_rtt_us(ca, set));
    (ca.rate >> (idle_us / IDLE_US).min(4)).max(ca.rate.min(first))
}

/// Sets phase and rate outside the rounds.
fn restart(ca: &mut Rate, tp: &mut TcpSock, set: &Settings<'_>, phase: Phase, rate: u64) {
    ca.rate = rate.max(THALWEG_RATE_FLOOR);
    // What was delivered, and what probes found before a pause, says nothing of the path after it.
    if phase == Phase::Startup {
        ca.flags.suspect = false;
        ca.undrained = 0;
    }
    if phase == Phase::Startup || (phase != Phase::Compete && is_competing(ca)) {
        ca.last_delivered = 0;
    }
    // One phase would count on from the other's counter.
    if phase == Phase::Startup || ca.phase == Phase::ProbeRtt {
        enter(ca, phase);
    }
    ca.phase = phase;
    ca.flags.cut = false;
    start_round(ca, tp);
    set_pacing(tp, true);
    let (rate, base_us, rtt_us) = (ca.rate, base_rtt_us(ca, set), ca.min_rtt_us);
    match phase {
        Phase::Compete => apply_fair(ca, tp),
        _ => apply_rate(ca, tp, rate, base_us, rtt_us),
    }
}

/// A time-out, or the first packet after all were acknowledged.
pub fn rate_cwnd_event(ca: &mut Rate, tp: &mut TcpSock, set: &Settings<'_>, event: CwndEvent) {
    let idle_us = (tp.tcp_mstamp as u32).wrapping_sub(ca.round_us);
    match event {
        CwndEvent::Loss => {
            let rate = ca.rate / 2;
            if is_competing(ca) {
                halve_fair(ca);
                restart(ca, tp, set, Phase::Compete, rate);
            } else {
                restart(ca, tp, set, Phase::Steady, rate);
            }
        }
        CwndEvent::TxStart if idle_us > IDLE_US && idle_us > ca.min_rtt_us * 4 => {
            let rate = rate_after_pause(ca, tp, set, idle_us);
            restart(ca, tp, set, Phase::Startup, rate);
        }
        CwndEvent::TxStart => {}
    }
}
