//! `thalweg hosts`.

use std::cmp::Reverse;
use std::str::FromStr;

use anyhow::Result;
use clap::{Args, ValueEnum};
use thalweg_agent::view::{Explanation, Host, HostArm, Hosts};
use thalweg_policy::{Prefix, PrefixError};
use thalweg_terminal::output::{self, milliseconds_text, percent_text, rate_text};
use thalweg_units::address::{self, Nat64};
use thalweg_units::figures::PUBLISHED_HOSTS;
use thalweg_units::grammar::is_congestion_control;
use thalweg_units::prefix::address_bits;
use thalweg_units::printable;

use crate::client::{Client, percent_encode};
use crate::options::Global;

/// Options of `hosts`.
#[derive(Debug, Args)]
pub struct Options {
    /// Order of the hosts.
    #[arg(long, value_enum, default_value_t = Order::Address)]
    sort: Order,
    /// Only hosts of this address or prefix, or only this arm; repeatable.
    ///
    /// `192.0.2.7`, `192.0.2.0/24`, `2001:db8::/32` or `bbr`.
    #[arg(long, value_name = "WHAT")]
    filter: Vec<Filter>,
    /// Show at most this many hosts. Default: all.
    #[arg(long, value_name = "N")]
    limit: Option<usize>,
    /// The columns of the published tuner first, in its units.
    #[arg(long)]
    classic: bool,
}

/// Orders of the list.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Order {
    /// By address.
    Address,
    /// Used last, first.
    Recent,
    /// Most connections first.
    Connections,
    /// Highest rate first.
    Rate,
    /// Lowest round-trip time first.
    Rtt,
}

/// One `--filter`.
#[derive(Clone, Debug)]
enum Filter {
    Within(Prefix),
    Arm(String),
}

impl FromStr for Filter {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Some(prefix) = parse_prefix(text) {
            return Ok(Self::Within(prefix));
        }
        // Only addresses contain one of these characters.
        if is_congestion_control(text) {
            return Ok(Self::Arm(text.to_owned()));
        }
        Err("expected an address, address/length, or the name of a congestion control".to_owned())
    }
}

/// An address or a prefix; bits beyond its length are ignored. An address behind the well-known prefix
/// of NAT64 is an IPv4 one.
fn parse_prefix(text: &str) -> Option<Prefix> {
    let bare = text.strip_prefix('[').map(|rest| rest.replacen(']', "", 1));
    let text = bare.as_deref().unwrap_or(text);
    if let Some(address) = address::parse_address(text) {
        return Some(Prefix::of(
            address_bits(Nat64::default().unwrap_address(address)),
            128,
        ));
    }
    match Prefix::parse(text) {
        Ok(prefix) | Err(PrefixError::HostBits(prefix)) => Some(prefix),
        Err(PrefixError::Malformed) => None,
    }
}

/// Whether a text is a prefix that a host's record is in, or an address that the record covers.
pub fn matches_prefix(host: &str, text: &str) -> bool {
    parse_prefix(text).is_some_and(|prefix| prefixes_overlap(host, prefix))
}

/// Whether a host's record and a prefix overlap: an address finds the record that contains it.
fn prefixes_overlap(host: &str, prefix: Prefix) -> bool {
    parse_prefix(host).is_some_and(|host| host.overlaps(prefix))
}

/// A filter with the agent's form of its address: IPv4 behind each of its prefixes of NAT64.
fn in_agents_form(client: &Client, filter: &Filter) -> Result<Filter> {
    let Filter::Within(prefix) = filter else {
        return Ok(filter.clone());
    };
    let mut own = None;
    if !prefix.is_ipv4() && prefix.length() == 128 {
        let path = format!(
            "/v1/hosts/{}",
            percent_encode(&prefix.address().to_string())
        );
        // An agent that cannot explain it lists its hosts all the same.
        let found: Option<Vec<Explanation>> = client.find_resource(&path).unwrap_or(None);
        let first = found.into_iter().flatten().next();
        own = first.and_then(|it| parse_prefix(&it.host.address));
    }
    Ok(Filter::Within(own.unwrap_or(*prefix)))
}

/// Lists the records of remote hosts.
pub fn run(global: &Global, options: &Options) -> Result<()> {
    let client = global.agent_client()?;
    let mut hosts: Hosts = client.get("/v1/hosts")?;
    let filters = options.filter.iter();
    let filters: Result<Vec<Filter>> = filters.map(|it| in_agents_form(&client, it)).collect();
    filter_and_sort(&mut hosts.hosts, &filters?, options);
    output::show_value(&global.format, &hosts, || match options.classic {
        true => published_table(&hosts.hosts),
        false => hosts_table(&hosts.hosts),
    })
}

