//! Settings of a limit: as requested, and in the kernel's form.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use libbpf_rs::{MapCore, MapFlags, MapHandle};
use thalweg_bpf_objects::names::limit::maps;
use thalweg_bpf_types::{bytes_of, from_bytes, raw};

/// Shortest interval between two measurements of the rate.
const INTERVAL_NS: u64 = 5_000_000;
/// Bytes at the rate that a meaningful measurement needs: ten full packets.
const INTERVAL_BYTES: u64 = 15_000;

/// A length of the virtual queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Depth {
    /// As time at the limit's rate.
    Time {
        /// Nanoseconds.
        ns: u64,
    },
    /// As bytes of IP packets.
    Bytes(u64),
}

impl Depth {
    /// As time at a rate.
    fn ns(self, rate_bps: u64) -> u64 {
        match self {
            Self::Time { ns } => ns,
            Self::Bytes(bytes) => {
                let ns = u128::from(bytes) * 8_000_000_000 / u128::from(rate_bps.max(1));
                u64::try_from(ns).unwrap_or(u64::MAX)
            }
        }
    }
}

/// Settings of a limit.
#[derive(Clone, Debug)]
pub struct Request {
    /// Directory of a cgroup v2 hierarchy.
    pub cgroup: PathBuf,
    /// Bits of IP packets per second.
    pub rate_bps: u64,
    /// Work-conserving: rate of all cgroups together, bits per second.
    pub line_bps: Option<u64>,
    /// Packets get departure times for fq to obey.
    pub edt: bool,
    /// Devices that must have fq; none: all that are up.
    pub devices: Vec<String>,
    /// Pace TCP at its share.
    pub pace: bool,
    /// Loopback counts too.
    pub loopback: bool,
    /// Queue beyond which packets are marked, or senders told to slow down.
    pub mark_at: Depth,
    /// Queue beyond which packets are dropped.
    pub drop_at: Depth,
    /// Credit that an idle cgroup accumulates.
    pub burst: Depth,
}

/// The settings in the kernel's form.
pub(super) fn of(request: &Request) -> Result<raw::thalweg_limit_settings> {
    let rate_bps = request.rate_bps;
    let [mark_ns, drop_ns, burst_ns] =
        [request.mark_at, request.drop_at, request.burst].map(|depth| depth.ns(rate_bps));
    if rate_bps == 0 {
        bail!("the rate must be above 0");
    }
    if mark_ns > drop_ns {
        bail!(
            "packets would be dropped (at {} µs of queue) before any is marked (at {} µs); \
             --mark-at must not be above --drop-at",
            drop_ns / 1000,
            mark_ns / 1000
        );
    }
    if [drop_ns, burst_ns].iter().any(|&ns| ns > 10_000_000_000) {
        bail!("a threshold is above 10 s at this rate");
    }
    if let Some(line_bps) = request.line_bps
        && line_bps - line_bps / 16 < rate_bps
    {
        bail!(
            "a work-conserving limit needs a line that is faster than it: --line-rate must be \
             above --rate by a fifteenth at least (a sixteenth of the line is kept free)"
        );
    }
    let flag = |is_set: bool, flag: u32| if is_set { flag } else { 0 };
    Ok(raw::thalweg_limit_settings {
        version: raw::THALWEG_LIMIT_VERSION,
        flags: flag(request.edt, raw::THALWEG_LIMIT_EDT)
            | flag(
                request.line_bps.is_some(),
                raw::THALWEG_LIMIT_WORK_CONSERVING,
            )
            | flag(request.pace, raw::THALWEG_LIMIT_PACE)
            | flag(request.loopback, raw::THALWEG_LIMIT_LOOPBACK),
        rate_bps,
        line_bps: request.line_bps.unwrap_or(0),
        burst_ns,
        mark_ns,
        drop_ns,
        interval_ns: INTERVAL_NS.max(Depth::Bytes(INTERVAL_BYTES).ns(rate_bps)),
        // Nested limits have different depths of the hierarchy.
        depth: fs::canonicalize(&request.cgroup)?.components().count() as u32,
        reserved: 0,
    })
}

pub(super) fn has(settings: &raw::thalweg_limit_settings, flag: u32) -> bool {
    settings.flags & flag != 0
}

pub(super) fn write(map: &impl MapCore, settings: &raw::thalweg_limit_settings) -> Result<()> {
    map.update(&0u32.to_ne_bytes(), bytes_of(settings), MapFlags::ANY)
        .context("writing the settings of the limit")
}

pub(super) fn read(map: &impl MapCore) -> Result<raw::thalweg_limit_settings> {
    let bytes = map.lookup(&0u32.to_ne_bytes(), MapFlags::ANY)?;
    let settings: Option<raw::thalweg_limit_settings> = bytes.and_then(|bytes| from_bytes(&bytes));
    match settings {
        Some(settings) if settings.version == raw::THALWEG_LIMIT_VERSION => Ok(settings),
        _ => bail!(
            "limits were set by another version of thalweg; remove them with \
             `thalweg limit remove --all` and set them again"
        ),
    }
}

/// The settings pinned in a limit's directory, if they can be read.
pub(super) fn pinned(own: &Path) -> Option<raw::thalweg_limit_settings> {
    let map = MapHandle::from_pinned_path(own.join(maps::SETTINGS)).ok()?;
    read(&map).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request() -> Request {
        Request {
            cgroup: "/".into(),
            rate_bps: 100_000_000,
            line_bps: None,
            edt: false,
            devices: Vec::new(),
            pace: true,
            loopback: false,
            mark_at: Depth::Time { ns: 5_000_000 },
            drop_at: Depth::Time { ns: 50_000_000 },
            burst: Depth::Time { ns: 10_000_000 },
        }
    }

    #[test]
    fn thresholds_in_bytes_are_times_at_the_rate() {
        // 100 Mbit/s are 12.5 bytes a µs.
        assert_eq!(Depth::Bytes(12_500).ns(100_000_000), 1_000_000);
        assert_eq!(Depth::Time { ns: 7 }.ns(1), 7);
        let settings = of(&Request {
            drop_at: Depth::Bytes(125_000),
            ..request()
        })
        .unwrap();
        assert_eq!(settings.drop_ns, 10_000_000);
        assert_eq!(settings.interval_ns, INTERVAL_NS);
    }

    #[test]
    fn slow_rates_are_looked_at_less_often() {
        let slow = Request {
            rate_bps: 1_000_000,
            ..request()
        };
        assert_eq!(of(&slow).unwrap().interval_ns, 120_000_000);
    }

    #[test]
    fn contradictions_are_refused() {
        let wrong = [
            Request {
                rate_bps: 0,
                ..request()
            },
            Request {
                mark_at: Depth::Time { ns: 50_000_001 },
                ..request()
            },
            Request {
                drop_at: Depth::Bytes(1 << 40),
                ..request()
            },
            Request {
                line_bps: Some(100_000_000),
                ..request()
            },
        ];
        for request in wrong {
            assert!(of(&request).is_err(), "{request:?}");
        }
        let line = Request {
            line_bps: Some(107_000_000),
            ..request()
        };
        assert!(of(&line).is_ok());
    }
}
