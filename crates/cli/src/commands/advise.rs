//! `thalweg advise`.

use anyhow::Result;
use clap::{Args, ValueEnum};
use thalweg_agent::limits::findings_text;
use thalweg_agent::view::{
    Advice, AdviceChoice, AdviceGroup, AdviceLimits, AdvisedSetting, FeatureAdvice,
};
use thalweg_terminal::output::{self, span_text};
use thalweg_units::figures::three_digits;
use thalweg_units::printable;

use super::gain::{self, signed_text, unknown_text};
use crate::client::with_query;
use crate::options::{Global, parse_host, value_name};

/// Options of `advise`.
#[derive(Debug, Args)]
pub struct Options {
    /// One row for each prefix (/24, /48) or service port too; or all measures by arm.
    ///
    /// By arm under the learner: the hosts to which it had given the arm before the hour began.
    #[arg(long, value_name = "WHAT")]
    by: Option<By>,
    /// Only prefixes (/24, /48) that overlap with this one, or contain this address.
    #[arg(long, value_name = "PREFIX", value_parser = parse_host)]
    prefix: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum By {
    Prefix,
    Port,
    Arm,
}

/// Says what would be best.
pub fn run(global: &Global, options: &Options) -> Result<()> {
    let by = options.by.map(value_name);
    let query = [("by", by.as_deref()), ("prefix", options.prefix.as_deref())];
    let advice: Advice = global
        .agent_client()?
        .get(&with_query("/v1/advise", &query))?;
    output::show_value(&global.format, &advice, || {
        advice_text(&advice, options.by == Some(By::Arm))
    })
}

fn advice_text(advice: &Advice, by_arm: bool) -> String {
    let mut text = wrapped_paragraph(&advice.summary);
    if let Some(trials) = advice.trials {
        let given = match trials > 0.0 {
            true => format!(
                "Trials on {} % of the hosts, anew each hour; all others keep what they have.",
                three_digits(100.0 * trials)
            ),
            false => "There are no trials: all connections keep what they have.".to_owned(),
        };
        let (system, age) = (&advice.system_arm, span_text(advice.age_s));
        text += &format!("\n{given}\nCompared with {system}, over {age}.\n");
    }
    let (all, others): (Vec<_>, Vec<_>) = advice.groups.iter().partition(|it| it.by == "all");
    for group in &all {
        text += &choices_table(group);
    }
    if by_arm {
        let measured = all.iter().chain(&others).flat_map(|group| &group.choices);
        text += &measured.map(measures_table).collect::<String>();
    } else if let Some(first) = others.first() {
        let rows = others.iter().map(|group| group_row(group)).collect();
        let header = [
            &*capitalized(&first.by),
            "Best",
            "Time",
            "Interval",
            "Clusters",
            "Verdict",
        ];
        text += &format!("\n{}", output::table(&header, &[2, 3, 4], rows));
    }
    text += &limits_text(advice, &all, if by_arm { &[] } else { &others });
    text += &findings_text(&advice.networks);
    text += &features_table(&advice.features);
    for (count, what) in [
        (
            advice.left_out,
            "connections left out: more hosts than can be kept",
        ),
        (
            advice.events_dropped,
            "events were lost before the agent saw them",
        ),
    ] {
        if count > 0 {
            text += &format!("\n{count} {what}.\n");
        }
    }
    text
}

/// Settings that features would make, and the lines of the configuration that have them made.
fn features_table(features: &[FeatureAdvice]) -> String {
    let Some(first) = features.first() else {
        return String::new();
    };
    let row = |feature: &FeatureAdvice, it: &AdvisedSetting| {
        vec![
            feature.feature.clone(),
            match &it.container {
                Some(container) => format!("{} ({})", it.name, printable(container)),
                None => it.name.clone(),
            },
            it.setting.clone(),
            it.reason.clone(),
        ]
    };
    let all = features.iter();
    let rows = all.flat_map(|it| it.settings.iter().map(move |setting| row(it, setting)));
    let header = ["Feature", "Where", "Would set", "Because"];
    format!(
        "\n{}\nThese are set with `{}`.\n",
        output::table(&header, &[], rows.collect()),
        first.lines.join("`, `")
    )
}

/// A text that may be longer than a line.
fn wrapped_paragraph(text: &str) -> String {
    let lines = output::wrap_text(text, usize::from(output::WIDTH));
    lines.join("\n") + "\n"
}

fn capitalized(word: &str) -> String {
    let mut letters = word.chars();
    let first = letters.next().map(|letter| letter.to_ascii_uppercase());
    first.into_iter().chain(letters).collect()
}

/// Table of the choices that a group compares.
fn choices_table(group: &AdviceGroup) -> String {
    if group.choices.is_empty() {
        return String::new();
    }
    let header = ["", "By", "Time", "Interval", "Clusters", "Verdict"];
    let rows = group.choices.iter().map(|choice| {
        let [time, interval, clusters] = time_cells(Some(choice));
        vec![
            arm_name(choice).to_owned(),
            match choice.by.as_str() {
                "itself" => "itself: no experiment",
                other => other,
            }
            .to_owned(),
            time,
            interval,
            clusters,
            verdict_text(choice),
        ]
    });
    format!("\n{}", output::table(&header, &[2, 3, 4], rows.collect()))
}

fn arm_name(choice: &AdviceChoice) -> &str {
    choice.arm.as_deref().unwrap_or("the learner's choice")
}

/// One group in a row: the best choice, or the first.
fn group_row(group: &AdviceGroup) -> Vec<String> {
    let is_best = |choice: &&AdviceChoice| {
        group.verdict == "take" && choice.verdict == "better" && choice.arm == group.best
    };
    let best = group.choices.iter().find(is_best);
    let shown = best.or(match &group.choices[..] {
        [only] => Some(only),
        _ => None,
    });
    let [time, interval, clusters] = time_cells(shown);
    let verdict = match (group.verdict.as_str(), best) {
        ("take", Some(best)) if best.by == "itself" => {
            "takes less time by itself: no experiment".to_owned()
        }
        ("take", _) => "takes less time".to_owned(),
        ("keep", _) => "the default is best".to_owned(),
        ("same", _) => "no difference that matters".to_owned(),
        ("unknown", _) => unknown_text(group.known_in_s),
        _ => "nothing to compare".to_owned(),
    };
    vec![
        group.name.clone(),
        best.map_or_else(String::new, |best| arm_name(best).to_owned()),
        time,
        interval,
        clusters,
        verdict,
    ]
}

/// Effect, interval and clusters of the time.
fn time_cells(choice: Option<&AdviceChoice>) -> [String; 3] {
    let row = choice.and_then(|choice| choice.rows.iter().find(|row| row.measure == "time"));
    let Some(row) = row else {
        return Default::default();
    };
    let interval = match (row.low, row.high) {
        (Some(low), Some(high)) => format!("{} to {} %", signed_text(low), signed_text(high)),
        _ => "too few".to_owned(),
    };
    let time = row
        .effect
        .map_or_else(String::new, |it| signed_text(it) + " %");
    [time, interval, row.treated.to_string()]
}

fn verdict_text(choice: &AdviceChoice) -> String {
    let word = match choice.verdict.as_str() {
        "better" => "takes less time",
        "price" => "takes less time, at a price",
        "worse" => "takes more time",
        "same" => "no difference that matters",
        _ => return unknown_text(choice.known_in_s),
    };
    match choice.ended {
        true => format!("{word}; tried no more"),
        false => word.to_owned(),
    }
}

/// All measures of a choice.
fn measures_table(choice: &AdviceChoice) -> String {
    let header = ["", "Effect", "Interval", "System's", "Its own", "Verdict"];
    let rows: Vec<_> = choice.rows.iter().map(gain::comparison_row).collect();
    let table = output::table(&header, &[1, 2, 3, 4], rows);
    format!("\n{} ({})\n{table}", arm_name(choice), choice.by)
}

/// Limits of connections in each group, and what to do about them.
fn limits_text(advice: &Advice, all: &[&AdviceGroup], others: &[&AdviceGroup]) -> String {
    if let Some(why) = &advice.limits_untold {
        return format!("\n{}", wrapped_paragraph(why));
    }
    let groups = || all.iter().chain(others);
    let known = groups().filter_map(|group| Some((group, group.limits.as_ref()?)));
    let rows: Vec<_> = known
        .map(|(group, limits)| share_cells(group, limits))
        .collect();
    if rows.is_empty() {
        return String::new();
    }
    let header = [
        "Limited by",
        "Receiver",
        "Send buffer",
        "Network",
        "Idle",
        "Connections",
    ];
    let mut text = format!("\n{}", output::table(&header, &[1, 2, 3, 4, 5], rows));
    for group in groups() {
        let findings = group.limits.iter().flat_map(|it| &it.findings);
        for finding in findings {
            let name = match group.name.as_str() {
                "" => String::new(),
                name => format!("{} {name}: ", group.by),
            };
            text += &format!(
                "\n{}",
                wrapped_paragraph(&format!("{name}{}", finding.words))
            );
        }
    }
    text
}

/// Shares of the busy time; of idle: shares of the time open.
fn share_cells(group: &AdviceGroup, limits: &AdviceLimits) -> Vec<String> {
    let name = match group.by.as_str() {
        "all" => "all",
        _ => &group.name,
    };
    let shares = [limits.receiver, limits.buffer, limits.network, limits.idle];
    let shares = shares.map(|share| format!("{:.0} %", 100.0 * share));
    let count = limits.connections.to_string();
    [name.to_owned()]
        .into_iter()
        .chain(shares)
        .chain([count])
        .collect()
}
