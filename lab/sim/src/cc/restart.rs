//! Starts that are too fast: a flow that begins at the line rate cannot know how many others do.
//!
//! A model changes its rate by a fifth a decision. Where thousands of flows begin at the line rate,
//! nearly all probes are lost, and each loss is known only after a time-out. So during the start
//! overload is no decision of the model: the flow begins again at the slow start's rate, then at half
//! of that, and so on. Each flow of an overload learns of it, by losses or by a full queue, so all
//! have about the same rate after it.

use crate::Time;

/// A longer round trip than as many times the base is overload. Queues of a start that fits are
/// shorter.
const OVERLOAD: u64 = 16;

/// Part of the rate that each restart after the first leaves.
const NEXT: f64 = 0.5;

/// As many probes must find the path fit before the start is over: others may begin later.
const START: u32 = 128;

/// A flow in its start.
#[derive(Debug, Clone, Default)]
pub(super) struct Restart {
    /// Departure of the first probe that tells of the rate now.
    counts_from: Time,
    /// Probes that found the path fit.
    fit: u32,
}

/// A probe's response.
pub(super) struct Probe {
    pub sent_at: Time,
    /// When its response, or its loss, was known.
    pub now: Time,
    pub lost: bool,
    pub base_rtt: Time,
}

/// Conclusion from a probe.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Verdict {
    /// The model decides.
    Fit,
    /// The model decides, and the start is over.
    Over,
    /// Nothing: the probe tells of an earlier rate.
    Late,
    /// The flow begins again at this rate.
    Again(f64),
}

impl Restart {
    /// Takes a probe of a flow with this rate; `slow_bps` is the slow start's.
    ///
    /// After a restart the queue still holds what was sent before. So only probes count that leave
    /// as much later as it took to learn of the overload.
    pub(super) fn take_probe(&mut self, probe: &Probe, rate_bps: f64, slow_bps: f64) -> Verdict {
        if probe.sent_at < self.counts_from {
            return Verdict::Late;
        }
        let known_after = probe.now.saturating_sub(probe.sent_at);
        if probe.lost || known_after.ps() > OVERLOAD * probe.base_rtt.ps() {
            self.counts_from = probe.now + known_after;
            return Verdict::Again((rate_bps * NEXT).min(slow_bps));
        }
        self.fit += 1;
        if self.fit < START {
            Verdict::Fit
        } else {
            Verdict::Over
        }
    }
}
