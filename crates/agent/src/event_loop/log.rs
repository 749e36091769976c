//! Events in the agent's own log.

use std::time::{Duration, Instant};

use thalweg_bpf_types::raw;

use crate::config::agent::{EventLog, Events};
use crate::kernel::ArmTable;
use crate::view::Event;

/// Limits log lines of events per second, and counts suppressed ones.
pub(super) struct Limit {
    which: EventLog,
    rate: u32,
    second: Instant,
    lines: u32,
    suppressed: u64,
}

impl Limit {
    pub(super) fn new(events: Events) -> Self {
        Self {
            which: events.log,
            rate: events.log_rate,
            second: Instant::now(),
            lines: 0,
            suppressed: 0,
        }
    }

    /// Whether an event is to be logged; then it counts as a line.
    pub(super) fn wants(&mut self, event: &raw::thalweg_event, arms: &ArmTable) -> bool {
        let is_wanted = match self.which {
            EventLog::All => true,
            EventLog::Changes => is_change(event, arms) || event.error != 0,
            EventLog::None => false,
        };
        if !is_wanted {
            return false;
        }
        self.flush();
        if self.lines >= self.rate {
            self.suppressed += 1;
            return false;
        }
        self.lines += 1;
        true
    }

    /// Starts a new second if the last is over, and logs the number of suppressed lines.
    pub(super) fn flush(&mut self) {
        if self.second.elapsed() < Duration::from_secs(1) {
            return;
        }
        if self.suppressed > 0 {
            tracing::info!("{} more events (log limit reached)", self.suppressed);
        }
        self.second = Instant::now();
        self.lines = 0;
        self.suppressed = 0;
    }
}

/// Whether a decision gave a connection another arm than the system's.
fn is_change(event: &raw::thalweg_event, arms: &ArmTable) -> bool {
    u32::from(event.kind) != raw::THALWEG_EVENT_CLOSE
        && arms.name(event.arm.into()) != arms.name(event.system_arm.into())
}

/// Logs an event.
pub(super) fn line(event: &Event) {
    let arm = event.arm.as_deref().unwrap_or("unknown");
    let remote = &event.remote;
    if let Some(error) = &event.error {
        let chosen = event.chosen.as_deref().unwrap_or("unknown");
        tracing::warn!(remote, "the kernel refused {chosen} for {remote}: {error}");
    } else if let Some(measured) = &event.measurement {
        let (outcome, end) = (&measured.outcome, &measured.end);
        let rate = measured.rate_bytes_per_s;
        let text = format!("close: {remote} ran {arm}: {outcome}");
        tracing::info!(remote, arm, outcome, end, rate_bytes_per_s = rate, "{text}");
    } else {
        let reason = &event.reason;
        tracing::info!(
            remote,
            arm,
            reason,
            "decision: {remote} gets {arm} ({reason})"
        );
    }
}
