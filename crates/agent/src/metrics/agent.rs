//! Metrics of the agent and of the learner.

use std::fmt;

use super::Figures;
use super::page::{Page, Rows};
use crate::feature::Place;
use crate::hints;

impl Figures {
    /// Metrics of the agent, its process and its store.
    pub(super) fn agent(&self, page: &mut Page<'_>) -> fmt::Result {
        let status = &self.status;
        let version = [
            status.version.clone(),
            status.abi_version.to_string(),
            status.mode.clone(),
        ];
        page.gauges(
            "thalweg_build_info",
            "Version of the agent, of its interface to the kernel, and the mode; always 1.",
            ["version", "abi_version", "mode"],
            Rows::each([(version, 1.0)]),
        )?;
        page.gauge(
            "process_start_time_seconds",
            "Start of the agent, in seconds since 1970.",
            self.statistics.started_s,
        )?;
        page.counter(
            "process_cpu_seconds",
            "Processor time of the agent.",
            self.process.cpu_s,
        )?;
        page.gauge(
            "process_resident_memory_bytes",
            "Resident memory of the agent.",
            status.resident_bytes,
        )?;
        page.gauge(
            "process_open_fds",
            "Open file descriptors of the agent.",
            self.process.descriptors,
        )?;
        page.gauge(
            "thalweg_session",
            "Configurations that the agent has begun with: 1, and one more for each reload.",
            status.session,
        )?;
        page.gauge(
            "thalweg_dry_run",
            "1 where the learner decides and sets nothing.",
            u32::from(status.dry_run),
        )?;
        // List all kinds, so that an alert can tell "no problem" from "not exported".
        let kinds = hints::kinds().map(|kind| (kind, false));
        let present = self.problems.iter().map(|kind| (*kind, true));
        page.gauges(
            "thalweg_problem",
            "1 where there is a problem of this kind; `thalweg status` says which.",
            ["kind"],
            Rows::sums(
                kinds
                    .chain(present)
                    .map(|(kind, is)| ([kind], f64::from(u8::from(is)))),
            ),
        )?;
        page.gauge(
            "thalweg_health",
            "The worst of the problems: 0 none, 1 a warning, 2 connections are not measured or changed.",
            status.health as u32,
        )?;
        page.counter(
            "thalweg_repairs",
            "Programs, links and pins that somebody took away and the agent put back.",
            self.repairs as f64,
        )?;
        page.gauge(
            "thalweg_unreadable",
            "Kinds of pinned objects that could not be read; `unreadable` of /v1/kernel says why.",
            self.unreadable.len(),
        )?;
        self.store(page)
    }

    fn store(&self, page: &mut Page<'_>) -> fmt::Result {
        let status = &self.status;
        page.gauge(
            "thalweg_snapshot_age_seconds",
            "Time since the store had every host record, or since the start.",
            self.unsaved_s,
        )?;
        page.gauge(
            "thalweg_snapshot_interval_seconds",
            "Time between two snapshots, as configured.",
            self.snapshot_interval_s,
        )?;
        page.histograms(
            "thalweg_store_write_seconds",
            "Duration of writes to the store: of a batch of events, and of up to 256 host records.",
            "what",
            &[
                ("events", &self.statistics.event_writes),
                ("records", &self.statistics.record_writes),
            ],
        )?;
        page.counter(
            "thalweg_store_events",
            "Events written to the store.",
            status.events_stored,
        )?;
        page.counter(
            "thalweg_store_events_lost",
            "Events that could not be written to the store, as on a full disk.",
            status.events_lost,
        )?;
        page.counter(
            "thalweg_store_events_left_out",
            "Events not stored, since their host-hour is not among those kept (events.share).",
            status.events_left_out,
        )?;
        page.gauge(
            "thalweg_store_events_share",
            "Share of the host-hours whose events are stored.",
            status.events_share,
        )
    }

