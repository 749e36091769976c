//! Sockets of other processes: their holders, and the cgroup of their creation.
//!
//! The kernel binds a socket to the cgroup of the process that creates it, and accepted connections
//! to the listener's. Moving a process moves none of its sockets (net/core/sock.c,
//! `cgroup_sk_alloc`). So a limit marks sockets that have changed hands in a map of socket storage,
//! by a copy of each (`pidfd_getfd`, Linux 5.6). That needs no kernel BTF.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use anyhow::{Context, Result};
use libbpf_rs::{MapCore, MapFlags, MapHandle};
use serde::{Deserialize, Serialize};
use thalweg_bpf_types::{Pod, bytes_of, from_bytes, raw};

use crate::{diag, system};

/// "No limit", in a 32-bit option of the kernel.
const UNLIMITED: u32 = u32::MAX;

/// Sockets outside the cgroup of their creation, and connections older than the limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Moved {
    /// Processes of the cgroup that hold sockets created elsewhere.
    pub processes: u64,
    /// Those sockets.
    pub sockets: u64,
    /// Sockets among those that the limit does not reach.
    pub not_reached: u64,
    /// Sockets created in the cgroup, under the limit, that only processes elsewhere hold.
    pub left: u64,
    /// TCP connections of the cgroup that are not paced.
    pub not_paced: u64,
}

/// A socket held by processes.
#[derive(Debug)]
pub(super) struct Socket {
    /// Id of the cgroup in which it was created.
    pub made_in: u64,
    /// A TCP connection to another machine.
    pub is_connection: bool,
    /// A TCP connection of the machine to itself.
    pub is_local: bool,
    /// Processes that hold it, each with its descriptor.
    pub holders: Vec<(i32, i32)>,
}

/// All TCP and UDP sockets that processes hold, in all network namespaces that can be entered.
///
/// # Errors
/// [`anyhow::Error`] if the kernel does not list them, or not the cgroup of their creation.
pub(super) fn survey() -> Result<Vec<Socket>> {
    let mut sockets: HashMap<u64, Socket> = HashMap::new();
    for namespace in system::in_namespaces(|_| true, || Some(in_this_namespace())) {
        sockets.extend(namespace?);
    }
    let Ok(processes) = fs::read_dir("/proc") else {
        return Ok(Vec::new());
    };
    for process in processes.flatten() {
        let Some(pid) = number(&process.file_name()) else {
            continue;
        };
        // A process that ends meanwhile holds nothing.
        let Ok(descriptors) = fs::read_dir(process.path().join("fd")) else {
            continue;
        };
        for descriptor in descriptors.flatten() {
            let Ok(target) = fs::read_link(descriptor.path()) else {
                continue;
            };
            let inode = target.to_str().and_then(|target| {
                let inode = target.strip_prefix("socket:[")?.strip_suffix(']')?;
                inode.parse().ok()
            });
            let socket = inode.and_then(|inode: u64| sockets.get_mut(&inode));
            if let (Some(socket), Some(fd)) = (socket, number(&descriptor.file_name())) {
                socket.holders.push((pid, fd));
            }
        }
    }
    let held = sockets.into_values();
    Ok(held.filter(|socket| !socket.holders.is_empty()).collect())
}

fn number(name: &std::ffi::OsStr) -> Option<i32> {
    name.to_str()?.parse().ok()
}

fn in_this_namespace() -> Result<Vec<(u64, Socket)>> {
    let mut sockets = Vec::new();
    for protocol in [libc::IPPROTO_TCP, libc::IPPROTO_UDP] {
        let asked = diag::each(protocol, &mut |socket| {
            let (Some(made_in), true) = (socket.cgroup, socket.inode > 0) else {
                return;
            };
            let is_connection = protocol == libc::IPPROTO_TCP && !socket.is_listener;
            let known = Socket {
                made_in,
                is_connection: is_connection && !socket.is_local,
                is_local: is_connection && socket.is_local,
                holders: Vec::new(),
            };
            sockets.push((socket.inode, known));
        });
        // Some kernels list TCP only (CONFIG_INET_UDP_DIAG).
        if protocol == libc::IPPROTO_TCP {
            asked?;
        }
    }
    Ok(sockets)
}

