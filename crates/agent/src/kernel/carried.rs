//! What an earlier agent left under the pins, as far as it can be used.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result, bail};
use libbpf_rs::{MapCore, MapFlags, MapHandle};
use thalweg_abi::{from_bytes, raw};
use thalweg_core::Mode;

use super::{ArmTable, Left, Previous, Setup, maps, pins};

/// What an earlier agent left.
#[derive(Default)]
pub(super) struct Carried {
    /// Whether pinned state was taken up.
    pub took_over: bool,
    /// Its arms.
    pub arms: ArmTable,
    /// Maps that the new program goes on with.
    pub reused: BTreeMap<&'static str, MapHandle>,
    /// What has to be put into new maps, or into the store.
    pub left: Left,
}

/// The version record of pinned state; `None` where there is none or no agent has completed it.
fn read_meta(directory: &Path) -> Result<Option<Vec<u8>>> {
    let Some(map) = pins::open(&directory.join("meta"))? else {
        return Ok(None);
    };
    let bytes = map.lookup(&0u32.to_ne_bytes(), MapFlags::ANY)?;
    Ok(bytes.filter(|bytes| version(bytes) != 0))
}

/// The version, which every version writes first.
fn version(meta: &[u8]) -> u32 {
    let first = meta.first_chunk().copied();
    first.map_or(0, u32::from_ne_bytes)
}

/// Fails where what is pinned is of a newer version.
pub(super) fn check_version(pin: &Path) -> Result<()> {
    for directory in [pin.to_owned(), pins::next(pin)] {
        let found = read_meta(&directory)?.map_or(0, |meta| version(&meta));
        if found > raw::THALWEG_ABI_VERSION {
            bail!(
                "the state pinned in the kernel has kernel interface version {found}, this agent \
                 speaks {}: start the newer agent; or run `thalweg detach` to remove it \
                 (connections keep the congestion control they have), then start again; pinned \
                 under {}",
                raw::THALWEG_ABI_VERSION,
                directory.display()
            );
        }
    }
    Ok(())
}

impl Carried {
    /// Looks at what is pinned. Its version is known not to be newer.
    pub fn collect(setup: &Setup) -> Result<Self> {
        let pin = &setup.pin;
        let Some(running) = pins::running(pin)? else {
            // Nothing, or what was left by an end that was cut short: the store knows more.
            pins::clear(pin, |map| map == pins::OWNED)?;
            return Ok(Self::default());
        };
        let lost = pins::mend(pin, running)?;
        let Some(meta) = read_meta(pin)? else {
            tracing::warn!(
                "the pins under {} are incomplete (no {}): what the store knows is put in their \
                 place",
                pin.display(),
                lost.join(", ")
            );
            return Ok(Self::default());
        };
        match version(&meta) {
            raw::THALWEG_ABI_VERSION => Self::present(setup, &meta, &lost),
            other => {
                tracing::warn!(
                    "kernel interface version {other} cannot be read: what the store knows is \
                     put in its place"
                );
                Ok(Self::default())
            }
        }
    }

    /// From state of the present version.
    fn present(setup: &Setup, meta: &[u8], lost: &[&str]) -> Result<Self> {
        let pin = &setup.pin;
        let meta: raw::thalweg_meta =
            from_bytes(meta).context("the version record has an unexpected size")?;
        if lost.contains(&"hosts") || lost.contains(&"arms") {
            tracing::warn!(
                "the pins under {} are incomplete (no {}): what the store knows is put in their \
                 place",
                pin.display(),
                lost.join(", ")
            );
            return Ok(Self::default());
        }
        let mut carried = Self {
            took_over: true,
            arms: ArmTable::from_pinned(&pin.join("arms"))?,
            ..Self::default()
        };
        let hosts = MapHandle::from_pinned_path(pin.join("hosts"))?;
        if let Some(mode) = other_mode(setup, meta.mode) {
            // Arm numbers and costs mean something else now.
            carried.left.previous = Some(Previous {
                mode,
                arms: std::mem::take(&mut carried.arms),
                hosts: maps::read_all(&hosts)?,
            });
            return Ok(carried);
        }
        carried.left.is_whole = true;
        if hosts.max_entries() == setup.hosts_max {
            carried.reused.insert("hosts", hosts);
        } else {
            carried.left.hosts = maps::read_all(&hosts)?;
        }
        for name in ["locks", "conns", "counters", "events"] {
            if let Some(map) = pins::open(&pin.join(name))? {
                carried.reused.insert(name, map);
            }
        }
        if carried
            .reused
            .get("events")
            .is_some_and(|ring| ring.max_entries() != setup.ring_bytes)
        {
            carried.reused.remove("events");
        }
        Ok(carried)
    }
}

/// The mode of pinned state, where it is not the one that is wanted.
fn other_mode(setup: &Setup, number: u32) -> Option<Mode> {
    let mode = if number == raw::THALWEG_MODE_CLASSIC {
        Mode::Classic
    } else {
        Mode::Thalweg
    };
    (mode != setup.params.mode).then_some(mode)
}
