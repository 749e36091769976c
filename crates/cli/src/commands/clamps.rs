//! `thalweg clamps`.

use anyhow::Result;
use clap::Args;
use thalweg_agent::view::{Clamps, HostClamp};
use thalweg_terminal::output;
use thalweg_units::printable;

use crate::options::Global;

/// Options of `clamps`.
#[derive(Debug, Args)]
pub struct Options {
    /// Show at most this many hosts. Default: all.
    #[arg(long, value_name = "N")]
    limit: Option<usize>,
}

/// Lists the learned clamps of congestion windows.
pub fn run(global: &Global, options: &Options) -> Result<()> {
    let mut found: Clamps = global.agent_client()?.get("/v1/clamps")?;
    found.hosts.truncate(options.limit.unwrap_or(usize::MAX));
    output::show_value(&global.format, &found, || clamps_table(&found))
}

fn clamps_table(found: &Clamps) -> String {
    if found.prefixes.is_empty() {
        return "congestion windows have no learned clamp ([clamp] prefixes = [])\n".to_owned();
    }
    if found.hosts.is_empty() {
        let prefixes = found.prefixes.join(", ");
        return format!("no connection to {prefixes} so far\n");
    }
    let header = ["Host", "Segments", "Rate", "RTT", "Connections", "Clamped"];
    let rows = found.hosts.iter().map(host_row).collect();
    let mut text = output::table(&header, &[1, 2, 3, 4, 5], rows);
    text.push_str(
        "\nLargest rate of a connection, and least RTT. - is not known yet, or has no clamp.\n",
    );
    if !found.sets {
        text.push_str("Nothing is set: `thalweg status` and `thalweg config show` tell why.\n");
    }
    text
}

fn host_row(host: &HostClamp) -> Vec<String> {
    let name = match &host.container {
        Some(container) => format!("{} ({})", host.address, printable(container)),
        None => host.address.clone(),
    };
    let known = |is: bool, text: String| if is { text } else { "-".to_owned() };
    let segments = host.segments.map_or("-".to_owned(), |it| it.to_string());
    vec![
        name,
        segments,
        known(
            host.max_rate_bytes_per_s > 0,
            output::rate_text(host.max_rate_bytes_per_s as f64),
        ),
        known(host.min_rtt_us > 0, format!("{} µs", host.min_rtt_us)),
        host.connections.to_string(),
        host.clamped.to_string(),
    ]
}
