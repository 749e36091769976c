//! The program `timers.bpf.c`. Its link is pinned: when the agent dies, the program still takes back
//! the floors that are in force.

use std::fs::File;
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use libbpf_rs::{MapCore as _, MapFlags};
use nix::errno::Errno;
use thalweg_bpf_objects::names::timers::{maps, programs};
use thalweg_bpf_types::{bytes_of, raw};
use thalweg_control::iterator::SocketVisit;
use thalweg_control::{links, system};
use thalweg_learner::HostKey;
use thalweg_units::prefix::Prefix;

use crate::kernel::{Added, Kernel, trie_entries};
use crate::reporter::{Reporter, Source};

/// The program.
pub static SOURCE: Source = Source {
    object: "thalweg_timers",
    packed: thalweg_bpf_objects::TIMERS,
    program: programs::TIMERS_SOCKOPS,
    table: maps::TIMERS,
    reports: maps::REPORTS,
    lost: maps::LOST,
    pin: Some("link_timers"),
};

/// The attached program.
pub type Programs = Reporter<raw::thalweg_timers_report>;

/// Loads and attaches the program. With `existing` it is called for connections that are open, too.
///
/// # Errors
/// The kernel's.
pub fn load(kernel: &Kernel, existing: bool) -> Result<Programs> {
    if !existing {
        return Reporter::load(kernel, &SOURCE);
    }
    let cgroup = File::open(&kernel.setup().cgroup).context("opening the cgroup")?;
    let covered = links::cgroup_id(&cgroup)?.to_ne_bytes();
    let added = Added {
        constants: &[(maps::RODATA_COVERED, &covered)],
        programs: &[programs::TIMERS_OPEN],
    };
    Reporter::load_with(kernel, &SOURCE, &added)
}

/// Has the program called for connections that were open before it, in all network namespaces.
///
/// # Errors
/// The kernel refuses it: before Linux 6.12.
pub fn reach_open_connections(programs: &Programs) -> Result<()> {
    let link: Arc<OwnedFd> = Arc::new(programs.attach_iterator(programs::TIMERS_OPEN)?);
    let visit = move || {
        let refusal = || {
            let mut first = [0];
            let read = SocketVisit::begin(link.as_fd())?.read_output(&mut first)?;
            Ok::<_, anyhow::Error>((read > 0).then(|| Errno::from_raw(first[0].into())))
        };
        Some(refusal())
    };
    for refusal in system::in_namespaces(|_| true, visit) {
        let refusal = refusal?;
        ensure!(
            refusal.is_none(),
            "connections that were open before keep the kernel's timers: TCP_BPF_SOCK_OPS_CB_FLAGS, \
             Linux 6.12, is refused: {}",
            refusal.map_or("", Errno::desc)
        );
    }
    Ok(())
}

/// Bounds the delay of ACKs to peers in these prefixes, up to a CLOCK_MONOTONIC.
///
/// # Errors
/// The kernel's.
pub fn bound_acks(
    programs: &Programs,
    peers: &[Prefix],
    delay_us: u32,
    until_ns: u64,
) -> Result<()> {
    let map = programs.map(maps::PEERS)?;
    for (key, is_inside) in trie_entries(peers) {
        let bound = raw::thalweg_timers_peers {
            until_ns: u64::from(is_inside) * until_ns,
            delay_us,
            reserved: 0,
        };
        map.update(bytes_of(&key), bytes_of(&bound), MapFlags::ANY)
            .context("writing timers.peers")?;
    }
    Ok(())
}

/// Sets the timers of a network.
///
/// # Errors
/// The kernel's: the table is full.
pub fn set(programs: &Programs, network: &HostKey, timers: &raw::thalweg_timers) -> Result<()> {
    let mut timers = *timers;
    // What the program counts stays.
    if let Some(present) = programs.entry::<raw::thalweg_timers>(network)? {
        timers.credit = present.credit;
    }
    programs.set(network, &timers)
}

/// Ends all timers for new connections. Those in force end with the recoveries that they are for, and a
/// SYN on its way still finds its number of retransmissions.
///
/// # Errors
/// The kernel's.
pub fn expire(programs: &Programs) -> Result<()> {
    programs.change_all(|timers: &mut raw::thalweg_timers| timers.until_ns = 0)
}