/// A cgroup and its descendants: ids, and processes.
pub(super) struct Subtree {
    ids: HashSet<u64>,
    processes: HashSet<i32>,
}

impl Subtree {
    pub fn new(cgroup: &Path) -> Self {
        let mut all = Self {
            ids: HashSet::new(),
            processes: HashSet::new(),
        };
        all.add(cgroup);
        all
    }

    fn add(&mut self, cgroup: &Path) {
        self.ids
            .extend(fs::metadata(cgroup).ok().map(|metadata| metadata.ino()));
        let pids = fs::read_to_string(cgroup.join("cgroup.procs")).unwrap_or_default();
        // 0 stands for a process outside this process's PID namespace.
        let pids = pids.lines().filter_map(|line| line.parse().ok());
        self.processes.extend(pids.filter(|pid: &i32| *pid > 0));
        for entry in fs::read_dir(cgroup).into_iter().flatten().flatten() {
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                self.add(&entry.path());
            }
        }
    }

    /// All processes.
    pub fn processes(&self) -> impl Iterator<Item = i32> {
        self.processes.iter().copied()
    }

    /// Processes of the cgroup that hold a socket.
    fn holders(&self, socket: &Socket) -> impl Iterator<Item = i32> {
        let pids = socket.holders.iter().map(|(pid, _)| *pid);
        pids.filter(|pid| self.processes.contains(pid))
    }

    /// The place of a socket, and whether the limit should apply to it.
    fn place(&self, socket: &Socket) -> (raw::thalweg_limit_place, bool) {
        let is_held = self.holders(socket).next().is_some();
        let place = match (self.ids.contains(&socket.made_in), is_held) {
            (true, false) => raw::THALWEG_LIMIT_OUT,
            (false, true) => raw::THALWEG_LIMIT_IN,
            _ => raw::THALWEG_LIMIT_WHERE_MADE,
        };
        (place, is_held)
    }

    /// Whether its processes hold sockets created elsewhere.
    pub fn holds_others(&self, sockets: &[Socket]) -> bool {
        let mut places = sockets.iter().map(|socket| self.place(socket).0);
        places.any(|place| place == raw::THALWEG_LIMIT_IN)
    }

    /// Whether a socket does not concern this cgroup: created elsewhere, and held elsewhere.
    fn is_foreign(&self, socket: &Socket) -> bool {
        !self.ids.contains(&socket.made_in) && self.holders(socket).next().is_none()
    }
}

/// The maps of a limit with entries per socket, and the settings they need.
pub(super) struct Maps {
    /// Shared by all limits.
    pub pacing: MapHandle,
    /// Of this limit.
    pub flows: MapHandle,
    /// Index of the limit in a record of `pacing`.
    pub slot: usize,
    /// TCP is paced.
    pub pace: bool,
    /// Loopback counts.
    pub loopback: bool,
    /// Whether sockets created elsewhere are marked as the limit's; otherwise none has to be
    /// checked.
    pub some_are_in: bool,
}

impl Maps {
    fn slot_of(&self, place: raw::thalweg_limit_place) -> usize {
        let is_in = place == raw::THALWEG_LIMIT_IN;
        self.slot
            + if is_in {
                raw::THALWEG_LIMIT_SLOTS as usize
            } else {
                0
            }
    }

    fn is_to_be_paced(&self, socket: &Socket) -> bool {
        self.pace && (socket.is_connection || self.loopback && socket.is_local)
    }

    fn share(&self, copy: &OwnedFd, slot: usize) -> u32 {
        let record = record::<raw::thalweg_pacing>(&self.pacing, copy);
        record.map_or(0, |record| record.shares[slot])
    }

