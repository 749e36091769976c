//! Table of `thalweg idle`, and the row of `thalweg status`.

use anyhow::Result;
use clap::{ArgMatches, Args, FromArgMatches as _};
use serde::Deserialize as _;
use serde_json::{Value, json};
use thalweg_terminal::output;

use super::view::{Idle, IdleFigures, NetworkIdle};
use crate::present::{ratio_cell, with_container};

/// Options of `idle`.
#[derive(Debug, Args)]
pub struct Options {
    /// Only networks whose connections keep their windows.
    #[arg(long)]
    kept: bool,
}

/// Row of `thalweg status`; `None`: the feature is off.
pub fn status_row(status: &Value) -> Option<String> {
    let figures = IdleFigures::deserialize(status).ok()?;
    Some(format!("{} of {} networks", figures.kept, figures.networks))
}

/// Table of an answer of `GET /v1/idle`, in which the networks that the options want stay.
///
/// # Errors
/// The answer has another form.
pub fn list(answer: &mut Value, options: &ArgMatches) -> Result<String> {
    let options = Options::from_arg_matches(options)?;
    let mut found = Idle::deserialize(&*answer)?;
    found.networks.retain(|it| it.keeps || !options.kept);
    let text = match (found.enabled, found.networks.is_empty()) {
        (false, _) => {
            "windows are not kept: [idle] enabled = false, dry run, advice, or mode classic\n"
                .to_owned()
        }
        (true, true) => "no exchanges after idle times were seen yet\n".to_owned(),
        _ => idle_table(&found.networks),
    };
    *answer = json!(found);
    Ok(text)
}

/// Text of an explanation; `None`: it has another form.
pub fn explanation_text(explanation: &Value) -> Option<String> {
    let network = NetworkIdle::deserialize(explanation).ok()?;
    Some(format!("\nIdle:\n{}", idle_table(&[network])))
}

fn idle_table(networks: &[NetworkIdle]) -> String {
    let header = [
        "Network",
        "Window",
        "RTT",
        "Kept",
        "Restarted",
        "Resent",
        "Usually",
        "Time",
        "Note",
    ];
    let rows = networks.iter().map(row).collect();
    let mut text = output::table(&header, &[2, 3, 4, 5, 6], rows);
    text.push_str(
        "\nTime: of exchanges after an idle time with the window kept, against those whose window \
         was restarted, and its 95 % interval.\n",
    );
    text
}

fn row(network: &NetworkIdle) -> Vec<String> {
    let percent = |share: f64| format!("{:.2} %", 100.0 * share);
    let window = if network.keeps { "kept" } else { "restarted" };
    vec![
        with_container(&network.name, network.container.as_deref()),
        window.to_owned(),
        format!("{:.1} ms", f64::from(network.rtt_us) / 1000.0),
        network.kept.to_string(),
        network.restarted.to_string(),
        percent(network.retransmitted),
        percent(network.restarted_retransmitted),
        ratio_cell(network.time_ratio, network.time_interval),
        network.harm.clone().unwrap_or_default(),
    ]
}
