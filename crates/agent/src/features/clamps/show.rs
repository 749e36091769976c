//! Rows of `thalweg status` and `thalweg clamps`.

use anyhow::Result;
use clap::{ArgMatches, Args, FromArgMatches as _};
use serde::Deserialize as _;
use serde_json::{Value, json};
use thalweg_terminal::output;

use super::view::{ClampFigures, Clamps, HostClamp};
use crate::present::with_container;

/// Text of the number of clamped connections and the cost of polls; `None`: there are no clamps.
pub fn status_row(status: &Value) -> Option<String> {
    let figures = ClampFigures::deserialize(status).ok()?;
    Some(format!(
        "{} to {} clamped, {} refused; looks take {:.3} % of a processor",
        output::count_text(figures.connections, "connection"),
        output::count_text(figures.hosts, "host"),
        figures.refused,
        figures.looks.processor_percent()
    ))
}

/// Options of `clamps`.
#[derive(Args)]
pub struct Options {
    /// Show at most this many rows. Default: all.
    #[arg(long, value_name = "N")]
    limit: Option<usize>,
}

/// Table of an answer of `GET /v1/clamps`, in which the hosts that the options want stay.
///
/// # Errors
/// The answer has another form.
pub fn list(answer: &mut Value, options: &ArgMatches) -> Result<String> {
    let options = Options::from_arg_matches(options)?;
    let mut found = Clamps::deserialize(&*answer)?;
    found.hosts.truncate(options.limit.unwrap_or(usize::MAX));
    let text = clamps_table(&found);
    *answer = json!(found);
    Ok(text)
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
    let name = with_container(&host.address, host.container.as_deref());
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
