//! Devices by which this machine may reach an address.
//!
//! A host's record does not distinguish uplinks, which a reader of the record should know where
//! there are several. The kernel is asked once for each device, and once for each own address as
//! the source, so that rules of policy routing count, too.

use std::collections::BTreeMap;
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsRawFd, OwnedFd};

use nix::sys::socket::{
    AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, recv, send, setsockopt, socket,
    sockopt::ReceiveTimeout,
};
use nix::sys::time::TimeVal;
use thalweg_units::address::{Nat64, is_link_local, is_loopback};

/// Most questions for one address.
const QUESTIONS_MAX: usize = 256;
/// Bytes of a header (`struct nlmsghdr`) and of a route (`struct rtmsg`).
const HEADER: usize = 16;
const ROUTE: usize = 12;
/// Index of the loopback device.
const LOOPBACK: u32 = 1;

/// As [`devices`]; to an IPv4 host behind NAT64, too.
///
/// # Errors
/// Those of [`devices`].
pub fn devices_to_host(address: IpAddr, nat64: &Nat64) -> io::Result<Vec<String>> {
    let mut own = nix::ifaddrs::getifaddrs()?.filter_map(|it| address_of(&it.address?));
    if own.any(|own| own == address) {
        return Ok(Vec::new());
    }
    let mut found = devices(address)?;
    if let IpAddr::V4(v4) = address
        && !v4.is_loopback()
    {
        for wrapped in nat64.wrap_address(v4, found.is_empty()) {
            found.extend(devices(wrapped.into())?);
        }
        found.sort();
        found.dedup();
    }
    Ok(found)
}

/// Names of the devices by which connections to an address may leave this process' network namespace,
/// in order.
///
/// # Errors
/// The kernel does not list its devices, or refuses to answer.
fn devices(address: IpAddr) -> io::Result<Vec<String>> {
    if is_loopback(address) {
        return Ok(Vec::new());
    }
    let mut names = BTreeMap::new();
    let mut questions = Vec::new();
    for interface in nix::ifaddrs::getifaddrs()? {
        let index = nix::net::if_::if_nametoindex(interface.interface_name.as_str());
        let Ok(index) = index else { continue };
        if names
            .insert(index, interface.interface_name.clone())
            .is_none()
            && index != LOOPBACK
        {
            questions.push(Question {
                device: Some(index),
                source: None,
            });
        }
        let own = interface.address.as_ref().and_then(address_of);
        questions.extend(
            own.filter(|own| is_source(*own, address))
                .map(|own| Question {
                    device: None,
                    source: Some(own),
                }),
        );
    }
    let netlink = open()?;
    let mut found = BTreeMap::new();
    for (number, question) in questions.iter().take(QUESTIONS_MAX).enumerate() {
        let device = ask(&netlink, number as u32, address, question)?;
        let device = device.filter(|device| *device != LOOPBACK);
        found.extend(device.and_then(|device| names.get_key_value(&device)));
    }
    Ok(found.into_values().cloned().collect())
}

/// Question about a route: bound to a device, or from an own address.
#[derive(Debug)]
struct Question {
    device: Option<u32>,
    source: Option<IpAddr>,
}

fn is_source(own: IpAddr, address: IpAddr) -> bool {
    own.is_ipv4() == address.is_ipv4() && !is_loopback(own) && !is_link_local(own)
}

fn address_of(storage: &nix::sys::socket::SockaddrStorage) -> Option<IpAddr> {
    let v4 = storage.as_sockaddr_in().map(|it| it.ip().into());
    v4.or_else(|| storage.as_sockaddr_in6().map(|it| it.ip().into()))
}

fn open() -> io::Result<OwnedFd> {
    let netlink = socket(
        AddressFamily::Netlink,
        SockType::Raw,
        SockFlag::SOCK_CLOEXEC,
        SockProtocol::NetlinkRoute,
    )?;
    // An answer is there when send() returns. Without one, do not hang.
    setsockopt(&netlink, ReceiveTimeout, &TimeVal::new(1, 0))?;
    Ok(netlink)
}

