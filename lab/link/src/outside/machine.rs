//! What the machine's network has and allows: routes, and settings of one device.

use std::fs;
use std::net::Ipv4Addr;
use std::path::Path;

use thalweg_process::tool;
use thalweg_units::prefix::{MAPPED, Prefix, address_bits};

use crate::error::Error;

/// The destinations of all routes but the default ones.
///
/// # Errors
/// `ip` is missing or fails.
pub fn route_destinations() -> Result<Vec<Prefix>, Error> {
    Ok(parse_destinations(&tool::read_tool(
        "ip",
        "-4 route show table all",
    )?))
}

/// The destinations of all routes but the default ones, in the text of `ip route show`.
pub fn parse_destinations(table: &str) -> Vec<Prefix> {
    let destination = |line: &str| {
        // A type of route, such as "local", may come first.
        let mut words = line.split_ascii_whitespace().take(2);
        words.find_map(|word| Prefix::parse(word).ok())
    };
    table
        .lines()
        .filter_map(destination)
        // Shorter ones are parts of a default route.
        .filter(|prefix| prefix.length() >= 8)
        .collect()
}

/// The first address of a range's part that no route covers: parts have this prefix length and the
/// same number in each range.
pub fn free_address(
    ranges: &[Ipv4Addr],
    prefix: u8,
    number: u32,
    routes: &[Prefix],
) -> Option<u32> {
    ranges.iter().find_map(|range| {
        let first = range.to_bits() + (number << (32 - prefix));
        let own = Prefix::of(
            address_bits(Ipv4Addr::from_bits(first).into()),
            MAPPED + prefix,
        );
        let used = routes.iter().any(|route| route.overlaps(own));
        (!used).then_some(first)
    })
}

/// Reads a setting of a device under net.ipv4.conf or net.ipv6.conf.
///
/// # Errors
/// There is none.
pub fn read_setting(device: &str, family: &str, key: &str) -> Result<String, Error> {
    let file = setting_file(device, family, key);
    let text = fs::read_to_string(&file).map_err(Error::io("cannot read", file))?;
    Ok(text.trim().to_owned())
}

/// Changes one.
///
/// # Errors
/// It cannot be written.
pub fn write_setting(device: &str, family: &str, key: &str, value: &str) -> Result<(), Error> {
    let file = setting_file(device, family, key);
    fs::write(&file, value).map_err(Error::io("cannot write", file))
}

fn setting_file(device: &str, family: &str, key: &str) -> String {
    format!("/proc/sys/net/{family}/conf/{device}/{key}")
}

/// Whether a device may have IPv6 addresses.
///
/// # Errors
/// As [`read_setting`].
pub fn has_v6(device: &str) -> Result<bool, Error> {
    Ok(Path::new("/proc/sys/net/ipv6").exists()
        && read_setting(device, "ipv6", "disable_ipv6")? != "1")
}

/// Makes the machine forward IPv6 packets from a device, if it can do so for one device (Linux
/// 6.17); returns whether it forwards them. The setting for the whole machine is only read: as a
/// router it would forget routes learned from router advertisements.
///
/// # Errors
/// As [`write_setting`].
pub fn forward_v6(device: &str) -> Result<bool, Error> {
    if Path::new(&setting_file(device, "ipv6", "force_forwarding")).exists() {
        return write_setting(device, "ipv6", "force_forwarding", "1").map(|()| true);
    }
    Ok(all_forward_v6())
}

/// Whether IPv6 packets from a device are forwarded.
pub fn forwards_v6(device: &str) -> bool {
    let own = read_setting(device, "ipv6", "force_forwarding");
    own.is_ok_and(|it| it == "1") || all_forward_v6()
}

fn all_forward_v6() -> bool {
    read_setting("all", "ipv6", "forwarding").is_ok_and(|value| value == "1")
}
