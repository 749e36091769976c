//! Kernel memory of BPF maps, known before they are made, and what is there for it.
//!
//! The kernel fills a hash map whole when it is made. One that takes nearly all memory is made, and
//! the OOM killer ends other programs.

use std::fs;
use std::path::{Path, PathBuf};

use libbpf_rs::{MapType, OpenObject, libbpf_sys};
use nix::sys::statfs::statfs;

use crate::error::{Error, Result, bail};
use crate::system::{self, Mount};

/// Share of what is available that stays free: an eighth.
const FREE_PART: u64 = 8;
/// Bytes of an entry of a hash map beside key and value (kernel/bpf/hashtab.c, `struct htab_elem`),
/// and of a bucket.
const ELEMENT_BYTES: u64 = 56;
const BUCKET_BYTES: u64 = 16;
/// Bytes of a node of a trie beside its value (kernel/bpf/lpm_trie.c), as the allocator rounds it.
const NODE_BYTES: u64 = 64;

/// Memory that can be had.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Available {
    /// Bytes.
    pub bytes: u64,
    /// Owner of the bytes, in words.
    pub of: String,
}

/// Bytes in words.
pub fn mebibytes(bytes: u64) -> String {
    format!("{} MiB", bytes.div_ceil(1 << 20))
}

/// Checks that the maps of an object can be had, but for those that `reused` names.
///
/// # Errors
/// [`Error::Shortage`]: the maps need too much.
pub fn check_available(object: &OpenObject, reused: impl Fn(&str) -> bool) -> Result<()> {
    let maps = object.maps().filter(|map| map.autocreate());
    let maps = maps.map(|map| {
        let name = map.name().to_string_lossy().into_owned();
        let (key, value) = (map.key_size(), map.value_size());
        let bytes = match reused(&name) {
            true => 0,
            false => map_bytes(
                map.map_type(),
                map.map_flags(),
                map.max_entries(),
                key,
                value,
            ),
        };
        (name, bytes)
    });
    check_fit(maps.collect(), available_memory())
}

fn check_fit(maps: Vec<(String, u64)>, available: Option<Available>) -> Result<()> {
    let needed = maps.iter().map(|(_, bytes)| bytes).sum();
    let largest = maps.into_iter().max_by_key(|(_, bytes)| *bytes);
    match (available, largest) {
        (Some(available), Some((map, largest)))
            if needed > available.bytes - available.bytes / FREE_PART =>
        {
            bail!(
                Shortage,
                "its maps need {} of kernel memory, {} of that map {map}, and {} is available ({}), \
                 of which an eighth stays free",
                mebibytes(needed),
                mebibytes(largest),
                mebibytes(available.bytes),
                available.of
            )
        }
        _ => Ok(()),
    }
}

/// Bytes of a map. Maps that grow with what is put in count as full, others that are not filled when
/// they are made count nothing.
fn map_bytes(kind: MapType, flags: u32, entries: u32, key: u32, value: u32) -> u64 {
    let rounded = |bytes: u32| u64::from(bytes).next_multiple_of(8);
    let entries = u64::from(entries);
    let cpus = || libbpf_rs::num_possible_cpus().map_or(1, |cpus| cpus as u64);
    let (key, value) = (rounded(key), rounded(value));
    let buckets = entries.next_power_of_two() * BUCKET_BYTES;
    match kind {
        _ if flags & libbpf_sys::BPF_F_NO_PREALLOC != 0 && kind != MapType::LpmTrie => 0,
        MapType::Hash | MapType::LruHash => entries * (ELEMENT_BYTES + key + value) + buckets,
        MapType::PercpuHash | MapType::LruPercpuHash => {
            entries * (ELEMENT_BYTES + key + value * cpus()) + buckets
        }
        MapType::Array => entries * value,
        MapType::PercpuArray => entries * value * cpus(),
        MapType::RingBuf => entries,
        MapType::LpmTrie => entries * (NODE_BYTES + key + value),
        _ => 0,
    }
}

