//! `thalweg networks`.

use anyhow::Result;
use clap::{Args, ValueEnum};
use thalweg_agent::view::{Network, NetworkArm, NetworkLimits, Networks};
use thalweg_terminal::output::{self, percent_text, rate_text};
use thalweg_units::figures::three_digits;
use thalweg_units::printable;

use super::hosts::where_measured;
use crate::options::{Global, value_name};

/// Options of `networks`.
#[derive(Debug, Args)]
pub struct Options {
    /// Only networks of this kind.
    #[arg(long, value_enum)]
    level: Option<Level>,
    /// Only those that know enough to decide about a new host.
    #[arg(long)]
    decides: bool,
    /// Show instead what limits their connections, the busiest networks first, and what would help:
    /// since yesterday, or the agent's start.
    #[arg(long, conflicts_with = "decides")]
    limits: bool,
    /// Show at most this many networks. Default: all.
    #[arg(long, value_name = "N")]
    limit: Option<usize>,
}

/// Kinds of networks, the narrowest first.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Level {
    /// The addresses around a host.
    Prefix,
    /// Networks that `networks.table` of the configuration names.
    Named,
    /// The hosts of a service with a similar round-trip time.
    Service,
    /// All hosts of a network namespace.
    Namespace,
    /// Prefixes that other agents reported.
    FleetPrefix,
    /// Named networks that other agents reported.
    FleetNamed,
}

/// Lists what is known of networks.
pub fn run(global: &Global, options: &Options) -> Result<()> {
    let mut found: Networks = global.agent_client()?.get("/v1/networks")?;
    let (networks, limits) = (&mut found.networks, &mut found.limits);
    if let Some(level) = options.level.map(value_name) {
        networks.retain(|network| network.level == level);
        limits.retain(|network| network.level == level);
    }
    networks.retain(|network| network.decides || !options.decides);
    let most = options.limit.unwrap_or(usize::MAX);
    networks.truncate(most);
    limits.truncate(most);
    output::show_value(&global.format, &found, || {
        match (options.limits, &found.limits_untold) {
            (false, _) => networks_table(&found.networks),
            (true, Some(why)) => format!("{why}\n"),
            (true, None) => limits_table(&found.limits),
        }
    })
}

fn limits_table(networks: &[NetworkLimits]) -> String {
    if networks.is_empty() {
        return "no connection has ended yet\n".to_owned();
    }
    let header = [
        "Network",
        "Receiver",
        "Send buffer",
        "Congestion",
        "Idle",
        "Free",
        "Fastest",
        "Connections",
    ];
    let rows = networks.iter().map(|network| {
        let limits = &network.limits;
        let shares = [limits.receiver, limits.buffer, limits.network, limits.idle];
        let name = with_container(&network.name, network.container.as_deref());
        let free = network.free_bytes_per_s;
        [name]
            .into_iter()
            .chain(shares.map(percent_of))
            .chain([
                free.map_or_else(|| "-".to_owned(), rate_text),
                match network.fastest_bytes_per_s > 0.0 {
                    true => rate_text(network.fastest_bytes_per_s),
                    false => "-".to_owned(),
                },
                limits.connections.to_string(),
            ])
            .collect()
    });
    let mut text = output::table(&header, &[1, 2, 3, 4, 5, 6, 7], rows.collect());
    text.push_str(
        "\nShares of the time with data outstanding; idle: of the time open, the application had\n\
         nothing to send. Free: rate of connections that neither receiver nor send buffer held up.\n",
    );
    text + &findings_text(networks)
}

/// Limits that networks have, and what would help.
pub(super) fn findings_text(networks: &[NetworkLimits]) -> String {
    let all = networks.iter().flat_map(|network| {
        let findings = network.limits.findings.iter();
        findings.map(|finding| {
            let words = format!("{}: {}", printable(&network.name), finding.words);
            let lines = output::wrap_text(&words, usize::from(output::WIDTH));
            format!("\n{}\n", lines.join("\n"))
        })
    });
    all.collect()
}

fn percent_of(share: f64) -> String {
    format!("{:.0} %", 100.0 * share)
}

pub(super) fn with_container(name: &str, container: Option<&str>) -> String {
    match container {
        Some(container) => format!("{name} ({})", printable(container)),
        None => name.to_owned(),
    }
}

/// Networks with what each knows of the arms.
pub(super) fn networks_table(networks: &[Network]) -> String {
    if networks.is_empty() {
        return "no networks\n".to_owned();
    }
    let header = [
        "Network", "Hosts", "Decided", "Arm", "Next", "Time", "+/-", "Evidence", "Own", "Scored",
    ];
    let rows = networks.iter().flat_map(|network| {
        network.arms.iter().enumerate().map(|(number, arm)| {
            let mut row = match number {
                0 => network_cells(network),
                _ => vec![String::new(); 3],
            };
            row.extend(arm_cells(network, arm));
            row
        })
    });
    let mut text = output::table(&header, &[1, 2, 4, 5, 6, 7, 8, 9], rows.collect());
    text.push_str(
        "\nTime per byte against the default on the same hosts, and its standard error. * a new \
         host gets.\n",
    );
    if networks.iter().any(|network| network.agents.is_some()) {
        text.push_str("told by N: N other agents told of it; nothing of it was measured here.\n");
    }
    if networks
        .iter()
        .flat_map(|network| &network.arms)
        .any(|arm| arm.harmful)
    {
        text.push_str("! gains at the expense of others.\n");
    }
    text
}

fn network_cells(network: &Network) -> Vec<String> {
    let name = with_container(&network.name, network.container.as_deref());
    vec![
        match network.agents {
            Some(agents) => format!("{name}, told by {agents}"),
            None => name,
        },
        network
            .hosts
            .map_or_else(|| "-".to_owned(), |hosts| hosts.to_string()),
        network.decided.to_string(),
    ]
}

fn arm_cells(network: &Network, arm: &NetworkArm) -> Vec<String> {
    let mark = if network.best.as_deref() == Some(arm.arm.as_str()) {
        " *"
    } else if arm.harmful {
        " !"
    } else {
        ""
    };
    let time = 100.0 * (arm.difference_bits.exp2() - 1.0);
    let error = 100.0 * (arm.error_bits.exp2() - 1.0);
    let known = |text| where_measured(arm.evidence, text);
    vec![
        format!("{}{mark}", arm.arm),
        percent_text(arm.next_probability),
        known(format!("{time:+.0} %")),
        known(format!("{error:.0} %")),
        three_digits(arm.evidence),
        three_digits(arm.own_evidence),
        arm.scored.to_string(),
    ]
}