/// The device of the route; `None`: there is no route.
fn ask(
    netlink: &OwnedFd,
    number: u32,
    address: IpAddr,
    question: &Question,
) -> io::Result<Option<u32>> {
    let message = message(number, address, question);
    send(netlink.as_raw_fd(), &message, MsgFlags::empty())?;
    let mut answer = [0; 4096];
    let received = recv(netlink.as_raw_fd(), &mut answer, MsgFlags::empty())?;
    Ok(device_of(&answer[..received]))
}

/// Message of a question (rtnetlink(7)).
fn message(number: u32, address: IpAddr, question: &Question) -> Vec<u8> {
    let octets = |address: IpAddr| match address {
        IpAddr::V4(v4) => v4.octets().to_vec(),
        IpAddr::V6(v6) => v6.octets().to_vec(),
    };
    let mut attributes = Vec::new();
    let mut add = |kind: u16, value: &[u8]| {
        attributes.extend_from_slice(&(4 + value.len() as u16).to_ne_bytes());
        attributes.extend_from_slice(&kind.to_ne_bytes());
        attributes.extend_from_slice(value);
    };
    add(libc::RTA_DST, &octets(address));
    if let Some(source) = question.source {
        add(libc::RTA_SRC, &octets(source));
    }
    if let Some(device) = question.device {
        add(libc::RTA_OIF, &device.to_ne_bytes());
    }
    let (family, bits) = match address {
        IpAddr::V4(_) => (libc::AF_INET, 32),
        IpAddr::V6(_) => (libc::AF_INET6, 128),
    };
    let length = HEADER + ROUTE + attributes.len();
    let mut message = Vec::with_capacity(length);
    message.extend_from_slice(&(length as u32).to_ne_bytes());
    message.extend_from_slice(&libc::RTM_GETROUTE.to_ne_bytes());
    message.extend_from_slice(&(libc::NLM_F_REQUEST as u16).to_ne_bytes());
    message.extend_from_slice(&number.to_ne_bytes());
    message.extend_from_slice(&0u32.to_ne_bytes());
    let source_bits = question.source.map_or(0, |_| bits);
    message.extend_from_slice(&[family as u8, bits, source_bits, 0, 0, 0, 0, 0]);
    // Do not guess that an address outside the tables is on the device's link.
    message.extend_from_slice(&RTM_F_FIB_MATCH.to_ne_bytes());
    message.extend_from_slice(&attributes);
    message
}

/// Flag: answer by the entry of the table (linux/rtnetlink.h).
const RTM_F_FIB_MATCH: u32 = 0x2000;
/// Attribute: a route with several next hops, each a `struct rtnexthop`.
const RTA_MULTIPATH: u16 = 9;

