//! Sockets of other processes: giving back the pacing rate that a limit took over.

use std::collections::HashSet;
use std::fs;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::path::Path;

use anyhow::{Context, Result};
use libbpf_rs::{MapCore, MapFlags, MapHandle};
use thalweg_abi::{bytes_of, from_bytes, raw};

/// "No limit", as the kernel reads it from a 32-bit option.
const UNLIMITED: u32 = u32::MAX;

/// Takes a limit's share out of what the sockets of a cgroup, and of those below it, are
/// paced at. Sockets that no process of them holds any more keep their rate.
pub fn give_back(cgroup: &Path, pacing: &MapHandle, slot: usize) -> Result<()> {
    let mut seen = HashSet::new();
    for pid in processes(cgroup) {
        // A process that ends meanwhile needs nothing.
        let Some(process) = open_process(pid) else {
            continue;
        };
        let Ok(entries) = fs::read_dir(format!("/proc/{pid}/fd")) else {
            continue;
        };
        for entry in entries.flatten() {
            let Ok(target) = fs::read_link(entry.path()) else {
                continue;
            };
            let is_socket = target
                .as_os_str()
                .as_encoded_bytes()
                .starts_with(b"socket:");
            if !is_socket || !seen.insert(target) {
                continue;
            }
            let number = entry
                .file_name()
                .to_str()
                .and_then(|name| name.parse().ok());
            if let Some(socket) = number.and_then(|number| copy(&process, number)) {
                release(&socket, pacing, slot)?;
            }
        }
    }
    Ok(())
}

/// Process ids of a cgroup and of all below it.
pub fn processes(cgroup: &Path) -> Vec<i32> {
    let mut pids: Vec<i32> = fs::read_to_string(cgroup.join("cgroup.procs"))
        .unwrap_or_default()
        .lines()
        .filter_map(|line| line.parse().ok())
        // 0 stands for a process outside this process's PID namespace.
        .filter(|pid| *pid > 0)
        .collect();
    let Ok(entries) = fs::read_dir(cgroup) else {
        return pids;
    };
    for entry in entries.flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            pids.extend(processes(&entry.path()));
        }
    }
    pids
}

fn open_process(pid: i32) -> Option<OwnedFd> {
    // SAFETY: integers are passed; a non-negative answer is a descriptor of our own.
    unsafe {
        let fd = libc::syscall(libc::SYS_pidfd_open, pid, 0);
        (fd >= 0).then(|| OwnedFd::from_raw_fd(fd as i32))
    }
}

/// A descriptor of our own for another process's socket.
fn copy(process: &OwnedFd, number: i32) -> Option<OwnedFd> {
    // SAFETY: as above; `process` is open for the call.
    unsafe {
        let fd = libc::syscall(libc::SYS_pidfd_getfd, process.as_raw_fd(), number, 0);
        (fd >= 0).then(|| OwnedFd::from_raw_fd(fd as i32))
    }
}

fn release(socket: &OwnedFd, pacing: &MapHandle, slot: usize) -> Result<()> {
    let key = socket.as_raw_fd().to_ne_bytes();
    // The answer for what is no socket with a record is an error or nothing.
    let Ok(Some(bytes)) = pacing.lookup(&key, MapFlags::ANY) else {
        return Ok(());
    };
    let Some(mut record) = from_bytes::<raw::thalweg_pacing>(&bytes) else {
        return Ok(());
    };
    if let Some(share) = record.shares.get_mut(slot) {
        *share = 0;
    }
    let least = record
        .shares
        .iter()
        .copied()
        .filter(|share| *share > 0)
        .min();
    let rate = least.unwrap_or(UNLIMITED).min(record.own);
    set_rate(socket, rate)?;
    if least.is_some() {
        record.set = rate;
        pacing.update(&key, bytes_of(&record), MapFlags::ANY)?;
    } else {
        pacing.delete(&key)?;
    }
    Ok(())
}

fn set_rate(socket: &OwnedFd, rate: u32) -> Result<()> {
    // SAFETY: the option is a 32-bit integer, which lives through the call.
    let failed = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_MAX_PACING_RATE,
            (&raw const rate).cast(),
            size_of::<u32>() as libc::socklen_t,
        )
    };
    if failed != 0 {
        return Err(std::io::Error::last_os_error()).context("giving back a pacing rate");
    }
    Ok(())
}
