//! `thalweg networks`.

use anyhow::Result;
use clap::{Args, ValueEnum};
use thalweg_agent::view::{Network, NetworkArm, Networks};
use thalweg_control::object::printable;
use thalweg_units::figures::three;

use crate::options::Global;
use crate::output::{self, percent};

/// Which networks.
#[derive(Debug, Args)]
pub struct Options {
    /// Only networks of this kind.
    #[arg(long, value_enum)]
    level: Option<Level>,
    /// Only those that know enough to decide about a new host.
    #[arg(long)]
    decides: bool,
    /// Show at most this many networks. Default: all.
    #[arg(long, value_name = "N")]
    limit: Option<usize>,
}

/// Kinds of networks, the narrowest first.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Level {
    /// The addresses around a host.
    Prefix,
    /// Those that `networks.table` of the configuration names.
    Named,
    /// The hosts of a service with a similar round-trip time.
    Service,
    /// All hosts of a network namespace.
    Namespace,
}

impl Level {
    fn name(self) -> &'static str {
        match self {
            Self::Prefix => "prefix",
            Self::Named => "named",
            Self::Service => "service",
            Self::Namespace => "namespace",
        }
    }
}

/// Lists what is known of networks.
pub fn run(global: &Global, options: &Options) -> Result<()> {
    let mut found: Networks = global.client()?.get("/v1/networks")?;
    let networks = &mut found.networks;
    if let Some(level) = options.level {
        networks.retain(|network| network.level == level.name());
    }
    networks.retain(|network| network.decides || !options.decides);
    networks.truncate(options.limit.unwrap_or(usize::MAX));
    output::show(global, &found, || table(&found.networks))
}

/// Networks with what each knows of the arms.
pub(super) fn table(networks: &[Network]) -> String {
    if networks.is_empty() {
        return "no networks\n".to_owned();
    }
    let header = [
        "Network", "Hosts", "Decided", "Arm", "Next", "Time", "+/-", "Evidence", "Own", "Scored",
    ];
    let rows = networks.iter().flat_map(|network| {
        network.arms.iter().enumerate().map(|(number, arm)| {
            let mut row = match number {
                0 => first(network),
                _ => vec![String::new(); 3],
            };
            row.extend(cells(network, arm));
            row
        })
    });
    let mut text = output::table(&header, &[1, 2, 4, 5, 6, 7, 8, 9], rows.collect());
    text.push_str(
        "\nTime per byte against the default on the same hosts, and its standard error. * a new \
         host gets.\n",
    );
    if networks
        .iter()
        .flat_map(|network| &network.arms)
        .any(|arm| arm.harmful)
    {
        text.push_str("! gains at the expense of others.\n");
    }
    text
}

fn first(network: &Network) -> Vec<String> {
    let name = match &network.container {
        Some(container) => format!("{} ({})", network.name, printable(container)),
        None => network.name.clone(),
    };
    vec![
        name,
        network
            .hosts
            .map_or_else(|| "-".to_owned(), |hosts| hosts.to_string()),
        network.decided.to_string(),
    ]
}

fn cells(network: &Network, arm: &NetworkArm) -> Vec<String> {
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
        percent(arm.next_probability),
        known(format!("{time:+.0} %")),
        known(format!("{error:.0} %")),
        three(arm.evidence),
        three(arm.own_evidence),
        arm.scored.to_string(),
    ]
}
