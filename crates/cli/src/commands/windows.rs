//! `thalweg windows`.

use anyhow::Result;
use clap::Args;
use thalweg_agent::view::{WindowArm, WindowNetwork, Windows};
use thalweg_terminal::output::{self, percent_text};
use thalweg_units::figures::three_digits;

use super::hosts::where_measured;
use super::networks::with_container;
use crate::options::Global;

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

/// Lists what is known of initial windows.
pub fn run(global: &Global, options: &Options) -> Result<()> {
    let mut found: Windows = global.agent_client()?.get("/v1/windows")?;
    let networks = &mut found.networks;
    networks.retain(|network| network.decides || !options.decides);
    networks.truncate(options.limit.unwrap_or(usize::MAX));
    output::show_value(&global.format, &found, || found_table(&found))
}

fn found_table(found: &Windows) -> String {
    if found.segments.is_empty() {
        return "initial windows are not learned ([initial_window] enabled = false)\n".to_owned();
    }
    if found.networks.is_empty() {
        return "nothing is known of initial windows yet\n".to_owned();
    }
    windows_table(&found.networks)
}

/// Table of the initial windows of networks.
pub fn windows_table(networks: &[WindowNetwork]) -> String {
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
    let known = |text| where_measured(window.evidence, text);
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
