//! The key of a record, and what the record is of.

use std::net::{IpAddr, Ipv4Addr};

use thalweg_units::prefix::{MAPPED, Prefix, address_bits, is_ipv4, prefix_mask};
use thalweg_units::random::hash_bytes;

/// Scope of a record: a host, or one of the groups that contain it, the narrowest first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u32)]
pub enum Level {
    /// A remote host.
    #[default]
    Host = 0,
    /// The addresses around it, by default a /24 or /48.
    Prefix = 1,
    /// The network that the operator's table names for it.
    Named = 2,
    /// The hosts of a service (port and direction) with a similar RTT.
    Service = 3,
    /// All of a network namespace.
    Namespace = 4,
    /// Initial windows towards the addresses around a host.
    WindowPrefix = 5,
    /// Initial windows towards the hosts of a service with a similar RTT.
    WindowService = 6,
    /// Initial windows of a network namespace.
    WindowNamespace = 7,
    /// Other agents' reports of a prefix.
    FleetPrefix = 9,
    /// Other agents' reports of a named network.
    FleetNamed = 10,
}

impl Level {
    /// Every level, a host's first.
    pub const ALL: [Level; 10] = [
        Level::Host,
        Level::Prefix,
        Level::Named,
        Level::Service,
        Level::Namespace,
        Level::WindowPrefix,
        Level::WindowService,
        Level::WindowNamespace,
        Level::FleetPrefix,
        Level::FleetNamed,
    ];

    /// Levels of which a fleet has knowledge, the widest first: of networks that are the same for all
    /// agents. An agent's services and namespaces are its own mixture of them.
    pub const SHARED: [Level; 2] = [Level::Named, Level::Prefix];

    /// The level with a number of the kernel's interface.
    pub fn from_number(number: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|&level| level as u32 == number)
    }

    /// Whether it is that of a group.
    pub fn is_group(self) -> bool {
        self != Level::Host
    }

    /// Whether its records are of [initial windows](crate::window).
    pub fn is_window(self) -> bool {
        matches!(
            self,
            Level::WindowPrefix | Level::WindowService | Level::WindowNamespace
        )
    }

    /// Whether its records have what other agents told.
    pub fn is_fleet(self) -> bool {
        self.own_level() != self
    }

    /// The level of what other agents told of networks of this one; `None`: nothing is told of it.
    pub fn fleet_level(self) -> Option<Self> {
        match self {
            Level::Prefix => Some(Level::FleetPrefix),
            Level::Named => Some(Level::FleetNamed),
            _ => None,
        }
    }

    /// The level of an agent's own records of the same networks.
    pub fn own_level(self) -> Self {
        match self {
            Level::FleetPrefix => Level::Prefix,
            Level::FleetNamed => Level::Named,
            own => own,
        }
    }

    /// The level whose worth counts where a record of this one takes over what one of `wider` knows. What
    /// the fleet told of a network has a worth of its own in the agent's record of that network.
    pub fn worth_of(self, wider: Self) -> Self {
        match self.fleet_level() {
            Some(fleet) if fleet == wider => wider,
            _ => self.own_level(),
        }
    }
}

/// Network namespace and remote host (or prefix), in one canonical form.
///
/// IPv4 and IPv4-mapped IPv6 addresses are the same host. Both are stored as `::ffff:a.b.c.d`, with
/// the prefix length counted in the 128-bit address. Addresses behind NAT64 are taken for IPv4 before
/// ([`Nat64`](thalweg_units::address::Nat64)).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HostKey {
    /// Network namespace cookie (`SO_NETNS_COOKIE`).
    pub netns: u64,
    /// Address bits, network byte order; those beyond `prefix_len` are 0.
    pub addr: [u8; 16],
    /// 0 to 128.
    pub prefix_len: u32,
    /// Scope of the record.
    pub level: Level,
}

/// One round of the hash; the factor is 2^64 divided by the golden ratio.
pub(crate) fn mix_hash(hash: u64, word: u64) -> u64 {
    let hash = (hash ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    hash ^ (hash >> 32)
}

/// The number of the network that the operator's table calls so: a hash of the name (FNV-1a, 64
/// bits), never 0. It depends on nothing else, so a record stays with its name whatever becomes of
/// the table.
pub fn network_number(name: &str) -> u64 {
    hash_bytes(name.bytes()).max(1)
}

/// A prefix length out of range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PrefixError;

impl std::fmt::Display for PrefixError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "a prefix length is 0 to 32 for IPv4 and 0 to 128 for IPv6"
        )
    }
}

impl std::error::Error for PrefixError {}

impl HostKey {
    /// The key of `remote` under the given prefix lengths (IPv4: 0..=32, IPv6: 0..=128).
    pub fn new(
        netns: u64,
        remote: IpAddr,
        ipv4_prefix: u32,
        ipv6_prefix: u32,
    ) -> Result<Self, PrefixError> {
        if ipv4_prefix > 32 || ipv6_prefix > 128 {
            return Err(PrefixError);
        }
        let prefix_len = if is_ipv4(remote) {
            u32::from(MAPPED) + ipv4_prefix
        } else {
            ipv6_prefix
        };
        Ok(Self {
            netns,
            addr: (address_bits(remote) & prefix_mask(prefix_len as u8)).to_be_bytes(),
            prefix_len,
            level: Level::Host,
        })
    }

