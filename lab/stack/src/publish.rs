//! Ports of the machine that lead to servers inside.
//!
//! A connection to such a port is translated to an address of the machine on the stack's device. So
//! connection tracking and firewall treat its packets like those to any server here. A duplicate
//! goes inside (`nat`). The originals meet a listener that drops everything. It keeps the port from
//! other programs, and prevents a reset.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::num::NonZeroU16;
use std::os::fd::{AsRawFd, OwnedFd};
use std::str::FromStr;

use nix::errno::Errno;
use nix::libc;
use nix::sys::socket::{
    AddressFamily, Backlog, SockFlag, SockType, SockaddrStorage, bind, listen, setsockopt, socket,
    sockopt,
};

use crate::control::WireAddresses;
use crate::error::Error;

/// A port of the machine, and the port inside that it leads to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Publish {
    /// The machine's address that takes connections; none: all of them.
    pub address: Option<IpAddr>,
    /// The machine's port.
    pub outside: NonZeroU16,
    /// The port of the server inside.
    pub inside: NonZeroU16,
}

impl FromStr for Publish {
    type Err = String;

    /// Parses `[ADDR:]PORT:PORT`, an IPv6 address in brackets.
    fn from_str(text: &str) -> Result<Self, String> {
        const FORM: &str = "expected [ADDR:]PORT:PORT, as 8080:80, 192.0.2.1:8080:80 or \
                            [2001:db8::1]:8080:80";
        let form = || FORM.to_owned();
        let (rest, inside) = text.rsplit_once(':').ok_or_else(form)?;
        let (address, outside) = match rest.rsplit_once(':') {
            Some((address, outside)) => (Some(address), outside),
            None => (None, rest),
        };
        let address = address.map(|text| {
            let bare = text.strip_prefix('[').and_then(|it| it.strip_suffix(']'));
            let parsed = match bare {
                Some(bare) => bare.parse().map(IpAddr::V6).ok(),
                None => text.parse().map(IpAddr::V4).ok(),
            };
            parsed.ok_or_else(|| format!("{text:?} is no address; {FORM}"))
        });
        let port = |text: &str| {
            let number = text.parse::<NonZeroU16>();
            number.map_err(|_| format!("{text:?} is no port from 1 to 65535; {FORM}"))
        };
        let address = address.transpose()?;
        if address == Some(Ipv6Addr::LOCALHOST.into()) {
            return Err(
                "the system keeps packets of ::1 from all devices: 127.0.0.1 can be published"
                    .to_owned(),
            );
        }
        Ok(Self {
            address,
            outside: port(outside)?,
            inside: port(inside)?,
        })
    }
}

impl Publish {
    fn takes_v4(self) -> bool {
        self.address.is_none_or(|it| it.is_ipv4())
    }

    /// Whether an IPv6 address was given.
    fn needs_v6(self) -> bool {
        self.address.is_some_and(|it| it.is_ipv6())
    }
}

/// Fails unless ports are paired one to one: otherwise answers could not be told apart.
pub(crate) fn check_pairing(all: &[Publish]) -> Result<(), Error> {
    for (index, one) in all.iter().enumerate() {
        for other in &all[..index] {
            if (one.outside == other.outside) != (one.inside == other.inside) {
                return Err(Error::Options(format!(
                    "--publish: expected one port inside for each of the machine's, and one of \
                     the machine's for each inside, found {}:{} and {}:{}",
                    other.outside, other.inside, one.outside, one.inside
                )));
            }
        }
    }
    Ok(())
}

/// The translations in one protocol's table.
#[derive(Debug)]
pub(crate) struct Ports {
    /// The machine's address on the stack's device that stands for the server.
    pub(crate) target: IpAddr,
    /// The machine's own address there, for clients at 127.0.0.1.
    pub(crate) machine: IpAddr,
    /// Destination addresses and ports of connections. No address stands for all.
    pub(crate) taken: Vec<(Option<IpAddr>, NonZeroU16)>,
    /// Pairs of ports: the machine's, and the one inside.
    pub(crate) pairs: BTreeSet<(NonZeroU16, NonZeroU16)>,
}

impl Ports {
    /// The translations of IPv4 and IPv6, if there are any.
    pub(crate) fn translations_of(
        all: &[Publish],
        ends: &WireAddresses,
    ) -> Result<[Option<Self>; 2], Error> {
        let v6 = ends.v6.filter(|it| it.is_gateway);
        if v6.is_none()
            && let Some(one) = all.iter().find(|it| it.needs_v6())
        {
            return Err(Error::Missing(format!(
                "--publish: port {} shall be reached by IPv6, which this machine does not pass \
                 on: Linux 6.17 or newer does, or sysctl net.ipv6.conf.all.forwarding=1",
                one.outside
            )));
        }
        let ports = |target: IpAddr, machine: IpAddr, chosen: &dyn Fn(&Publish) -> bool| {
            let chosen: Vec<_> = all.iter().copied().filter(chosen).collect();
            (!chosen.is_empty()).then(|| Self {
                target,
                machine,
                taken: chosen
                    .iter()
                    .map(|it| (it.address.filter(|it| !it.is_unspecified()), it.outside))
                    .collect(),
                pairs: chosen.iter().map(|it| (it.outside, it.inside)).collect(),
            })
        };
        Ok([
            ports(ends.published.into(), ends.machine.into(), &|it| {
                it.takes_v4()
            }),
            v6.and_then(|v6| {
                ports(v6.published.into(), v6.machine.into(), &|it| {
                    it.address.is_none() || it.needs_v6()
                })
            }),
        ])
    }

