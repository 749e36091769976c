//! Ticks and timers of a kernel: its tick rate, and whether a timer may expire between two ticks.

use std::fmt;
use std::time::Duration;

use nix::time::{ClockId, clock_getres};
use serde::{Deserialize, Serialize};

use crate::error::Error;

/// Tick rates of the laboratory's own kernels.
pub const RATES: [u32; 3] = [100, 250, 1000];
/// Tick rate of the packaged user-mode Linux, the default.
pub const DEFAULT: u32 = 100;

/// The moment at which timers expire.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Timers {
    /// When due (high-resolution timers).
    #[default]
    HighResolution,
    /// At the next tick.
    Tick,
}

impl Timers {
    /// Whether it is a kernel's default.
    pub fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

impl fmt::Display for Timers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::HighResolution => "high-resolution",
            Self::Tick => "tick",
        })
    }
}

/// Checks that there can be a kernel with this tick rate.
///
/// # Errors
/// The possible rates.
pub fn check_rate(hz: u32) -> Result<(), String> {
    if RATES.contains(&hz) {
        return Ok(());
    }
    let known: Vec<String> = RATES.iter().map(u32::to_string).collect();
    Err(format!("expected one of {}, found {hz}", known.join(", ")))
}

/// A kernel's tick rate and timers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ticks {
    /// Ticks a second (HZ).
    pub hz: u32,
    /// When timers expire.
    pub timers: Timers,
}

impl Ticks {
    /// Ticks of the present kernel, from its clocks: the coarse clock moves at ticks, and the other
    /// one has the resolution of timers.
    ///
    /// # Errors
    /// The system's answer.
    pub fn current_kernel() -> Result<Self, Error> {
        let resolution = |clock| {
            clock_getres(clock)
                .map(Duration::from)
                .map_err(|errno| Error::system("clock_getres")(errno.into()))
        };
        let tick = resolution(ClockId::CLOCK_MONOTONIC_COARSE)?;
        Ok(Self::from_durations(
            tick,
            resolution(ClockId::CLOCK_MONOTONIC)?,
        ))
    }

    fn from_durations(tick: Duration, timer: Duration) -> Self {
        Self {
            hz: (1.0 / tick.as_secs_f64()).round() as u32,
            timers: if timer < tick {
                Timers::HighResolution
            } else {
                Timers::Tick
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clocks_tell_ticks_and_timers() {
        for (tick, timer, hz, timers) in [
            (10_000_000, 1, 100, Timers::HighResolution),
            (10_000_000, 10_000_000, 100, Timers::Tick),
            (4_000_000, 1, 250, Timers::HighResolution),
            // TICK_NSEC of HZ=300 and of HZ=1000.
            (3_333_333, 3_333_333, 300, Timers::Tick),
            (999_848, 1, 1000, Timers::HighResolution),
        ] {
            let of = |ns| Duration::from_nanos(ns);
            assert_eq!(
                Ticks::from_durations(of(tick), of(timer)),
                Ticks { hz, timers }
            );
        }
        assert!(Ticks::current_kernel().unwrap().hz > 0);
    }
}
