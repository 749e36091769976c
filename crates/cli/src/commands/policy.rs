//! `thalweg policy`, one sub-command a file.

mod apply;
mod check;
mod diff;
mod existing;
mod remove;
mod rollback;
mod show;
mod statistics;
mod test;

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Once;

use anyhow::{Result, anyhow};
use clap::Subcommand;
use thalweg_agent::config::Config;
use thalweg_agent::features;
use thalweg_agent::store::Store;
use thalweg_control::policy::history::{History, Outcome};
use thalweg_control::policy::{PolicyPaths, Report};
use thalweg_control::{learner, links, system};
use thalweg_policy::{Compiled, Faults, Policy, Warning, WarningKind};
use thalweg_terminal::failure;
use thalweg_terminal::kinds::{self, Kind};
use thalweg_terminal::output::{self, count_text};
use thalweg_units::file::MAX_FILE_BYTES;

use crate::options::Global;

/// Sub-commands for policies.
#[derive(Debug, Subcommand)]
pub enum PolicyCommand {
    /// Check policy files; exit code 1 if one has a fault.
    ///
    /// Faults and warnings have file, line and column. Needs no privilege.
    Check(check::Options),
    /// Say which rule a flow gets, what that sets, and why no other rule.
    Test(test::Options),
    /// Say what differs between two policies, rule by rule.
    Diff(diff::Options),
    /// Put the policy of a file in force, in one step.
    ///
    /// Open connections keep what they were given. It needs no running agent; one that starts at
    /// boot applies it again.
    Apply(apply::Options),
    /// Show the policy in force: matches, successes and failures of each rule.
    Show,
    /// Put the policy before the present one in force again.
    Rollback,
    /// Take the policy out of the kernel.
    Remove,
    /// Print statistics of flows whose rules ask for them.
    Statistics(statistics::Options),
}

/// Runs the sub-command.
pub fn run(global: &Global, what: &PolicyCommand) -> Result<()> {
    match what {
        PolicyCommand::Check(options) => check::run(global, options),
        PolicyCommand::Test(options) => test::run(global, options),
        PolicyCommand::Diff(options) => diff::run(global, options),
        PolicyCommand::Apply(options) => apply::run(global, options),
        PolicyCommand::Show => show::run(global),
        PolicyCommand::Rollback => rollback::run(global),
        PolicyCommand::Remove => remove::run(global),
        PolicyCommand::Statistics(options) => statistics::run(global, options),
    }
}

/// The paths for applying policies, and their history.
fn paths_and_history(global: &Global, config: Config) -> Result<(PolicyPaths, History)> {
    let history = visible_history(global, &config)?;
    let place = PolicyPaths {
        cgroup: policy_cgroup(global, &config)?,
        pin: config.paths.pin,
    };
    Ok((place, history))
}

/// The history, where pins of the machine are not hidden from this process.
fn visible_history(global: &Global, config: &Config) -> Result<History> {
    global.expect_configuration()?;
    system::check_sees_pins(&config.paths.pin)?;
    Ok(History::at(&config.paths.state))
}

fn policy_cgroup(global: &Global, config: &Config) -> Result<PathBuf> {
    let configured = match &config.cgroup {
        Some(path) => path.clone(),
        None => system::cgroup2_mount()?,
    };
    Ok(cgroup_beside_learner(global, &config.paths.pin, configured))
}

/// The cgroup of policies: the learner's, as the agent would move them there. `run --cgroup` may have put
/// it elsewhere than the configuration says. Without a learner it is the configured one.
fn cgroup_beside_learner(global: &Global, pin: &Path, configured: PathBuf) -> PathBuf {
    let is_configured =
        |id: u64| fs::metadata(&configured).is_ok_and(|metadata| metadata.ino() == id);
    let other = learner_cgroup(pin).filter(|id| !is_configured(*id));
    let Some(cgroup) = other.and_then(links::cgroup_path) else {
        return configured;
    };
    let note = format!(
        "the agent's programs are on the cgroup {}, where the configuration has {}: policies are, \
         too",
        cgroup.display(),
        configured.display()
    );
    // A command with --watch comes here again and again.
    static TOLD: Once = Once::new();
    TOLD.call_once(|| failure::print_note(&note, global.format.json));
    cgroup
}

/// The kernel's id of the cgroup that the learner is attached to, if that can be seen.
fn learner_cgroup(pin: &Path) -> Option<u64> {
    let link = links::open_link(&pin.join(learner::MAIN_LINK)).ok()??;
    let id = links::attached_to(&link).ok()??;
    (id != 0).then_some(id)
}