    /// Metrics of the learner's decisions and measurements, from the kernel's counters.
    pub(super) fn learner(&self, page: &mut Page<'_>) -> fmt::Result {
        let (status, c) = (&self.status, &self.status.counters);
        page.gauge(
            "thalweg_hosts",
            "Host records in the kernel when they were last counted: at a snapshot, or for status.",
            status.hosts,
        )?;
        page.gauge(
            "thalweg_hosts_max",
            "Host records beyond which the least valuable go, some later than others come.",
            status.hosts_max,
        )?;
        page.gauge(
            "thalweg_map_bytes",
            "Kernel memory of the learner's maps.",
            status.map_bytes,
        )?;
        for (name, help, value) in c.plain_metrics() {
            page.counter(name, help, value)?;
        }
        self.features(Place::Learner, page)?;
        if let Some(looks) = &self.status.looks {
            page.counter(
                "thalweg_look_cpu_seconds",
                "Processor time of looks at long connections.",
                looks.cpu_us as f64 / 1e6,
            )?;
        }
        let outcomes = [
            ("scored", c.scored),
            ("small", c.skipped_small),
            ("application-limited", c.skipped_app_limited),
            ("timeout", c.skipped_timeout),
            ("overridden", c.skipped_overridden),
            ("not-tracked", c.skipped_not_tracked),
            ("displaced", c.conns_missed),
        ];
        page.counters(
            "thalweg_measurements",
            "Measured stretches of connections by outcome: scored, or why not.",
            ["outcome"],
            Rows::sums(outcomes.map(|(outcome, count)| ([outcome], count as f64))),
        )?;
        let arms = self.arms.iter();
        page.gauges(
            "thalweg_arm_present",
            "1 where the kernel offers the arm and the configuration allows it.",
            ["arm"],
            Rows::each(arms.map(|arm| ([&arm.name], f64::from(u8::from(arm.present))))),
        )?;
        let arms = self.arms.iter();
        page.counters(
            "thalweg_arm_refusals",
            "Times that the kernel refused to set the arm.",
            ["arm"],
            Rows::sums(arms.map(|arm| ([&arm.name], arm.refusals as f64))),
        )
    }

    /// Metrics of the features that stand in a place.
    pub(super) fn features(&self, place: Place, page: &mut Page<'_>) -> fmt::Result {
        let mut features = self.features.iter().filter(|(it, _)| *it == place);
        features.try_for_each(|(_, write)| write(page))
    }

    /// Metrics from events. They lack lost events and the warm-up, which has none.
    pub(super) fn events(&self, page: &mut Page<'_>) -> fmt::Result {
        let counted = &self.counted;
        let pairs =
            |((a, b), count): (&(String, String), &u64)| ([a.clone(), b.clone()], *count as f64);
        page.counters(
            "thalweg_arm_decisions",
            "Decisions by arm and reason, from events: lost ones are not in it, nor the warm-up.",
            ["arm", "reason"],
            Rows::sums(counted.decisions.iter().map(pairs)),
        )?;
        page.counters(
            "thalweg_arm_measurements",
            "Scored stretches by arm and how they ended, from events.",
            ["arm", "end"],
            Rows::sums(counted.ends.iter().map(pairs)),
        )?;
        let of = |figure: fn(&crate::statistics::Scored) -> f64| {
            Rows::sums(counted.scored.iter().map(|(arm, sum)| ([arm], figure(sum))))
        };
        page.counters(
            "thalweg_arm_bytes",
            "Acknowledged bytes of scored stretches, from events.",
            ["arm"],
            of(|sum| sum.bytes as f64),
        )?;
        page.counters(
            "thalweg_arm_busy_seconds",
            "Time that scored stretches had data outstanding, from events.",
            ["arm"],
            of(|sum| sum.duration_us as f64 / 1e6),
        )?;
        page.counters(
            "thalweg_arm_segments",
            "Data segments of scored stretches, from events.",
            ["arm"],
            of(|sum| sum.segments as f64),
        )?;
        page.counters(
            "thalweg_arm_retransmitted_segments",
            "Retransmissions among the segments of scored stretches, from events.",
            ["arm"],
            of(|sum| sum.retransmitted as f64),
        )
    }
}
