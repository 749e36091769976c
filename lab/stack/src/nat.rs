//! Address translation between the kernel's address and the machine's
//! ([`thalweg_link::outside::nat`]), and the ports of the machine that lead inside.

use std::net::{IpAddr, Ipv4Addr};

use thalweg_link::outside::nat::{self, Nat, OWNED, run_commands};
use thalweg_process::tool;

use crate::control::WireAddresses;
use crate::error::Error;
use crate::publish::Ports;

/// Puts translation in force for the hosts behind a device, and for ports of IPv4 and IPv6 that
/// lead there.
pub(crate) fn create(
    device: &str,
    ends: &WireAddresses,
    published: &[Option<Ports>; 2],
) -> Result<Nat, Error> {
    Ok(Nat::create_tables(&nat_rules(
        device, ends, published, OWNED,
    ))?)
}

/// The commands, one a line.
fn nat_rules(
    device: &str,
    ends: &WireAddresses,
    published: &[Option<Ports>; 2],
    flags: &str,
) -> Vec<String> {
    let [v4, v6] = published;
    let mut rules = vec![format!("add table ip {device} {flags}")];
    rules.extend(table_commands(
        "ip",
        device,
        &ends.inside.to_string(),
        v4.as_ref(),
    ));
    if let Some(ends) = ends.v6.filter(|it| it.is_gateway) {
        let inside = ends.inside.to_string();
        rules.push(format!("add table ip6 {device} {flags}"));
        rules.extend(table_commands("ip6", device, &inside, v6.as_ref()));
    }
    rules
}

/// Puts translation in force until it is [removed](remove_nat). DNS questions to the machine's end of
/// the wire go to this resolver.
pub(crate) fn prepare_nat(
    device: &str,
    ends: &WireAddresses,
    resolver: Option<Ipv4Addr>,
) -> Result<(), Error> {
    let mut ends = *ends;
    if let Some(v6) = &mut ends.v6 {
        // Whether the machine forwards packets may change later.
        v6.is_gateway = true;
    }
    let mut commands = nat_rules(device, &ends, &[None, None], "");
    if let Some(resolver) = resolver {
        commands.push(format!(
            "add chain ip {device} names {{ type nat hook prerouting priority dstnat; }}"
        ));
        for protocol in ["udp", "tcp"] {
            commands.push(format!(
                "add rule ip {device} names iifname \"{device}\" ip daddr {} {protocol} dport 53 \
                 dnat to {resolver}",
                ends.machine
            ));
        }
        let others = "ip daddr 127.0.0.0/8 drop";
        commands.push(format!(
            "add rule ip {device} from iifname \"{device}\" {others}"
        ));
    }
    // Tables of that name are left over from a device that was removed.
    remove_nat(device)?;
    Ok(run_commands(&commands)?)
}

/// Removes the tables of a device, if there are any.
pub(crate) fn remove_nat(device: &str) -> Result<(), Error> {
    let commands = removal_commands(&tool::read_tool("nft", "list tables")?, device);
    if commands.is_empty() {
        return Ok(());
    }
    Ok(run_commands(&commands)?)
}

/// The commands that remove the tables of a device from those that `nft list tables` names.
fn removal_commands(tables: &str, device: &str) -> Vec<String> {
    let own = ["ip", "ip6"].map(|family| format!("table {family} {device}"));
    let there = own
        .iter()
        .filter(|own| tables.lines().any(|line| line.trim() == **own));
    there.map(|own| format!("delete {own}")).collect()
}

fn table_commands(
    family: &str,
    device: &str,
    inside: &str,
    published: Option<&Ports>,
) -> Vec<String> {
    let mut rules = nat::table_commands(family, device, inside);
    if let Some(ports) = published {
        rules.extend(inbound_rules(family, device, inside, ports));
    }
    rules
}

/// The rules for ports that lead inside.
///
/// A connection is translated to an address of this machine. It is then tracked like one to a
/// server here; connection tracking does not know packets that are dropped before their end. A
/// duplicate goes inside after the machine's firewall. The translation of answers is taken back
/// before they are tracked.
fn inbound_rules(family: &str, device: &str, inside: &str, ports: &Ports) -> Vec<String> {
    let Ports {
        target,
        machine,
        taken,
        pairs,
    } = ports;
    let chain = |name: &str, kind: &str, hook: &str, priority: i32| {
        format!(
            "add chain {family} {device} {name} \
             {{ type {kind} hook {hook} priority {priority}; }}"
        )
    };
    let rule = |chain: &str, words: String| format!("add rule {family} {device} {chain} {words}");
    let loopback = match target {
        IpAddr::V4(_) => "127.0.0.0/8",
        IpAddr::V6(_) => "::1",
    };
    let mut rules = vec![
        chain("arriving", "nat", "prerouting", -100),
        chain("own", "nat", "output", -100),
        chain("inwards", "filter", "input", 200),
    ];
    for (address, port) in taken {
        let to = address.map_or("fib daddr type local".to_owned(), |it| {
            format!("{family} daddr {it}")
        });
        let translate = format!("{to} tcp dport {port} dnat to {target}");
        rules.push(rule(
            "arriving",
            format!("iifname != \"{device}\" {translate}"),
        ));
        if target.is_ipv4() {
            rules.push(rule("own", translate));
        } else {
            // The system takes no packet for ::1 from a device, so clients are refused and try
            // another address at once.
            rules.push(rule("own", format!("ip6 daddr != {loopback} {translate}")));
            let refuse = format!("ip6 daddr {loopback} tcp dport {port} reject with tcp reset");
            rules.push(rule("inwards", refuse));
        }
    }
    if target.is_ipv4() {
        // For clients at 127.0.0.1, whose answers the device must accept. It accepts nothing else
        // for that address.
        let device = format!("iifname \"{device}\"");
        rules.push(rule("from", format!("{device} ip daddr {loopback} drop")));
        let source = format!("{family} saddr {loopback} {family} daddr {target} snat to {machine}");
        rules.push(rule("out", source));
    }
    for (outside, port) in pairs {
        rules.push(rule(
            "from",
            format!(
                "iifname \"{device}\" {family} saddr {inside} tcp sport {port} \
                 {family} saddr set {target} tcp sport set {outside}"
            ),
        ));
        rules.push(rule(
            "inwards",
            format!(
                "{family} daddr {target} tcp dport {outside} ct status dnat \
                 {family} daddr set {inside} tcp dport set {port} \
                 dup to {inside} device \"{device}\" \
                 {family} daddr set {target} tcp dport set {outside}"
            ),
        ));
    }
    rules
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn removal_names_only_tables_that_are_there() {
        let tables = "table inet filter\ntable ip tap1\ntable ip tap10\ntable ip6 tap10\n";
        assert_eq!(removal_commands(tables, "tap1"), ["delete table ip tap1"]);
        let both = ["delete table ip tap10", "delete table ip6 tap10"];
        assert_eq!(removal_commands(tables, "tap10"), both);
        assert!(removal_commands(tables, "tap2").is_empty());
        assert!(removal_commands("", "tap1").is_empty());
    }
}
