//! The wire: from the kernel's interface to the machine's network.
//!
//! ```text
//!  kernel's place                                       │ the machine
//!  vec0 ── TAP ── bridge ── veth ───────────────────────┼── veth thalweg-sN ── routes, NAT
//!  vec1 ── TAP, whose far end is this process (control) │
//! ```

use std::net::{Ipv4Addr, Ipv6Addr};
use std::os::fd::OwnedFd;

use nix::net::if_::if_nametoindex;
use thalweg_link::outside::machine;
use thalweg_link::outside::nat::Nat;
use thalweg_process::capabilities::may_administrate;
use thalweg_units::prefix::Prefix;

use crate::contact::Contact;
use crate::control::{WireAddresses, WireAddressesV6};
use crate::error::Error;
use crate::nat;
use crate::place::NetworkNamespace;
use crate::prepared::{self, Lock};
use crate::publish::{Ports, Publish};
use crate::run_ip;

/// The kernel's end of the wire in its place.
const TAP: &str = "wire";
/// Prefix of the name of its device on the machine; a number follows.
const DEVICE: &str = "thalweg-s";
/// Most stacks on one machine.
const MOST: u32 = 4096;
/// Address ranges, eight addresses a stack. The second and third serve if routes of the machine
/// overlap the first: shared address space (RFC 6598), as far as it is rarely used; benchmarks (RFC
/// 2544); private.
const RANGES: [Ipv4Addr; 3] = [
    Ipv4Addr::new(100, 127, 0, 0),
    Ipv4Addr::new(198, 19, 0, 0),
    Ipv4Addr::new(10, 213, 0, 0),
];
const PREFIX_V4: u8 = 29;
/// Unique local addresses (RFC 4193), 64 bits a stack.
const RANGE_V6: Ipv6Addr = Ipv6Addr::new(0xfd74, 0x6861, 0x6c77, 0x8000, 0, 0, 0, 0);
const PREFIX_V6: u8 = 64;

/// A wire in operation. Dropped, everything that was set up for it is removed.
#[derive(Debug)]
pub(crate) struct Wire {
    /// None if root prepared it, as it then lasts longer.
    _made: Option<Made>,
    contact: Contact,
    ends: WireAddresses,
    tap: String,
    _lock: Option<Lock>,
}

/// The parts that root makes for one wire.
#[derive(Debug)]
struct Made {
    // Dropped first, so that no device is left without translation.
    _device: Device,
    _nat: Nat,
    /// Sockets that keep published ports from others.
    _held: Vec<OwnedFd>,
}

impl Wire {
    /// Makes a wire through which these ports of the machine lead inside. An ordinary user takes
    /// one that was [prepared].
    ///
    /// # Errors
    /// [`Error::Missing`] if user or machine may not have one, with the remedy; [`Error::Process`]
    /// if another program has such a port.
    pub(crate) fn create(publish: &[Publish]) -> Result<Self, Error> {
        if !may_administrate() {
            return Self::take_prepared(publish);
        }
        let contact = Contact::create(NetworkNamespace::create()?)?;
        let process = std::process::id();
        let place = contact.place();
        let (number, device) = Number::claim_number(|device| {
            let make = format!("link add dev outside type veth peer name {device} netns {process}");
            place.map_or(Ok(()), |place| place.run_within(|| run_ip(&[make])))
        })?;
        let mut ends = number.free_addresses(&machine::route_destinations()?)?;
        if let Some(place) = place {
            place.run_within(|| {
                run_ip(&[
                    format!("tuntap add dev {TAP} mode tap"),
                    "link add dev join type bridge mcast_snooping 0".to_owned(),
                    format!("link set dev {TAP} master join addrgenmode none up"),
                    "link set dev outside master join addrgenmode none up".to_owned(),
                    format!("address add {}/{PREFIX_V4} dev join", ends.resolver),
                    "link set dev join addrgenmode none up".to_owned(),
                ])
            })?;
        }
        device.bring_up(&mut ends)?;
        let name = &device.0;
        let published = Ports::translations_of(publish, &ends)?;
        let mut held = Vec::new();
        for ports in published.iter().flatten() {
            let alone = if ports.target.is_ipv4() { 32 } else { 128 };
            let address = format!("address add {}/{alone} dev {name} nodad", ports.target);
            run_ip(&[address])?;
            held.extend(ports.hold_ports()?);
        }
        if published[0].is_some() {
            // Answers come from an address of the machine, and may be for 127.0.0.1.
            device.write_setting("ipv4", "accept_local", "1")?;
            device.write_setting("ipv4", "route_localnet", "1")?;
        }
        Ok(Self {
            _made: Some(Made {
                _nat: nat::create(name, &ends, &published)?,
                _held: held,
                _device: device,
            }),
            contact,
            ends,
            tap: TAP.to_owned(),
            _lock: None,
        })
    }

