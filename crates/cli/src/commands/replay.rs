//! `thalweg replay`.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use clap::{Args, ValueEnum};
use serde_json::{Value, json};
use thalweg_agent::config::Config;
use thalweg_gain::replay::{
    Connection, EFFECTIVE_HOSTS_MIN, EFFECTIVE_MIN, Estimate, Interval, Outcome, Replay, Rule,
    TooSmall,
};
use thalweg_learner::window::DEFAULT_MASK;
use thalweg_learner::{Mode, Params};
use thalweg_terminal::output;

use crate::options::{Global, value_name};

pub mod file;
mod windows;

/// Options of `replay`.
#[derive(Debug, Args)]
pub struct Options {
    /// Logged decisions, as `thalweg export --decisions` writes them.
    file: PathBuf,
    /// The rule of choice that is judged.
    #[arg(long, value_enum, default_value_t = LearningRule::Thalweg)]
    rule: LearningRule,
    /// A key of the configuration's table `[learning]` and its value; may be repeated.
    #[arg(long, value_name = "KEY=VALUE", value_parser = parse_setting)]
    set: Vec<String>,
}

/// Rules of choice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum LearningRule {
    /// The learner.
    Thalweg,
    /// The published tuner's.
    Classic,
    /// Always the system's congestion control.
    Default,
    /// Any permitted congestion control.
    Random,
}

/// A line of the configuration; what is no number is quoted.
fn parse_setting(text: &str) -> Result<String, String> {
    let Some((key, value)) = text.split_once('=') else {
        return Err("expected KEY=VALUE".to_owned());
    };
    let is_key = |c: char| c.is_ascii_lowercase() || c == '_';
    if key.is_empty() || !key.chars().all(is_key) {
        return Err(format!("found {key:?}, expected a key of [learning]"));
    }
    match value.parse::<f64>() {
        Ok(number) if number.is_finite() => Ok(format!("{key} = {value}")),
        _ => Ok(format!("{key} = {}", toml::Value::from(value))),
    }
}

/// Compares a rule with the one that ran.
pub fn run(global: &Global, options: &Options) -> Result<()> {
    let name = &*value_name(options.rule);
    let learns = match options.rule {
        LearningRule::Thalweg => Some(Mode::Thalweg),
        LearningRule::Classic => Some(Mode::Classic),
        LearningRule::Default | LearningRule::Random => None,
    };
    if learns.is_none() && !options.set.is_empty() {
        bail!("--set: the rule {name} has no parameters");
    }
    let config = parse_settings(&options.set)?;
    let decisions = file::read_decisions(&options.file, &config.networks)?;
    let rule = match (learns, options.rule) {
        (Some(mode), _) => Rule::Learner(learner_params(&config, mode, &decisions.arms)),
        (None, LearningRule::Random) => Rule::Random,
        (None, _) => Rule::Default,
    };
    let mut replay = Replay::new(rule);
    decisions
        .connections
        .iter()
        .for_each(|it| replay.add_connection(it));
    let windows = windows::judge_windows(&decisions.windows, DEFAULT_MASK);
    let outcome = match replay.replay_outcome() {
        Ok(outcome) => Ok(outcome),
        Err(small) => {
            let why = too_few(&small);
            if !windows
                .as_ref()
                .is_some_and(windows::Section::has_estimates)
            {
                bail!("{}: {why}", options.file.display());
            }
            Err(why)
        }
    };
    let moved = decisions.connections.iter().filter(|it| is_moved(it));
    let moved = moved.count() as u64;
    let document = || {
        let mut document = match &outcome {
            Ok(outcome) => estimates_json(name, outcome, moved),
            Err(why) => json!({ "rule": name, "untold": why }),
        };
        if let Some(windows) = &windows {
            document["initial_windows"] = windows.to_json();
        }
        document
    };
    output::show_value(&global.format, &document(), || {
        let mut text = match &outcome {
            Ok(outcome) => estimates_text(name, outcome, moved),
            Err(why) => format!("Not known what {name} takes: {why}.\n"),
        };
        if let Some(windows) = &windows {
            text += &format!("\n{}", windows.to_text());
        }
        text
    })
}

/// Why a rule cannot be judged.
fn too_few(small: &TooSmall) -> String {
    let left = match small.size.uncovered {
        0 => String::new(),
        n => format!("; for {n} more the log gave its choice no chance"),
    };
    format!(
        "{}: {small}{left}",
        connections_text(small.size.connections)
    )
}

/// The configuration with these lines in `[learning]`.
fn parse_settings(lines: &[String]) -> Result<Config> {
    let text = format!("[learning]\n{}\n", lines.join("\n"));
    Config::parse(&text, Path::new("--set")).context("--set cannot be used")
}

fn learner_params(config: &Config, mode: Mode, arms: &[String]) -> Params {
    let rescue = config.learning.rescue.as_ref();
    Params {
        mode,
        rescue_arm: rescue.and_then(|name| arms.iter().position(|arm| arm == name)),
        ..config.params()
    }
}

