//! Tables of `thalweg windows` and `thalweg explain`.

use anyhow::Result;
use clap::{ArgMatches, Args, FromArgMatches as _};
use serde::Deserialize as _;
use serde_json::{Value, json};
use thalweg_terminal::output::{self, percent_text};
use thalweg_units::figures::three_digits;

use super::view::{WindowArm, WindowNetwork, Windows};
use crate::present::with_container;

/// Options of `windows`.
#[derive(Debug, Args)]
pub struct Options {
    /// Only those that know enough to decide.
    #[arg(long)]
    decides: bool,
    /// Show at most this many networks. Default: all.
    #[arg(long, value_name = "N")]
    limit: Option<usize>,
}

/// Table of an answer of `GET /v1/windows`, in which the networks that the options want stay.
///
/// # Errors
/// The answer has another form.
pub fn list(answer: &mut Value, options: &ArgMatches) -> Result<String> {
    let options = Options::from_arg_matches(options)?;
    let mut found = Windows::deserialize(&*answer)?;
    found.networks.retain(|it| it.decides || !options.decides);
    found.networks.truncate(options.limit.unwrap_or(usize::MAX));
    let text = match (found.segments.is_empty(), found.networks.is_empty()) {
        (true, _) => {
            "initial windows are not learned ([initial_window] enabled = false)\n".to_owned()
        }
        (_, true) => "nothing is known of initial windows yet\n".to_owned(),
        _ => windows_table(&found.networks),
    };
    *answer = json!(found);
    Ok(text)
}

/// Text of an explanation; `None`: it has another form.
pub fn explanation_text(explanation: &Value) -> Option<String> {
    let networks = Vec::deserialize(explanation).ok()?;
    Some(format!("\nInitial windows:\n{}", windows_table(&networks)))
}

fn windows_table(networks: &[WindowNetwork]) -> String {
    let header = [
        "Network", "Decided", "Segments", "Next", "Time", "+/-", "Resent", "Evidence", "Scored",
    ];
    let rows = networks.iter().flat_map(|network| {
        network.windows.iter().enumerate().map(|(number, window)| {
            let mut row = match number {
                0 => network_cells(network),
                _ => vec![String::new(); 2],
            };
            row.extend(window_cells(network, window));
            row
        })
    });
    let mut text = output::table(&header, &[1, 2, 3, 4, 5, 6, 7, 8], rows.collect());
    text.push_str(
        "\nTime of transfers against those with 10 segments, and its standard error. * a connection \
         gets.\n- more than may be chosen now.\n",
    );
    text
}

fn network_cells(network: &WindowNetwork) -> Vec<String> {
    let name = with_container(&network.name, network.container.as_deref());
    vec![name, network.decided.to_string()]
}

fn window_cells(network: &WindowNetwork, window: &WindowArm) -> Vec<String> {
    let mark = if network.best == window.segments {
        " *"
    } else if window.segments > network.largest {
        " -"
    } else {
        "  "
    };
    let time = 100.0 * (window.difference_bits.exp2() - 1.0);
    let error = 100.0 * (window.error_bits.exp2() - 1.0);
    let known = |text: String| match window.evidence > 0.0 {
        true => text,
        false => "-".to_owned(),
    };
    vec![
        format!("{}{mark}", window.segments),
        percent_text(window.next_probability),
        known(format!("{time:+.0} %")),
        known(format!("{error:.0} %")),
        format!("{:.2} %", 100.0 * window.retransmitted),
        three_digits(window.evidence),
        window.scored.to_string(),
    ]
}
