//! The program `idle.bpf.c`, and the congestion control `idle_cubic.bpf.c`, which has its maps. Both end
//! with the agent; the connections that have the congestion control keep it, as the kernel's cubic.

use std::os::fd::AsFd as _;

use anyhow::{Context, Result};
use libbpf_rs::{MapCore as _, MapFlags};
use thalweg_bpf_objects::names::idle::{maps, programs};
use thalweg_bpf_types::{bytes_of, raw};
use thalweg_control::cc::{self, Registered};

use crate::kernel::Kernel;
use crate::reporter::{Reporter, Source};

/// The program.
static SOURCE: Source = Source {
    object: "thalweg_idle",
    packed: thalweg_bpf_objects::IDLE,
    program: programs::IDLE_SOCKOPS,
    table: maps::IDLE_NETWORKS,
    reports: maps::IDLE_REPORTS,
    lost: maps::IDLE_LOST,
    pin: None,
};

/// The attached program and the registered congestion control.
pub struct Programs {
    /// The program.
    pub reporter: Reporter<raw::thalweg_idle_report>,
    /// The congestion control.
    _cubic: Registered,
}

/// Loads, registers and attaches both.
///
/// # Errors
/// The kernel's, or it lacks links for congestion controls (Linux 6.4).
pub fn load(kernel: &Kernel) -> Result<Programs> {
    let reporter = Reporter::load(kernel, &SOURCE)?;
    let names = [
        maps::IDLE_NETWORKS,
        maps::IDLE_FLOWS,
        maps::IDLE_REPORTS,
        maps::IDLE_LOST,
    ];
    let maps = names.map(|name| Ok((name, reporter.map(name)?)));
    let maps = maps.into_iter().collect::<Result<Vec<_>>>()?;
    let shared = maps.iter().map(|(name, map)| (*name, map.as_fd()));
    let packed = thalweg_bpf_objects::IDLE_CUBIC.unpack();
    let program = cc::Program::built_in("thalweg_cubic", packed).sharing(shared.collect());
    let cubic = cc::register(&program)?;
    let mut settings = raw::thalweg_idle_settings::default();
    settings.name[..cubic.name.len()].copy_from_slice(cubic.name.as_bytes());
    // Connections get it from here on.
    let map = reporter.map(maps::IDLE_SETTINGS)?;
    map.update(&0u32.to_ne_bytes(), bytes_of(&settings), MapFlags::ANY)
        .context("naming the congestion control")?;
    Ok(Programs {
        reporter,
        _cubic: cubic,
    })
}
