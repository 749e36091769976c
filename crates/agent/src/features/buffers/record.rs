//! Record of changed limits: a map that is pinned beside the learner's. The kernel forgets it at the
//! moment at which it forgets the limits themselves; a killed agent leaves it for the next one, and for
//! `thalweg detach`.

use std::collections::BTreeMap;
use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use libbpf_rs::{MapCore, MapFlags, MapHandle, MapType, libbpf_sys};
use thalweg_control::pins::remove_file;
use thalweg_control::{batch, links};

use super::sysctl::{Change, Direction};

/// Name of the map and of its pin.
const NAME: &str = "buffers";
/// Most network namespaces with changed limits.
const NAMESPACES_MAX: u32 = 4096;
/// Bytes of a value: three numbers of 8 bytes for each direction.
const VALUE: usize = 2 * 3 * 8;

/// A changed limit, bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ChangedLimit {
    /// Limit before the first change; 0: nothing was changed.
    pub first: u64,
    /// Limit before the last change: an agent may be killed before it makes a recorded change.
    pub before: u64,
    /// Limit after the last change.
    pub now: u64,
}

/// Changed limits of a network namespace, by direction.
pub type Changed = [ChangedLimit; 2];

/// The map.
pub struct Record {
    map: MapHandle,
    path: PathBuf,
}

impl Record {
    /// Opens the map below a directory of pins; `None`: there is none, or it is somebody else's.
    pub fn open(pin: &Path) -> Option<Self> {
        let path = pin.join(NAME);
        if !path.exists() {
            return None;
        }
        let map = MapHandle::from_pinned_path(&path).ok()?;
        let is_own = map.name() == NAME && map.key_size() == 8 && map.value_size() == VALUE as u32;
        is_own.then_some(Self { map, path })
    }

    /// Opens the map, or creates it.
    ///
    /// # Errors
    /// The kernel refuses it, or something else has its name.
    pub fn create(pin: &Path) -> Result<Self> {
        if let Some(found) = Self::open(pin) {
            return Ok(found);
        }
        let path = pin.join(NAME);
        if path.exists() {
            bail!("{} is not a map of this agent: remove it", path.display());
        }
        let options = libbpf_sys::bpf_map_create_opts {
            sz: size_of::<libbpf_sys::bpf_map_create_opts>() as u64,
            map_flags: libbpf_sys::BPF_F_NO_PREALLOC,
            ..Default::default()
        };
        let (value, most) = (VALUE as u32, NAMESPACES_MAX);
        let map = MapHandle::create(MapType::Hash, Some(NAME), 8, value, most, &options)
            .context("creating the record of changed buffers")?;
        links::pin_object(map.as_fd(), &path)?;
        Ok(Self { map, path })
    }

    /// Records the changed limits of a namespace, before they are written.
    ///
    /// # Errors
    /// The kernel refuses it: there are too many namespaces.
    pub fn insert(&self, netns: u64, changed: &Changed) -> Result<()> {
        let numbers = changed.iter().flat_map(|it| [it.first, it.before, it.now]);
        let value: Vec<u8> = numbers.flat_map(u64::to_ne_bytes).collect();
        let written = self.map.update(&netns.to_ne_bytes(), &value, MapFlags::ANY);
        written.context("recording changed buffers")
    }

    /// Forgets a namespace.
    ///
    /// # Errors
    /// The kernel refuses it.
    pub fn remove(&self, netns: u64) -> Result<()> {
        batch::delete_entry(&self.map, &netns.to_ne_bytes())?;
        Ok(())
    }

    /// Changed limits by network namespace.
    ///
    /// # Errors
    /// The kernel refuses it.
    pub fn entries(&self) -> Result<BTreeMap<u64, Changed>> {
        let mut found = BTreeMap::new();
        batch::visit_entries(&self.map, |key, value| -> Result<()> {
            let (words, _) = value.as_chunks::<8>();
            let numbers: Vec<u64> = words.iter().map(|it| u64::from_ne_bytes(*it)).collect();
            let limit = |at: usize| ChangedLimit {
                first: numbers[at],
                before: numbers[at + 1],
                now: numbers[at + 2],
            };
            let netns = key.try_into().map(u64::from_ne_bytes)?;
            found.insert(netns, [limit(0), limit(3)]);
            Ok(())
        })?;
        Ok(found)
    }

    /// Removes the map's pin.
    ///
    /// # Errors
    /// System errors.
    pub fn unpin(self) -> Result<()> {
        Ok(remove_file(&self.path)?)
    }
}

/// Changes that put back the first limits.
pub fn restoring(changed: &Changed) -> Vec<Change> {
    let limits = changed.iter().zip(Direction::ALL);
    let real = limits.filter(|(limit, _)| limit.first != 0);
    real.map(|(limit, direction)| Change {
        direction,
        expected: [limit.before, limit.now],
        to: limit.first,
    })
    .collect()
}