/// Filters, sorts and cuts.
fn filter_and_sort(hosts: &mut Vec<Host>, filters: &[Filter], options: &Options) {
    let mut prefixes = Vec::new();
    let mut arms = Vec::new();
    for filter in filters {
        match filter {
            Filter::Within(prefix) => prefixes.push(prefix),
            Filter::Arm(name) => arms.push(name),
        }
    }
    if !prefixes.is_empty() {
        hosts.retain(|host| {
            prefixes
                .iter()
                .any(|prefix| prefixes_overlap(&host.address, **prefix))
        });
    }
    if !arms.is_empty() {
        for host in hosts.iter_mut() {
            host.arms.retain(|arm| arms.contains(&&arm.arm));
        }
        hosts.retain(|host| !host.arms.is_empty());
    }
    // IPv4 is within ::ffff:0:0/96, before all others.
    hosts.sort_by_cached_key(|host| {
        let prefix = parse_prefix(&host.address);
        let key = prefix.map(|prefix| (prefix.bits(), prefix.length128()));
        (key, host.netns)
    });
    match options.sort {
        Order::Address => {}
        Order::Recent => hosts.sort_by_key(|host| host.idle_s),
        Order::Connections => hosts.sort_by_key(|host| Reverse(host.connections)),
        Order::Rate => hosts.sort_by_key(|host| Reverse(host.max_rate_bytes_per_s)),
        // Records without a round-trip time come last.
        Order::Rtt => hosts.sort_by_key(|host| (host.min_rtt_us == 0, host.min_rtt_us)),
    }
    hosts.truncate(options.limit.unwrap_or(usize::MAX));
}

/// A figure where there is evidence of it.
pub fn where_measured(evidence: f64, text: String) -> String {
    match evidence > 0.0 {
        true => text,
        false => "-".to_owned(),
    }
}

/// The columns of `explain`, with the host before them.
fn hosts_table(hosts: &[Host]) -> String {
    let header = [
        "Host", "Arm", "Next", "Cost", "Rate", "RTT", "Retrans", "Scored", "Chosen",
    ];
    let cells = |arm: &HostArm| {
        let measured = |text| where_measured(arm.evidence, text);
        vec![
            arm.arm.clone(),
            percent_text(arm.next_probability),
            measured(format!("{:.2}", arm.cost_bits)),
            measured(rate_text(arm.rate_bytes_per_s)),
            measured(milliseconds_text(arm.srtt_us)),
            measured(percent_text(arm.retransmitted)),
            arm.scored.to_string(),
            arm.count.to_string(),
        ]
    };
    table_of_arms(hosts, &header, &[2, 3, 4, 5, 6, 7, 8], cells)
}

/// A row for each arm of each host; a host without arms has a row, too. The last column is there
/// if a host is a container's.
fn table_of_arms(
    hosts: &[Host],
    header: &[&str],
    numbers: &[usize],
    cells: impl Fn(&HostArm) -> Vec<String>,
) -> String {
    if hosts.is_empty() {
        return "no hosts\n".to_owned();
    }
    let named = hosts.iter().any(|host| host.container.is_some());
    let columns = header.len();
    let container = named.then_some("Container");
    let header: Vec<&str> = header.iter().copied().chain(container).collect();
    let rows = hosts.iter().flat_map(|host| {
        let with_host = |cells: Vec<String>| {
            let mut row = vec![host.address.clone()];
            row.extend(cells);
            row.resize(columns, String::new());
            if named {
                row.push(
                    host.container
                        .as_deref()
                        .map_or_else(|| "-".to_owned(), printable),
                );
            }
            row
        };
        let empty = host
            .arms
            .is_empty()
            .then(|| with_host(vec!["-".to_owned()]));
        let arms: Vec<Vec<String>> = host.arms.iter().map(|arm| with_host(cells(arm))).collect();
        arms.into_iter().chain(empty)
    });
    output::table(&header, numbers, rows.collect())
}

fn published_table(hosts: &[Host]) -> String {
    let header = [&PUBLISHED_HOSTS[..], &["Mbit/s", "Next"]].concat();
    let cells = |arm: &HostArm| {
        let typical = where_measured(arm.evidence, output::megabits_text(arm.rate_bytes_per_s));
        vec![
            arm.arm.clone(),
            arm.metric.to_string(),
            arm.count.to_string(),
            arm.greedy.to_string(),
            arm.min_rtt_us.to_string(),
            arm.max_rate.to_string(),
            typical,
            percent_text(arm.next_probability),
        ]
    };
    table_of_arms(hosts, &header, &[2, 3, 4, 5, 6, 7, 8], cells)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_finds_the_record_that_covers_it() {
        let within = |host: &str, filter: &str| match filter.parse::<Filter>() {
            Ok(Filter::Within(prefix)) => prefixes_overlap(host, prefix),
            other => panic!("{filter} is {other:?}"),
        };
        assert!(within("192.0.2.7", "192.0.2.7"));
        assert!(within("192.0.2.7", "192.0.2.0/24"));
        assert!(within("192.0.2.7", "::ffff:192.0.2.7"));
        assert!(!within("192.0.3.7", "192.0.2.0/24"));
        assert!(within("2001:db8:1:2::/64", "2001:db8:1:2::9"));
        assert!(within("2001:db8:1:2::/64", "2001:db8::/32"));
        assert!(!within("2001:db8:1:2::/64", "2001:db9::/32"));
        assert!(within("192.0.2.7", "0.0.0.0/0"));
        assert!(!within("2001:db8::/64", "0.0.0.0/0"));
        assert!(within("192.0.2.7", "192.0.2.9/24"));
        assert!(within("2001:db8::7", "[2001:db8::7]"));
    }

    #[test]
    fn what_is_neither_address_nor_arm_is_refused() {
        for text in [
            "",
            "192.0.2.0/33",
            "192.0.2",
            "2001:db8::/129",
            "B B R",
            "a/b",
        ] {
            assert!(text.parse::<Filter>().is_err(), "{text}");
        }
        assert!(matches!("bbr".parse(), Ok(Filter::Arm(name)) if name == "bbr"));
    }
}
