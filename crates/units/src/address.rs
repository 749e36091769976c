//! Addresses in one form: what counts as IPv4, as the machine itself, and as the same host.
//!
//! The kernel's programs have the same rules (`bpf/include/thalweg_address.h`).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::prefix::{Prefix, address_bits};

/// The prefix of NAT64 that is the same everywhere (RFC 6052, section 2.1).
pub const WELL_KNOWN: &str = "64:ff9b::/96";

/// Lengths of NAT64's prefixes (RFC 6052, section 2.2).
const LENGTHS: [u8; 6] = [32, 40, 48, 56, 64, 96];

/// Addresses of `ipv4only.arpa` (RFC 7050, section 8).
const IPV4_ONLY: [Ipv4Addr; 2] = [Ipv4Addr::new(192, 0, 0, 170), Ipv4Addr::new(192, 0, 0, 171)];

/// Reads an IPv4 or IPv6 address. A zone (`fe80::1%eth0`) is taken away, an IPv4-mapped address is
/// IPv4.
pub fn parse_address(text: &str) -> Option<IpAddr> {
    let (bare, zone) = match text.split_once('%') {
        Some((bare, zone)) => (bare, Some(zone)),
        None => (text, None),
    };
    let address: IpAddr = bare.parse().ok()?;
    let has_good_zone = match zone {
        None => true,
        Some(zone) => address.is_ipv6() && !zone.is_empty() && !zone.contains(['%', '/', ' ']),
    };
    has_good_zone.then(|| address.to_canonical())
}

/// Whether an address means the machine itself: 127.0.0.0/8, `::1`.
pub fn is_loopback(address: IpAddr) -> bool {
    address.to_canonical().is_loopback()
}

/// Whether an address means another host on each interface: 169.254.0.0/16, `fe80::/10`.
pub fn is_link_local(address: IpAddr) -> bool {
    match address.to_canonical() {
        IpAddr::V4(v4) => v4.is_link_local(),
        IpAddr::V6(v6) => v6.is_unicast_link_local(),
    }
}

/// Whether a prefix can be one of NAT64's.
pub fn can_be_nat64(prefix: Prefix) -> bool {
    // Bits 64 to 71 of an address behind NAT64 are 0.
    !prefix.is_ipv4() && LENGTHS.contains(&prefix.length()) && prefix.bits() >> 56 & 0xff == 0
}

/// Prefixes behind which an IPv6 address is an IPv4 one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Nat64 {
    prefixes: Vec<Prefix>,
}

impl Nat64 {
    /// Most prefixes beside the well-known one: the size of the kernel's table.
    pub const MOST: usize = 7;

    /// The well-known prefix, and these; what cannot be one, and what is beyond [`Nat64::MOST`],
    /// is left out.
    pub fn new(further: &[Prefix]) -> Self {
        let well_known = Prefix::parse(WELL_KNOWN).ok();
        let mut prefixes: Vec<Prefix> = well_known.into_iter().collect();
        for &prefix in further {
            let is_new = can_be_nat64(prefix) && !prefixes.contains(&prefix);
            if is_new && prefixes.len() <= Self::MOST {
                prefixes.push(prefix);
            }
        }
        Self { prefixes }
    }

    /// All prefixes, the well-known one first.
    pub fn prefixes(&self) -> &[Prefix] {
        &self.prefixes
    }

    /// The address as hosts, networks and prefixes know it: IPv4 where it is mapped or behind NAT64.
    pub fn unwrap_address(&self, address: IpAddr) -> IpAddr {
        let address = address.to_canonical();
        let IpAddr::V6(v6) = address else {
            return address;
        };
        let covering = self
            .prefixes
            .iter()
            .filter(|prefix| prefix.contains(address));
        let mut found = covering.filter_map(|prefix| embedded_ipv4(v6, prefix.length()));
        found.next().map_or(address, IpAddr::V4)
    }

