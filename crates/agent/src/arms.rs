//! Congestion controls that may be arms.

use anyhow::Result;
use thalweg_control::{cc, system};

use crate::config::Config;
use crate::kernel::ArmSpec;
use crate::view;

/// The arms that the kernel offers and the operator permits; `at_start` has the kernel's offer at
/// the agent's start. The system default is always among them, since connections use it anyway.
pub fn wanted_arms(config: &Config, at_start: &[String]) -> Result<Vec<ArmSpec>> {
    let needing_ecn = cc::needing_ecn(&config.paths.pin);
    let (wanted, _) = divide_offered(config, at_start)?;
    Ok(wanted
        .into_iter()
        .map(|name| ArmSpec {
            needs_ecn: config.arms.needs_ecn.contains(&name) || needing_ecn.contains(&name),
            name,
        })
        .collect())
}

/// Congestion controls that `arms.allow = "auto"` leaves out as they came after the agent's start:
/// they may be somebody's experiment. `None`: there are none.
pub fn find_newcomers(config: &Config, at_start: &[String]) -> Option<view::Newcomers> {
    let (arms, mut names) = divide_offered(config, at_start).ok()?;
    names.retain(|name| config.arms.permits(name));
    let allow: Vec<&String> = arms.iter().chain(&names).collect();
    let line = format!("allow = {allow:?}");
    (!names.is_empty()).then_some(view::Newcomers { names, line })
}

/// The kernel's congestion controls, divided into those that may be arms and the others.
fn divide_offered(config: &Config, at_start: &[String]) -> Result<(Vec<String>, Vec<String>)> {
    let default = system::default_cc()?;
    let own = cc::loaded_controls(&config.paths.pin).unwrap_or_default();
    let may = |name: &String| {
        let is_known = at_start.contains(name) || own.iter().any(|(own, _)| own == name);
        *name == default || config.arms.permits(name) && (is_known || config.arms.names(name))
    };
    Ok(system::available_ccs()?.into_iter().partition(may))
}
