//! `thalweg explain HOST`.

use anyhow::Result;
use clap::Args;
use thalweg_agent::features;
use thalweg_agent::view::{Explanation, HostArm};
use thalweg_terminal::output::{self, milliseconds_text, percent_text, rate_text, span_text};
use thalweg_units::figures::three_digits;
use thalweg_units::printable;

use super::events;
use super::hosts::where_measured;
use crate::client::percent_encode;
use crate::options::{Global, parse_host};

/// Options of `explain`.
#[derive(Debug, Args)]
pub struct Options {
    /// Address of the remote host, or its prefix as `thalweg hosts` shows it.
    #[arg(value_parser = parse_host)]
    host: String,
}

/// Explains the congestion control of the next connection to a host.
pub fn run(global: &Global, options: &Options) -> Result<()> {
    let path = format!("/v1/hosts/{}", percent_encode(&options.host));
    let explanations: Vec<Explanation> = global.agent_client()?.get(&path)?;
    let several = explanations.len() > 1;
    let texts = explanations
        .iter()
        .map(|one| explanation_text(one, several));
    output::show_value(&global.format, &explanations, || {
        texts.collect::<Vec<_>>().join("\n")
    })
}

fn explanation_text(explanation: &Explanation, several: bool) -> String {
    let host = &explanation.host;
    let namespace = match &host.container {
        Some(container) => format!(" (container {})", printable(container)),
        None if several => format!(" (network namespace {})", host.netns),
        None => String::new(),
    };
    let mut text = format!("{}{namespace}: {}\n\n", host.address, explanation.summary);
    if !explanation.egress.is_empty() {
        let devices: Vec<String> = explanation.egress.iter().map(|it| printable(it)).collect();
        text.push_str(&format!(
            "Connections to it may leave by {}. One record has what is measured by each of them.\n\n",
            devices.join(" or ")
        ));
    }
    let of_features = features::all()
        .into_iter()
        .filter_map(|feature| feature.explanation_text(explanation.features.get(feature.name())?));
    let known: String = of_features.collect();
    // A host without record.
    if host.connections == 0 && host.scored == 0 {
        return text + &known;
    }
    text.push_str(&output::pairs_table(vec![
        (
            "connections",
            format!(
                "{}, the last {} ago",
                host.connections,
                span_text(host.idle_s)
            ),
        ),
        ("measurements", host.scored.to_string()),
        ("moved mid-flow", host.switched.to_string()),
        ("lowest round-trip time", milliseconds_text(host.min_rtt_us)),
        (
            "under the default",
            format!(
                "{:.1} × the {} of late",
                host.queue_bits.exp2(),
                milliseconds_text(host.base_rtt_us)
            ),
        ),
        ("highest rate", rate_text(host.max_rate_bytes_per_s as f64)),
    ]));
    let header = [
        "Arm", "Next", "Cost", "+/-", "Rate", "RTT", "Retrans", "Evidence", "Scored", "Chosen",
        "Greedy",
    ];
    let rows = host
        .arms
        .iter()
        .map(|arm| arm_row(arm, host.best.as_deref()))
        .collect();
    text.push('\n');
    text.push_str(&output::table(
        &header,
        &[1, 2, 3, 4, 5, 6, 7, 8, 9, 10],
        rows,
    ));
    text.push_str("\nCost in bits: one less is twice the rate. * has the lowest.");
    if host.arms.iter().any(|arm| arm.harmful) {
        text.push_str(" ! gains at the expense of others.");
    }
    if host.arms.iter().any(|arm| arm.unsteady) {
        text.push_str(" ~ is much slower now and then.");
    }
    text.push('\n');
    text.push_str(&known);
    if !explanation.recent.is_empty() {
        text.push_str("\nLatest events, newest first:\n");
        for event in &explanation.recent {
            text.push_str(&events::event_line(event));
        }
    }
    if explanation.events_share < 1.0 {
        let share = three_digits(100.0 * explanation.events_share);
        text.push_str(&format!(
            "\nThe store keeps the events of {share} % of the host-hours; of the others only the \
             latest are known.\n"
        ));
    }
    text
}

fn arm_row(arm: &HostArm, best: Option<&str>) -> Vec<String> {
    let measured = |text| where_measured(arm.evidence, text);
    let mark = if best == Some(arm.arm.as_str()) {
        " *"
    } else if arm.harmful {
        " !"
    } else if arm.unsteady {
        " ~"
    } else {
        ""
    };
    vec![
        format!("{}{mark}", arm.arm),
        percent_text(arm.next_probability),
        measured(format!("{:.2}", arm.cost_bits)),
        measured(format!("{:.2}", arm.deviation_bits)),
        measured(rate_text(arm.rate_bytes_per_s)),
        measured(milliseconds_text(arm.srtt_us)),
        measured(percent_text(arm.retransmitted)),
        format!("{:.2}", arm.evidence),
        arm.scored.to_string(),
        arm.count.to_string(),
        arm.greedy.to_string(),
    ]
}