    /// Takes a wire that root has prepared for this user.
    fn take_prepared(publish: &[Publish]) -> Result<Self, Error> {
        let (number, lock, ends) = prepared::take_wire()?;
        if !publish.is_empty() {
            return Err(Error::Missing(
                "--publish: this user may not publish ports: run it as root (sudo thalweg-lab stack …)"
                    .to_owned(),
            ));
        }
        Ok(Self {
            _made: None,
            contact: Contact::create_as_user()?,
            ends,
            tap: number.device_name(),
            _lock: Some(lock),
        })
    }

    /// The name of the TAP device.
    pub(crate) fn tap_name(&self) -> &str {
        &self.tap
    }

    pub(crate) fn wire_addresses(&self) -> WireAddresses {
        self.ends
    }

    /// The control interface of the kernel.
    pub(crate) fn contact(&self) -> &Contact {
        &self.contact
    }
}

/// The number of a wire. Its device, tables and addresses follow from it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Number(u32);

impl Number {
    /// The first number whose device can be made; names that exist are taken. So a user without the
    /// right to make devices cannot block a number.
    pub(crate) fn claim_number(
        make: impl Fn(&str) -> Result<(), Error>,
    ) -> Result<(Self, Device), Error> {
        let there = |name: &str| if_nametoindex(name).is_ok();
        for number in (0..MOST).map(Self) {
            let name = number.device_name();
            if there(&name) {
                continue;
            }
            match make(&name) {
                Ok(()) => return Ok((number, Device(name))),
                // Another process was first.
                Err(_) if there(&name) => {}
                Err(error) => return Err(error),
            }
        }
        Err(Error::Options(format!(
            "{MOST} stacks run on this machine already: end one"
        )))
    }

    /// The number in the name of a device.
    pub(crate) fn from_device(device: &str) -> Option<Self> {
        device.strip_prefix(DEVICE)?.parse().ok().map(Self)
    }

    /// The name of the device on the machine, and of the tables.
    pub(crate) fn device_name(&self) -> String {
        format!("{DEVICE}{}", self.0)
    }

    /// Addresses that no route of the machine covers.
    pub(crate) fn free_addresses(&self, routes: &[Prefix]) -> Result<WireAddresses, Error> {
        let Some(first) = machine::free_address(&RANGES, PREFIX_V4, self.0, routes) else {
            return Err(Error::Options(format!(
                "the machine has routes into {RANGES:?}, so that no addresses are left for a stack"
            )));
        };
        Ok(self.ends_from(first))
    }

    /// The addresses of this number, counted from `first`.
    pub(crate) fn ends_from(&self, first: u32) -> WireAddresses {
        let v6 = |host: u16| {
            let mut segments = RANGE_V6.segments();
            segments[3] |= self.0 as u16;
            segments[7] = host;
            Ipv6Addr::from(segments)
        };
        WireAddresses {
            machine: Ipv4Addr::from_bits(first + 1),
            inside: Ipv4Addr::from_bits(first + 2),
            resolver: Ipv4Addr::from_bits(first + 3),
            published: Ipv4Addr::from_bits(first + 4),
            prefix_v4: PREFIX_V4,
            v6: Some(WireAddressesV6 {
                machine: v6(1),
                inside: v6(2),
                published: v6(4),
                prefix: PREFIX_V6,
                is_gateway: false,
            }),
        }
    }
}

