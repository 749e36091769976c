//! Usable state that an earlier agent left pinned.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result, bail};
use libbpf_rs::{MapCore, MapFlags, MapHandle, MapType};
use thalweg_bpf_objects::names::learn::maps as names;
use thalweg_bpf_types::{earlier, from_bytes, key_from_raw, raw};
use thalweg_control::{batch, learner};
use thalweg_learner::Mode;

use super::{ArmTable, Left, Previous, Setup, maps, pins};

/// State that an earlier agent left.
#[derive(Default)]
pub(super) struct Carried {
    /// Whether pinned state was taken over.
    pub took_over: bool,
    /// Arms of the earlier agent.
    pub arms: ArmTable,
    /// Maps that the new program reuses.
    pub reused: BTreeMap<&'static str, MapHandle>,
    /// State for new maps, or for the store.
    pub left: Left,
}

/// The version record of pinned state; `None` if there is none or no agent has completed it.
fn read_meta(directory: &Path) -> Result<Option<Vec<u8>>> {
    let Some(map) = pins::open(&directory.join(names::META))? else {
        return Ok(None);
    };
    let bytes = map.lookup(&0u32.to_ne_bytes(), MapFlags::ANY)?;
    Ok(bytes.filter(|bytes| version(bytes) != 0))
}

/// The version, the first field in every version.
fn version(meta: &[u8]) -> u32 {
    let first = meta.first_chunk().copied();
    first.map_or(0, u32::from_ne_bytes)
}

/// Fails if a newer version wrote the pins.
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
    /// Reads the pins, whose version is not newer.
    pub fn collect(setup: &Setup) -> Result<Self> {
        let pin = &setup.pin;
        let Some(running) = pins::running(pin)? else {
            // There is nothing, or the rest of an interrupted removal: the store has more.
            pins::clear(pin, |map| map == learner::OWNED)?;
            return Ok(Self::default());
        };
        let lost = pins::mend(pin, running)?;
        let Some(meta) = read_meta(pin)? else {
            warn_incomplete(pin, &lost);
            return Ok(Self::default());
        };
        match version(&meta) {
            raw::THALWEG_ABI_VERSION => Self::present(setup, &meta, &lost),
            version if earlier::VERSIONS.contains(&version) => {
                Self::earlier(setup, version, &meta, &lost)
            }
            other => {
                tracing::warn!(
                    "kernel interface version {other} cannot be read: what the store knows is \
                     put in its place"
                );
                Ok(Self::default())
            }
        }
    }

    /// Reads state of the present version.
    fn present(setup: &Setup, meta: &[u8], lost: &[&str]) -> Result<Self> {
        let pin = &setup.pin;
        let Some(meta) = complete(pin, meta, lost)? else {
            return Ok(Self::default());
        };
        let mut carried = Self {
            took_over: true,
            arms: ArmTable::from_pinned(&pin.join(names::ARMS))?,
            ..Self::default()
        };
        for name in &setup.kept_maps {
            if let Some(map) = pins::open(&pin.join(name))? {
                carried.reused.insert(name, map);
            }
        }
        let hosts = MapHandle::from_pinned_path(pin.join(names::HOSTS))?;
        if let Some(mode) = other_mode(setup, meta.mode) {
            // Another mode gives arm numbers and costs another meaning.
            let mut hosts = maps::read_all(&hosts)?;
            hosts.retain(|(key, _)| !key.level.is_group());
            carried.left.previous = Some(Previous {
                mode,
                arms: std::mem::take(&mut carried.arms),
                hosts,
            });
            return Ok(carried);
        }
        carried.left.is_whole = true;
        let fits = hosts.max_entries() == setup.table_max();
        // The table of earlier agents evicted records by itself.
        if fits && hosts.map_type() == MapType::Hash {
            carried.reused.insert(names::HOSTS, hosts);
        } else {
            carried.left.hosts = maps::read_all(&hosts)?;
        }
        for name in [
            names::LOCKS,
            names::CONNS,
            names::COUNTERS,
            names::OVERRIDDEN,
            names::EVENTS,
        ] {
            if let Some(map) = pins::open(&pin.join(name))? {
                carried.reused.insert(name, map);
            }
        }
        if carried
            .reused
            .get(names::EVENTS)
            .is_some_and(|ring| ring.max_entries() != setup.ring_bytes)
        {
            carried.reused.remove(names::EVENTS);
        }
        Ok(carried)
    }
}

