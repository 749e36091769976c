//! Counters of the learner's programs, a row each: its place in the kernel's structure, its metric,
//! and its description. The API, the sum over processors and the metrics come from the row.

use serde::{Deserialize, Serialize};
use thalweg_bpf_types::raw;

fn outcome_count(one: &raw::thalweg_counters, index: raw::thalweg_outcome) -> u64 {
    one.outcomes[index as usize]
}

macro_rules! metric {
    (none, $help:literal, $value:expr) => {
        None
    };
    ($metric:literal, $help:literal, $value:expr) => {
        Some(($metric, $help, $value))
    };
}

/// Rows: `field: of(value in one processor's structure), metric or none, description`. A counter
/// without its own metric is part of one with labels.
macro_rules! counters {
    ($($name:ident: of($read:expr), $metric:tt, $help:literal;)*) => {
        /// Counters kept in the kernel, exact at any load.
        #[derive(Clone, Copy, Debug, Default, Serialize, Deserialize, PartialEq, Eq)]
        #[serde(default)]
        pub struct Counters {
            $(#[doc = $help] pub $name: u64,)*
        }

        impl Counters {
            /// Adds the counters of one processor.
            pub(crate) fn add_processor(&mut self, one: &raw::thalweg_counters) {
                $({
                    let read: fn(&raw::thalweg_counters) -> u64 = $read;
                    self.$name += read(one);
                })*
            }

            /// Metrics without labels: name, description and value.
            pub(crate) fn plain_metrics(&self) -> impl Iterator<Item = (&'static str, &'static str, u64)> {
                [$(metric!($metric, $help, self.$name)),*].into_iter().flatten()
            }
        }
    };
}

counters! {
    established: of(|one| one.established), "thalweg_connections", "Connections established.";
    decided: of(|one| one.decided), "thalweg_decisions", "Decisions of the learner.";
    changed: of(|one| one.changed), "thalweg_connections_changed", "Connections whose congestion control was changed.";
    refused: of(|one| one.refused), "thalweg_refusals", "Times that the kernel refused to set a congestion control.";
    closed: of(|one| one.closed), "thalweg_connections_closed", "Ends of connections.";
    scored: of(|one| outcome_count(one, raw::THALWEG_SCORED)), none, "Measurements scored.";
    skipped_small: of(|one| outcome_count(one, raw::THALWEG_SKIPPED_SMALL)), none, "Measurements not scored: too few bytes.";
    skipped_app_limited: of(|one| outcome_count(one, raw::THALWEG_SKIPPED_APP_LIMITED)), none, "Measurements not scored: the application, the receiver or the send buffer limited the rate.";
    skipped_not_tracked: of(|one| outcome_count(one, raw::THALWEG_SKIPPED_NOT_TRACKED)), none, "Measurements not scored: not ours (application's own or unknown CC).";
    skipped_timeout: of(|one| outcome_count(one, raw::THALWEG_SKIPPED_TIMEOUT)), none, "Measurements not scored: time-outs with nothing to compare with.";
    skipped_overridden: of(|one| outcome_count(one, raw::THALWEG_SKIPPED_OVERRIDDEN)), none, "Measurements not scored: another congestion control than the arm ran at the end.";
    switched: of(|one| one.switched), "thalweg_connections_rescued", "Connections that the loss rule moved to another congestion control mid-flow.";
    withdrawn: of(|one| one.withdrawn), "thalweg_connections_withdrawn", "Connections returned to the system default mid-flow, because they lost more than it does.";
    app_owned: of(|one| one.app_owned), "thalweg_connections_application", "Connections whose application chose its own congestion control.";
    events: of(|one| one.events), "thalweg_events", "Events handed to the ring.";
    events_dropped: of(|one| one.events_dropped), "thalweg_events_dropped", "Events lost because the ring was full.";
    hosts_created: of(|one| one.hosts_created), "thalweg_hosts_created", "Host records created.";
    hosts_missed: of(|one| one.hosts_missed), "thalweg_hosts_missed", "Connections without a host record, because none could be had.";
    conns_missed: of(|one| one.conns_missed), none, "Connections whose slot was reused for a newer one, and which were not scored.";
    outside: of(|one| one.outside), "thalweg_connections_outside", "Connections of network namespaces outside the scope.";
    control: of(|one| one.control), "thalweg_decisions_control", "Decisions that kept the system default for the control group.";
    by_group: of(|one| one.by_group), "thalweg_decisions_network", "Decisions by what is known of a network, about a host without record.";
    windows: of(|one| one.windows), "thalweg_windows", "Initial windows decided by what is known of a network.";
    windows_raised: of(|one| one.windows_raised), "thalweg_windows_raised", "Connections with a larger initial window than the kernel's own.";
    windows_refused: of(|one| one.windows_refused), "thalweg_windows_refused", "Times that the kernel refused an initial window, or to pace it.";
    windows_left: of(|one| one.windows_left), "thalweg_windows_left", "Initial windows left to an application, a policy or a route.";
    windows_scored: of(|one| one.windows_scored), "thalweg_windows_scored", "Connections whose initial window was scored.";
    windows_overridden: of(|one| one.windows_overridden), "thalweg_windows_overridden", "Initial windows that another one replaced before the first data was acknowledged.";
    visited: of(|one| one.visited), "thalweg_sockets_visited", "Sockets seen by looks at long connections.";
    stretches: of(|one| one.stretches), "thalweg_stretches", "Stretches of open connections that were scored.";
    anew: of(|one| one.anew), "thalweg_connections_anew", "Decisions about long connections on their way.";
    moved: of(|one| one.moved), "thalweg_connections_moved", "Long connections moved to another congestion control.";
}
