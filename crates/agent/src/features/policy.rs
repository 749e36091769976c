//! The policy in force: restored after a restart of the machine, kept as it was applied, reported.
//! `crates/control` applies policies, with or without an agent.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::Result;
use thalweg_control::attempts::Attempts;
use thalweg_control::policy::{self, FailureLog, PolicyPaths, Report};

use crate::feature::{Context, Feature, Finding, Hint, MetricsWriter, Polled};
use crate::kernel::Kernel;
use crate::store::Store;

mod metrics;

use metrics::write_metrics;

/// Kind of problem: the policy in force is not as it was applied.
const POLICY: &str = "policy";
/// Kind of problem: another program switched off callbacks that the policy in force needs.
const SILENCE: &str = "policy-silence";
/// Interval of checks and repairs, and of looks for cgroups and namespaces; `docs/reference/policy.md` tells it.
const POLL: Duration = Duration::from_secs(2);
/// Interval of reports on settings, for which all open connections may be visited.
const REPORT: Duration = Duration::from_secs(10);

/// State of the feature.
#[derive(Default)]
pub struct State(Mutex<Watch>);

/// State of a session.
#[derive(Default)]
struct Watch {
    /// Time of the last report; `None`: not in this session.
    reported: Option<Instant>,
    failures: FailureLog,
    /// Reason that the policy does not know the arms.
    without_arms: Option<String>,
}

impl State {
    fn watch(&self) -> MutexGuard<'_, Watch> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Updates the policy's sets of arms: there may be a new policy, or new arms.
    fn refresh_arm_sets(&self, context: &Context<'_>) {
        let pin = &context.kernel.setup().pin;
        let refreshed = context.kernel.arms().and_then(|arms| {
            let number = |name: &str| arms.index(name);
            Ok(policy::refresh_arm_sets(pin, context.policies, number)?)
        });
        self.watch().without_arms = refreshed.err().map(|error| format!("{error:#}"));
    }

    /// Differences between the policy in force and what was applied, in words.
    fn problem(&self, paths: &PolicyPaths, context: &Context<'_>) -> Option<String> {
        let found = policy::find_problems(paths, context.policies);
        let text = found.map_or_else(|error| format!("{error:#}"), |texts| texts.join("; "));
        let text = (!text.is_empty()).then_some(text);
        text.or_else(|| self.watch().without_arms.clone())
    }
}

impl Feature for State {
    fn name(&self) -> &'static str {
        POLICY
    }

    fn hints(&self) -> &'static [Hint] {
        &[
            (
                POLICY,
                "Nothing must be done if it is put back within seconds. Else correct it and apply it again: `thalweg policy check FILE`, `thalweg policy apply FILE`.",
            ),
            (
                SILENCE,
                "Have the other program keep the flags that are set, or detach it: `bpftool cgroup tree`. Open connections keep what was set.",
            ),
        ]
    }

    fn load(&self, _: &Kernel, _: &mut Store) -> Result<()> {
        *self.watch() = Watch::default();
        Ok(())
    }

    /// Puts the policy back in force after a restart of the machine. If that fails, the agent runs
    /// without it.
    fn start(&self, context: &Context<'_>) -> Option<String> {
        let restored = context.policies.restore(&policy_paths(context));
        self.refresh_arm_sets(context);
        match restored {
            Ok(outcome) => {
                let outcome = outcome?;
                let policy = &outcome.entry.name;
                tracing::info!(policy, "policy {policy} is in force again");
                for note in outcome.applied.notes {
                    tracing::warn!("policy: {note}");
                }
                None
            }
            Err(error) => Some(format!("not in force: {error:#}")),
        }
    }

    fn poll_interval(&self) -> Option<Duration> {
        Some(POLL)
    }

    fn poll(&self, context: &Context<'_>) -> Polled {
        let paths = policy_paths(context);
        if !context.is_stopping {
            follow_names(&paths, context);
        }
        self.refresh_arm_sets(context);
        let mut problem = self.problem(&paths, context);
        // An ending agent restores nothing: somebody may be removing the pins.
        if problem.is_some() && !context.is_stopping {
            // The problem is reported before the repair, so that the log has its begin and end.
            context.reporter.problem(POLICY, problem);
            let put_back = policy::put_back(&paths, context.policies).map(Attempts::of);
            context.reporter.note_repairs(POLICY, put_back.into());
            self.refresh_arm_sets(context);
            problem = self.problem(&paths, context);
        }
        let mut watch = self.watch();
        if watch.reported.is_none_or(|at| at.elapsed() >= REPORT) {
            watch.reported = Some(Instant::now());
            report_failures(&mut watch.failures, context);
        }
        Polled {
            problem,
            ..Polled::default()
        }
    }

    fn find_problems(&self, context: &Context<'_>) -> Vec<Finding> {
        let problem = self.problem(&policy_paths(context), context);
        let (problem, silence) = match read_report(context) {
            Ok(report) => (problem, report.and_then(|it| it.silenced_text())),
            // Mostly the problem that was found above.
            Err(error) => (problem.or_else(|| Some(format!("{error:#}"))), None),
        };
        vec![(POLICY, problem), (SILENCE, silence)]
    }

    fn metrics(&self, context: &Context<'_>) -> Result<MetricsWriter> {
        let pin = &context.kernel.setup().pin;
        let report = Report::read_counters(pin, context.policies)?;
        Ok(Box::new(move |page| {
            report.iter().try_for_each(|it| write_metrics(it, page))
        }))
    }
}

fn policy_paths(context: &Context<'_>) -> PolicyPaths {
    let setup = context.kernel.setup();
    PolicyPaths {
        pin: setup.pin.clone(),
        cgroup: setup.cgroup.clone(),
    }
}

/// Reads the policy in force, and its effects on open connections.
fn read_report(context: &Context<'_>) -> thalweg_control::Result<Option<Report>> {
    Report::read_and_scan(&context.kernel.setup().pin, context.policies)
}

/// Follows cgroups and network namespaces that rules name, which come and go with their services.
/// The check that follows finds failures.
fn follow_names(paths: &PolicyPaths, context: &Context<'_>) {
    let new = policy::refresh_cgroups(paths, context.policies);
    for cgroup in new.iter().flatten() {
        let cgroup = cgroup.display();
        tracing::info!(%cgroup, "policy: cgroup of a rule has come: {cgroup}");
    }
    let changed = policy::refresh_namespaces(paths, context.policies);
    for namespace in changed.iter().flatten() {
        tracing::info!(%namespace, "policy: network namespace of a rule has come: {namespace}");
    }
}

/// Logs failed settings, each kind once, and notes interference of other programs.
fn report_failures(failures: &mut FailureLog, context: &Context<'_>) {
    let report = match read_report(context) {
        Ok(report) => report,
        Err(error) => return tracing::debug!("reading the policy's failures: {error:#}"),
    };
    let new = report.as_ref().map(|report| failures.new_failures(report));
    for text in new.into_iter().flatten() {
        tracing::warn!("policy: {text}");
    }
    let silenced = report.and_then(|report| report.silenced_text());
    context.reporter.problem(SILENCE, silenced);
}
