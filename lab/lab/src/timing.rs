//! Ticks and timers: those that scenarios ask for, and those that a kernel has.

use crate::error::Error;
use crate::scenario::Scenario;
use crate::ticks::{DEFAULT, Ticks, Timers};

/// The timing that all scenarios ask for; they share one kernel.
pub(crate) fn requested_timing(scenarios: &[Scenario]) -> Result<Ticks, Error> {
    let of = |scenario: &Scenario| Ticks {
        hz: scenario.system.hz.unwrap_or(DEFAULT),
        timers: scenario.system.timers,
    };
    let Some(first) = scenarios.first() else {
        return Ok(Ticks {
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

/// The timing that scenarios ask for and a kernel lacks, one line each.
pub(crate) fn missing_timing(here: Ticks, scenarios: &[Scenario]) -> Vec<String> {
    let mut missing = Vec::new();
    let elsewhere = "--backend uml and --backend virtual can have it";
    // A stack has a kernel of its own.
    let native = scenarios
        .iter()
        .filter(|scenario| scenario.first_stack().is_none());
    for Scenario { name, system, .. } in native {
        if let Some(hz) = system.hz.filter(|hz| *hz != here.hz) {
            missing.push(format!(
                "{name}: `hz = {hz}` in [system], but this kernel has {} ({elsewhere})",
                here.hz
            ));
        }
        if system.timers == Timers::Tick && here.timers != Timers::Tick {
            missing.push(format!(
                "{name}: `timers = \"tick\"` in [system], but this kernel's timers are of \
                 high resolution ({elsewhere})"
            ));
        }
    }
    missing
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
    fn what_a_kernel_does_not_have_is_named() {
        let here = Ticks {
            hz: 250,
            timers: Timers::HighResolution,
        };
        assert_eq!(
            missing_timing(here, &[scenario(""), scenario("hz = 250")]),
            [""; 0]
        );
        let lines = missing_timing(here, &[scenario("hz = 1000\ntimers = \"tick\"")]);
        assert_eq!(lines.len(), 2);
        assert!(lines[0].starts_with("a: `hz = 1000` in [system], but this kernel has 250"));
        assert!(lines[1].contains("`timers = \"tick\"`"), "{}", lines[1]);
        let ticking = Ticks {
            timers: Timers::Tick,
            ..here
        };
        assert_eq!(
            missing_timing(ticking, &[scenario("timers = \"tick\"")]),
            [""; 0]
        );
    }

    #[test]
    fn scenarios_share_one_kernel() {
        let asked = |systems: &[&str]| {
            let scenarios: Vec<Scenario> = systems.iter().map(|one| scenario(one)).collect();
            super::requested_timing(&scenarios).map(|ticks| (ticks.hz, ticks.timers))
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