/// The device in an answer, the first of several next hops; `None`: an error, or a route that goes
/// nowhere.
fn device_of(answer: &[u8]) -> Option<u32> {
    let word = |at: usize| Some(u32::from_ne_bytes(*answer.get(at..)?.first_chunk()?));
    let half = |at: usize| Some(u16::from_ne_bytes(*answer.get(at..)?.first_chunk()?));
    let end = answer.len().min(word(0)? as usize);
    if half(4)? != libc::RTM_NEWROUTE || *answer.get(HEADER + 7)? != libc::RTN_UNICAST {
        return None;
    }
    let mut at = HEADER + ROUTE;
    while at + 4 <= end {
        let (length, kind) = (usize::from(half(at)?), half(at + 2)?);
        match kind {
            libc::RTA_OIF => return word(at + 4),
            RTA_MULTIPATH => return word(at + 8),
            _ => at += length.max(4).next_multiple_of(4),
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    /// What a thread finds in a network namespace of its own, made by these commands of ip.
    fn found_among(commands: &'static [&str], address: &'static str) -> Option<Vec<String>> {
        found_behind(commands, address, &[])
    }

    /// Likewise, with prefixes of NAT64.
    fn found_behind(
        commands: &'static [&str],
        address: &'static str,
        nat64: &'static [&str],
    ) -> Option<Vec<String>> {
        if !nix::unistd::geteuid().is_root() {
            crate::privileged::skip("needs root");
            return None;
        }
        let apart = std::thread::spawn(move || {
            nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNET).unwrap();
            for command in commands {
                let made = Command::new("ip").args(command.split(' ')).status();
                assert!(made.unwrap().success(), "ip {command}");
            }
            let prefixes = nat64
                .iter()
                .map(|text| thalweg_units::prefix::Prefix::parse(text).unwrap());
            let nat64 = Nat64::new(&prefixes.collect::<Vec<_>>());
            devices_to_host(address.parse().unwrap(), &nat64).unwrap()
        });
        Some(apart.join().unwrap())
    }

    const UPLINKS: &[&str] = &[
        "link set lo up",
        "link add one type veth peer name one-far",
        "link set one-far up",
        "link add two type veth peer name two-far",
        "link set two-far up",
        "link add idle type veth peer name idle-far",
        "link set idle-far up",
        "address add 10.1.0.2/24 dev one",
        "address add 10.2.0.2/24 dev two",
        "address add 10.3.0.2/24 dev idle",
        "address add 2001:db8:1::2/64 dev one nodad",
        "link set one up",
        "link set two up",
        "link set idle up",
        "route add default via 10.1.0.1 dev one",
        "route add 198.51.100.0/24 via 10.2.0.1 dev two metric 9",
        "route add 198.51.100.0/24 via 10.1.0.1 dev one",
        "route add default via 10.2.0.1 dev two table 102",
        "rule add from 10.2.0.2 lookup 102",
        "rule add to 203.0.113.0/24 lookup main",
        "-6 route add default via 2001:db8:1::1 dev one",
    ];

    #[test]
    #[cfg_attr(not(privileged), ignore = "needs root")]
    fn devices_are_those_of_all_routes_and_rules() {
        for (address, expected) in [
            // By the source's rule.
            ("192.0.2.1", &["one", "two"][..]),
            // By the second route, for who binds to its device.
            ("198.51.100.7", &["one", "two"]),
            ("10.2.0.9", &["two"]),
            ("2001:db8:9::1", &["one"]),
        ] {
            let Some(found) = found_among(UPLINKS, address) else {
                return;
            };
            // The rule's table has a way to everything.
            assert!(
                expected
                    .iter()
                    .all(|name| found.iter().any(|it| it == name)),
                "{found:?}"
            );
            assert!(
                !found.iter().any(|name| name == "idle" || name == "lo"),
                "{found:?}"
            );
            if address.contains(':') {
                assert_eq!(found, expected);
            }
        }
    }

    #[test]
    #[cfg_attr(not(privileged), ignore = "needs root")]
    fn devices_to_hosts_behind_nat64_are_those_of_its_prefixes() {
        const IPV6_ONLY: &[&str] = &[
            "link set lo up",
            "link add one type veth peer name one-far",
            "link set one-far up",
            "link add two type veth peer name two-far",
            "link set two-far up",
            "address add 2001:db8:1::2/64 dev one nodad",
            "address add 2001:db8:2::2/64 dev two nodad",
            "link set one up",
            "link set two up",
            "-6 route add 64:ff9b::/96 via 2001:db8:1::1 dev one",
            "-6 route add 2001:db8:64::/48 via 2001:db8:2::1 dev two",
        ];
        for (commands, nat64, expected) in [
            (IPV6_ONLY, &[][..], &["one"][..]),
            (IPV6_ONLY, &["2001:db8:64::/48"], &["one", "two"]),
            // Nothing tells that the well-known prefix is in use beside IPv4's route.
            (UPLINKS, &[], &["one", "two"]),
            (UPLINKS, &["2001:db8:1::/96"], &["one", "two"]),
        ] {
            let Some(found) = found_behind(commands, "192.0.2.1", nat64) else {
                return;
            };
            assert_eq!(found, expected, "{nat64:?}");
        }
    }

    #[test]
    #[cfg_attr(not(privileged), ignore = "needs root")]
    fn devices_of_own_and_unreachable_addresses_are_none() {
        for address in ["10.1.0.2", "127.0.0.1", "2001:db8:1::2"] {
            let Some(found) = found_among(UPLINKS, address) else {
                return;
            };
            assert_eq!(found, [""; 0], "{address}");
        }
        let alone: &[&str] = &["link set lo up"];
        assert!(found_among(alone, "192.0.2.1").is_none_or(|found| found.is_empty()));
    }
}
