//! Whether connections under the learner do better than those of the control group, from sums
//! that an agent can keep: no I/O, no clock, no randomness.
//!
//! - The unit is the **cluster**: one host (or prefix) in one hour, all of it control or all of it
//!   treated. Connections of a host share its path and influence each other, so that they are no
//!   independent draws; clusters are.
//! - Each connection is compared with the running mean of its stratum (size class × class of the
//!   handshake's RTT), which is of both groups: [`Baseline`].
//! - Each cluster leaves one number a [`Row`], so that groups are a few sums: [`Moments`].
//! - [`compare`] makes of two such groups an effect with a confidence sequence: an interval that
//!   holds for all looks together.
//! - [`Ledger`] gathers connections in clusters and clusters in groups, within bounds.
//! - [`alpha`] shares the 5 % among everything that is compared.
//!
//! [`replay`] estimates another rule's cost from logged decisions.
#![forbid(unsafe_code)]

mod baseline;
mod class;
mod cluster;
mod compare;
mod ledger;
pub mod replay;
mod row;
mod share;
mod verdict;

pub use baseline::{Baseline, Connection, Stratum};
pub use class::{RTTS, SIZES, rtt_class, size_class, size_words};
pub use cluster::{CLUSTER_CAP, Cluster, Moments};
pub use compare::{CLUSTERS_MIN, Comparison, compare};
pub use ledger::{Changes, Content, Group, Groups, Ledger, Part};
pub use row::{ROWS, Row, Unit};
pub use share::{ALPHA, Scope, alpha};
pub use verdict::Verdict;
