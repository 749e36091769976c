//! The wires: veth pairs, addresses, neighbours and routes.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::Side;
use super::netns::Namespace;
use super::tool::run;
use crate::error::Error;
use crate::scenario::{Family, PathModel};

/// The interface's name on both hosts. It never exists outside them.
pub(super) const INTERFACE: &str = "link0";
/// A relay's interface towards the client.
pub(super) const NEAR: &str = "near";
/// A relay's interface towards the server.
pub(super) const FAR: &str = "far";

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

/// An end of a veth pair: a namespace and the interface's name in it.
#[derive(Clone, Copy)]
pub(super) struct End<'a> {
    pub(super) namespace: &'a Namespace,
    pub(super) interface: &'a str,
}

/// Joins the hosts, through the relays in between if there are any, and gives
/// them their addresses.
pub(super) fn join(
    client: &Namespace,
    server: &Namespace,
    relays: &[&Namespace],
    path: &PathModel,
    further_addresses: u8,
) -> Result<(), Error> {
    let mut near = End {
        namespace: client,
        interface: INTERFACE,
    };
    for relay in relays {
        let far = End {
            namespace: relay,
            interface: NEAR,
        };
        link(near, far, path, further_addresses)?;
        near = End {
            namespace: relay,
            interface: FAR,
        };
    }
    let far = End {
        namespace: server,
        interface: INTERFACE,
    };
    link(near, far, path, further_addresses)?;
    for host in [client, server] {
        if !path.offload {
            // One segment per packet. Needs no ethtool, and TCP obeys it as it
            // does a device without segmentation offload.
            let name = host.name();
            run(
                "ip",
                &format!("-n {name} link set {INTERFACE} gso_max_segs 1"),
            )?;
        }
    }
    give_addresses(client, server, path.family, further_addresses)?;
    relays
        .iter()
        .try_for_each(|relay| forward(relay, path.family, further_addresses))
}

/// Gives the hosts their addresses on [`INTERFACE`].
pub(super) fn give_addresses(
    client: &Namespace,
    server: &Namespace,
    family: Family,
    further_addresses: u8,
) -> Result<(), Error> {
    let (bits, nodad) = match family {
        Family::Ipv4 => (24, ""),
        Family::Ipv6 => (48, "nodad"),
    };
    let give = |host: &Namespace, address: IpAddr| {
        let name = host.name();
        run(
            "ip",
            &format!("-n {name} address add {address}/{bits} dev {INTERFACE} {nodad}"),
        )
    };
    give(client, address(family, Side::Client, 0))?;
    (0..=further_addresses).try_for_each(|index| give(server, address(family, Side::Server, index)))
}

/// Creates one veth pair. Towards each end the other bears the address of the
/// host behind it, so that hosts and relays need the same table of neighbours.
fn link(near: End<'_>, far: End<'_>, path: &PathModel, further_addresses: u8) -> Result<(), Error> {
    run(
        "ip",
        &format!(
            "link add {} netns {} address {CLIENT_MAC} mtu {mtu} type veth \
             peer name {} netns {} address {SERVER_MAC} mtu {mtu}",
            near.interface,
            near.namespace.name(),
            far.interface,
            far.namespace.name(),
            mtu = path.mtu
        ),
    )?;
    for end in [near, far] {
        let (name, interface) = (end.namespace.name(), end.interface);
        // No link-local address and no group memberships: nothing crosses the
        // link but what the hosts send, so the sequence of loss is theirs alone.
        run(
            "ip",
            &format!("-n {name} link set {interface} addrgenmode none arp off"),
        )?;
        run("ip", &format!("-n {name} link set {interface} up"))?;
    }
    know(far, address(path.family, Side::Client, 0), CLIENT_MAC)?;
    for index in 0..=further_addresses {
        know(near, address(path.family, Side::Server, index), SERVER_MAC)?;
    }
    Ok(())
}

fn know(end: End<'_>, address: IpAddr, mac: &str) -> Result<(), Error> {
    let (name, interface) = (end.namespace.name(), end.interface);
    run(
        "ip",
        &format!(
            "-n {name} neighbour replace {address} lladdr {mac} dev {interface} nud permanent"
        ),
    )
}

/// Makes a relay forward between its two links, without addresses of its own.
fn forward(relay: &Namespace, family: Family, further_addresses: u8) -> Result<(), Error> {
    relay.set_sysctl(
        match family {
            Family::Ipv4 => "net.ipv4.ip_forward",
            Family::Ipv6 => "net.ipv6.conf.all.forwarding",
        },
        "1",
    )?;
    let route = |address: IpAddr, interface: &str| {
        let name = relay.name();
        run(
            "ip",
            &format!("-n {name} route add {address} dev {interface}"),
        )
    };
    route(address(family, Side::Client, 0), NEAR)?;
    (0..=further_addresses).try_for_each(|index| route(address(family, Side::Server, index), FAR))
}
