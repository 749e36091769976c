//! The program `timers.bpf.c`. Its link is pinned: when the agent dies, the program still takes back
//! the floors that are in force.

use anyhow::Result;
use thalweg_bpf_objects::names::timers::{maps, programs};
use thalweg_bpf_types::raw;
use thalweg_learner::HostKey;

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
