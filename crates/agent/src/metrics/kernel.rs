//! Metrics of pinned objects: programs, congestion controls.

use std::fmt;

use thalweg_control::cc::State;

use super::Figures;
use super::page::{Page, Rows};

impl Figures {
    /// Metrics of all pinned objects.
    pub(super) fn kernel(&self, page: &mut Page<'_>) -> fmt::Result {
        self.programs(page)?;
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
