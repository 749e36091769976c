//! The link: a veth pair, its addresses, and the bottleneck.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::Side;
use super::netns::Namespace;
use super::tool::run;
use crate::error::Error;
use crate::scenario::{DEFAULT_QUEUE, Family, PathModel};

/// The interface's name in both namespaces. It never exists outside them.
pub(super) const INTERFACE: &str = "link0";

/// Locally administered, so that the hosts know each other without asking: no
/// ARP or neighbour discovery that could get lost.
const CLIENT_MAC: &str = "02:00:00:00:00:01";
const SERVER_MAC: &str = "02:00:00:00:00:02";

/// An address of a host. The client has one, the server several.
pub(super) fn address(family: Family, side: Side, index: u8) -> IpAddr {
    let host = match side {
        Side::Client => 1,
        Side::Server => 2 + u16::from(index),
    };
    match family {
        Family::Ipv4 => Ipv4Addr::new(10, 0, 0, host as u8).into(),
        // Several /64, because a learner may take a /64 as one host.
        Family::Ipv6 => Ipv6Addr::new(0xfd00, 0, 0, host, 0, 0, 0, host).into(),
    }
}

/// Creates the veth pair between two namespaces and brings it up.
pub(super) fn join(
    client: &Namespace,
    server: &Namespace,
    path: &PathModel,
    further_addresses: u8,
) -> Result<(), Error> {
    let (near, far) = (client.name(), server.name());
    run(
        "ip",
        &format!(
            "link add {INTERFACE} netns {near} address {CLIENT_MAC} mtu {mtu} type veth \
             peer name {INTERFACE} netns {far} address {SERVER_MAC} mtu {mtu}",
            mtu = path.mtu
        ),
    )?;
    for name in [near, far] {
        if !path.offload {
            // One segment per packet. Needs no ethtool, and TCP obeys it as it
            // does a device without segmentation offload.
            run(
                "ip",
                &format!("-n {name} link set {INTERFACE} gso_max_segs 1"),
            )?;
        }
        // No link-local address and no group memberships: nothing crosses the
        // link but what the hosts send, so the sequence of loss is theirs alone.
        run(
            "ip",
            &format!("-n {name} link set {INTERFACE} addrgenmode none arp off"),
        )?;
        run("ip", &format!("-n {name} link set {INTERFACE} up"))?;
    }
    let (bits, nodad) = match path.family {
        Family::Ipv4 => (24, ""),
        Family::Ipv6 => (48, "nodad"),
    };
    let at_client = address(path.family, Side::Client, 0);
    run(
        "ip",
        &format!("-n {near} address add {at_client}/{bits} dev {INTERFACE} {nodad}"),
    )?;
    know(far, at_client, CLIENT_MAC)?;
    for index in 0..=further_addresses {
        let at_server = address(path.family, Side::Server, index);
        run(
            "ip",
            &format!("-n {far} address add {at_server}/{bits} dev {INTERFACE} {nodad}"),
        )?;
        know(near, at_server, SERVER_MAC)?;
    }
    bottleneck(client, path)
}

/// Sets or changes the rate and the queue of the data direction. A change keeps
/// what waits in the queue.
pub(super) fn bottleneck(client: &Namespace, path: &PathModel) -> Result<(), Error> {
    let Some(rate) = path.rate else {
        return Ok(());
    };
    let queue = path.queue.unwrap_or(DEFAULT_QUEUE);
    // 1 ms of the rate, so that the kernel's timers can keep it up, and at least
    // two packets.
    let burst = (rate.bps() / 8 / 1000).max(2 * (u64::from(path.mtu) + 14));
    run(
        "tc",
        &format!(
            "-n {} qdisc replace dev {INTERFACE} root handle 1: tbf rate {}bit burst {burst} limit {}",
            client.name(),
            rate.bps(),
            queue.bytes()
        ),
    )
}

fn know(namespace: &str, address: IpAddr, mac: &str) -> Result<(), Error> {
    run(
        "ip",
        &format!(
            "-n {namespace} neighbour replace {address} lladdr {mac} dev {INTERFACE} nud permanent"
        ),
    )
}