    /// The addresses by which an IPv4 host may be reached behind NAT64: of the well-known prefix, which is
    /// the first, only if `is_ipv6_only`.
    pub fn wrap_address(&self, address: Ipv4Addr, is_ipv6_only: bool) -> Vec<Ipv6Addr> {
        let skipped = usize::from(!is_ipv6_only);
        let prefixes = self.prefixes.iter().skip(skipped);
        prefixes
            .map(|prefix| embed_ipv4(*prefix, address))
            .collect()
    }
}

impl Default for Nat64 {
    /// The well-known prefix alone.
    fn default() -> Self {
        Self::new(&[])
    }
}

/// The IPv4 address behind a prefix of this length. It follows the prefix, without bits 64 to 71,
/// which must be 0.
fn embedded_ipv4(address: Ipv6Addr, length: u8) -> Option<Ipv4Addr> {
    let bits = address.to_bits();
    if bits >> 56 & 0xff != 0 {
        return None;
    }
    let without_gap = bits >> 64 << 64 | (bits & (u128::MAX >> 72)) << 8;
    Some(Ipv4Addr::from_bits(match length {
        96 => bits as u32,
        _ => (without_gap << length >> 96) as u32,
    }))
}

/// The opposite of [`embedded_ipv4`].
fn embed_ipv4(prefix: Prefix, address: Ipv4Addr) -> Ipv6Addr {
    let (bits, length) = (u128::from(address.to_bits()), prefix.length());
    let placed = match length {
        96 => bits,
        _ => {
            let without_gap = bits << (96 - length);
            without_gap >> 64 << 64 | (without_gap & (u128::MAX >> 64)) >> 8
        }
    };
    Ipv6Addr::from_bits(prefix.bits() | placed)
}

