//! Prefixes of addresses, both families in one 128-bit form.

use std::net::{IpAddr, Ipv6Addr};

/// Bits before the IPv4 address in `::ffff:a.b.c.d`.
pub const MAPPED: u8 = 96;

/// An IPv4 or IPv6 prefix.
///
/// IPv4 is stored as `::ffff:a.b.c.d` with 96 bits more. An IPv6 prefix never contains IPv4 flows,
/// whatever its bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Prefix {
    ipv4: bool,
    bits: u128,
    length: u8,
}

/// Why a text is not a prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PrefixError {
    /// The form is wrong.
    Malformed,
    /// Bits beyond the length are set; the prefix without them.
    HostBits(Prefix),
}

impl Prefix {
    /// All addresses of a family.
    pub const fn all(ipv4: bool) -> Self {
        Self {
            ipv4,
            bits: if ipv4 { 0xffff_0000_0000 } else { 0 },
            length: if ipv4 { MAPPED } else { 0 },
        }
    }

    /// Reads `10.0.0.0/8`, `2001:db8::/32` or a single address.
    pub fn parse(text: &str) -> Result<Self, PrefixError> {
        let malformed = PrefixError::Malformed;
        let (address, length) = match text.split_once('/') {
            Some((address, length)) => (address, Some(length)),
            None => (text, None),
        };
        let address: IpAddr = address.parse().map_err(|_| malformed)?;
        let most: u8 = if address.is_ipv4() { 32 } else { 128 };
        let length = match length {
            None => most,
            Some(digits) if digits.bytes().all(|byte| byte.is_ascii_digit()) => digits
                .parse()
                .ok()
                .filter(|&length| length <= most)
                .ok_or(malformed)?,
            Some(_) => return Err(malformed),
        };
        let bits = address_bits(address);
        let prefix = if address.is_ipv4() {
            Self::of(bits, MAPPED + length)
        } else {
            Self::of(bits, length)
        };
        if prefix.bits == bits {
            Ok(prefix)
        } else {
            Err(PrefixError::HostBits(prefix))
        }
    }

    /// The prefix of an address in the 128-bit form, with a length in that form: at most 128.
    pub fn of(bits: u128, length: u8) -> Self {
        Self {
            // ::ffff:10.0.0.0/104 is 10.0.0.0/8.
            ipv4: length >= MAPPED && bits >> 32 == 0xffff,
            bits: bits & prefix_mask(length),
            length,
        }
    }

    /// Whether this is an IPv4 prefix.
    pub fn is_ipv4(self) -> bool {
        self.ipv4
    }

    /// The first address.
    pub fn address(self) -> IpAddr {
        let v6 = Ipv6Addr::from(self.bits);
        match v6.to_ipv4_mapped() {
            Some(v4) if self.ipv4 => v4.into(),
            _ => v6.into(),
        }
    }

    /// The first address, in the 128-bit form.
    pub fn bits(self) -> u128 {
        self.bits
    }

    /// Length in the 128-bit form.
    pub fn length128(self) -> u8 {
        self.length
    }

    /// Length in its own family.
    pub fn length(self) -> u8 {
        self.length - if self.ipv4 { MAPPED } else { 0 }
    }

    /// The prefix cut to a length in the 128-bit form, at most its own.
    pub fn cut_to(self, length: u8) -> Self {
        Self {
            bits: self.bits & prefix_mask(length),
            length,
            ..self
        }
    }

    /// Whether the prefix contains an address.
    pub fn contains(self, address: IpAddr) -> bool {
        is_ipv4(address) == self.ipv4
            && address_bits(address) & prefix_mask(self.length) == self.bits
    }

    /// Whether the prefix contains another prefix, or is the same.
    pub fn covers(self, other: Self) -> bool {
        self.ipv4 == other.ipv4
            && self.length <= other.length
            && other.bits & prefix_mask(self.length) == self.bits
    }

    /// Whether the two have an address in common.
    pub fn overlaps(self, other: Self) -> bool {
        self.covers(other) || other.covers(self)
    }
}

/// In the form of [`Prefix::parse`]; a whole address without its length.
impl std::fmt::Display for Prefix {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.address())?;
        if self.length < 128 {
            write!(f, "/{}", self.length())?;
        }
        Ok(())
    }
}

/// An address in the 128-bit form.
pub fn address_bits(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().to_bits(),
        IpAddr::V6(v6) => v6.to_bits(),
    }
}

/// Whether an address is IPv4, including mapped ones.
pub fn is_ipv4(address: IpAddr) -> bool {
    address.to_canonical().is_ipv4()
}

/// Mask of this many leading ones.
pub fn prefix_mask(length: u8) -> u128 {
    u128::MAX
        .checked_shl(128 - u32::from(length.min(128)))
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prefix(text: &str) -> Prefix {
        Prefix::parse(text).unwrap()
    }

    #[test]
    fn families_are_kept_apart() {
        let v4: IpAddr = "10.1.2.3".parse().unwrap();
        let mapped: IpAddr = "::ffff:10.1.2.3".parse().unwrap();
        assert!(prefix("10.0.0.0/8").contains(v4));
        assert!(prefix("10.0.0.0/8").contains(mapped));
        assert!(!prefix("::/0").contains(v4));
        assert!(!prefix("::/0").contains(mapped));
        assert!(!prefix("0.0.0.0/0").contains("2001:db8::1".parse().unwrap()));
        assert_eq!(prefix("::ffff:10.0.0.0/104"), prefix("10.0.0.0/8"));
        assert_eq!(prefix("::ffff:0.0.0.0/96"), prefix("0.0.0.0/0"));
        assert_eq!(prefix("0.0.0.0/0"), Prefix::all(true));
        assert_eq!(prefix("::/0"), Prefix::all(false));
    }

    #[test]
    fn texts() {
        for text in [
            "10.0.0.0/8",
            "192.0.2.7",
            "2001:db8::/32",
            "::/0",
            "::1",
            "0.0.0.0/0",
        ] {
            assert_eq!(prefix(text).to_string(), text);
        }
        assert_eq!(prefix("192.0.2.7/32").to_string(), "192.0.2.7");
        for text in [
            "",
            "/",
            "10.0.0.0/",
            "10.0.0.0/33",
            "::/129",
            "10.0.0/8",
            "::/+1",
            "::/ 1",
            "a/8",
            "10.0.0.0/8/8",
            "fe80::1%eth0",
        ] {
            assert_eq!(Prefix::parse(text), Err(PrefixError::Malformed), "{text}");
        }
        assert_eq!(
            Prefix::parse("10.1.2.3/8"),
            Err(PrefixError::HostBits(prefix("10.0.0.0/8")))
        );
    }

    #[test]
    fn covering() {
        assert!(prefix("10.0.0.0/8").covers(prefix("10.1.0.0/16")));
        assert!(!prefix("10.1.0.0/16").covers(prefix("10.0.0.0/8")));
        assert!(prefix("::/0").covers(prefix("2001:db8::/32")));
        assert!(!prefix("::/0").covers(prefix("10.0.0.0/8")));
        assert!(prefix("10.1.0.0/16").overlaps(prefix("10.0.0.0/8")));
        assert!(!prefix("10.1.0.0/16").overlaps(prefix("10.2.0.0/16")));
    }
}
