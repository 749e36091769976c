//! When a kernel's timers can expire: how often it ticks, and whether a timer may
//! be due between two ticks.

use std::fmt;
use std::time::Duration;

use nix::time::{ClockId, clock_getres};
use serde::{Deserialize, Serialize};

use crate::error::Error;
use crate::scenario::Scenario;

/// Ticks a second that a kernel of the laboratory's own can have.
pub const RATES: [u32; 3] = [100, 250, 1000];
/// Those of the packaged user-mode Linux, and of a kernel that nobody chose.
pub const DEFAULT: u32 = 100;

/// When timers expire.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Timers {
    /// When they are due (high-resolution timers).
    #[default]
    HighResolution,
    /// At the tick after that.
    Tick,
}

impl Timers {
    /// Whether it is what a kernel does unless it is told.
    pub(crate) fn is_default(&self) -> bool {
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

/// Whether a kernel can be had with this many ticks a second.
pub(crate) fn check_rate(hz: u32) -> Result<(), String> {
    if RATES.contains(&hz) {
        return Ok(());
    }
    let known: Vec<String> = RATES.iter().map(u32::to_string).collect();
    Err(format!("expected one of {}, found {hz}", known.join(", ")))
}

/// A kernel's ticks and timers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Ticks {
    /// Ticks a second.
    pub(crate) hz: u32,
    pub(crate) timers: Timers,
}

impl Ticks {
    /// Those of the kernel that this runs on, by what it says of its clocks: the
    /// coarse one moves at ticks, and the resolution of the other is that of timers.
    pub(crate) fn here() -> Result<Self, Error> {
        let resolution = |clock| {
            clock_getres(clock)
                .map(Duration::from)
                .map_err(|errno| Error::system("clock_getres")(errno.into()))
        };
        let tick = resolution(ClockId::CLOCK_MONOTONIC_COARSE)?;
        Ok(Self::of(tick, resolution(ClockId::CLOCK_MONOTONIC)?))
    }

    fn of(tick: Duration, timer: Duration) -> Self {
        Self {
            hz: (1.0 / tick.as_secs_f64()).round() as u32,
            timers: if timer < tick {
                Timers::HighResolution
            } else {
                Timers::Tick
            },
        }
    }

    /// What all scenarios ask for: they share one kernel.
    pub(crate) fn asked(scenarios: &[Scenario]) -> Result<Self, Error> {
        let of = |scenario: &Scenario| Self {
            hz: scenario.system.hz.unwrap_or(DEFAULT),
            timers: scenario.system.timers,
        };
        let Some(first) = scenarios.first() else {
            return Ok(Self {
                hz: DEFAULT,
                timers: Timers::default(),
            });
        };
        match scenarios.iter().find(|other| of(other) != of(first)) {
            None => Ok(of(first)),
            Some(other) => Err(Error::Options(format!(
                "{} and {} ask for different `hz` or `timers`, and share one kernel: run each \
                 by itself",
                first.name, other.name
            ))),
        }
    }

    /// What this kernel does not have of what scenarios ask for, one line each.
    pub(crate) fn missing(self, scenarios: &[Scenario]) -> Vec<String> {
        let mut missing = Vec::new();
        let elsewhere = "--backend uml and --backend virtual can have it";
        // A stack's kernel is its own.
        let here = scenarios
            .iter()
            .filter(|scenario| scenario.stack().is_none());
        for Scenario { name, system, .. } in here {
            if let Some(hz) = system.hz.filter(|hz| *hz != self.hz) {
                missing.push(format!(
                    "{name}: `hz = {hz}` in [system], but this kernel has {} ({elsewhere})",
                    self.hz
                ));
            }
            if system.timers == Timers::Tick && self.timers != Timers::Tick {
                missing.push(format!(
                    "{name}: `timers = \"tick\"` in [system], but this kernel's timers are of \
                     high resolution ({elsewhere})"
                ));
            }
        }
        missing
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn scenario(system: &str) -> Scenario {
        let text = format!("name = \"a\"\n[system]\n{system}\n");
        Scenario::parse(&text, Path::new("a.toml")).unwrap()
    }

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
            assert_eq!(Ticks::of(of(tick), of(timer)), Ticks { hz, timers });
        }
        assert!(Ticks::here().unwrap().hz > 0);
    }

    #[test]
    fn what_a_kernel_does_not_have_is_named() {
        let here = Ticks {
            hz: 250,
            timers: Timers::HighResolution,
        };
        assert_eq!(here.missing(&[scenario(""), scenario("hz = 250")]), [""; 0]);
        let missing = here.missing(&[scenario("hz = 1000\ntimers = \"tick\"")]);
        assert_eq!(missing.len(), 2);
        assert!(missing[0].starts_with("a: `hz = 1000` in [system], but this kernel has 250"));
        assert!(missing[1].contains("`timers = \"tick\"`"), "{}", missing[1]);
        let ticking = Ticks {
            timers: Timers::Tick,
            ..here
        };
        assert_eq!(ticking.missing(&[scenario("timers = \"tick\"")]), [""; 0]);
    }

    #[test]
    fn scenarios_share_one_kernel() {
        let asked = |systems: &[&str]| {
            let scenarios: Vec<Scenario> = systems.iter().map(|one| scenario(one)).collect();
            Ticks::asked(&scenarios).map(|ticks| (ticks.hz, ticks.timers))
        };
        assert_eq!(asked(&[]).unwrap(), (100, Timers::HighResolution));
        assert_eq!(
            asked(&["", "hz = 100"]).unwrap(),
            (100, Timers::HighResolution)
        );
        let tick = "hz = 1000\ntimers = \"tick\"";
        assert_eq!(asked(&[tick, tick]).unwrap(), (1000, Timers::Tick));
        for other in ["", "hz = 1000", "timers = \"tick\""] {
            let error = asked(&[tick, other]).unwrap_err().to_string();
            assert!(error.contains("share one kernel"), "{error}");
        }
    }
}
