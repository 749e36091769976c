//! Report of a link: what it did, and how exact it was.

use std::net::{Ipv4Addr, Ipv6Addr};

use serde::Serialize;

use crate::accuracy::Percentiles;
use crate::engine::Counters;
use crate::outside::OutsideAccess;

/// Raised whenever the meaning or name of a field changes.
pub const FORMAT: u32 = 1;

/// The delay error that 99 of 100 packets should stay below, in microseconds.
pub const ERROR_TARGET_US: f64 = 300.0;

/// Report of a link.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    /// [`FORMAT`].
    pub format: u32,
    /// From before the commands started until after they had ended, in seconds.
    pub duration_s: f64,
    /// Seed of everything random.
    pub seed: u64,
    /// Whether packets were forwarded with real-time priority.
    pub realtime: bool,
    /// The command's address.
    pub near: Ipv4Addr,
    /// The other end's address.
    pub far: Ipv4Addr,
    /// The command's IPv6 address; none where the kernel has no IPv6.
    pub near_v6: Option<Ipv6Addr>,
    /// The other end's IPv6 address.
    pub far_v6: Option<Ipv6Addr>,
    /// How packets went on to the machine's network, if they did.
    pub outside: Option<OutsideAccess>,
    /// From the command to the other end.
    pub near_to_far: Direction,
    /// From the other end to the command.
    pub far_to_near: Direction,
    /// How the command at the far end ended, if it did so by itself and not with
    /// success.
    pub far_command_failed: Option<String>,
    /// Departures from what was asked for, one sentence each; empty if there are none.
    pub warnings: Vec<String>,
}

/// Report of one direction.
#[derive(Debug, Clone, Serialize)]
pub struct Direction {
    /// Numbers of packets and bytes.
    #[serde(flatten)]
    pub counters: Counters,
    /// Packets that the kernel dropped because they were not read in time.
    pub unread: u64,
    /// Packets that the receiving end's device did not take.
    pub refused: u64,
    /// Bits of IP packets that left per second, from the first to the last.
    pub rate_bps: f64,
    /// How much later than asked for packets left.
    pub delay_error: Percentiles,
}

impl Report {
    /// Both directions with their names, near to far first.
    pub fn directions(&self) -> [(&'static str, &Direction); 2] {
        [
            ("near to far", &self.near_to_far),
            ("far to near", &self.far_to_near),
        ]
    }

    /// Says in `warnings` what was not as asked for.
    pub(crate) fn add_warnings(&mut self) {
        let mut warnings = Vec::new();
        for (name, direction) in self.directions() {
            let p99_us = direction.delay_error.p99_us;
            if p99_us > ERROR_TARGET_US {
                warnings.push(format!(
                    "{name}: one packet in a hundred left more than {:.2} ms late (target \
                     {:.1} ms): this machine was too busy for exact delays",
                    p99_us / 1e3,
                    ERROR_TARGET_US / 1e3
                ));
            }
            for (count, what) in [
                (
                    direction.unread,
                    "were lost in the kernel because this machine was too busy to read them",
                ),
                (
                    direction.refused,
                    "were not taken by the receiving end's device, which was down",
                ),
                (
                    direction.counters.dropped_memory,
                    "were dropped because too much was in flight to be kept in memory",
                ),
            ] {
                if count > 0 {
                    warnings.push(format!("{name}: {count} packets {what}"));
                }
            }
        }
        if self.outside.is_some()
            && self.near_to_far.counters.delivered > 0
            && self.far_to_near.counters.received == 0
        {
            warnings.push(
                "nothing came back from outside: a firewall of this machine may drop what it \
                 forwards (nft list ruleset, iptables -S FORWARD)"
                    .to_owned(),
            );
        }
        self.warnings = warnings;
    }
}
