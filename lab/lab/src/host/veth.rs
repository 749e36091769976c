//! The wires: veth pairs, addresses, neighbours and routes.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use thalweg_process::tool::{run_batch, run_tool};

use super::Side;
use super::netns::Namespace;
use crate::error::Error;
use crate::scenario::{Family, PathModel};

/// Name of the interface on a server, and of the client's towards the first server. It exists only
/// in those namespaces.
pub(super) const INTERFACE: &str = "link0";
/// The interface to the kernel of a host on a stack.
pub(super) const TAP: &str = "stack";
/// A relay's interface towards the client.
pub(super) const NEAR: &str = "near";
/// A relay's interface towards the server.
pub(super) const FAR: &str = "far";

/// Locally administered and fixed, so that ARP and neighbour discovery, which could get lost, are
/// not needed.
const CLIENT_MAC: &str = "02:00:00:00:00:01";
const SERVER_MAC: &str = "02:00:00:00:00:02";

/// The place of a server among those of a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ServerPlace {
    /// Counted from 0.
    pub(super) serial: u8,
    /// Network of the server (a /24, or a /48), counted from 0.
    pub(super) network: u8,
    /// Number of the server in that network, counted from 0.
    pub(super) index: u8,
    /// Whether others are in that network, behind links of their own.
    pub(super) shared: bool,
}

impl ServerPlace {
    /// The places of servers, with so many in each network.
    pub(super) fn places_in_networks(networks: &[u8]) -> Vec<Self> {
        let within = |(network, count): (usize, &u8)| {
            let shared = *count > 1;
            (0..*count).map(move |index| (network as u8, index, shared))
        };
        let places = networks.iter().enumerate().flat_map(within);
        places
            .enumerate()
            .map(|(serial, (network, index, shared))| Self {
                serial: serial as u8,
                network,
                index,
                shared,
            })
            .collect()
    }

    /// The client's interface towards it.
    pub(super) fn client_interface(self) -> String {
        format!("link{}", self.serial)
    }

    /// The client's address on the link to it. All links to one network have the same.
    pub(super) fn client_address(self, family: Family) -> IpAddr {
        host_address(family, self.network, 1)
    }

    /// The server's address, or a further one.
    pub(super) fn server_address(self, family: Family, further: u8) -> IpAddr {
        host_address(family, self.network, 2 + self.index + further)
    }
}

fn host_address(family: Family, network: u8, host: u8) -> IpAddr {
    let wide = u16::from(host);
    match family {
        Family::Ipv4 => Ipv4Addr::new(10, 0, network, host).into(),
        // Several /64: a learner may treat a /64 as one host.
        Family::Ipv6 => Ipv6Addr::new(0xfd00, 0, network.into(), wide, 0, 0, 0, wide).into(),
    }
}

/// The two hosts of a link.
#[derive(Debug, Clone, Copy)]
pub(super) struct Endpoints<'a> {
    pub(super) client: &'a Namespace,
    pub(super) server: &'a Namespace,
    pub(super) place: ServerPlace,
    pub(super) further_addresses: u8,
    /// Hosts on stacks. Their namespaces forward.
    pub(super) stacks: &'a [Side],
}

impl Endpoints<'_> {
    /// The commands that give a host its addresses, or make its namespace a relay.
    fn host_commands(
        &self,
        wires: &Wires,
        side: Side,
        interface: &str,
    ) -> Result<Vec<String>, Error> {
        if !self.stacks.contains(&side) {
            return Ok(wires.address_commands(side, interface));
        }
        let host = match side {
            Side::Client => self.client,
            Side::Server => self.server,
        };
        host.set_sysctl(wires.forwarding_setting(), "1")?;
        Ok(wires.to_stack(side, interface))
    }

    /// Each host with its interface.
    pub(super) fn host_interfaces(&self) -> [(&Namespace, Side, String); 2] {
        [
            (self.client, Side::Client, self.place.client_interface()),
            (self.server, Side::Server, INTERFACE.to_owned()),
        ]
    }
}

