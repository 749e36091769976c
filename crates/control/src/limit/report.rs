//! A limit and its figures, read from its maps.

use std::path::{Path, PathBuf};

use anyhow::{Result, anyhow};
use libbpf_rs::{MapCore, MapFlags};
use serde::{Deserialize, Serialize};
use thalweg_bpf_objects::names::limit::maps;
use thalweg_bpf_types::{from_bytes, raw};

use super::settings::{self, has};
use super::sockets::{Moved, Socket, Subtree};
use super::{EGRESS, attached_to, maps_of, open};
use crate::links::cgroup_path;
use crate::system;

/// One limit and its figures. Rates count IP packets as on the wire.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Limit {
    /// The cgroup's directory; none if it was removed.
    pub cgroup: Option<PathBuf>,
    /// The cgroup's id.
    pub cgroup_id: u64,
    /// The rate that was set, bits per second.
    pub rate_bps: u64,
    /// The rate in force; it differs if the limit is work-conserving.
    pub present_rate_bps: u64,
    /// Work-conserving: the line's rate.
    pub line_bps: Option<u64>,
    /// Packets get departure times.
    pub edt: bool,
    /// TCP is paced.
    pub pace: bool,
    /// Loopback counts too.
    pub loopback: bool,
    /// Queue beyond which packets are marked, µs.
    pub mark_at_us: u64,
    /// Queue beyond which packets are dropped, µs.
    pub drop_at_us: u64,
    /// Credit of an idle cgroup, µs.
    pub burst_us: u64,
    /// Bytes that passed.
    pub bytes: u64,
    /// Packets that passed, as on the wire.
    pub packets: u64,
    /// Packets that passed with a CE mark.
    pub marked_packets: u64,
    /// Packets that passed and whose sender was told to slow down.
    pub notified_packets: u64,
    /// Packets that were dropped.
    pub dropped_packets: u64,
    /// Bytes that were dropped.
    pub dropped_bytes: u64,
    /// The virtual queue now, µs and bytes.
    pub queue_us: u64,
    /// The virtual queue now, bytes.
    pub queue_bytes: u64,
    /// Rate over the last whole second, bits per second; 0 if nothing was sent since.
    pub measured_bps: u64,
    /// Running mean of the credit, bytes; negative for a queue.
    pub average_credit_bytes: i64,
    /// The current pacing rate of each TCP connection, bits per second.
    pub share_bps: Option<u64>,
    /// Moved sockets, and connections that are not paced. None if the kernel does not tell, or the
    /// cgroup was removed.
    pub sockets: Option<Moved>,
}

/// The limit on the cgroup with this id; `None` if there is none.
pub(super) fn read(directory: &Path, id: u64, sockets: Option<&[Socket]>) -> Result<Option<Limit>> {
    let own = directory.join(id.to_string());
    if !own.exists() {
        return Ok(None);
    }
    let settings = settings::read(&open(own.join(maps::SETTINGS))?)?;
    let bytes = open(own.join(maps::STATE))?
        .lookup(&0u32.to_ne_bytes(), MapFlags::LOCK)?
        .unwrap_or_default();
    // The lock after the state is not read.
    let state: raw::thalweg_limit_state = bytes
        .get(..size_of::<raw::thalweg_limit_state>())
        .and_then(from_bytes)
        .ok_or_else(|| anyhow!("the limit's state is of another version"))?;
    let now_ns = system::monotonic_ns();
    let queue_ns = state.next_ns.saturating_sub(now_ns);
    let rate_bps = if state.rate_bps == 0 {
        settings.rate_bps
    } else {
        state.rate_bps
    };
    let bytes_at_rate = |ns: i64| (i128::from(ns) * i128::from(rate_bps) / 8_000_000_000) as i64;
    let is_idle = now_ns.saturating_sub(state.second_ns) > 3_000_000_000;
    let cgroup = attached_to(&own.join(EGRESS))?.and_then(cgroup_path);
    let sockets = match (&cgroup, sockets) {
        (Some(cgroup), Some(sockets)) => {
            let maps = maps_of(directory, &own, &settings)?;
            Some(maps.count(&Subtree::new(cgroup), sockets))
        }
        _ => None,
    };
    Ok(Some(Limit {
        cgroup,
        cgroup_id: id,
        rate_bps: settings.rate_bps,
        present_rate_bps: rate_bps,
        line_bps: has(&settings, raw::THALWEG_LIMIT_WORK_CONSERVING).then_some(settings.line_bps),
        edt: has(&settings, raw::THALWEG_LIMIT_EDT),
        pace: has(&settings, raw::THALWEG_LIMIT_PACE),
        loopback: has(&settings, raw::THALWEG_LIMIT_LOOPBACK),
        mark_at_us: settings.mark_ns / 1000,
        drop_at_us: settings.drop_ns / 1000,
        burst_us: settings.burst_ns / 1000,
        bytes: state.bytes,
        packets: state.packets,
        marked_packets: state.marked,
        notified_packets: state.notified,
        dropped_packets: state.dropped_packets,
        dropped_bytes: state.dropped_bytes,
        queue_us: queue_ns / 1000,
        queue_bytes: bytes_at_rate(queue_ns as i64).unsigned_abs(),
        measured_bps: if is_idle { 0 } else { state.measured_bps },
        average_credit_bytes: bytes_at_rate(state.credit_q8_ns / 256),
        share_bps: (has(&settings, raw::THALWEG_LIMIT_PACE) && state.share_bps > 0)
            .then_some(state.share_bps),
        sockets,
    }))
}