    /// The sockets that concern the limit, each with a copy and its record.
    fn own<'a>(
        &self,
        subtree: &Subtree,
        sockets: &'a [Socket],
    ) -> impl Iterator<Item = (&'a Socket, OwnedFd, raw::thalweg_limit_flow)> {
        let own = sockets
            .iter()
            .filter(|socket| self.some_are_in || !subtree.is_foreign(socket));
        own.filter_map(|socket| {
            let copy = copy(socket)?;
            let known = record::<raw::thalweg_limit_flow>(&self.flows, &copy);
            Some((socket, copy, known.unwrap_or_default()))
        })
    }

    /// Counts sockets outside the cgroup of their creation.
    pub fn count(&self, subtree: &Subtree, sockets: &[Socket]) -> Moved {
        let mut moved = Moved::default();
        let mut processes = HashSet::new();
        for (socket, copy, known) in self.own(subtree, sockets) {
            let (place, is_held) = subtree.place(socket);
            if place == raw::THALWEG_LIMIT_IN {
                processes.extend(subtree.holders(socket));
                moved.sockets += 1;
                moved.not_reached += u64::from(known.place != place);
            }
            moved.left += u64::from(!is_held && known.place != place);
            if is_held && self.is_to_be_paced(socket) {
                moved.not_paced += u64::from(self.share(&copy, self.slot_of(place)) == 0);
            }
        }
        moved.processes = processes.len() as u64;
        moved
    }

    /// Marks the places of sockets. Paces those that no program has paced yet, at equal parts of
    /// the rate. `follow` then makes their share follow the limit's.
    pub fn reach(
        &self,
        subtree: &Subtree,
        sockets: &[Socket],
        rate_bps: u64,
        mut follow: impl FnMut(&OwnedFd),
    ) -> Result<()> {
        let mut old = Vec::new();
        for (socket, copy, mut flow) in self.own(subtree, sockets) {
            let (place, is_held) = subtree.place(socket);
            if flow.place != place {
                // Releases the slot of its last place.
                self.release(&copy, self.slot_of(flow.place))?;
                flow.place = place;
                self.flows
                    .update(
                        &copy.as_raw_fd().to_ne_bytes(),
                        bytes_of(&flow),
                        MapFlags::ANY,
                    )
                    .context("marking a socket that has moved")?;
            }
            let slot = self.slot_of(place);
            if is_held && self.is_to_be_paced(socket) && self.share(&copy, slot) == 0 {
                old.push((copy, slot));
            }
        }
        // Less than the whole rate, because TCP paces without IP's headers. A fixed share would
        // keep a queue, which would drive the share of all others to zero.
        let part = rate_bps / 8 * 15 / 16 / old.len().max(1) as u64;
        for (copy, slot) in &old {
            self.hold(copy, *slot, u32::try_from(part.max(1)).unwrap_or(0))?;
            follow(copy);
        }
        Ok(())
    }

    /// Removes the limit's shares from the pacing rates of its sockets.
    pub fn give_back(&self, subtree: &Subtree, sockets: &[Socket]) -> Result<()> {
        for (_, copy, known) in self.own(subtree, sockets) {
            self.release(&copy, self.slot_of(known.place))?;
        }
        Ok(())
    }

    /// Paces a socket at a share, in bytes per second; 0 is none.
    fn hold(&self, copy: &OwnedFd, slot: usize, share: u32) -> Result<()> {
        let mut record = record::<raw::thalweg_pacing>(&self.pacing, copy).unwrap_or_default();
        let now = rate(copy)?;
        if record.set != now {
            record.own = now;
        }
        record.shares[slot] = share;
        self.apply(copy, record)
    }

    fn release(&self, copy: &OwnedFd, slot: usize) -> Result<()> {
        match record::<raw::thalweg_pacing>(&self.pacing, copy) {
            Some(mut record) if record.shares[slot] > 0 => {
                record.shares[slot] = 0;
                self.apply(copy, record)
            }
            _ => Ok(()),
        }
    }

    /// Paces a socket by its record.
    fn apply(&self, copy: &OwnedFd, mut record: raw::thalweg_pacing) -> Result<()> {
        let key = copy.as_raw_fd().to_ne_bytes();
        let shares = record.shares.iter().copied().filter(|share| *share > 0);
        let least = shares.min();
        record.set = least.unwrap_or(UNLIMITED).min(record.own);
        set_rate(copy, record.set)?;
        if least.is_some() {
            self.pacing.update(&key, bytes_of(&record), MapFlags::ANY)?;
        } else {
            self.pacing.delete(&key)?;
        }
        Ok(())
    }
}

