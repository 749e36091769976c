//! Notices to a service manager (sd_notify(3)): without one nothing is sent.

use std::time::{Duration, Instant};

use sd_notify::NotifyState;
use thalweg_control::system;

/// The agent learns: units that are ordered after it may start.
pub fn ready() {
    tell(&[NotifyState::Ready]);
}

/// The agent takes a new configuration; [`ready`] follows.
pub fn reloading() {
    // The manager is in no time namespace.
    let now_us = i128::from(system::monotonic_ns() / 1000);
    tell(&[NotifyState::Reloading, NotifyState::MonotonicUsec(now_us)]);
}

/// The agent ends.
pub fn stopping() {
    tell(&[NotifyState::Stopping]);
}

fn tell(states: &[NotifyState]) {
    if let Err(error) = sd_notify::notify(states) {
        tracing::warn!("the service manager cannot be told: {error}");
    }
}

/// Signs of life for the manager's watchdog, if it has one for this process.
pub struct Watchdog {
    interval: Option<Duration>,
    last: Option<Instant>,
}

impl Watchdog {
    /// A watchdog as the environment tells (`WATCHDOG_USEC`).
    pub fn new() -> Self {
        Self {
            // Twice within the time that the manager allows.
            interval: sd_notify::watchdog_enabled().map(|allowed| allowed / 2),
            // The first is due at once: of many reloads in a row, each has a watchdog of its own.
            last: None,
        }
    }

    /// Gives a sign of life if one is due.
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