/// The prefixes of NAT64 in a resolver's answers for `ipv4only.arpa` (RFC 7050, section 3). An answer
/// in which the address is found at two places tells nothing.
pub fn discovered_prefixes(answers: impl IntoIterator<Item = Ipv6Addr>) -> Vec<Prefix> {
    let mut found = Vec::new();
    for answer in answers {
        let is_there = |&length: &u8| {
            embedded_ipv4(answer, length).is_some_and(|address| IPV4_ONLY.contains(&address))
        };
        let mut lengths = LENGTHS.into_iter().filter(is_there);
        let (Some(length), None) = (lengths.next(), lengths.next()) else {
            continue;
        };
        let prefix = Prefix::of(address_bits(answer.into()), length);
        if can_be_nat64(prefix) && !found.contains(&prefix) {
            found.push(prefix);
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prefix(text: &str) -> Prefix {
        Prefix::parse(text).unwrap()
    }

    fn address(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    /// The examples of RFC 6052, section 2.4: 192.0.2.33 behind prefixes of each length.
    const EXAMPLES: [(&str, &str); 6] = [
        ("2001:db8::/32", "2001:db8:c000:221::"),
        ("2001:db8:100::/40", "2001:db8:1c0:2:21::"),
        ("2001:db8:122::/48", "2001:db8:122:c000:2:2100::"),
        ("2001:db8:122:300::/56", "2001:db8:122:3c0:0:221::"),
        ("2001:db8:122:344::/64", "2001:db8:122:344:c0:2:2100::"),
        ("2001:db8:122:344::/96", "2001:db8:122:344::192.0.2.33"),
    ];

    #[test]
    fn nat64_unwraps_the_examples_of_rfc_6052() {
        for (of, text) in EXAMPLES {
            let nat64 = Nat64::new(&[prefix(of)]);
            assert_eq!(
                nat64.unwrap_address(address(text)),
                address("192.0.2.33"),
                "{of}"
            );
            assert_eq!(
                Nat64::default().unwrap_address(address(text)),
                address(text)
            );
            let wrapped = nat64.wrap_address(Ipv4Addr::new(192, 0, 2, 33), false);
            assert_eq!(wrapped.as_slice(), [text.parse::<Ipv6Addr>().unwrap()]);
        }
        let default = Nat64::default();
        for (text, expected) in [
            ("64:ff9b::192.0.2.33", "192.0.2.33"),
            ("64:ff9b:1::192.0.2.33", "64:ff9b:1::192.0.2.33"),
            ("::ffff:192.0.2.33", "192.0.2.33"),
            ("192.0.2.33", "192.0.2.33"),
            ("2001:db8::1", "2001:db8::1"),
        ] {
            assert_eq!(default.unwrap_address(address(text)), address(expected));
        }
    }

    #[test]
    fn nat64_leaves_addresses_with_bits_in_the_gap() {
        let nat64 = Nat64::new(&[prefix("2001:db8:122:344::/64")]);
        let odd = address("2001:db8:122:344:1c0:2:2100::");
        assert_eq!(nat64.unwrap_address(odd), odd);
        assert!(!can_be_nat64(prefix("2001:db8:0:0:100::/96")));
        assert!(!can_be_nat64(prefix("2001:db8::/33")));
        assert!(!can_be_nat64(prefix("10.0.0.0/8")));
    }

    #[test]
    fn nat64_keeps_as_many_prefixes_as_the_kernel_has_room_for() {
        let many: Vec<Prefix> = (0..20)
            .map(|n| prefix(&format!("2001:db8:{n}::/48")))
            .collect();
        let nat64 = Nat64::new(&many);
        assert_eq!(nat64.prefixes().len(), Nat64::MOST + 1);
        assert_eq!(nat64.prefixes()[0], prefix(WELL_KNOWN));
        assert_eq!(Nat64::new(&[prefix(WELL_KNOWN)]), Nat64::default());
    }

    #[test]
    fn discovery_finds_prefixes_of_each_length() {
        for length in LENGTHS {
            let of = Prefix::of(0x2001_0db8_0122_0344 << 64, length);
            // Both addresses behind it, as a DNS64 server makes them.
            let answers = IPV4_ONLY.map(|v4| {
                let v4 = u128::from(v4.to_bits());
                let after = match length {
                    96 => v4,
                    _ => {
                        let whole = v4 << 96 >> length;
                        (whole >> 64 << 64) | (whole & u128::from(u64::MAX)) >> 8
                    }
                };
                Ipv6Addr::from_bits(of.bits() | after)
            });
            assert_eq!(discovered_prefixes(answers), [of], "{length}");
        }
    }

    #[test]
    fn discovery_takes_nothing_but_the_known_addresses() {
        let none = ["2001:db8::192.0.2.1", "::", "64:ff9b::192.0.0.172"];
        assert_eq!(
            discovered_prefixes(none.map(|text| text.parse().unwrap())),
            []
        );
        // The same address at two places.
        let twice: Ipv6Addr = "2001:db8:c000:aa::192.0.0.170".parse().unwrap();
        assert_eq!(discovered_prefixes([twice]), []);
        let mapped: Ipv6Addr = "::ffff:192.0.0.170".parse().unwrap();
        assert_eq!(discovered_prefixes([mapped]), []);
    }

    #[test]
    fn addresses_are_read_with_zones_and_mapped() {
        for (text, expected) in [
            ("192.0.2.1", "192.0.2.1"),
            ("::ffff:192.0.2.1", "192.0.2.1"),
            ("fe80::1%eth0", "fe80::1"),
            ("2001:db8::1%2", "2001:db8::1"),
        ] {
            assert_eq!(parse_address(text), Some(address(expected)), "{text}");
        }
        for text in [
            "",
            "%eth0",
            "fe80::1%",
            "192.0.2.1%eth0",
            "fe80::1%a%b",
            "x",
        ] {
            assert_eq!(parse_address(text), None, "{text}");
        }
    }

    #[test]
    fn scopes_are_those_of_both_families() {
        for text in ["127.0.0.1", "127.9.9.9", "::1", "::ffff:127.0.0.1"] {
            assert!(is_loopback(address(text)) && !is_link_local(address(text)));
        }
        for text in [
            "169.254.169.254",
            "fe80::1",
            "febf::1",
            "::ffff:169.254.0.1",
        ] {
            assert!(is_link_local(address(text)) && !is_loopback(address(text)));
        }
        for text in ["10.0.0.1", "2001:db8::1", "fec0::1", "::2"] {
            assert!(!is_link_local(address(text)) && !is_loopback(address(text)));
        }
    }
}