/// Joins the hosts, through the relays if there are any, gives them their addresses and brings
/// everything up, loopbacks included.
pub(super) fn join_hosts(
    ends: &Endpoints<'_>,
    relays: &[Namespace],
    path: &PathModel,
) -> Result<(), Error> {
    let wires = Wires::for_path(ends, path);
    // One call of `ip` per namespace: each is a process, which is slow in user-mode Linux.
    let mut lines: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    let client_interface = ends.place.client_interface();
    let mut near = (ends.client.name(), client_interface.as_str());
    for far in relays
        .iter()
        .map(|relay| (relay.name(), NEAR))
        .chain([(ends.server.name(), INTERFACE)])
    {
        run_tool("ip", &wires.veth_arguments(near, far))?;
        for (end, commands) in [
            (near, wires.near_commands(near.1)),
            (far, wires.far_commands(far.1)),
        ] {
            lines.entry(end.0).or_default().extend(commands);
        }
        near = (far.0, FAR);
    }
    for relay in relays {
        relay.set_sysctl(wires.forwarding_setting(), "1")?;
        lines
            .entry(relay.name())
            .or_default()
            .extend(wires.relay_routes());
    }
    let hosts = ends.host_interfaces();
    for (host, side, interface) in &hosts {
        let commands = lines.entry(host.name()).or_default();
        if !path.offload {
            commands.push(one_segment(interface));
        }
        commands.extend(ends.host_commands(&wires, *side, interface)?);
    }
    for (namespace, mut commands) in lines {
        commands.push("link set lo up".to_owned());
        run_batch(namespace, &commands)?;
    }
    Ok(())
}

/// Gives the hosts addresses on their existing interfaces, and brings their loopbacks up.
pub(super) fn give_addresses(ends: &Endpoints<'_>, path: &PathModel) -> Result<(), Error> {
    let wires = Wires::for_path(ends, path);
    for (host, side, interface) in &ends.host_interfaces() {
        let mut commands = ends.host_commands(&wires, *side, interface)?;
        commands.push("link set lo up".to_owned());
        run_batch(host.name(), &commands)?;
    }
    Ok(())
}

/// The commands of `ip` that make the kernel of a stack a host of the path.
pub(super) fn stack_commands(path: &PathModel, side: Side, interface: &str) -> Vec<String> {
    let wires = Wires {
        family: path.family,
        mtu: path.mtu,
        place: ServerPlace {
            serial: 0,
            network: 0,
            index: 0,
            shared: false,
        },
        further_addresses: 0,
    };
    let (mac, up) = match side {
        Side::Client => (CLIENT_MAC, wires.near_commands(interface)),
        Side::Server => (SERVER_MAC, wires.far_commands(interface)),
    };
    let mut commands = vec![format!("link set {interface} address {mac}")];
    commands.extend(up);
    if !path.offload {
        commands.push(one_segment(interface));
    }
    commands.extend(wires.address_commands(side, interface));
    commands
}

/// One segment per packet. It needs no ethtool, and TCP obeys it like a device without segmentation
/// offload.
fn one_segment(interface: &str) -> String {
    format!("link set {interface} gso_max_segs 1")
}

/// The common parameters of all links of a path.
struct Wires {
    family: Family,
    mtu: u32,
    place: ServerPlace,
    further_addresses: u8,
}

impl Wires {
    fn for_path(ends: &Endpoints<'_>, path: &PathModel) -> Self {
        Self {
            family: path.family,
            mtu: path.mtu,
            place: ends.place,
            further_addresses: ends.further_addresses,
        }
    }

    /// The arguments that create one veth pair between two interfaces, each given as namespace and
    /// name.
    ///
    /// Each end bears the address of the host beyond the other, so that hosts and relays share one
    /// neighbour table.
    fn veth_arguments(&self, near: (&str, &str), far: (&str, &str)) -> String {
        let mtu = self.mtu;
        format!(
            "link add {} netns {} address {CLIENT_MAC} mtu {mtu} type veth \
             peer name {} netns {} address {SERVER_MAC} mtu {mtu}",
            near.1, near.0, far.1, far.0
        )
    }

    /// The commands for the interface on a link's client side.
    fn near_commands(&self, interface: &str) -> Vec<String> {
        let mut commands = link_up_commands(interface);
        commands.extend(
            self.server_addresses()
                .map(|server| neighbour_command(interface, server, SERVER_MAC)),
        );
        commands
    }

    /// The commands for the interface on a link's server side.
    fn far_commands(&self, interface: &str) -> Vec<String> {
        let mut commands = link_up_commands(interface);
        commands.push(neighbour_command(
            interface,
            self.client_address(),
            CLIENT_MAC,
        ));
        commands
    }