impl Carried {
    /// Reads state of an earlier version. Its records fit no present map and are converted. The
    /// store may have more than that version kept in the kernel. Open connections continue to be
    /// measured if their records can be converted; of others nothing is scored.
    fn earlier(setup: &Setup, version: u32, meta: &[u8], lost: &[&str]) -> Result<Self> {
        let pin = &setup.pin;
        let Some(meta) = complete(pin, meta, lost)? else {
            return Ok(Self::default());
        };
        let map = MapHandle::from_pinned_path(pin.join(names::HOSTS))?;
        let mut hosts = Vec::new();
        batch::visit_entries(&map, |key, value| -> Result<()> {
            let key: raw::thalweg_host_key =
                from_bytes(key).context("a host's key has an unexpected size")?;
            let key = key_from_raw(&key);
            // A record that is being written is taken from the store.
            hosts.extend(earlier::convert_host(version, key.tag(), value).map(|host| (key, host)));
            Ok(())
        })?;
        tracing::info!(
            "{} host records of kernel interface version {version} are carried over",
            hosts.len()
        );
        let arms = ArmTable::from_pinned(&pin.join(names::ARMS))?;
        fail_point!("upgrade::read");
        let mut carried = Self {
            took_over: true,
            ..Self::default()
        };
        match other_mode(setup, meta.mode) {
            Some(mode) => carried.left.previous = Some(Previous { mode, arms, hosts }),
            None => {
                carried.arms = arms;
                carried.left.hosts = hosts;
                carried.left.conns = conns(version, pin)?;
            }
        }
        Ok(carried)
    }
}

/// Measured connections of an earlier version, by their slots.
fn conns(version: u32, pin: &Path) -> Result<Vec<(u32, raw::thalweg_conn)>> {
    let mut found = Vec::new();
    let Some(map) = pins::open(&pin.join(names::CONNS))? else {
        return Ok(found);
    };
    if map.max_entries() != raw::THALWEG_CONNECTIONS {
        return Ok(found);
    }
    batch::visit_entries(&map, |slot, value| -> Result<()> {
        let slot = slot.try_into().map(u32::from_ne_bytes);
        let slot = slot.context("a slot has an unexpected size")?;
        let conn = earlier::convert_conn(version, value).filter(|conn| conn.cookie != 0);
        found.extend(conn.map(|conn| (slot, conn)));
        Ok(())
    })?;
    Ok(found)
}

/// The version record, if all needed maps are present.
fn complete(pin: &Path, meta: &[u8], lost: &[&str]) -> Result<Option<raw::thalweg_meta>> {
    if lost.contains(&"hosts") || lost.contains(&"arms") {
        warn_incomplete(pin, lost);
        return Ok(None);
    }
    let meta = from_bytes(meta).context("the version record has an unexpected size")?;
    Ok(Some(meta))
}

fn warn_incomplete(pin: &Path, lost: &[&str]) {
    tracing::warn!(
        "the pins under {} are incomplete (no {}): what the store knows is put in their place",
        pin.display(),
        lost.join(", ")
    );
}

/// The mode of pinned state, if it differs from the wanted one.
fn other_mode(setup: &Setup, number: u32) -> Option<Mode> {
    let mode = if number == raw::THALWEG_MODE_CLASSIC {
        Mode::Classic
    } else {
        Mode::Thalweg
    };
    (mode != setup.params.mode).then_some(mode)
}
