//! The learner: which congestion control a connection to a remote host should use.
//!
//! This crate is the readable reference of the arithmetic in the kernel
//! (`bpf/include/thalweg_algo.h`). `tests/learner` keeps the two bit-identical. All arithmetic is in
//! integers. Time, randomness and measurements are arguments: nothing here reads a clock, draws a
//! number or does I/O.
//!
//! There are two modes. [`Mode::Classic`] is the published connection tuner of bpftune, faults
//! included, kept for comparison. [`Mode::Thalweg`] is the default. `docs/reference/learner.md`
//! describes both.
#![forbid(unsafe_code)]

pub mod clamp;
mod classic;
mod control;
mod decision;
mod fixed;
pub mod fleet;
mod group;
mod host;
mod key;
mod params;
mod sample;
mod shrink;
mod stretch;
mod thalweg;
pub mod window;

/// The format of documents of host records, in their field `format`: `thalweg export` writes them.
pub const HOSTS_FORMAT: &str = "thalweg-hosts";
/// The version of that format. Version 1 had no `queue_q16`, `base_rtt_us`, `segs` and `retrans`.
pub const HOSTS_VERSION: u32 = 2;

pub use classic::{
    EPSILON as CLASSIC_EPSILON, MIN_CONNECTIONS as CLASSIC_MIN_CONNECTIONS,
    delta_update as classic_update, published_cost as classic_cost,
};
pub use control::{Control, HOUR_NS};
pub use decision::{
    Decision, Flow, Reason, Verdict, best_arm, change_due, decide, propensities_q16, score,
};
pub use fixed::{ONE_Q16, log2_q16, rate_bytes_per_second};
pub use group::{
    OFFSET_Q16, Report, adopt_wider, can_decide, decide_group, group_report, inherit_group,
    score_group,
};
pub use host::{ArmState, Host, MAX_ARMS};
pub use key::{HostKey, Level, PrefixError, network_number};
pub use params::{Mode, Params};
pub use sample::{End, Outcome, Sample};
pub use shrink::{WORTH_OF_GROUP_Q16, WORTH_Q16, fleet_worth_q16, worth_q16};
pub use stretch::{Long, Review, is_due, review_connection};
pub use thalweg::{cost_q16, halve_evidence, judged_q16, note_cautions, note_harm};
