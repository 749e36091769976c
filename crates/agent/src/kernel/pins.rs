//! The pins of the learner: their names, and the replacement of a set.
//!
//! A new set of maps is pinned in the directory `next`, together with the program that uses them.
//! One step puts it in force: the pinned link gets that program. Then the maps move to their names.
//! After a kill in between, the link's program shows whether the set in `next` is in force. The
//! next agent finishes the move or removes the set.

use std::collections::BTreeSet;
use std::fs;
use std::io::ErrorKind;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use libbpf_rs::query::{ProgInfoIter, ProgInfoQueryOptions};
use libbpf_rs::{MapCore, MapHandle, MapType, Object, Program};
use thalweg_bpf_objects::names::learn::maps as names;
use thalweg_control::learner::{LINKS, MAIN, MAIN_LINK, OWNED};
use thalweg_control::pins::{create_directory, remove_file};
use thalweg_control::{leftovers, links, object, privileges};

/// A map that is pinned.
pub(super) struct PinnedMap {
    /// Name of the map in the object, and of its file.
    pub name: &'static str,
    kind: MapType,
    key_bytes: u32,
}

const fn map(name: &'static str, kind: MapType, key_bytes: u32) -> PinnedMap {
    PinnedMap {
        name,
        kind,
        key_bytes,
    }
}

/// Maps that are pinned.
pub(super) const MAPS: [PinnedMap; 18] = [
    map(names::HOSTS, MapType::Hash, 32),
    map(names::LOCKS, MapType::Array, 4),
    map(names::ARMS, MapType::Array, 4),
    map(names::META, MapType::Array, 4),
    map(names::DEFAULTS, MapType::LruHash, 8),
    map(names::NAMESPACES, MapType::Array, 4),
    map(names::STRANGERS, MapType::LruHash, 8),
    map(names::ECN_PREFIXES, MapType::LpmTrie, 20),
    map(names::NAT64, MapType::Array, 4),
    map(names::WORTH, MapType::Array, 4),
    map(names::NAMED, MapType::LpmTrie, 20),
    map(names::CLAMPS, MapType::Hash, 24),
    map(names::CLAMPED, MapType::SkStorage, 4),
    map(names::CONNS, MapType::Array, 4),
    map(OWNED, MapType::SkStorage, 4),
    map(names::COUNTERS, MapType::PercpuArray, 4),
    map(names::OVERRIDDEN, MapType::Hash, 16),
    map(names::EVENTS, MapType::RingBuf, 0),
];

/// Directory of a set that is not in force yet.
const NEXT: &str = "next";
/// Pin of the program that uses that set.
const PROGRAM: &str = "program";

/// Directory of a set that is not in force yet.
pub(super) fn next(pin: &Path) -> PathBuf {
    pin.join(NEXT)
}

impl PinnedMap {
    /// Whether some version of the learner created a map.
    fn made(&self, map: &MapHandle) -> bool {
        // An earlier agent's table of hosts.
        let was_lru = self.name == names::HOSTS && map.map_type() == MapType::LruHash;
        map.name() == self.name
            && (map.map_type() == self.kind || was_lru)
            && map.key_size() == self.key_bytes
    }

    /// Opens the pinned map; `None`: there is none.
    fn open(&self, directory: &Path) -> Result<Option<MapHandle>> {
        open(&directory.join(self.name))
    }
}

/// Opens a pinned map; `None`: nothing is pinned.
pub(super) fn open(path: &Path) -> Result<Option<MapHandle>> {
    if !path.exists() {
        return Ok(None);
    }
    MapHandle::from_pinned_path(path)
        .map(Some)
        .with_context(|| format!("opening pinned map {}", path.display()))
}

/// Fails if an object of another program has the name of one of the learner's maps.
pub(super) fn check_names(pin: &Path) -> Result<()> {
    for map in &MAPS {
        let Some(found) = map.open(pin)? else {
            continue;
        };
        if !map.made(&found) {
            bail!(
                "{} is not a map of Thalweg's (it is called {:?}, and is {:?} with keys of {} \
                 bytes): remove it, or give the agent its own [paths] pin",
                pin.join(map.name).display(),
                found.name(),
                found.map_type(),
                found.key_size()
            );
        }
    }
    Ok(())
}

/// Number of the program of the pinned main link; `None` if there is no link.
pub(super) fn running(pin: &Path) -> Result<Option<u32>> {
    let link = links::open_link(&pin.join(MAIN_LINK))?;
    Ok(link
        .map(|link| link.info())
        .transpose()?
        .map(|info| info.prog_id))
}

/// Finishes or undoes the work of a killed agent.
pub(super) fn settle(pin: &Path) -> Result<()> {
    for (_, link, _) in LINKS {
        remove_file(&links::replacement_path(&pin.join(link)))?;
    }
    let next = next(pin);
    if !next.exists() {
        return Ok(());
    }
    let program = Program::fd_from_pinned_path(next.join(PROGRAM))
        .and_then(|program| Program::id_from_fd(program.as_fd()));
    match (running(pin)?, program) {
        (Some(running), Ok(program)) if running == program => promote(pin),
        _ => discard(pin),
    }
}

/// Pins a set that is not yet in force: its maps, except the one that is never replaced, then the
/// program.
pub(super) fn prepare(pin: &Path, object: &Object) -> Result<()> {
    let next = next(pin);
    create_directory(&next, false)?;
    for map in object.maps() {
        if let Some(pinned) = MAPS.iter().find(|pinned| map.name() == pinned.name)
            && pinned.name != OWNED
        {
            links::pin_object(map.as_fd(), &next.join(pinned.name))?;
            fail_point!("start::map");
        }
    }
    let program = object::find_program(object, MAIN)?;
    Ok(links::pin_object(program.as_fd(), &next.join(PROGRAM))?)
}