/// Memory that this process can have: the machine's, or what its memory cgroups leave. `None` where
/// the kernel does not tell.
pub fn available_memory() -> Option<Available> {
    let meminfo = fs::read_to_string("/proc/meminfo").ok()?;
    let machine = machine_bytes(&meminfo).map(|bytes| Available {
        bytes,
        of: "MemAvailable of the machine".to_owned(),
    });
    let cgroups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let groups = memory_cgroups(&cgroups, &mounts);
    let groups = groups.iter().filter_map(|(group, top)| left_in(group, top));
    groups.chain(machine).min_by_key(|it| it.bytes)
}

fn machine_bytes(meminfo: &str) -> Option<u64> {
    let line = meminfo
        .lines()
        .find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kib: u64 = line.split_whitespace().next()?.parse().ok()?;
    Some(kib * 1024)
}

/// Directories of this process's cgroups that may bound memory, each with the mount that it is in.
fn memory_cgroups(cgroups: &str, mounts: &str) -> Vec<(PathBuf, PathBuf)> {
    let paths = cgroups.lines().filter_map(|line| {
        let (_, rest) = line.split_once(':')?;
        let (controllers, path) = rest.split_once(':')?;
        let kind = match controllers {
            "" => "cgroup2",
            _ if controllers.split(',').any(|it| it == "memory") => "cgroup",
            _ => return None,
        };
        Some((kind, path))
    });
    paths
        .filter_map(|(kind, path)| {
            let bounds_memory = |mount: &Mount| {
                let mut options = mount.options.split(',');
                mount.kind == kind && (kind == "cgroup2" || options.any(|it| it == "memory"))
            };
            let mount = system::mounts_in(mounts).find(bounds_memory)?;
            // In a container the mount may begin below the hierarchy's root.
            let below = path
                .strip_prefix(mount.root.trim_end_matches('/'))
                .unwrap_or(path);
            let group = mount.point.join(below.trim_start_matches('/'));
            Some((group, mount.point))
        })
        .collect()
}

/// Memory that the tightest cgroup from `group` up to the mount leaves.
fn left_in(group: &Path, top: &Path) -> Option<Available> {
    statfs(group).ok()?;
    let groups = group.ancestors().take_while(|path| path.starts_with(top));
    let left = groups.filter_map(|group| {
        let number = |file: &str| {
            let text = fs::read_to_string(group.join(file)).ok()?;
            text.trim().parse::<u64>().ok()
        };
        let (limit, used, file) = match number("memory.max") {
            Some(limit) => (limit, number("memory.current")?, "memory.max"),
            None => (
                number("memory.limit_in_bytes")?,
                number("memory.usage_in_bytes")?,
                "memory.limit_in_bytes",
            ),
        };
        let statistics = fs::read_to_string(group.join("memory.stat")).unwrap_or_default();
        let used = used.saturating_sub(inactive_file(&statistics));
        Some(Available {
            bytes: limit.saturating_sub(used),
            of: format!("{} of {}", file, group.display()),
        })
    });
    left.min_by_key(|it| it.bytes)
}

/// Page cache that the kernel drops first.
fn inactive_file(statistics: &str) -> u64 {
    let value = |name: &str| {
        let lines = statistics.lines();
        let mut values = lines.filter_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        values.next()?.trim().parse().ok()
    };
    value("total_inactive_file")
        .or_else(|| value("inactive_file"))
        .unwrap_or(0)
}

