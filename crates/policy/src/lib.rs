//! Policies: which TCP parameters a flow gets.
//!
//! A [`Policy`] is parsed from TOML; `docs/reference/policy.md` explains the file.
//! [`Policy::matching_rule`] is its readable meaning. [`Policy::warnings`] reports what is probably
//! unintended. [`Policy::compile`] turns it into [`Compiled`], the tables of
//! `bpf/include/thalweg_policy_abi.h`. Nothing here reads a file or asks the kernel.
#![forbid(unsafe_code)]

pub mod catalogue;
mod check;
mod compile;
mod compiled;
mod diff;
mod model;
mod parse;
mod trial;

pub use catalogue::{Key, Stage};
pub use check::{Warning, WarningKind};
pub use compiled::{Compiled, NamespaceUse, RuleSummary, VOID_COOKIE};
pub use diff::{Change, ChangedRule, Difference};
pub use model::{
    Action, Condition, Conditions, Direction, Flow, FlowKind, Group, Namespace, Policy, Ports,
    Precedence, Rule, SamePrefix, Selector, Value, parse_cgroup,
};
pub use thalweg_units::prefix::{Prefix, PrefixError};
pub use thalweg_units::{Fault, Faults, Position};
pub use trial::Trial;

/// A kernel version, such as 6.1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Version(pub u16, pub u16);

impl std::fmt::Display for Version {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{}", self.0, self.1)
    }
}
