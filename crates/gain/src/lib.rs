//! Whether connections under the learner do better than those of the control group, from sums
//! that an agent can keep: no I/O, no clock, no randomness.
//!
//! - The unit is the **cluster**: one host (or prefix) in one hour, all of it control or all of it
//!   treated. Connections of a host share its path and influence each other, so that they are no
//!   independent draws; clusters are.
//! - Each connection is compared with the running mean of its stratum (size class × class of the
//!   handshake's RTT), which is of both groups: [`Baseline`].
//! - Each cluster leaves one number a [`Row`], so that groups are a few sums: [`Moments`].
//! - [`compare_groups`] makes of two such groups an effect with a confidence sequence: an interval that
//!   holds for all looks together.
//! - [`Ledger`] gathers connections in clusters and clusters in groups, within bounds.
//! - [`Pool`] makes one comparison of those of many agents.
//! - [`row_alpha`] shares the 5 % among everything that is compared.
//! - [`advise_group`] concludes from a group's sides which arm would be best there; [`Limits`] says what
//!   held its connections up.
//!
//! [`replay`] estimates another rule's cost from logged decisions, of which a share of the
//! host-hours suffices: [`Sampling`].
#![forbid(unsafe_code)]

mod advice;
mod baseline;
mod busiest;
mod class;
mod cluster;
mod compare;
mod ledger;
mod limits;
mod pool;
pub mod replay;
mod row;
mod sampling;
mod share;
mod side;
mod verdict;

pub use advice::{Advised, Choice, Conclusion, Finding, advise_group};
pub use baseline::{Baseline, Connection, Stratum};
pub use busiest::{Account, Busiest, Lifted};
pub use class::{RTTS, SIZES, rtt_class, size_class, size_words};
pub use cluster::{CLUSTER_CAP, Cluster, Moments};
pub use compare::{CLUSTERS_MIN, Comparison, compare_groups};
pub use ledger::{Changes, Content, First, Group, Groups, Ledger, Part, Rows};
pub use limits::{Chronographs, Held, Limit, Limits};
pub use pool::{Impossible, Pool, Refused, SideReport, Spread};
pub use row::{ROWS, Row, Unit};
pub use sampling::Sampling;
pub use share::{ALPHA, Scope, advice_alpha, row_alpha};
pub use side::{Arm, Side, Source};
pub use verdict::Verdict;
