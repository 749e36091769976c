//! State of a flow, and how TCP is made to send at a rate: `bpf/include/rate_state.h`.

use std::fmt::Debug;

use super::path::Path;
use crate::{Features, Flow, Measurement, Model};

pub(super) const US_PER_S: u64 = 1_000_000;
/// Largest round-trip time for the window, in base round-trip times.
const WINDOW_ROUND_TRIPS: u32 = 8;
pub(super) const WINDOW_MAX: u64 = 1 << 20;
/// First window of a connection, segments (RFC 6928).
pub(super) const FIRST_WINDOW: u64 = 10;
/// Fractional bits of a mean round-trip time: its unit is µs / 16.
pub(super) const MEAN_SHIFT: u32 = 4;
/// The lowest rate of a flow, bytes/s: 200 kbit/s, a full segment in 60 ms.
pub const THALWEG_RATE_FLOOR: u64 = 25_000;
/// Default rate that counts as 1, bytes/s.
pub const THALWEG_RATE_DEFAULT_REFERENCE: u64 = 1_250_000_000;
/// Default round-trip time below which all count alike, µs.
pub const THALWEG_RATE_DEFAULT_REFERENCE_RTT_US: u32 = 2_000;

/// Decides in `STEADY`. In the kernel the model decides; a simulation may ask somebody else.
pub trait Decide: Debug {
    /// Target and offset of the signal, which the rules use, too.
    fn features(&self) -> &Features;

    /// The action, Q15, for a measurement.
    fn decide_action(&self, flow: &mut Flow, measurement: &Measurement) -> i16;
}

impl Decide for Model {
    fn features(&self) -> &Features {
        self.features()
    }

    fn decide_action(&self, flow: &mut Flow, measurement: &Measurement) -> i16 {
        self.decide_action(flow, measurement)
    }
}

/// Settings of the program: `struct thalweg_rate_settings`.
#[derive(Debug, Clone, Copy)]
pub struct Settings<'a> {
    /// The rate that counts as 1, bytes/s.
    pub reference_rate: u64,
    /// Shorter round trips count as this, µs.
    pub reference_rtt_us: u32,
    /// The model.
    pub model: &'a dyn Decide,
}

/// The fields of the kernel's socket that the program reads and writes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TcpSock {
    /// TCP's clock at the latest ACK, µs.
    pub tcp_mstamp: u64,
    /// Segments delivered, ever.
    pub delivered: u32,
    /// Segments delivered with a congestion mark, ever.
    pub delivered_ce: u32,
    /// Segments lost, ever.
    pub lost: u32,
    /// Payload of a full segment, bytes.
    pub mss_cache: u32,
    /// Smoothed round-trip time, eighths of a microsecond.
    pub srtt_us: u32,
    /// Congestion window, segments.
    pub snd_cwnd: u32,
    /// Largest congestion window, segments.
    pub snd_cwnd_clamp: u32,
    /// Slow start threshold, segments.
    pub snd_ssthresh: u32,
    /// Rate of TCP's pacing, bytes/s of payload.
    pub sk_pacing_rate: u64,
    /// `SO_MAX_PACING_RATE`, bytes/s; `u64::MAX` without.
    pub sk_max_pacing_rate: u64,
    /// Whether TCP paces (`SK_PACING_NEEDED`).
    pub sk_pacing_needed: bool,
    /// Whether a time-out is being repaired (`TCP_CA_Loss`).
    pub is_in_loss: bool,
    /// Knowledge that flows from this host have of the path to the other one: the program's map
    /// `paths`.
    pub path: Option<Path>,
}

/// TCP's report with an ACK: `struct rate_sample`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RateSample {
    /// Segments delivered when the newest acknowledged one was sent; none without a new one.
    pub prior_delivered: Option<u32>,
    /// Round-trip time of the newest acknowledged segment, µs; none if it was retransmitted.
    pub rtt_us: Option<u32>,
    /// Whether the ACK may have been delayed.
    pub is_ack_delayed: bool,
    /// Whether the application had too little to send.
    pub is_app_limited: bool,
    /// Newly delivered segments.
    pub acked_sacked: u32,
}

/// Phases of a flow.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Phase {
    /// The rate doubles each round.
    #[default]
    Startup,
    /// The model decides.
    Steady,
    /// At half the rate.
    ProbeRtt,
    /// By losses, beside flows that fill the queue.
    Compete,
}

