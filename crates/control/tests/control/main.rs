//! Policies, congestion controls and sockops objects on real connections, as the command sets them.
#![allow(clippy::unwrap_used, reason = "a test that fails says where")]

mod cc;
mod cc_faults;
mod cc_learner;
mod cc_marks;
mod cc_module;
mod cc_rate;
mod cc_rate_paths;
mod cc_rate_stall;
mod cc_versions;
mod policy;
mod policy_beside;
mod policy_crash;
mod policy_differential;
mod policy_effects;
mod policy_existing;
mod policy_flood;
mod policy_match;
mod policy_protocols;
mod policy_removal;
mod policy_size;
mod policy_swap;
mod policy_timers;
mod random_policies;
mod sockops;
mod virtual_time;
