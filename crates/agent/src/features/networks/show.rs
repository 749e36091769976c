//! `thalweg networks`.

use anyhow::Result;
use clap::{ArgMatches, Args, FromArgMatches as _, ValueEnum};
use serde::Deserialize as _;
use serde_json::{Value, json};
use thalweg_terminal::output::{self, percent_text, rate_text};
use thalweg_units::figures::three_digits;

use super::view::{Network, Networks};
use crate::limits::findings_text;
use crate::present::with_container;
use crate::view::{NetworkArm, NetworkLimits};

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

/// Table of an answer of `GET /v1/networks`, in which the networks that the options want stay.
///
/// # Errors
/// The answer has another form.
pub fn list(answer: &mut Value, options: &ArgMatches) -> Result<String> {
    let options = Options::from_arg_matches(options)?;
    let mut found = Networks::deserialize(&*answer)?;
    let level = options.level.and_then(|it| it.to_possible_value());
    let is_wanted = |name: &str| level.as_ref().is_none_or(|it| it.get_name() == name);
    let most = options.limit.unwrap_or(usize::MAX);
    let Networks {
        networks, limits, ..
    } = &mut found;
    networks.retain(|it| is_wanted(&it.level) && (it.decides || !options.decides));
    networks.truncate(most);
    limits.retain(|it| is_wanted(&it.level));
    limits.truncate(most);
    *answer = json!(found);
    Ok(match (options.limits, found.limits_untold) {
        (false, _) => networks_table(&found.networks),
        (true, Some(why)) => format!("{why}\n"),
        (true, None) => limits_table(&found.limits),
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

fn percent_of(share: f64) -> String {
    format!("{:.0} %", 100.0 * share)
}

/// Networks with what each knows of the arms.
pub fn networks_table(networks: &[Network]) -> String {
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
    let known = |text: String| match arm.evidence > 0.0 {
        true => text,
        false => "-".to_owned(),
    };
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