/// `LIMITED`, `CUT`, `SURE`, `RAMP`, `LATE`, `SUSPECT` and `STARVED` of the program.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Flags {
    /// By the application, in this round.
    pub limited: bool,
    /// In the last round.
    pub cut: bool,
    /// The last probe, a common one, found no much shorter path.
    pub sure: bool,
    /// `COMPETE`: no loss so far.
    pub ramp: bool,
    /// `PROBE_RTT`: something sent in its second half has arrived.
    pub late: bool,
    /// The last probe, a common one, left a queue.
    pub suspect: bool,
    /// Others seemed to fill the queue when the probe began.
    pub starved: bool,
}

/// State of a flow: `struct rate`. Times are the low half of TCP's clock in microseconds.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Rate {
    pub(super) network: Flow,
    /// Bytes/s.
    pub(super) rate: u64,
    /// Values at the start of this round.
    pub(super) round_us: u32,
    pub(super) round_delivered: u32,
    pub(super) round_lost: u32,
    pub(super) round_marked: u32,
    /// `PROBE_RTT`: the mean round-trip time before it (the program's union with
    /// `round_marked`).
    pub(super) prior_mean_us: u32,
    /// Shortest so far; 0: none.
    pub(super) round_rtt_us: u32,
    /// 0: none.
    pub(super) min_rtt_us: u32,
    /// Segments.
    pub(super) window: u32,
    pub(super) phase: Phase,
    /// `PROBE_RTT`: the phase that follows.
    pub(super) resumed: Phase,
    /// `COMPETE`: common probes in a row that left a queue.
    pub(super) undrained: u8,
    pub(super) flags: Flags,
    /// Clock, in periods of probes, when the last probe started.
    pub(super) epoch: u16,
    /// Clock, in seconds, at the end of the last round.
    pub(super) second: u8,
    /// Round-trip times in this round.
    pub(super) samples: u16,
    /// The program's union of three counters, by phase. `STARTUP`: `full_rounds`, rounds in a row
    /// with hardly more delivered. `STEADY`: `falls`, decisions in a row that reduce the rate.
    /// `PROBE_RTT`: `prior_min_rtt_us`, the shortest round-trip time before it.
    pub(super) counter: u32,
    /// Mean round-trip time of this round, or of the last one with any, µs / 16; 0: none.
    pub(super) mean_rtt: u32,
    /// Delivered data in the round before, KiB/s; in `STARTUP`, the maximum so far.
    pub(super) last_delivered: u32,
    /// `COMPETE`, and its probes: segments / 1024 (the program's union with `last_delivered`).
    pub(super) fair_window: u32,
}

impl Rate {
    /// The present phase.
    pub fn phase(&self) -> Phase {
        self.phase
    }

    /// The shortest round-trip time, µs; 0 without one.
    pub fn min_rtt_us(&self) -> u32 {
        self.min_rtt_us
    }
}

/// At least the reference: nearer hosts all count alike.
pub(super) fn base_rtt_us(ca: &Rate, set: &Settings<'_>) -> u32 {
    ca.min_rtt_us.max(set.reference_rtt_us).max(1)
}

pub(super) fn mss_of(tp: &TcpSock) -> u64 {
    match tp.mss_cache {
        0 => 536,
        mss => mss.into(),
    }
}

pub(super) fn start_round(ca: &mut Rate, tp: &TcpSock) {
    ca.round_us = tp.tcp_mstamp as u32;
    ca.round_delivered = tp.delivered;
    ca.round_lost = tp.lost;
    ca.round_marked = tp.delivered_ce;
    ca.round_rtt_us = 0;
    ca.samples = 0;
    ca.flags.limited = false;
}

/// Whether TCP paces. A flow goes without pacing if it has the whole rate of the fastest link and
/// there is no queue; with `SO_MAX_PACING_RATE` it must pace.
pub(super) fn set_pacing(tp: &mut TcpSock, needed: bool) {
    tp.sk_pacing_needed = needed || tp.sk_max_pacing_rate != u64::MAX;
}

/// Makes TCP send at `rate`, with at most twice that rate's data in flight.
pub(super) fn apply_rate(ca: &mut Rate, tp: &mut TcpSock, rate: u64, base_us: u32, rtt_us: u32) {
    let rtt_us = rtt_us
        .min(base_us.saturating_mul(WINDOW_ROUND_TRIPS))
        .max(base_us)
        .min((1 << 23) - 1);
    // Even, as segments go in pairs: the other host acknowledges each second one at once, and a
    // single one up to 40 ms late.
    let window = (2 * rate * u64::from(rtt_us) / US_PER_S / mss_of(tp) + 3) & !1;
    let window = window.min(WINDOW_MAX).min(tp.snd_cwnd_clamp.into());
    ca.window = window.max(1) as u32;
    tp.sk_pacing_rate = rate.min(tp.sk_max_pacing_rate);
}
