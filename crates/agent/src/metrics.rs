//! Metrics of the agent, as OpenMetrics text: `GET /metrics`. docs/guide/monitoring.md has the
//! alerts.
//!
//! No metric has a remote host as its label, and each label has a bounded number of values.

use std::fmt;
use std::fs;
use std::sync::Arc;

use anyhow::Result;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::registry::Registry;
use thalweg_control::cc::{self, State};
use thalweg_control::inventory::{RunningProgram, are_measured, or_note, running_programs};

use crate::feature::{MetricsWriter, Place};
use crate::shared::Shared;
use crate::statistics::{AgentStatistics, Counted};
use crate::view;

mod agent;
mod kernel;
pub mod page;
#[cfg(test)]
mod tests;

use page::Page;

/// The content type of the text.
pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Writer of a feature's gauges, as name, help, key in its status.
pub fn write_gauges(
    gauges: &'static [(&str, &str, &str)],
    status: Option<serde_json::Value>,
) -> MetricsWriter {
    let status = status.unwrap_or_default();
    Box::new(move |page| {
        for (name, help, key) in gauges {
            if let Some(value) = status[key].as_u64() {
                page.gauge(name, help, value)?;
            }
        }
        Ok(())
    })
}

/// The figures of a moment.
struct Figures {
    status: view::Status,
    snapshot_interval_s: f64,
    unsaved_s: f64,
    problems: Vec<&'static str>,
    repairs: u64,
    arms: Vec<view::Arm>,
    features: Vec<(Place, MetricsWriter)>,
    counted: Counted,
    statistics: Arc<AgentStatistics>,
    process: Process,
    attached: [(&'static str, bool); 2],
    measured: bool,
    programs: Vec<RunningProgram>,
    controls: Vec<(String, State)>,
    unreadable: Vec<String>,
}

/// Figures of the agent's process.
struct Process {
    cpu_s: f64,
    descriptors: usize,
}

impl Process {
    fn look() -> Self {
        let usage = nix::sys::resource::getrusage(nix::sys::resource::UsageWho::RUSAGE_SELF);
        let seconds =
            |time: nix::sys::time::TimeVal| time.tv_sec() as f64 + time.tv_usec() as f64 / 1e6;
        Self {
            cpu_s: usage.map_or(0.0, |usage| {
                seconds(usage.user_time()) + seconds(usage.system_time())
            }),
            // Less the one that lists them.
            descriptors: fs::read_dir("/proc/self/fd")
                .map_or(0, |all| all.count().saturating_sub(1)),
        }
    }
}

/// All figures, as text. The host records are not walked.
///
/// # Errors
/// The learner's own maps cannot be read. What else cannot be read is left out, and is a problem.
pub fn text(shared: &Shared) -> Result<String> {
    let figures = Figures::read(shared)?;
    let mut registry = Registry::default();
    registry.register_collector(Box::new(figures));
    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, &registry)?;
    Ok(text)
}

impl Figures {
    fn read(shared: &Shared) -> Result<Self> {
        let pin = &shared.kernel.setup().pin;
        let table = shared.kernel.arms()?;
        let mut unreadable = Vec::new();
        let measured = are_measured();
        let context = shared.feature_context();
        let features = context.features.iter().filter_map(|it| {
            let read = it.metrics(&context).map(Some);
            Some((it.place(), or_note(it.name(), read, &mut unreadable)?))
        });
        let features = features.collect();
        let health = shared.health();
        Ok(Self {
            problems: health.problems.keys().copied().collect(),
            attached: health.attached,
            repairs: shared.statistics.repairs.number(),
            status: shared.status_of(health.problems)?,
            snapshot_interval_s: shared.config.snapshot.interval.as_secs_f64(),
            unsaved_s: shared.unsaved_for().as_secs_f64(),
            arms: shared.presenter(&table).arm_list(),
            features,
            counted: shared.statistics.counted(),
            statistics: Arc::clone(&shared.statistics),
            process: Process::look(),
            measured,
            programs: running_programs(pin, measured, &mut unreadable),
            controls: or_note(
                "congestion controls",
                cc::loaded_controls(pin),
                &mut unreadable,
            ),
            unreadable,
        })
    }
}

impl fmt::Debug for Figures {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Figures").finish_non_exhaustive()
    }
}

impl Collector for Figures {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let mut page = Page::new(encoder);
        self.agent(&mut page)?;
        self.learner(&mut page)?;
        self.events(&mut page)?;
        self.features(Place::Agent, &mut page)?;
        self.kernel(&mut page)
    }
}
