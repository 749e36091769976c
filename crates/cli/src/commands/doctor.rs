//! `thalweg doctor`.

use anyhow::Result;
use thalweg_agent::doctor::{Check, CheckState};

use crate::failure::Failure;
use crate::options::Global;
use crate::output;

/// Checks what this machine supports.
pub fn run(global: &Global) -> Result<()> {
    let checks = thalweg_agent::doctor::doctor(&global.config()?);
    if global.json {
        output::print_json(&checks)?;
    } else {
        output::print(&text(&checks))?;
    }
    if checks
        .iter()
        .any(|check| check.state == CheckState::Missing)
    {
        return Err(Failure::Requirement.into());
    }
    Ok(())
}

fn text(checks: &[Check]) -> String {
    let rows = checks.iter().map(|check| {
        let state = match check.state {
            CheckState::Ok => "ok",
            CheckState::Degraded => "less",
            CheckState::Missing => "MISSING",
        };
        let means = match &check.fix {
            Some(fix) => format!("{}. To mend: {fix}", check.means),
            None => check.means.clone(),
        };
        vec![
            check.name.clone(),
            state.to_owned(),
            check.found.clone(),
            means,
        ]
    });
    output::table(&["Check", "State", "Found", "Means"], &[], rows.collect())
}
