//! Reads whole maps, many entries per system call, single entries and rings, and removes entries.
//!
//! The batched iterator of libbpf-rs is not used: it treats a batch that is not full as the last
//! one. The kernel returns such a batch wherever the next bucket of a hash map does not fit.

use std::cell::Cell;
use std::io;
use std::os::fd::AsRawFd;
use std::time::Duration;

use libbpf_rs::{ErrorKind, MapCore, MapFlags, RingBuffer, libbpf_sys};
use thalweg_bpf_types::{Pod, from_bytes};

use crate::error::{Context, Error, Result};

/// Entries per call: a walk over host records stays below a few hundred KiB.
const BATCH: u32 = 256;

/// Calls `visit` with key and value of every entry of a hash, LRU hash or trie map.
///
/// The kernel locks a bucket of a hash map while it copies it, and a key never changes its bucket
/// (`__htab_map_lookup_and_delete_batch` in kernel/bpf/hashtab.c). So an entry that exists all the
/// time is visited once. One that is created or removed meanwhile is visited at most once. One that
/// is removed and created again may be visited twice.
pub fn visit_entries<M: MapCore, E: From<Error>>(
    map: &M,
    visit: impl FnMut(&[u8], &[u8]) -> Result<(), E>,
) -> Result<(), E> {
    visit_entries_in_batches(BATCH, map, visit)
}

/// As [`visit_entries`], with buffers for this many entries at first.
fn visit_entries_in_batches<M: MapCore, E: From<Error>>(
    room: u32,
    map: &M,
    mut visit: impl FnMut(&[u8], &[u8]) -> Result<(), E>,
) -> Result<(), E> {
    let mut part = Part::new(room, map);
    let mut from = None;
    loop {
        let next = part.read_part(map, from.as_ref(), &mut visit)?;
        if next.is_none() {
            return Ok(());
        }
        from = next;
    }
}

/// As [`visit_entries`], but for one part only, of `room` entries if they suffice: from a cursor (`None`:
/// the beginning) to the one returned (`None`: the end).
pub fn visit_page<M: MapCore, E: From<Error>>(
    room: u32,
    map: &M,
    from: Option<&Cursor>,
    visit: impl FnMut(&[u8], &[u8]) -> Result<(), E>,
) -> Result<Option<Cursor>, E> {
    Part::new(room, map).read_part(map, from, visit)
}

