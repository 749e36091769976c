//! `thalweg policy remove`.

use anyhow::{Context, Result};
use thalweg_control::leftovers;
use thalweg_terminal::output;

use crate::options::Global;

/// Removes the policy.
pub fn run(global: &Global) -> Result<()> {
    let config = global.readable_or_warn()?;
    let history = super::visible_history(global, &config)?;
    let pin = &config.paths.pin;
    let kept = super::kept_by_listeners(&history, pin);
    let removed = history.remove(pin);
    // Without a hierarchy of cgroups nothing else can be seen.
    let detached = match super::policy_cgroup(global, &config) {
        Ok(cgroup) => leftovers::detach_policies(pin, &cgroup)?,
        Err(_) => 0,
    };
    let removed = match detached {
        0 => removed?,
        _ => {
            removed.context("the policy is out of the kernel, but its pins or files stay")?;
            true
        }
    };
    let notes: Vec<String> = kept.filter(|_| removed).into_iter().collect();
    if global.format.json {
        return output::print_json(&serde_json::json!({ "removed": removed, "notes": notes }));
    }
    for note in &notes {
        output::print(&format!("note: {note}\n"))?;
    }
    output::print(if removed {
        "removed from the kernel; connections keep what they were given\n"
    } else {
        "no policy was in force\n"
    })
}
