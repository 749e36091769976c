//! `thalweg gain`.

use anyhow::Result;
use clap::{Args, ValueEnum};
use serde::{Deserialize, Serialize};
use thalweg_agent::view::{EffectRatio, FeatureEffect, Gain, GainGroup, GainRow};
use thalweg_gain::CLUSTERS_MIN;
use thalweg_terminal::output::{self, span_text};
use thalweg_units::figures::three_digits;

use crate::client::with_query;
use crate::options::{Global, value_name};

/// Options of `gain`.
#[derive(Debug, Args)]
pub struct Options {
    /// One table for each arm, prefix (/24, /48), service port or source too.
    ///
    /// By arm: the hosts to which the learner had given it before the hour began. By source: whose
    /// measurements decided about the host's first connection of the hour, this agent's own or what
    /// the fleet told; in the control group, would have decided.
    #[arg(long, value_name = "WHAT")]
    by: Option<By>,
    /// Only this measure.
    #[arg(long)]
    measure: Option<Measure>,
    /// A rule of the policy with a share (`sample`): flows that it took against those that it left
    /// alone.
    #[arg(long, value_name = "NAME")]
    rule: Option<String>,
    /// Give back at once what was taken back; the comparisons begin anew.
    #[arg(long, conflicts_with_all = ["by", "measure", "rule"])]
    resume: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum By {
    Arm,
    Prefix,
    Port,
    Source,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Measure {
    /// Time with data outstanding, also by size.
    Time,
    /// Share of the segments that were retransmissions.
    Retransmitted,
    /// Connections that ended by a reset or a time-out.
    Failed,
    /// RTT at the end over the lowest one.
    Rtt,
}

/// The agent's response.
#[derive(Deserialize, Serialize)]
struct Resumed {
    resumed: u64,
}

/// Shows what the learner gains, or what a rule does.
pub fn run(global: &Global, options: &Options) -> Result<()> {
    let client = global.agent_client()?;
    if options.resume {
        let answer: Resumed = client.post("/v1/gain/resume")?;
        return output::show_value(&global.format, &answer, || match answer.resumed {
            0 => "nothing was taken back\n".to_owned(),
            _ => "learner and rules go on as before\n".to_owned(),
        });
    }
    let by = options.by.map(value_name);
    let query = [("by", by.as_deref()), ("rule", options.rule.as_deref())];
    let mut gain: Gain = client.get(&with_query("/v1/gain", &query))?;
    if let Some(measure) = options.measure {
        let measure = value_name(measure);
        for group in &mut gain.groups {
            group.rows.retain(|row| row.measure == measure);
        }
    }
    let no_source =
        options.by == Some(By::Source) && gain.groups.iter().all(|group| group.by != "source");
    output::show_value(&global.format, &gain, || {
        let note = match no_source {
            true => {
                "\nNo connection of an agent with `[fleet]` has ended yet: there are no sources.\n"
            }
            false => "",
        };
        gain_text(&gain) + note
    })
}

fn gain_text(gain: &Gain) -> String {
    let mut text = format!("{}\n", gain.summary);
    if let Some(rule) = &gain.rule {
        let share = three_digits(rule.share * 100.0);
        text += &format!(
            "\nRule {} of policy {} ({share} %): {} flows taken, {} left alone.\n",
            rule.name, rule.policy, rule.taken, rule.left
        );
        if rule.overridden > 0 {
            text += &format!(
                "{} flows taken without its settings, which the kernel refused or something \
                 replaced: not compared.\n",
                rule.overridden
            );
        }
    }
    for revert in &gain.reverts {
        let what = match (&revert.arm, &gain.rule) {
            (Some(arm), _) => format!("No connection gets {arm}"),
            (None, Some(_)) => "No flow gets it".to_owned(),
            (None, None) => "Nothing is explored".to_owned(),
        };
        let left = span_text(revert.left_s);
        text += &format!("\n{what} for another {left}. {}.\n", revert.why);
    }
    for group in &gain.groups {
        text += &group_table(group, gain.rule.is_some());
    }
    if !gain.features.is_empty() {
        text += &features_table(&gain.features);
    }
    if gain.left_out > 0 {
        text += &format!(
            "\n{} connections left out: more hosts than can be kept.\n",
            gain.left_out
        );
    }
    if gain.events_dropped > 0 {
        text += &format!(
            "\n{} events were lost before the agent saw them.\n",
            gain.events_dropped
        );
    }
    text
}

fn group_table(group: &GainGroup, of_rule: bool) -> String {
    if group.rows.is_empty() {
        return String::new();
    }
    let title = match group.by.as_str() {
        "all" => String::new(),
        by => format!("{by} {}\n", group.name),
    };
    format!("\n{title}{}", comparison_table(&group.rows, of_rule))
}

/// Effects of features' settings, a measure in a row.
fn features_table(features: &[FeatureEffect]) -> String {
    let header = ["", "", "Ratio", "Interval", "Control", "Treated"];
    let rows = features.iter().flat_map(|feature| {
        let measures = [
            ("goodput", feature.goodput),
            ("completion time", feature.completion),
            ("99th percentile of it", feature.completion_p99),
            ("retransmitted segments", feature.retransmitted),
        ];
        measures.map(|(measure, found)| feature_row(feature, measure, found))
    });
    let table = output::table(&header, &[2, 3, 4, 5], rows.collect());
    format!("\nFeatures, as ratios to their control groups (95 %):\n{table}")
}

fn feature_row(feature: &FeatureEffect, measure: &str, found: Option<EffectRatio>) -> Vec<String> {
    let text = |cell: Option<String>| cell.unwrap_or_else(|| "-".to_owned());
    vec![
        feature.feature.clone(),
        measure.to_owned(),
        text(found.map(|it| format!("{:.2}", it.ratio))),
        text(found.map(|it| format!("{:.2} to {:.2}", it.low, it.high))),
        feature.control.to_string(),
        feature.treated.to_string(),
    ]
}

/// Rows of the learner against its control group, or of a rule.
pub fn comparison_table(rows: &[GainRow], of_rule: bool) -> String {
    let (control, treated) = match of_rule {
        true => ("Left alone", "Taken"),
        false => ("Control", "Treated"),
    };
    let header = ["", "Effect", "Interval", control, treated, "Verdict"];
    let rows = rows.iter().map(comparison_row).collect();
    output::table(&header, &[1, 2, 3, 4], rows)
}

/// A difference, with its sign.
pub fn signed_text(value: f64) -> String {
    let sign = if value > 0.0 { "+" } else { "" };
    format!("{sign}{}", three_digits(value))
}

/// A verdict that is not known yet, and in how many seconds it may be.
pub fn unknown_text(known_in_s: Option<u64>) -> String {
    match known_in_s {
        None | Some(0) => "not known yet".to_owned(),
        Some(left) => format!("not known yet; about {}", span_text(left)),
    }
}

/// A comparison as a row.
pub fn comparison_row(row: &GainRow) -> Vec<String> {
    let measure = match row.measure.as_str() {
        "time" => "time",
        "retransmitted" => "retransmitted segments",
        "failed" => "failed connections",
        "rtt" => "RTT over the lowest",
        other => other,
    };
    let unit = if row.unit == "percent" { " %" } else { " pts" };
    let interval = match (row.low, row.high) {
        (Some(low), Some(high)) => format!("{} to {}{unit}", signed_text(low), signed_text(high)),
        _ if row.control.min(row.treated) < CLUSTERS_MIN => "too few".to_owned(),
        _ => "all alike".to_owned(),
    };
    let verdict = match row.verdict.as_str() {
        "unknown" => unknown_text(row.known_in_s),
        "same" => "no difference that matters".to_owned(),
        word => word.to_owned(),
    };
    vec![
        match &row.size {
            Some(size) => format!("  {size}"),
            None => measure.to_owned(),
        },
        row.effect
            .map_or_else(String::new, |effect| signed_text(effect) + unit),
        interval,
        row.control.to_string(),
        row.treated.to_string(),
        verdict,
    ]
}
