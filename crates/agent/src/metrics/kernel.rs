//! Metrics of pinned objects: programs, the policy, congestion controls.

use std::fmt;

use thalweg_control::cc::State;
use thalweg_control::policy::{Report, RuleReport};

use super::Figures;
use super::page::{Page, Rows};

impl Figures {
    /// Metrics of all pinned objects.
    pub(super) fn kernel(&self, page: &mut Page<'_>) -> fmt::Result {
        self.programs(page)?;
        if let Some(policy) = &self.policy {
            rules(policy, page)?;
        }
        let state = |state| match state {
            State::Draining => "draining",
            State::Lost => "lost",
            _ => "loaded",
        };
        let controls = self.controls.iter();
        page.gauges(
            "thalweg_cc_loaded",
            "1 for each congestion control in BPF that Thalweg has loaded.",
            ["cc", "state"],
            Rows::each(controls.map(|(name, is)| ([name.as_str(), state(*is)], 1.0))),
        )
    }

    fn programs(&self, page: &mut Page<'_>) -> fmt::Result {
        page.gauges(
            "thalweg_attached",
            "1 where the learner's program is attached to its cgroup.",
            ["program"],
            Rows::each(
                self.attached
                    .map(|(program, is)| ([program], f64::from(u8::from(is)))),
            ),
        )?;
        page.gauge(
            "thalweg_bpf_statistics",
            "1 where the kernel measures programs (sysctl kernel.bpf_stats_enabled).",
            u32::from(self.measured),
        )?;
        let all = || self.programs.iter();
        page.gauges(
            "thalweg_bpf_programs",
            "Programs that are attached or registered, by name.",
            ["program"],
            Rows::sums(all().map(|program| ([&program.name], 1.0))),
        )?;
        page.counters(
            "thalweg_bpf_program_runs",
            "Runs of programs since they were loaded, where the kernel measures them.",
            ["program"],
            Rows::sums(all().filter_map(|one| Some(([&one.name], one.runs? as f64)))),
        )?;
        page.counters(
            "thalweg_bpf_program_run_seconds",
            "Time that these runs took.",
            ["program"],
            Rows::sums(all().filter_map(|one| Some(([&one.name], one.run_time_ns? as f64 / 1e9)))),
        )
    }
}

fn rules(policy: &Report, page: &mut Page<'_>) -> fmt::Result {
    let dry_run = if policy.dry_run { "true" } else { "false" };
    page.gauges(
        "thalweg_policy_in_force",
        "1 for the policy in force.",
        ["policy", "dry_run"],
        Rows::each([([policy.name.as_str(), dry_run], 1.0)]),
    )?;
    let of = |figure: fn(&RuleReport) -> u64| {
        let rules = policy.rules.iter();
        Rows::sums(rules.map(|rule| ([&rule.name], figure(rule) as f64)))
    };
    for (name, help, rows) in [
        (
            "thalweg_policy_rule_flows",
            "Flows that got the rule, since the policy was applied.",
            of(|rule| rule.matched),
        ),
        (
            "thalweg_policy_rule_answers",
            "Answers that the rule gave to the kernel.",
            of(|rule| rule.asked),
        ),
        (
            "thalweg_policy_rule_operations",
            "Settings of the rule that succeeded.",
            of(|rule| rule.done),
        ),
        (
            "thalweg_policy_rule_failures",
            "Settings of the rule that failed.",
            of(|rule| rule.failed),
        ),
    ] {
        page.counters(name, help, ["rule"], rows)?;
    }
    let missed = [
        ("handshakes", policy.missed.handshakes),
        ("statistics", policy.missed.statistics),
        ("failures", policy.missed.failures),
        ("outcomes", policy.missed.outcomes),
    ];
    page.counters(
        "thalweg_policy_missed",
        "What found a table of the policy full: handshakes, events of statistics, kinds of failures, outcomes of rules with a share.",
        ["what"],
        Rows::sums(missed.map(|(what, count)| ([what], count as f64))),
    )
}
