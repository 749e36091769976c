//! The way from a link's far end to the machine's network.
//!
//! ```text
//!  root:  near ── TUN ── this process ── TUN thalweg-lN of the machine ── routes, NAT
//!  user:  near ── TUN ── this process ── TUN, far, TAP ── pasta, sockets of the machine
//! ```
//!
//! By NAT, TCP ends at the server outside, so it feels the path. `pasta` ends it at the far end
//! and has a connection of its own to the server.

pub mod machine;
pub mod names;
pub mod nat;
mod pasta;

use std::fs::File;
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr};

use nix::libc;
use serde::Serialize;
use thalweg_process::{Process, capabilities, tool};

use crate::error::Error;
use crate::namespace::{Endpoint, Endpoints, NEAR};
use crate::tun::{self, Addresses, MTU_BYTES, PREFIX_V6, WAITING_PACKETS};
use nat::{Nat, OWNED};

/// Prefix of the name of the device on the machine; a number follows.
const DEVICE: &str = "thalweg-l";
/// Most such links on one machine.
const MOST: u32 = 4096;
/// Address ranges, eight addresses a link, beside those of `thalweg-lab stack`: shared address space
/// (RFC 6598), benchmarks (RFC 2544), private. The later ones serve if routes of the machine
/// overlap the first.
const RANGES: [Ipv4Addr; 3] = [
    Ipv4Addr::new(100, 126, 0, 0),
    Ipv4Addr::new(198, 18, 0, 0),
    Ipv4Addr::new(10, 212, 0, 0),
];
const PREFIX_V4: u8 = 29;
/// First 16 bits of each link's IPv6 prefix; the number is filled in.
const RANGE_V6: u16 = 0x4000;

/// How the command reaches the machine's network.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct OutsideAccess {
    /// Carrier of packets behind the path.
    pub by: Carrier,
    /// Whether TCP ends at the server outside; otherwise at the far end of the path.
    pub tcp_end_to_end: bool,
    /// Whether IPv6 leads outside.
    pub ipv6: bool,
}

/// Carriers of packets behind the path.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Carrier {
    /// Address translation by the machine.
    Nat,
    /// `pasta`, of the package passt.
    Pasta,
}

/// Everything that was made for it. Dropped, it is removed; the link goes first.
#[derive(Debug)]
pub(crate) struct Outside {
    pub(crate) way: OutsideAccess,
    questions: Option<(std::net::UdpSocket, std::net::TcpListener, std::net::IpAddr)>,
    _nat: Option<Nat>,
    _pasta: Option<Process>,
}

impl Outside {
    /// Makes ends of which the far one leads outside. The process has one thread.
    ///
    /// # Errors
    /// [`Error::Missing`] if the machine lacks something, with the remedy.
    pub(crate) fn open() -> Result<(Endpoints, Self), Error> {
        let (mut ends, mut outside) = if capabilities::may_administrate() {
            by_nat()?
        } else {
            by_pasta()?
        };
        outside.set_resolver(&mut ends)?;
        Ok((ends, outside))
    }

    /// Gives the near end a resolv.conf whose servers it reaches.
    fn set_resolver(&mut self, ends: &mut Endpoints) -> Result<(), Error> {
        use names::Resolver;
        let has_v6 = self.way.ipv6;
        let Some(resolver) = Resolver::of_the_machine(has_v6) else {
            return Ok(());
        };
        let text = match resolver {
            Resolver::Reached(text) => text,
            Resolver::Local(resolver, text) => {
                // At the near end, where no server or firewall of the machine is in the way.
                let at = Ipv4Addr::LOCALHOST;
                let [udp, tcp] = ends.at_near(|| {
                    let (udp, tcp) = names::bind_dns(at).map_err(|why| ("take questions", why))?;
                    Ok([udp.into(), tcp.into()])
                })?;
                self.questions = Some((udp.into(), tcp.into(), resolver));
                names::rewrite_resolvers(&text, at, has_v6)
            }
        };
        let own = std::fs::read_to_string(crate::resolv::FILE);
        ends.resolv_conf = Some(text).filter(|text| own.is_ok_and(|own| own != *text));
        Ok(())
    }

    /// Starts threads, if names need them.
    pub(crate) fn start_threads(&mut self) -> Result<(), Error> {
        match self.questions.take() {
            Some((udp, tcp, resolver)) => names::answer_queries(udp, tcp, resolver),
            None => Ok(()),
        }
    }
}

