//! Rows of `thalweg status` and `thalweg buffers`.

use anyhow::Result;
use clap::{ArgMatches, Args, FromArgMatches as _};
use serde::Deserialize as _;
use serde_json::{Value, json};
use thalweg_terminal::output;
use thalweg_units::figures;

use super::view::{BufferFigures, BufferLimit, Buffers, NamespaceBuffers, NetworkBuffers};
use crate::present::{ratio_cell, with_container};

/// Text of the raised limits and the sockets' memory; `None`: the feature is off.
pub fn status_row(status: &Value) -> Option<String> {
    let figures = BufferFigures::deserialize(status).ok()?;
    let left = match figures.left {
        0 => String::new(),
        left => format!(", {left} left alone"),
    };
    Some(format!(
        "raised in {} of {}{left}; sockets have {} of {}",
        figures.raised,
        output::count_text(figures.namespaces, "network namespace"),
        figures::bytes_text(figures.memory_bytes),
        figures::bytes_text(figures.memory_mark_bytes),
    ))
}

/// Options of `buffers`.
#[derive(Args)]
pub struct Options {
    /// Show at most this many rows. Default: all.
    #[arg(long, value_name = "N")]
    limit: Option<usize>,
}

/// Table of an answer of `GET /v1/buffers`, in which the namespaces that the options want stay.
///
/// # Errors
/// The answer has another form.
pub fn list(answer: &mut Value, options: &ArgMatches) -> Result<String> {
    let options = Options::from_arg_matches(options)?;
    let mut found = Buffers::deserialize(&*answer)?;
    found
        .namespaces
        .truncate(options.limit.unwrap_or(usize::MAX));
    let text = buffers_table(&found);
    *answer = json!(found);
    Ok(text)
}

fn buffers_table(found: &Buffers) -> String {
    if !found.enabled {
        return "limits of buffers are left alone (buffers.enabled = false)\n".to_owned();
    }
    if found.namespaces.is_empty() {
        return "no connection so far\n".to_owned();
    }
    let header = [
        "Network namespace",
        "Limit",
        "First",
        "Now",
        "Next",
        "At limit",
    ];
    let rows = found.namespaces.iter().flat_map(|namespace| {
        [
            limit_row(namespace, "tcp_rmem", &namespace.receive),
            limit_row(namespace, "tcp_wmem", &namespace.send),
        ]
    });
    let mut text = output::table(&header, &[2, 3, 4, 5], rows.collect());
    text.push_str(
        "\nThird number of each sysctl; - stays. At limit: open connections whose buffer has \
         grown up to it.\n",
    );
    if !found.networks.is_empty() {
        text.push_str(&networks_table(&found.networks));
    }
    if !found.sets {
        text.push_str("Nothing is set: `thalweg status` and `thalweg config show` tell why.\n");
    }
    text
}

fn networks_table(networks: &[NetworkBuffers]) -> String {
    let header = [
        "Network", "Limits", "Raised", "Held", "Queue", "Usually", "Resent", "Usually", "Time",
    ];
    let percent = |share: f64| format!("{:.2} %", 100.0 * share);
    let row = |it: &NetworkBuffers| {
        vec![
            with_container(&it.name, it.container.as_deref()),
            if it.bounded { "first" } else { "raised" }.to_owned(),
            it.raised_connections.to_string(),
            it.bounded_connections.to_string(),
            format!("{:.2}", it.queue_ratio),
            format!("{:.2}", it.bounded_queue_ratio),
            percent(it.retransmitted),
            percent(it.bounded_retransmitted),
            ratio_cell(it.time_ratio, it.time_interval),
        ]
    };
    let rows = networks.iter().map(row).collect();
    let table = output::table(&header, &[2, 3, 4, 5, 6, 7], rows);
    format!(
        "\n{table}\nHeld: large transfers that do with the first limits. Queue: smoothed RTT over \
         the least. Time: of transfers against those held, and its 95 % interval.\n"
    )
}

fn limit_row(namespace: &NamespaceBuffers, setting: &str, limit: &BufferLimit) -> Vec<String> {
    let name = namespace.netns.to_string();
    let next = limit.wanted_bytes.map(figures::bytes_text);
    let next = match namespace.left {
        true => "left alone".to_owned(),
        false => next.unwrap_or_else(|| "-".to_owned()),
    };
    vec![
        with_container(&name, namespace.container.as_deref()),
        setting.to_owned(),
        figures::bytes_text(limit.first_bytes),
        figures::bytes_text(limit.now_bytes),
        next,
        limit.connections.to_string(),
    ]
}