/// Removes an entry; false if there was none.
///
/// # Errors
/// The kernel's.
pub fn delete_entry(map: &impl MapCore, key: &[u8]) -> Result<bool> {
    match map.delete(key) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// An entry of an array; `what` names such entries.
///
/// # Errors
/// The kernel's, or entries of another size.
pub(crate) fn read_entry<T: Pod>(map: &impl MapCore, index: u32, what: &str) -> Result<T> {
    let bytes = map.lookup(&index.to_ne_bytes(), MapFlags::ANY)?;
    bytes
        .and_then(|bytes| from_bytes(&bytes))
        .with_context(|| format!("{what} have an unexpected size"))
}

/// One look at a ring that takes at most this long. `failure` is what its reader has failed with;
/// `what` names the ring.
///
/// # Errors
/// The failure, or the kernel's.
pub(crate) fn poll_ring<E: From<Error>>(
    ring: &RingBuffer<'_>,
    timeout: Duration,
    what: &str,
    failure: &Cell<Option<E>>,
) -> Result<(), E> {
    let polled = ring.poll(timeout);
    if let Some(error) = failure.take() {
        return Err(error);
    }
    match polled {
        Err(error) if error.kind() != ErrorKind::Interrupted => {
            Err(Error::from(error).context(format!("reading {what}")).into())
        }
        _ => Ok(()),
    }
}

/// The end of a part of a map. It holds nothing open, and may be used at any time.
#[derive(Clone, Debug)]
pub struct Cursor {
    /// A bucket's number (four bytes) in hash maps, else a key.
    position: Vec<u8>,
}

/// Buffers for a part of a map.
struct Part {
    room: u32,
    keys: Vec<u8>,
    values: Vec<u8>,
}

impl Part {
    fn new<M: MapCore>(room: u32, map: &M) -> Self {
        let mut part = Self {
            room: room.min(map.max_entries()),
            keys: Vec::new(),
            values: Vec::new(),
        };
        part.resize_buffers(map);
        part
    }

    fn resize_buffers<M: MapCore>(&mut self, map: &M) {
        let room = self.room as usize;
        self.keys.resize(room * map.key_size() as usize, 0);
        self.values.resize(room * map.value_size() as usize, 0);
    }

    fn read_part<M: MapCore, E: From<Error>>(
        &mut self,
        map: &M,
        from: Option<&Cursor>,
        mut visit: impl FnMut(&[u8], &[u8]) -> Result<(), E>,
    ) -> Result<Option<Cursor>, E> {
        let (key_size, value_size) = (map.key_size() as usize, map.value_size() as usize);
        let mut next = vec![0u8; key_size.max(8)];
        loop {
            let mut count = self.room;
            // The kernel only reads it.
            let from = from.map_or(std::ptr::null(), |cursor| cursor.position.as_ptr());
            // SAFETY: the buffers hold `room` keys and values, the positions at least a key; all
            // of them and the map's descriptor outlive the call.
            let outcome = unsafe {
                libbpf_sys::bpf_map_lookup_batch(
                    map.as_fd().as_raw_fd(),
                    from.cast_mut().cast(),
                    next.as_mut_ptr().cast(),
                    self.keys.as_mut_ptr().cast(),
                    self.values.as_mut_ptr().cast(),
                    &mut count,
                    std::ptr::null(),
                )
            };
            let last = match -outcome {
                0 => false,
                libc::ENOENT => true,
                libc::EINTR => continue,
                // The next bucket alone does not fit.
                libc::ENOSPC if self.room < map.max_entries() => {
                    self.room = self.room.saturating_mul(2).min(map.max_entries());
                    self.resize_buffers(map);
                    continue;
                }
                errno => {
                    let what = format!("reading map {}", map.name().display());
                    return Err(Error::from(io::Error::from_raw_os_error(errno))
                        .context(what)
                        .into());
                }
            };
            if count > self.room {
                let what = format!(
                    "the kernel returned {count} entries where {} were asked for",
                    self.room
                );
                return Err(Error::Damaged(what).into());
            }
            let pairs = self
                .keys
                .chunks_exact(key_size)
                .zip(self.values.chunks_exact(value_size));
            for (key, value) in pairs.take(count as usize) {
                visit(key, value)?;
            }
            return Ok((!last).then_some(Cursor { position: next }));
        }
    }
}

/// The keys of a map, visited as by [`visit_entries`].
pub fn collect_keys<M: MapCore>(map: &M) -> Result<Vec<Vec<u8>>> {
    let mut keys = Vec::new();
    visit_entries(map, |key, _| {
        keys.push(key.to_vec());
        Ok(())
    })
    .map(|()| keys)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use libbpf_rs::{MapHandle, MapType};

    use super::*;

    /// A map of numbers, or none where maps cannot be created.
    fn map(kind: MapType, flags: u32, key_size: u32, entries: u32) -> Option<MapHandle> {
        let options = libbpf_sys::bpf_map_create_opts {
            sz: size_of::<libbpf_sys::bpf_map_create_opts>() as _,
            map_flags: flags,
            ..Default::default()
        };
        match MapHandle::create(kind, Some("walked"), key_size, 8, entries, &options) {
            Ok(map) => Some(map),
            Err(error) => {
                assert_eq!(error.kind(), libbpf_rs::ErrorKind::PermissionDenied);
                crate::privileged::skip(&format!("cannot make a map: {error}"));
                None
            }
        }
    }

    fn fill(map: &MapHandle, keys: impl Iterator<Item = [u8; 8]>) -> BTreeSet<Vec<u8>> {
        let keys: Vec<[u8; 8]> = keys.collect();
        let all: Vec<u8> = keys.concat();
        if !keys.is_empty() {
            map.update_batch(&all, &all, keys.len() as u32, MapFlags::ANY, MapFlags::ANY)
                .unwrap();
        }
        keys.into_iter().map(Vec::from).collect()
    }

    /// Walks, and checks that every key is visited once, with its own value.
    fn walked(room: u32, map: &MapHandle) -> BTreeSet<Vec<u8>> {
        let mut found = BTreeSet::new();
        visit_entries_in_batches(room, map, |key, value| -> Result<()> {
            assert_eq!(key, value);
            assert!(found.insert(key.to_vec()), "{key:?} came twice");
            Ok(())
        })
        .unwrap();
        found
    }

    #[test]
    #[cfg_attr(not(privileged), ignore = "needs root")]
    fn every_entry_comes_once_whatever_the_size() {
        for count in [0u64, 1, 255, 256, 257, 2000, 100_000] {
            let Some(map) = map(MapType::Hash, 0, 8, 100_000) else {
                return;
            };
            let filled = fill(&map, (0..count).map(u64::to_ne_bytes));
            assert_eq!(walked(BATCH, &map), filled, "{count} entries");
            assert_eq!(collect_keys(&map).unwrap().len(), filled.len());
        }
    }

    #[test]
    #[cfg_attr(not(privileged), ignore = "needs root")]
    fn a_full_lru_map_is_read_whole() {
        let Some(map) = map(MapType::LruHash, 0, 8, 65_536) else {
            return;
        };
        let filled = fill(&map, (0..65_536u64).map(u64::to_ne_bytes));
        // The kernel evicts a few before the map is full.
        let kept: BTreeSet<Vec<u8>> = filled
            .into_iter()
            .filter(|key| map.lookup(key, MapFlags::ANY).unwrap().is_some())
            .collect();
        assert!(kept.len() > 60_000, "{}", kept.len());
        assert_eq!(walked(BATCH, &map), kept);
        // Many buckets hold more than that.
        assert_eq!(walked(1, &map), kept);
    }

    #[test]
    #[cfg_attr(not(privileged), ignore = "needs root")]
    fn a_trie_is_read_whole() {
        let no_prealloc = 1;
        let Some(map) = map(MapType::LpmTrie, no_prealloc, 8, 5000) else {
            return;
        };
        // Prefixes of 32 bits of an address of four bytes.
        let key = |n: u32| {
            let mut key = [0; 8];
            key[..4].copy_from_slice(&32u32.to_ne_bytes());
            key[4..].copy_from_slice(&n.to_be_bytes());
            key
        };
        assert_eq!(fill(&map, (0..3000).map(key)), walked(BATCH, &map));
    }

    #[test]
    #[cfg_attr(not(privileged), ignore = "needs root")]
    fn an_error_of_the_kernel_is_one_of_the_walk() {
        let Some(map) = map(MapType::Queue, 0, 0, 10) else {
            return;
        };
        let refused = visit_entries(&map, |_, _| Result::<()>::Ok(())).unwrap_err();
        let text = format!("{refused:#}");
        assert!(text.starts_with("reading map walked: "), "{text}");
    }
}