/// A socket's value in a map of socket storage.
fn record<T: Pod>(map: &MapHandle, copy: &OwnedFd) -> Option<T> {
    let bytes = map.lookup(&copy.as_raw_fd().to_ne_bytes(), MapFlags::ANY);
    from_bytes(&bytes.ok()??)
}

/// A copy of another process's descriptor.
fn copy(socket: &Socket) -> Option<OwnedFd> {
    socket.holders.iter().find_map(|&(pid, fd)| {
        // SAFETY: integers are passed; a non-negative answer is a descriptor of our own.
        let process = unsafe {
            let process = libc::syscall(libc::SYS_pidfd_open, pid, 0);
            (process >= 0).then(|| OwnedFd::from_raw_fd(process as i32))
        }?;
        // SAFETY: as above; `process` is open for the call.
        unsafe {
            let copy = libc::syscall(libc::SYS_pidfd_getfd, process.as_raw_fd(), fd, 0);
            (copy >= 0).then(|| OwnedFd::from_raw_fd(copy as i32))
        }
    })
}

/// Makes TCP call the pacer for a connection (`limit_follow` in `limit.bpf.c`). If the kernel
/// cannot, its share stays unchanged.
pub(super) fn follow(copy: &OwnedFd) {
    let nothing = 0u32;
    // SAFETY: the option is a 32-bit integer, which lives through the call.
    unsafe {
        libc::setsockopt(
            copy.as_raw_fd(),
            raw::THALWEG_LIMIT_LEVEL as i32,
            1,
            (&raw const nothing).cast(),
            size_of::<u32>() as libc::socklen_t,
        );
    }
}

fn rate(socket: &OwnedFd) -> Result<u32> {
    let mut rate = UNLIMITED;
    let mut length = size_of::<u32>() as libc::socklen_t;
    // SAFETY: the option is a 32-bit integer if there is room for no more.
    let failed = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_MAX_PACING_RATE,
            (&raw mut rate).cast(),
            &raw mut length,
        )
    };
    if failed != 0 {
        return Err(std::io::Error::last_os_error()).context("reading a pacing rate");
    }
    Ok(rate)
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
        return Err(std::io::Error::last_os_error()).context("setting a pacing rate");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_socket_belongs_to_who_holds_it() {
        let subtree = Subtree {
            ids: [1, 2].into(),
            processes: [10, 20].into(),
        };
        let place = |made_in, pids: &[i32]| {
            subtree.place(&Socket {
                made_in,
                is_connection: true,
                is_local: false,
                holders: pids.iter().map(|pid| (*pid, 3)).collect(),
            })
        };
        assert_eq!(place(1, &[10]), (raw::THALWEG_LIMIT_WHERE_MADE, true));
        assert_eq!(place(2, &[30, 20]), (raw::THALWEG_LIMIT_WHERE_MADE, true));
        assert_eq!(place(2, &[30]), (raw::THALWEG_LIMIT_OUT, false));
        assert_eq!(place(3, &[30, 10]), (raw::THALWEG_LIMIT_IN, true));
        assert_eq!(place(3, &[30]), (raw::THALWEG_LIMIT_WHERE_MADE, false));
    }
}