/// Whether a connection got another arm on its way. Such a decision is nothing that a rule is judged
/// by: it acts as logged.
fn is_moved(connection: &Connection) -> bool {
    let mut arms = connection.stretches.iter().map(|stretch| stretch.arm);
    arms.any(|arm| arm != Some(connection.arm))
}

fn connections_text(connections: u64) -> String {
    output::count_text(connections, "connection")
}

/// An estimate as JSON.
fn estimate_json(it: &Estimate) -> Value {
    let interval = |it: &Interval| json!({ "mean": it.mean, "low": it.low, "high": it.high });
    json!({
        "logged": it.logged,
        "rule": it.logged + it.robust.mean,
        "doubly_robust": interval(&it.robust),
        "propensity_weighted": interval(&it.weighted),
    })
}

/// The difference of a logarithm (base 2) in per cent.
fn log2_to_percent(log2: f64) -> f64 {
    100.0 * (log2.exp2() - 1.0)
}

/// The estimates as JSON.
fn estimates_json(rule: &str, outcome: &Outcome, moved: u64) -> Value {
    let size = &outcome.size;
    json!({
        "rule": rule,
        "connections": size.connections,
        "stand_for": size.stand_for,
        "hosts": size.hosts,
        "decisions": size.decisions,
        "effective_connections": size.effective,
        "effective_hosts": size.effective_hosts,
        "uncovered": size.uncovered,
        "control": outcome.control,
        "without_data": outcome.without_data,
        "moved": moved,
        "cost_bits": estimate_json(&outcome.cost),
        "time_log2_us_per_byte": estimate_json(&outcome.time),
    })
}

/// The estimates for people.
fn estimates_text(rule: &str, outcome: &Outcome, moved: u64) -> String {
    let size = &outcome.size;
    let row = |name: &str, it: &Interval, scale: &dyn Fn(f64) -> f64, unit: &str| {
        let figure = |value: f64| format!("{:+.2}{unit}", scale(value));
        vec![
            name.to_owned(),
            figure(it.mean),
            format!("{} to {}", figure(it.low), figure(it.high)),
        ]
    };
    let same = |value: f64| value;
    let (time, cost) = (&outcome.time, &outcome.cost);
    let rows = vec![
        row(
            "Time per byte, doubly robust",
            &time.robust,
            &log2_to_percent,
            " %",
        ),
        row(
            "Time per byte, propensity-weighted",
            &time.weighted,
            &log2_to_percent,
            " %",
        ),
        row("Cost in bits, doubly robust", &cost.robust, &same, ""),
        row(
            "Cost in bits, propensity-weighted",
            &cost.weighted,
            &same,
            "",
        ),
    ];
    let mut text = format!(
        "{}\n\n{}\nCost: {:.2} bits logged, {:.2} by the rule. {} to {}; as much as {:.0} connections \
         to {:.0} hosts\nthat it decided itself ({EFFECTIVE_MIN} and {EFFECTIVE_HOSTS_MIN} are needed).\n",
        interval_sentence(rule, "takes", &time.robust),
        output::table(
            &["Rule less log", "Difference", "95 % interval"],
            &[1, 2],
            rows
        ),
        cost.logged,
        cost.logged + cost.robust.mean,
        connections_text(size.connections),
        output::count_text(size.hosts, "host"),
        size.effective,
        size.effective_hosts,
    );
    if size.decisions < 0.95 * size.connections as f64 {
        text += &format!(
            "The rule learned from {:.1} connections a host of {:.1}: it is judged as over so few.\n",
            size.decisions / size.hosts as f64,
            size.connections as f64 / size.hosts as f64,
        );
    }
    if moved > 0 {
        text += &format!(
            "Moved on their way: {}. The first decision about each is judged, later ones act as logged.\n",
            connections_text(moved)
        );
    }
    if size.stand_for > 1.0001 * size.connections as f64 {
        text += &format!(
            "They stand for {:.0} connections: the log has a share of the hours of each host.\n",
            size.stand_for
        );
    }
    for (count, what) in [
        (size.uncovered, "the log gave the rule's choice no chance"),
        (outcome.control, "control group, the same under each rule"),
        (outcome.without_data, "nothing delivered"),
    ] {
        if count > 0 {
            text += &format!("Left out: {} ({what}).\n", connections_text(count));
        }
    }
    text
}

/// The answer in words.
fn interval_sentence(rule: &str, takes: &str, time: &Interval) -> String {
    let (low, high) = (log2_to_percent(time.low), log2_to_percent(time.high));
    match time.contains_value(0.0) {
        true => format!(
            "Not known whether {rule} {takes} less or more time than what ran: {low:+.1} % to \
             {high:+.1} %."
        ),
        false => format!(
            "{rule} {takes} {:.1} % {} time than what ran ({low:+.1} % to {high:+.1} %).",
            log2_to_percent(time.mean).abs(),
            if time.mean < 0.0 { "less" } else { "more" },
        ),
    }
}