    /// The setting that makes a relay forward. The relay itself has no address.
    fn forwarding_setting(&self) -> &'static str {
        match self.family {
            Family::Ipv4 => "net.ipv4.ip_forward",
            Family::Ipv6 => "net.ipv6.conf.all.forwarding",
        }
    }

    /// A relay's routes and neighbours.
    fn relay_routes(&self) -> Vec<String> {
        let to_client = format!("route add {} dev {NEAR}", self.client_address());
        self.server_addresses()
            .map(|server| format!("route add {server} dev {FAR}"))
            .chain([to_client])
            .collect()
    }

    /// The commands that make a host's namespace a relay to its stack.
    fn to_stack(&self, side: Side, interface: &str) -> Vec<String> {
        let (mac, up) = match side {
            Side::Client => (SERVER_MAC, self.far_commands(TAP)),
            Side::Server => (CLIENT_MAC, self.near_commands(TAP)),
        };
        let mut commands = vec![
            format!("tuntap add dev {TAP} mode tap"),
            format!("link set {TAP} address {mac} mtu {}", self.mtu),
        ];
        commands.extend(up);
        let [to_client, to_server] = match side {
            Side::Client => [TAP, interface],
            Side::Server => [interface, TAP],
        };
        commands.push(format!(
            "route add {} dev {to_client}",
            self.client_address()
        ));
        commands.extend(
            self.server_addresses()
                .map(|server| format!("route add {server} dev {to_server}")),
        );
        commands
    }

    /// The commands that give a host its addresses.
    fn address_commands(&self, side: Side, interface: &str) -> Vec<String> {
        let (bits, nodad) = match self.family {
            Family::Ipv4 => (24, ""),
            Family::Ipv6 => (48, " nodad"),
        };
        let give = |address: IpAddr, bits: u8| {
            format!("address add {address}/{bits} dev {interface}{nodad}")
        };
        match side {
            // The network lies behind several links: each has a route to its own server.
            Side::Client if self.place.shared => {
                let client = self.client_address();
                let alone = if client.is_ipv4() { 32 } else { 128 };
                let route = |server| format!("route add {server} dev {interface} src {client}");
                std::iter::once(give(client, alone))
                    .chain(self.server_addresses().map(route))
                    .collect()
            }
            Side::Client => vec![give(self.client_address(), bits)],
            Side::Server => self
                .server_addresses()
                .map(|server| give(server, bits))
                .collect(),
        }
    }

    fn client_address(&self) -> IpAddr {
        self.place.client_address(self.family)
    }

    fn server_addresses(&self) -> impl Iterator<Item = IpAddr> {
        let (family, place) = (self.family, self.place);
        (0..=self.further_addresses).map(move |further| place.server_address(family, further))
    }
}

/// Brings an interface up without link-local address or group memberships. Only packets of the
/// hosts then cross the link and take part in the sequence of losses.
fn link_up_commands(interface: &str) -> Vec<String> {
    vec![
        format!("link set {interface} addrgenmode none arp off"),
        format!("link set {interface} up"),
    ]
}

fn neighbour_command(interface: &str, address: IpAddr, mac: &str) -> String {
    format!("neighbour replace {address} lladdr {mac} dev {interface} nud permanent")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_of_a_network_share_its_prefix_and_the_clients_address() {
        let places = ServerPlace::places_in_networks(&[1, 3]);
        let of = |family| -> Vec<String> {
            let server = |place: &ServerPlace| place.server_address(family, 0).to_string();
            places.iter().map(server).collect()
        };
        let servers = ["10.0.0.2", "10.0.1.2", "10.0.1.3", "10.0.1.4"];
        assert_eq!(of(Family::Ipv4), servers);
        assert_eq!(of(Family::Ipv6)[3], "fd00:0:1:4::4");
        let links: Vec<String> = places
            .iter()
            .map(|place| place.client_interface())
            .collect();
        assert_eq!(links, ["link0", "link1", "link2", "link3"]);
        let commands = |place: ServerPlace| {
            let wires = Wires {
                family: Family::Ipv4,
                mtu: 1500,
                place,
                further_addresses: 0,
            };
            wires.address_commands(Side::Client, "l")
        };
        assert_eq!(commands(places[0]), ["address add 10.0.0.1/24 dev l"]);
        assert_eq!(
            commands(places[2]),
            [
                "address add 10.0.1.1/32 dev l",
                "route add 10.0.1.3 dev l src 10.0.1.1"
            ]
        );
    }
}