/// The paths for applying policies, and their history, for a command that writes there. A directory that
/// others use stays theirs.
fn own_place(global: &Global) -> Result<(PolicyPaths, History)> {
    let config = global.effective_config()?;
    if config.paths.state.exists() {
        Store::check_own(&config.paths.state, &features::state_files())?;
    }
    paths_and_history(global, config)
}

/// Prints the policy now in force; with a report if open connections were covered.
fn show_outcome(global: &Global, outcome: &Outcome, report: Option<&Report>) -> Result<()> {
    let reached = outcome.applied.reached.as_ref();
    if global.format.json {
        return output::print_json(&serde_json::json!({
            "policy": outcome.entry,
            "rules": outcome.rules,
            "map_bytes": outcome.applied.map_bytes,
            "notes": outcome.applied.notes,
            "existing": reached.map(|reached| existing::visited_json(reached, report)),
        }));
    }
    let more = reached.map_or_else(Vec::new, |reached| reached.notes.clone());
    for note in outcome.applied.notes.iter().chain(&more) {
        output::print(&format!("note: {note}\n"))?;
    }
    let dry_run = if outcome.entry.dry_run {
        ", dry run: matches are counted, nothing is set"
    } else {
        ""
    };
    output::print(&format!(
        "policy {} (number {}) is in force: {}, {} of kernel memory{dry_run}\n",
        outcome.entry.name,
        outcome.entry.number,
        count_text(outcome.rules, "rule"),
        output::bytes_text(outcome.applied.map_bytes)
    ))?;
    match reached {
        Some(reached) => output::print(&existing::visited_text(reached, report)),
        None => Ok(()),
    }
}

/// A note where the policy in force has set something on listeners: nothing takes that back.
fn kept_by_listeners(history: &History, pin: &Path) -> Option<String> {
    let entry = history.in_force(pin).ok().flatten()?;
    let text = history.read_text(entry.number).ok()?;
    let policy = Policy::parse(&text, &entry.file).ok()?;
    let sets = !entry.dry_run && policy.sets_listeners();
    sets.then(|| {
        format!(
            "services that listen go on giving what {} set on them to new connections until they \
             are restarted",
            entry.name
        )
    })
}

/// Least retransmission timeout with which this machine's connections begin; `None` before Linux 6.11.
fn rto_min_us() -> Option<u32> {
    let text = fs::read_to_string("/proc/sys/net/ipv4/tcp_rto_min_us").ok()?;
    text.trim().parse().ok()
}

fn read_file(file: &Path) -> Result<Vec<u8>> {
    kinds::expect_kind(file, Kind::Policy)?;
    Ok(thalweg_units::file::read_bytes(file, MAX_FILE_BYTES)?)
}

/// A valid policy; of several faults the first is reported.
fn load_policy(file: &Path) -> Result<Policy> {
    Ok(load_with_text(file)?.1)
}

/// As [`load_policy`], with its text before it.
pub(super) fn load_with_text(file: &Path) -> Result<(Vec<u8>, Policy)> {
    let bytes = read_file(file)?;
    let policy = parse_policy(&bytes, file)?;
    policy.compile().map_err(|faults| first_error(&faults))?;
    Ok((bytes, policy))
}

/// A compiled policy, with its text before it and its warnings after it.
fn compile_file(file: &Path) -> Result<(Vec<u8>, Compiled, Vec<String>)> {
    let bytes = read_file(file)?;
    let policy = parse_policy(&bytes, file)?;
    let compiled = policy.compile().map_err(|faults| first_error(&faults))?;
    let warnings = policy.warnings_where(rto_min_us()).into_iter();
    let warnings = warnings.filter(|warning| warning.kind != WarningKind::Trap);
    let text = |warning: Warning| {
        let (line, column) = (warning.at.line, warning.at.column);
        let (rule, message) = (warning.rule, warning.message);
        format!(
            "{}:{line}:{column}: rule {rule:?}: {message}",
            file.display()
        )
    };
    Ok((bytes, compiled, warnings.map(text).collect()))
}

fn parse_policy(bytes: &[u8], file: &Path) -> Result<Policy> {
    Policy::parse(bytes, file).map_err(|faults| first_error(&faults))
}

fn first_error(faults: &Faults) -> anyhow::Error {
    anyhow!("{}", faults.first_fault("thalweg policy check"))
}