/// The device on the machine. Dropped, it and its other end are removed.
#[derive(Debug)]
pub(crate) struct Device(String);

impl Device {
    /// Leaves the device in place.
    pub(crate) fn keep_device(self) {
        std::mem::forget(self);
    }

    /// Gives it the machine's addresses of a wire, and makes it forward; updates what `ends` has of
    /// IPv6.
    pub(crate) fn bring_up(&self, ends: &mut WireAddresses) -> Result<(), Error> {
        let name = &self.0;
        if !machine::has_v6(name)? {
            ends.v6 = None;
        }
        let mut commands = vec![
            format!("link set dev {name} addrgenmode none"),
            format!("address add {}/{PREFIX_V4} dev {name}", ends.machine),
        ];
        if let Some(v6) = &ends.v6 {
            // Without the second address it could not resolve the kernel's hardware address for
            // another host's packet.
            for address in [
                format!("{}/{PREFIX_V6}", v6.machine),
                "fe80::1/64".to_owned(),
            ] {
                commands.push(format!("address add {address} dev {name} nodad"));
            }
            // The side inside is no router of the machine.
            self.write_setting("ipv6", "accept_ra", "0")?;
        }
        commands.push(format!("link set dev {name} up"));
        run_ip(&commands)?;
        self.write_setting("ipv4", "forwarding", "1")?;
        if let Some(v6) = &mut ends.v6 {
            v6.is_gateway = machine::forward_v6(name)?;
        }
        Ok(())
    }

    pub(crate) fn write_setting(&self, family: &str, key: &str, value: &str) -> Result<(), Error> {
        Ok(machine::write_setting(&self.0, family, key, value)?)
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        // The device would go with the namespace of its other end, but not at once.
        if let Err(error) = run_ip(&[format!("link delete dev {}", self.0)]) {
            tracing::warn!("{error}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_where_no_route_leads() {
        let inside = |routes: &str, it: u32| {
            let ends = Number(it)
                .free_addresses(&machine::parse_destinations(routes))
                .unwrap();
            (ends.inside.to_string(), ends.v6.unwrap().inside.to_string())
        };
        let plain = "default via 192.0.2.1 dev eth0\n192.0.2.0/24 dev eth0 scope link\n";
        let first = (
            "100.127.0.2".to_owned(),
            "fd74:6861:6c77:8000::2".to_owned(),
        );
        assert_eq!(inside(plain, 0), first);
        assert_eq!(inside(plain, 4095).0, "100.127.127.250");
        assert_eq!(inside(plain, 33).1, "fd74:6861:6c77:8021::2");
        // Such as Tailscale's.
        let shared = format!("{plain}100.64.0.0/10 dev t0\n");
        assert_eq!(inside(&shared, 1).0, "198.19.0.10");
        let host = "local 100.127.0.5 dev lo table local scope host\n";
        assert_eq!(inside(host, 0).0, "198.19.0.2");
        assert_eq!(inside(host, 13).0, "100.127.0.106");
        let most = format!("{shared}198.18.0.0/15 dev x\nunreachable 10.0.0.0/8\n");
        assert!(
            Number(20)
                .free_addresses(&machine::parse_destinations(&most))
                .is_err()
        );
        let tunnel = "0.0.0.0/1 dev tun0\n128.0.0.0/1 dev tun0\n";
        assert_eq!(machine::parse_destinations(tunnel), []);
    }

    #[test]
    fn numbers_have_names_that_fit() {
        assert_eq!(Number(MOST - 1).device_name().len(), 13);
    }
}