    /// Takes the ports, so that no other program can.
    pub(crate) fn hold_ports(&self) -> Result<Vec<OwnedFd>, Error> {
        let any: IpAddr = match self.target {
            IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
            IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
        };
        let mut places: Vec<SocketAddr> = self
            .taken
            .iter()
            .map(|&(address, port)| SocketAddr::new(address.unwrap_or(any), port.get()))
            .collect();
        // Translated connections come to this address.
        for &(port, _) in &self.pairs {
            if !self.taken.contains(&(None, port)) {
                places.push(SocketAddr::new(self.target, port.get()));
            }
        }
        places
            .into_iter()
            .map(|place| deaf_listener(place).map_err(|errno| refused_error(place, errno)))
            .collect()
    }
}

fn refused_error(place: SocketAddr, errno: Errno) -> Error {
    let (address, port) = (place.ip(), place.port());
    let what = match errno {
        Errno::EADDRINUSE => format!(
            "--publish: a server or another stack of this machine has port {port} (ss -ltnp \
             'sport = {port}' shows it); choose another port"
        ),
        Errno::EADDRNOTAVAIL => format!("--publish: this machine has no address {address}"),
        _ => format!("--publish: cannot take port {port} of {address}"),
    };
    Error::system(what)(errno.into())
}

/// A listener that never hears anything.
fn deaf_listener(place: SocketAddr) -> nix::Result<OwnedFd> {
    let family = match place {
        SocketAddr::V4(_) => AddressFamily::Inet,
        SocketAddr::V6(_) => AddressFamily::Inet6,
    };
    let socket = socket(family, SockType::Stream, SockFlag::SOCK_CLOEXEC, None)?;
    // The port of a server that has just ended may be taken, that of a listening one not.
    setsockopt(&socket, sockopt::ReuseAddr, &true)?;
    if place.is_ipv6() {
        setsockopt(&socket, sockopt::Ipv6V6Only, &true)?;
    }
    drop_all(&socket)?;
    bind(socket.as_raw_fd(), &SockaddrStorage::from(place))?;
    listen(&socket, Backlog::new(1)?)?;
    Ok(socket)
}

/// Makes the system drop all packets for a socket, without an answer.
fn drop_all(socket: &OwnedFd) -> nix::Result<()> {
    let mut nothing = libc::sock_filter {
        code: (libc::BPF_RET | libc::BPF_K) as u16,
        jt: 0,
        jf: 0,
        k: 0,
    };
    let program = libc::sock_fprog {
        len: 1,
        filter: &raw mut nothing,
    };
    // SAFETY: the call reads the structure of this length, and the instruction behind it.
    let set = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_ATTACH_FILTER,
            (&raw const program).cast(),
            size_of::<libc::sock_fprog>() as libc::socklen_t,
        )
    };
    Errno::result(set).map(drop)
}

/// The setting that keeps the kernel inside from using servers' ports for its own connections.
pub(crate) fn reserved_ports(all: &[Publish]) -> Option<(String, String)> {
    let ports: BTreeSet<_> = all.iter().map(|it| it.inside).collect();
    let ports: Vec<_> = ports.iter().map(ToString::to_string).collect();
    let key = "net.ipv4.ip_local_reserved_ports".to_owned();
    (!ports.is_empty()).then(|| (key, ports.join(",")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_form_is_address_port_port() {
        let parsed = |text: &str| {
            let it: Publish = text.parse().unwrap();
            let address = it.address.map(|it| it.to_string()).unwrap_or_default();
            (address, it.outside.get(), it.inside.get())
        };
        assert_eq!(parsed("8080:80"), (String::new(), 8080, 80));
        assert_eq!(parsed("192.0.2.1:1:65535"), ("192.0.2.1".into(), 1, 65535));
        assert_eq!(parsed("[2001:db8::1]:8:9"), ("2001:db8::1".into(), 8, 9));
        for (text, part) in [
            ("80", "expected [ADDR:]PORT:PORT"),
            ("", "expected [ADDR:]PORT:PORT"),
            (":80", "\"\" is no port from 1 to 65535"),
            ("80:", "\"\" is no port from 1 to 65535"),
            ("0:80", "\"0\" is no port from 1 to 65535"),
            ("8080:65536", "\"65536\" is no port"),
            ("80:80/udp", "\"80/udp\" is no port"),
            ("host:8080:80", "\"host\" is no address"),
            ("2001:db8::1:8080:80", "\"2001:db8::1\" is no address"),
            (":8080:80", "\"\" is no address"),
            ("[192.0.2.1]:8080:80", "\"[192.0.2.1]\" is no address"),
            ("[::1]:8080:80", "127.0.0.1 can be published"),
        ] {
            let said = text.parse::<Publish>().unwrap_err();
            assert!(said.contains(part), "{text}: {said}");
        }
    }

    #[test]
    fn ports_belong_together_one_by_one() {
        let checked = |words: &[&str]| {
            let all: Vec<Publish> = words.iter().map(|it| it.parse().unwrap()).collect();
            check_pairing(&all).is_ok()
        };
        assert!(checked(&["80:8080", "443:8443"]));
        assert!(checked(&["192.0.2.1:80:8080", "192.0.2.2:80:8080"]));
        assert!(!checked(&["80:8080", "81:8080"]));
        assert!(!checked(&["192.0.2.1:80:8080", "192.0.2.2:80:8081"]));
    }
}
