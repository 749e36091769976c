//! Statistics of flows whose rules ask for them.

use std::cell::Cell;
use std::net::{IpAddr, Ipv6Addr};
use std::path::Path;
use std::time::Duration;

use libbpf_rs::{MapHandle, RingBufferBuilder};
use serde::{Deserialize, Serialize};
use thalweg_bpf_objects::names::policy::maps;
use thalweg_bpf_types::{from_bytes, raw};

use super::pins::Pins;
use crate::error::{Context, Error, Result};
use crate::{batch, system};

/// One report of one flow; counts are since the flow's start.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct FlowStatistics {
    /// Time, ms since 1970.
    pub time_ms: i64,
    /// The kernel's number of the socket.
    pub connection: u64,
    /// This machine's address.
    pub local: IpAddr,
    /// This machine's port.
    pub local_port: u16,
    /// The peer's address.
    pub remote: IpAddr,
    /// The peer's port.
    pub remote_port: u16,
    /// Index of its rule in the policy, from 0.
    pub rule: u32,
    /// Number of the policy.
    pub policy: u32,
    /// Bytes that the peer has acknowledged.
    pub bytes_acked: u64,
    /// Bytes received.
    pub bytes_received: u64,
    /// Segments delivered.
    pub delivered: u32,
    /// Segments delivered with an ECN mark of a router.
    pub delivered_ce: u32,
    /// Segments retransmitted.
    pub retransmitted: u32,
    /// Segments that the peer received twice (D-SACK).
    pub dsack_dups: u32,
    /// Smoothed round-trip time, us.
    pub srtt_us: u32,
    /// Minimum round-trip time, us.
    pub min_rtt_us: u32,
    /// Congestion window, segments.
    pub snd_cwnd: u32,
    /// Slow-start threshold, segments.
    pub snd_ssthresh: u32,
    /// Value of the peer's header option, if its rule reads it and it arrived.
    pub received_option: Option<u32>,
}

impl FlowStatistics {
    fn new(event: &raw::thalweg_policy_event) -> Self {
        let now = system::monotonic_ns();
        let age_ns = now.saturating_sub(event.time_ns);
        Self {
            time_ms: (system::wall_ns().saturating_sub(age_ns) / 1_000_000) as i64,
            connection: event.connection,
            local: canonical_address(event.local),
            local_port: event.local_port as u16,
            remote: canonical_address(event.remote),
            remote_port: event.remote_port as u16,
            rule: event.rule,
            policy: event.generation,
            bytes_acked: event.bytes_acked,
            bytes_received: event.bytes_received,
            delivered: event.delivered,
            delivered_ce: event.delivered_ce,
            retransmitted: event.retrans,
            dsack_dups: event.dsack_dups,
            srtt_us: event.srtt_us,
            min_rtt_us: event.min_rtt_us,
            snd_cwnd: event.snd_cwnd,
            snd_ssthresh: event.snd_ssthresh,
            received_option: (event.has_received != 0).then_some(event.received),
        }
    }
}

fn canonical_address(bytes: [u8; 16]) -> IpAddr {
    Ipv6Addr::from(bytes).to_canonical()
}

/// Calls `each` with statistics as they arrive, until it fails or `until` returns true. The ring is
/// read at least every 200 ms. One reader at a time: each report is read once.
///
/// # Errors
/// No policy is in force, or the error of `each`.
pub fn watch_statistics<E: From<Error>>(
    pin: &Path,
    until: impl Fn() -> bool,
    mut each: impl FnMut(FlowStatistics) -> Result<(), E>,
) -> Result<(), E> {
    let path = Pins::at(pin).shared_map_path(maps::EVENTS);
    let map = MapHandle::from_pinned_path(&path).context("no policy is in force")?;
    let failure = Cell::new(None);
    let mut builder = RingBufferBuilder::new();
    let added = builder.add(&map, |bytes| {
        let Some(event) = from_bytes::<raw::thalweg_policy_event>(bytes) else {
            return 0;
        };
        match each(FlowStatistics::new(&event)) {
            Ok(()) => 0,
            Err(error) => {
                failure.set(Some(error));
                -1
            }
        }
    });
    added.map_err(Error::from)?;
    let ring = builder.build().map_err(Error::from)?;
    while !until() {
        let timeout = Duration::from_millis(200);
        batch::poll_ring(&ring, timeout, "the ring of statistics", &failure)?;
    }
    Ok(())
}