/// Whether the kernel refused something only because the machine has too little of something now:
/// memory, descriptors, time. It says nothing about what was to be loaded.
pub fn is_passing(error: &(dyn std::error::Error + 'static)) -> bool {
    // libbpf-rs does not give the number away otherwise.
    let passing = [
        libc::EINTR,
        libc::EAGAIN,
        libc::ENOMEM,
        libc::ENFILE,
        libc::EMFILE,
    ];
    std::iter::successors(Some(error), |error| error.source()).any(|error| {
        let is_shortage = matches!(
            error.downcast_ref().map(Error::root),
            Some(Error::Shortage(_))
        );
        let text = error.to_string();
        let says = |number: &i32| text.contains(&format!("(os error {number})"));
        is_shortage || passing.iter().any(says)
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may fail by unwrap")]

    use super::*;

    fn available_of(mib: u64) -> Option<Available> {
        Some(Available {
            bytes: mib << 20,
            of: "the test".to_owned(),
        })
    }

    #[test]
    fn maps_that_leave_less_than_an_eighth_are_refused_with_both_sizes() {
        let maps = |mib: u64| {
            vec![
                ("events".to_owned(), 1 << 20),
                ("hosts".to_owned(), mib << 20),
            ]
        };
        check_fit(maps(55), available_of(64)).unwrap();
        let refused = check_fit(maps(56), available_of(64)).unwrap_err();
        assert_eq!(
            refused.to_string(),
            "its maps need 57 MiB of kernel memory, 56 MiB of that map hosts, and 64 MiB is \
             available (the test), of which an eighth stays free"
        );
        assert!(is_passing(&refused.context("more")));
        check_fit(maps(1 << 20), None).unwrap();
    }

    #[test]
    fn largest_table_of_hosts_needs_what_the_kernel_takes() {
        // 2^24 entries: 20.5 GB, which a machine of 23 GB does not have to spare.
        let bytes = map_bytes(MapType::LruHash, 0, 1 << 24, 32, 1136);
        assert!((20_000_000_000..22_000_000_000).contains(&bytes), "{bytes}");
        assert_eq!(map_bytes(MapType::RingBuf, 0, 1 << 20, 0, 0), 1 << 20);
        let grown = libbpf_sys::BPF_F_NO_PREALLOC;
        assert_eq!(map_bytes(MapType::Hash, grown, 1 << 20, 8, 8), 0);
        assert!(map_bytes(MapType::LpmTrie, grown, 1000, 20, 8) >= 92_000);
    }

    #[test]
    fn memory_cgroups_are_found_in_either_hierarchy() {
        let mounts = "\
25 24 0:23 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n\
26 24 0:24 /pod /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n\
27 24 0:25 / /sys/fs/cgroup/unified rw shared:9 - cgroup2 cgroup2 rw\n";
        let found = memory_cgroups("4:memory:/pod/one\n1:cpu:/a\n0::/b\n", mounts);
        let path = |text: &str| PathBuf::from(text);
        assert_eq!(
            found,
            [
                (
                    path("/sys/fs/cgroup/memory/one"),
                    path("/sys/fs/cgroup/memory")
                ),
                (
                    path("/sys/fs/cgroup/unified/b"),
                    path("/sys/fs/cgroup/unified")
                ),
            ]
        );
    }

    #[test]
    fn tightest_cgroup_counts_without_what_the_kernel_drops() {
        let place = tempfile::tempdir().unwrap();
        let inner = place.path().join("outer/inner");
        fs::create_dir_all(&inner).unwrap();
        let write = |at: &Path, file: &str, text: &str| fs::write(at.join(file), text).unwrap();
        write(&inner, "memory.max", "max\n");
        write(&inner, "memory.current", "5\n");
        let outer = place.path().join("outer");
        write(&outer, "memory.max", "1000\n");
        write(&outer, "memory.current", "700\n");
        write(&outer, "memory.stat", "anon 1\ninactive_file 200\n");
        let left = left_in(&inner, place.path()).unwrap();
        assert_eq!(left.bytes, 500);
        assert!(left.of.starts_with("memory.max of ") && left.of.ends_with("/outer"));
        assert_eq!(
            machine_bytes("MemFree: 1 kB\nMemAvailable:   2 kB\n"),
            Some(2048)
        );
        assert!(available_memory().unwrap().bytes > 1 << 20);
    }

    #[test]
    fn refusals_of_the_verifier_are_not_passing() {
        for number in [
            libc::EACCES,
            libc::EINVAL,
            libc::E2BIG,
            libc::EPERM,
            libc::ESRCH,
        ] {
            let error = libbpf_rs::Error::from_raw_os_error(number);
            assert!(!is_passing(&error), "{number}");
        }
        for number in [libc::ENOMEM, libc::EMFILE, libc::EAGAIN] {
            let error = libbpf_rs::Error::from_raw_os_error(number);
            assert!(
                is_passing(&Error::from(error).context("loading")),
                "{number}"
            );
        }
    }
}
