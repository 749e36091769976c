//! A cgroup (version 2) per mode, to which an agent is attached.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read};
use std::os::fd::{AsFd, AsRawFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use libbpf_rs::libbpf_sys;
use libbpf_rs::query::ProgInfoIter;
use nix::poll::PollFlags;
use thalweg_process::interrupt::{self, OnSignal};

use crate::error::Error;

/// Most programs of one kind that run for a cgroup: 64 of its own (BPF_CGROUP_MAX_PROGS), and those
/// of its ancestors.
const PROGRAMS_MAX: usize = 256;

/// A directory of the unified hierarchy. Dropped, it is removed, and its processes are killed.
#[derive(Debug)]
pub(crate) struct Cgroup {
    path: PathBuf,
}

impl Cgroup {
    /// Creates it below the mount that [`mount_point`] finds.
    pub(crate) fn create(name: &str) -> Result<Self, Error> {
        let path = mount_point()?.join(name);
        fs::create_dir(&path).map_err(Error::io("cannot create the cgroup", &path))?;
        Ok(Self { path })
    }

    /// A cgroup below this one. It must be dropped first.
    pub(crate) fn create_below(&self, name: &str) -> Result<Self, Error> {
        let path = self.path.join(name);
        fs::create_dir(&path).map_err(Error::io("cannot create the cgroup", &path))?;
        Ok(Self { path })
    }

    /// User and system time of its processes, ended ones included, seconds.
    pub(crate) fn cpu_s(&self) -> Result<f64, Error> {
        let path = self.path.join("cpu.stat");
        let table = fs::read_to_string(&path).map_err(Error::io("cannot read", &path))?;
        let usage = table
            .lines()
            .find_map(|line| line.strip_prefix("usage_usec "));
        let usage_us: Option<f64> = usage.and_then(|value| value.trim().parse().ok());
        usage_us
            .map(|usage_us| usage_us / 1e6)
            .ok_or_else(|| Error::io("no `usage_usec` in", path)(io::ErrorKind::InvalidData.into()))
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// `cgroup.procs`, open for writing. A process that writes "0" joins.
    pub(crate) fn open_procs(&self) -> Result<File, Error> {
        let path = self.path.join("cgroup.procs");
        OpenOptions::new()
            .write(true)
            .open(&path)
            .map_err(Error::io("cannot open", path))
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        remove_cgroup(&self.path);
    }
}

/// Kills the processes of a cgroup and of those below it, and removes them all.
pub(crate) fn remove_cgroup(path: &Path) {
    for child in fs::read_dir(path).into_iter().flatten().flatten() {
        if child.file_type().is_ok_and(|kind| kind.is_dir()) {
            remove_cgroup(&child.path());
        }
    }
    let deadline = Instant::now() + Duration::from_secs(5);
    let gone = |error: &io::Error| error.kind() == io::ErrorKind::NotFound;
    loop {
        match fs::remove_dir(path) {
            Ok(()) => return,
            Err(error) if gone(&error) => return,
            Err(error) if Instant::now() >= deadline => {
                tracing::warn!("cannot remove the cgroup {}: {error}", path.display());
                return;
            }
            Err(_) => kill_processes(path, deadline),
        }
    }
}

/// Kills the processes of a cgroup and waits until none is left, at most 100 ms.
fn kill_processes(path: &Path, deadline: Instant) {
    // Opened and read before the kill: the kernel reports changes since the last read.
    let mut events = File::open(path.join("cgroup.events"));
    if let Ok(events) = &mut events {
        let _ = events.read_to_string(&mut String::new());
    }
    let processes = fs::read_to_string(path.join("cgroup.procs")).unwrap_or_default();
    for pid in processes.lines().filter_map(|line| line.parse().ok()) {
        // 0 means a process outside this process's PID namespace.
        if pid > 0 {
            let pid = nix::unistd::Pid::from_raw(pid);
            let _ = nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGKILL);
        }
    }
    if let Ok(events) = events {
        let until = deadline.min(Instant::now() + Duration::from_millis(100));
        let _ = interrupt::wait_for_event(
            events.as_fd(),
            PollFlags::POLLPRI,
            until,
            OnSignal::KeepWaiting,
        );
    }
}

/// Names of the sockops programs that run for a cgroup, those of its ancestors included; none if
/// the kernel does not tell.
pub(crate) fn sockops_programs(cgroup: &Path) -> Vec<String> {
    let Ok(cgroup) = File::open(cgroup) else {
        return Vec::new();
    };
    let mut ids = [0u32; PROGRAMS_MAX];
    let (mut count, mut attached) = (ids.len() as u32, 0u32);
    // SAFETY: the descriptor is open, and `ids` has room for `count` numbers for the whole call.
    let failed = unsafe {
        libbpf_sys::bpf_prog_query(
            cgroup.as_raw_fd(),
            libbpf_sys::BPF_CGROUP_SOCK_OPS,
            libbpf_sys::BPF_F_QUERY_EFFECTIVE,
            &raw mut attached,
            ids.as_mut_ptr(),
            &raw mut count,
        )
    };
    if failed != 0 {
        return Vec::new();
    }
    let ids = &ids[..(count as usize).min(ids.len())];
    ProgInfoIter::default()
        .filter(|program| ids.contains(&program.id))
        .map(|program| program.name.to_string_lossy().into_owned())
        .collect()
}

/// The mount point of the unified cgroup hierarchy.
///
/// # Errors
/// [`Error::Process`] if no cgroup2 file system is mounted.
pub fn mount_point() -> Result<PathBuf, Error> {
    let path = Path::new("/proc/self/mountinfo");
    let table = fs::read_to_string(path).map_err(Error::io("cannot read", path))?;
    mount_in(&table).ok_or_else(|| {
        Error::system("no cgroup2 file system is mounted (mount -t cgroup2 none /sys/fs/cgroup)")(
            io::ErrorKind::NotFound.into(),
        )
    })
}

/// The first mount of type cgroup2 in the text of `/proc/pid/mountinfo` (proc(5)).
fn mount_in(table: &str) -> Option<PathBuf> {
    table.lines().find_map(|line| {
        let (mount, filesystem) = line.split_once(" - ")?;
        let kind = filesystem.split(' ').next()?;
        let point = mount.split(' ').nth(4)?;
        (kind == "cgroup2").then(|| PathBuf::from(unescape_mount(point)))
    })
}

/// Undoes the octal escapes of mountinfo: space, tab, newline, backslash.
fn unescape_mount(text: &str) -> String {
    text.replace("\\040", " ")
        .replace("\\011", "\t")
        .replace("\\012", "\n")
        .replace("\\134", "\\")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_the_unified_hierarchy_wherever_it_is() {
        let hybrid = "\
31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755
32 31 0:29 / /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu
41 31 0:38 / /sys/fs/cgroup/unified rw,relatime shared:9 - cgroup2 cgroup2 rw
";
        assert_eq!(mount_in(hybrid), Some("/sys/fs/cgroup/unified".into()));
        let unified =
            "25 20 0:22 / /sys/fs/cgroup rw,nosuid shared:4 master:1 - cgroup2 cgroup rw\n";
        assert_eq!(mount_in(unified), Some("/sys/fs/cgroup".into()));
        let spaced = "25 20 0:22 / /mnt/a\\040b rw - cgroup2 none rw\n";
        assert_eq!(mount_in(spaced), Some("/mnt/a b".into()));
    }

    #[test]
    fn says_when_there_is_none() {
        assert_eq!(
            mount_in("32 31 0:29 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n"),
            None
        );
        assert_eq!(mount_in("not a mount table\n"), None);
    }
}