/// Addresses of near and far of a link with this number.
fn link_addresses(number: u32) -> Result<[Addresses; 2], Error> {
    let routes = machine::route_destinations()?;
    let Some(first) = machine::free_address(&RANGES, PREFIX_V4, number, &routes) else {
        return Err(Error::Missing(format!(
            "--outside: this machine has routes into {RANGES:?}, so that no addresses are left; \
             ip route shows them"
        )));
    };
    let end = |host: u16| Addresses {
        v4: Ipv4Addr::from_bits(first + u32::from(host)),
        prefix_v4: PREFIX_V4,
        v6: Ipv6Addr::from([0xfd74, 0x6861, 0x6c77, v6_of(number), 0, 0, 0, host]),
        sends_all: host == 2,
        ..NEAR
    };
    Ok([end(2), end(1)])
}

fn v6_of(number: u32) -> u16 {
    RANGE_V6 | number as u16
}

/// By address translation; this process has the rights.
fn by_nat() -> Result<(Endpoints, Outside), Error> {
    if tool::find_program("nft").is_none() {
        return Err(Error::Missing(
            "--outside translates addresses with nft; install the package nftables (all but \
             --outside works without)"
                .to_owned(),
        ));
    }
    let (number, device) = claim_device()?;
    let name = format!("{DEVICE}{number}");
    let [mut near, far] = link_addresses(number)?;
    let v6 = machine::has_v6(&name)?;
    let mut commands = vec![
        format!(
            "link set dev {name} addrgenmode none mtu {MTU_BYTES} txqueuelen {WAITING_PACKETS}"
        ),
        format!("address add {}/{PREFIX_V4} dev {name}", far.v4),
    ];
    if v6 {
        commands.push(format!(
            "address add {}/{PREFIX_V6} dev {name} nodad",
            far.v6
        ));
        // The command is no router of the machine.
        machine::write_setting(&name, "ipv6", "accept_ra", "0")?;
        machine::write_setting(&name, "ipv6", "accept_redirects", "0")?;
    }
    machine::write_setting(&name, "ipv4", "accept_redirects", "0")?;
    commands.push(format!("link set dev {name} up"));
    tool::batch_here(&commands)?;
    machine::write_setting(&name, "ipv4", "forwarding", "1")?;
    let ipv6 = v6 && machine::forward_v6(&name)?;
    near.sends_all_v6 = ipv6;
    let mut rules = vec![format!("add table ip {name} {OWNED}")];
    rules.extend(nat::table_commands("ip", &name, &near.v4.to_string()));
    if ipv6 {
        rules.push(format!("add table ip6 {name} {OWNED}"));
        rules.extend(nat::table_commands("ip6", &name, &near.v6.to_string()));
    }
    let nat = Nat::create_tables(&rules)?;
    let mut ends =
        Endpoints::create_near_end(Endpoint::on_the_machine(device, name)?, [near, far])?;
    ends.has_v6 &= v6;
    let way = OutsideAccess {
        by: Carrier::Nat,
        tcp_end_to_end: true,
        ipv6: ipv6 && ends.has_v6,
    };
    Ok((ends, with_way(way, Some(nat), None)))
}

/// A TUN device of the machine under the first free number. It goes with its descriptor.
fn claim_device() -> Result<(u32, File), Error> {
    for number in 0..MOST {
        match tun::attach_device(&format!("{DEVICE}{number}")) {
            Ok(device) => return Ok((number, device)),
            // Another link has it, or a device that is none of ours.
            Err((_, why)) if matches!(why.raw_os_error(), Some(libc::EBUSY | libc::EINVAL)) => {}
            Err((what, why)) => return Err(refused_error(what, &why)),
        }
    }
    Err(Error::Options(format!(
        "--outside: {MOST} such links run on this machine already: end one"
    )))
}

fn refused_error(what: &str, why: &io::Error) -> Error {
    let advice = tun::open_hint(why.raw_os_error().unwrap_or(libc::EIO));
    Error::Missing(format!("cannot {what}: {why}; {advice}"))
}

/// By pasta; both ends are namespaces of the user's own.
fn by_pasta() -> Result<(Endpoints, Outside), Error> {
    let program = pasta::find_pasta()?;
    // No other link's addresses are in these namespaces.
    let [mut near, mut far] = link_addresses(0)?;
    let families = pasta::routed_families()?;
    near.sends_all_v6 = families.v6;
    far.forwards_v6 = families.v6;
    let ends = Endpoints::create_with_addresses([near, far])?;
    let families = pasta::Families {
        v6: families.v6 && ends.has_v6,
        ..families
    };
    let pasta = pasta::start_pasta(&program, &ends, families)?;
    let way = OutsideAccess {
        by: Carrier::Pasta,
        tcp_end_to_end: false,
        ipv6: families.v6,
    };
    Ok((ends, with_way(way, None, Some(pasta))))
}

fn with_way(way: OutsideAccess, nat: Option<Nat>, pasta: Option<Process>) -> Outside {
    Outside {
        way,
        questions: None,
        _nat: nat,
        _pasta: pasta,
    }
}