/// Moves the maps of a set that is in force to their names.
pub(super) fn promote(pin: &Path) -> Result<()> {
    let next = next(pin);
    for map in &MAPS {
        let (from, to) = (next.join(map.name), pin.join(map.name));
        if from.exists() {
            fs::rename(&from, &to).with_context(|| format!("replacing {}", to.display()))?;
            fail_point!("start::name");
        }
    }
    fail_point!("start::named");
    discard(pin)
}

/// Removes a set that is not in force.
pub(super) fn discard(pin: &Path) -> Result<()> {
    let next = next(pin);
    // Another version may have other maps.
    for entry in fs::read_dir(&next).into_iter().flatten() {
        remove_file(&entry?.path())?;
    }
    match fs::remove_dir(&next) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("removing {}", next.display()))
        }
        _ => Ok(()),
    }
}

/// Restores pins that were removed while their program runs. Returns the names that could not be
/// restored (opening a map by its number needs CAP_SYS_ADMIN).
pub(super) fn mend(pin: &Path, running: u32) -> Result<Vec<&'static str>> {
    let missing: Vec<&PinnedMap> = MAPS
        .iter()
        .filter(|map| !pin.join(map.name).exists())
        .collect();
    if missing.is_empty() {
        return Ok(Vec::new());
    }
    let options = ProgInfoQueryOptions::default().include_map_ids(true);
    let used: Vec<MapHandle> = privileges::with_raised(|| {
        ProgInfoIter::with_query_opts(options)
            .find(|program| program.id == running)
            .map(|program| program.map_ids)
            .unwrap_or_default()
            .into_iter()
            .filter_map(|id| MapHandle::from_map_id(id).ok())
            .collect()
    });
    let mut lost = Vec::new();
    for map in missing {
        let path = pin.join(map.name);
        match used.iter().find(|used| map.made(used)) {
            Some(used) => {
                links::pin_object(used.as_fd(), &path)?;
                tracing::warn!("{} was missing; the running program had it", path.display());
            }
            None => lost.push(map.name),
        }
    }
    Ok(lost)
}

/// Removes the links, then every map except lent ones and those of others, also maps that only
/// another version of the learner has. Returns the names of the removed pins.
pub(super) fn clear(pin: &Path, is_lent: impl Fn(&str) -> bool) -> Result<Vec<String>> {
    let used = maps_of_links(pin);
    detach_links(pin)?;
    let mut removed = Vec::new();
    let mut remove = |name: &str| -> Result<()> {
        let path = pin.join(name);
        if path.exists() {
            remove_file(&path)?;
            fail_point!("detach::pin");
            removed.push(name.to_string());
        }
        Ok(())
    };
    // Links first: the programs stop before their maps are removed.
    for (_, link, _) in LINKS {
        remove(link)?;
        remove_file(&links::replacement_path(&pin.join(link)))?;
    }
    for map in MAPS.iter().filter(|map| !is_lent(map.name)) {
        // A map that may not be inspected (no CAP_BPF) is removed by its name.
        if !matches!(map.open(pin), Ok(Some(found)) if !map.made(&found)) {
            remove(map.name)?;
        }
    }
    for name in files(pin)? {
        if !is_lent(&name) && leftovers::is_learners(&pin.join(&name), &used) {
            remove(&name)?;
        }
    }
    discard(pin)?;
    Ok(removed)
}

/// Detaches the learner's pinned links. A pin that cannot be removed, as where the file system is
/// read-only, then keeps no program attached.
fn detach_links(pin: &Path) -> Result<()> {
    for name in files(pin)? {
        let path = pin.join(name);
        // A pinned program refuses to detach.
        if leftovers::is_learners(&path, &BTreeSet::new())
            && let Ok(Some(link)) = links::open_link(&path)
        {
            let _ = link.detach();
        }
    }
    Ok(())
}

/// Finds a map of the learner by its pin, or by a pinned link whose program uses it.
pub fn find_map(pin: &Path, name: &str) -> Option<MapHandle> {
    let about = MAPS.iter().find(|map| map.name == name)?;
    let pinned = about.open(pin).ok().flatten();
    let used = || {
        let mut ids = maps_of_links(pin).into_iter();
        privileges::with_raised(|| {
            ids.find_map(|id| {
                MapHandle::from_map_id(id)
                    .ok()
                    .filter(|map| about.made(map))
            })
        })
    };
    pinned.filter(|map| about.made(map)).or_else(used)
}

/// Ids of the maps that the programs of the pinned links use.
fn maps_of_links(pin: &Path) -> BTreeSet<u32> {
    let links = LINKS
        .iter()
        .filter_map(|(_, file, _)| links::open_link(&pin.join(file)).ok()?);
    let programs: Vec<u32> = links
        .filter_map(|link| Some(link.info().ok()?.prog_id))
        .collect();
    let options = ProgInfoQueryOptions::default().include_map_ids(true);
    privileges::with_raised(|| {
        ProgInfoIter::with_query_opts(options)
            .filter(|program| programs.contains(&program.id))
            .flat_map(|program| program.map_ids)
            .collect()
    })
}

/// Names of the files in the directory of pins; empty if there is no directory.
fn files(pin: &Path) -> Result<Vec<String>> {
    let shown = pin.display();
    let entries = match fs::read_dir(pin) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.with_context(|| format!("reading {shown}"))?,
    };
    let files = entries
        .flatten()
        .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_file()));
    let names = files.map(|entry| entry.file_name().to_string_lossy().into_owned());
    Ok(names.collect())
}
