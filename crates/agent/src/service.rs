//! Notices to a service manager (sd_notify(3)). Without a manager nothing is sent.

use std::time::{Duration, Instant};

use sd_notify::NotifyState;
use thalweg_control::system;

/// Reports that the agent learns: units that are ordered after it may start.
pub fn ready() {
    tell(&[NotifyState::Ready]);
}

/// Reports that the agent takes a new configuration; [`ready`] follows.
pub fn reloading() {
    // The manager is in no time namespace.
    let now_us = i128::from(system::monotonic_ns() / 1000);
    tell(&[NotifyState::Reloading, NotifyState::MonotonicUsec(now_us)]);
}

/// Reports that the agent ends.
pub fn stopping() {
    tell(&[NotifyState::Stopping]);
}

fn tell(states: &[NotifyState]) {
    if let Err(error) = sd_notify::notify(states) {
        tracing::warn!("the service manager cannot be told: {error}");
    }
}

/// Heartbeats for the manager's watchdog, if it has one for this process.
pub struct Watchdog {
    interval: Option<Duration>,
    last: Option<Instant>,
}

impl Watchdog {
    /// A watchdog as set in the environment (`WATCHDOG_USEC`).
    pub fn new() -> Self {
        Self {
            // Twice within the time that the manager allows.
            interval: sd_notify::watchdog_enabled().map(|allowed| allowed / 2),
            // The first heartbeat is due at once: of many reloads in a row, each has its own
            // watchdog.
            last: None,
        }
    }

    /// Sends a heartbeat if one is due.
    pub fn tick(&mut self) {
        let Some(interval) = self.interval else {
            return;
        };
        if self.last.is_none_or(|last| last.elapsed() >= interval) {
            self.last = Some(Instant::now());
            tell(&[NotifyState::Watchdog]);
        }
    }
}