    /// The key of the network with a number of the operator's table ([`network_number`]).
    pub fn of_named(netns: u64, number: u64) -> Self {
        Self {
            netns,
            addr: u128::from(number).to_be_bytes(),
            prefix_len: 128,
            level: Level::Named,
        }
    }

    /// The key of all of a network namespace.
    pub fn of_namespace(netns: u64) -> Self {
        Self {
            netns,
            addr: [0; 16],
            prefix_len: 0,
            level: Level::Namespace,
        }
    }

    /// Whether it is the key of a prefix's network, or of a host in there.
    pub fn is_within(&self, network: &Self) -> bool {
        let is_of = matches!(self.level, Level::Host | Level::Prefix);
        let bits = u128::from_be_bytes(self.addr) & prefix_mask(network.prefix_len as u8);
        is_of
            && self.netns == network.netns
            && self.prefix_len >= network.prefix_len
            && bits.to_be_bytes() == network.addr
    }

    /// The number of a named network.
    pub fn network_number(&self) -> u64 {
        u128::from_be_bytes(self.addr) as u64
    }

    /// The hash in the kernel's record of this key; never 0. As `thalweg_tag` of `thalweg_algo.h`,
    /// in the byte order of this machine.
    pub fn tag(&self) -> u64 {
        let word = |at: usize| {
            let mut bytes = [0; 8];
            bytes.copy_from_slice(&self.addr[at..at + 8]);
            u64::from_ne_bytes(bytes)
        };
        let size = u64::from(self.prefix_len) + ((self.level as u64) << 8);
        let start = self.netns.wrapping_add(size);
        mix_hash(
            mix_hash(mix_hash(start, word(0)), word(8)),
            0x7468_616c_7765_6721,
        ) | 1
    }

    /// The addresses that are this host.
    pub fn prefix(&self) -> Prefix {
        Prefix::of(u128::from_be_bytes(self.addr), self.prefix_len as u8)
    }

    /// The address, as IPv4 if it is one.
    pub fn address(&self) -> IpAddr {
        self.prefix().address()
    }

    /// Prefix length in the address' own family.
    pub fn own_prefix(&self) -> u32 {
        self.prefix().length().into()
    }
}

/// Formats a whole IPv4 host as its bare address, everything else as `address/length`.
impl std::fmt::Display for HostKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.prefix().fmt(f)
    }
}

impl From<Ipv4Addr> for HostKey {
    fn from(v4: Ipv4Addr) -> Self {
        Self {
            netns: 0,
            addr: v4.to_ipv6_mapped().octets(),
            prefix_len: 128,
            level: Level::Host,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(text: &str) -> HostKey {
        HostKey::new(7, text.parse().unwrap(), 32, 64).unwrap()
    }

    #[test]
    fn ipv4_and_mapped_are_one_host() {
        assert_eq!(key("192.0.2.7"), key("::ffff:192.0.2.7"));
        assert_eq!(key("192.0.2.7").to_string(), "192.0.2.7");
    }

    #[test]
    fn ipv6_is_cut_at_its_prefix() {
        assert_eq!(key("2001:db8:1:2:3::4"), key("2001:db8:1:2:ffff::"));
        assert_ne!(key("2001:db8:1:2::"), key("2001:db8:1:3::"));
        assert_eq!(key("2001:db8:1:2:3::4").to_string(), "2001:db8:1:2::/64");
    }

    #[test]
    fn a_named_network_has_the_number_of_its_name_alone() {
        // FNV-1a's published values.
        assert_eq!(network_number("a"), 0xaf63_dc4c_8601_ec8c);
        assert_eq!(network_number("foobar"), 0x8594_4171_f739_67e8);
        let named = HostKey::of_named(7, network_number("foobar"));
        assert_eq!(named.network_number(), network_number("foobar"));
        assert_eq!(named.addr[..8], [0; 8]);
        // A host with the same bits is another record.
        let host = HostKey {
            level: Level::Host,
            ..named
        };
        assert_ne!(named.tag(), host.tag());
    }

    #[test]
    fn each_shared_level_has_one_of_the_fleet() {
        for level in Level::SHARED {
            let fleet = level.fleet_level().unwrap();
            assert!(fleet.is_fleet() && fleet.is_group() && !fleet.is_window());
            assert_eq!((fleet.own_level(), fleet as u32), (level, level as u32 | 8));
            assert_eq!(level.worth_of(fleet), fleet);
            assert_eq!(fleet.worth_of(Level::Namespace), level);
        }
        let fleets = Level::ALL.into_iter().filter(|level| level.is_fleet());
        assert_eq!(fleets.count(), Level::SHARED.len());
        assert_eq!(Level::Prefix.worth_of(Level::Namespace), Level::Prefix);
        assert_eq!(Level::Prefix.worth_of(Level::FleetNamed), Level::Prefix);
        assert_eq!(Level::Host.worth_of(Level::FleetPrefix), Level::Host);
    }

    #[test]
    fn namespaces_are_kept_apart() {
        let other = HostKey {
            netns: 8,
            ..key("192.0.2.7")
        };
        assert_ne!(key("192.0.2.7"), other);
    }

    #[test]
    fn ipv4_prefixes_mask_the_last_bits() {
        let wide = HostKey::new(0, "192.0.2.7".parse().unwrap(), 24, 64).unwrap();
        assert_eq!(wide.to_string(), "192.0.2.0/24");
        assert!(HostKey::new(0, "192.0.2.7".parse().unwrap(), 33, 64).is_err());
    }
}
