//! Table of `thalweg timers`, and the row of `thalweg status`.

use anyhow::Result;
use clap::{ArgMatches, Args, FromArgMatches as _};
use serde::Deserialize as _;
use serde_json::{Value, json};
use thalweg_terminal::output;

use super::view::{NetworkTimers, Timers, TimersFigures};
use crate::present::{ratio_cell, with_container};

/// Options of `timers`.
#[derive(Debug, Args)]
pub struct Options {
    /// Only networks with other timers than the kernel's.
    #[arg(long)]
    set: bool,
}

/// Row of `thalweg status`; `None`: the feature is off.
pub fn status_row(status: &Value) -> Option<String> {
    let figures = TimersFigures::deserialize(status).ok()?;
    Some(format!("{} of {} networks", figures.set, figures.networks))
}

/// Table of an answer of `GET /v1/timers`, in which the networks that the options want stay.
///
/// # Errors
/// The answer has another form.
pub fn list(answer: &mut Value, options: &ArgMatches) -> Result<String> {
    let options = Options::from_arg_matches(options)?;
    let mut found = Timers::deserialize(&*answer)?;
    let is_set = |it: &NetworkTimers| it.floor_us.is_some() || it.syn_us.is_some();
    found.networks.retain(|it| is_set(it) || !options.set);
    let text = match (found.enabled, found.networks.is_empty()) {
        (false, _) => {
            "timers are not learned: [timers] enabled = false, or mode classic\n".to_owned()
        }
        (true, true) => "nothing is known of networks yet\n".to_owned(),
        _ if found.sets => timers_table(&found.networks),
        _ => format!(
            "{}Nothing is set: dry run, or advice.\n",
            timers_table(&found.networks)
        ),
    };
    *answer = json!(found);
    Ok(text)
}

/// Text of an explanation; `None`: it has another form.
pub fn explanation_text(explanation: &Value) -> Option<String> {
    let network = NetworkTimers::deserialize(explanation).ok()?;
    Some(format!("\nTimers:\n{}", timers_table(&[network])))
}

fn timers_table(networks: &[NetworkTimers]) -> String {
    let header = [
        "Network", "Floor", "SYN", "RTT", "Drawn", "Control", "Resent", "Usually", "Spurious",
        "Time", "Note",
    ];
    let rows = networks.iter().map(row).collect();
    let mut text = output::table(&header, &[1, 2, 3, 4, 5, 6, 7, 8], rows);
    text.push_str(
        "\nFloor: least retransmission timeout of connections that recover, beside the round trip. \
         Time: of transfers, against the control group's, and its 95 % interval. Others: the last least \
         timeout of a route, a policy, an application or a sysctl, and its connections.\n",
    );
    text
}

fn row(network: &NetworkTimers) -> Vec<String> {
    let ms = |us: Option<u32>| us.map_or("-".to_owned(), |us| format!("{} ms", us / 1000));
    let percent = |share: f64| format!("{:.2} %", 100.0 * share);
    vec![
        with_container(&network.name, network.container.as_deref()),
        ms(network.floor_us),
        ms(network.syn_us),
        format!("{:.1} ms", f64::from(network.rtt_us) / 1000.0),
        network.drawn.to_string(),
        network.control.to_string(),
        percent(network.retransmitted),
        percent(network.control_retransmitted),
        percent(network.spurious),
        ratio_cell(network.time_ratio, network.time_interval),
        note_cell(network),
    ]
}

fn note_cell(network: &NetworkTimers) -> String {
    let ms = |us: u32| format!(" {} ms", f64::from(us) / 1000.0);
    let others = (network.others > 0).then(|| {
        let value = network.others_us.map(ms).unwrap_or_default();
        format!("others{value}: {}", network.others)
    });
    let notes = network.harm.clone().into_iter().chain(others);
    notes.collect::<Vec<_>>().join("; ")
}
