//! `thalweg doctor`.

use anyhow::Result;
use thalweg_agent::config::Config;
use thalweg_agent::doctor::{Check, CheckState};
use thalweg_agent::view::{Newcomers, Status};
use thalweg_terminal::{Failure, output};

use crate::client::Client;
use crate::options::{Global, Readable};

/// Checks what this machine supports.
pub fn run(global: &Global) -> Result<()> {
    let Readable { config, fault } = global.readable_config()?;
    let mut checks = thalweg_agent::doctor::doctor(&config);
    checks.extend(fault.map(configuration_check));
    checks.extend(check_newcomers(&config));
    output::show_value(&global.format, &checks, || checks_table(&checks))?;
    if checks
        .iter()
        .any(|check| check.state == CheckState::Missing)
    {
        return Err(Failure::Missing(
            "this machine lacks something that the agent needs".to_owned(),
        )
        .into());
    }
    Ok(())
}

/// Congestion controls that a running agent leaves out; none without an agent.
fn check_newcomers(config: &Config) -> Option<Check> {
    let client = Client::new(config.paths.socket.clone(), config.paths.pin.clone());
    let status: Status = client.get("/v1/status").ok()?;
    let Newcomers { names, line } = status.newcomers?;
    Some(Check {
        name: "new congestion controls".to_owned(),
        state: CheckState::Ok,
        found: names.join(" "),
        means: "available but not allowed: loaded after the agent's start".to_owned(),
        fix: Some(format!("[arms] {line}")),
    })
}

/// A configuration with which no agent starts.
fn configuration_check(fault: String) -> Check {
    Check {
        name: "configuration".to_owned(),
        state: CheckState::Missing,
        found: fault,
        means: "the agent does not start".to_owned(),
        fix: Some("`thalweg config check` shows all faults".to_owned()),
    }
}

fn checks_table(checks: &[Check]) -> String {
    let rows = checks.iter().map(|check| {
        let state = match check.state {
            CheckState::Ok => "ok",
            CheckState::Degraded => "less",
            CheckState::Missing => "MISSING",
        };
        let means = match &check.fix {
            Some(fix) if check.state == CheckState::Ok => format!("{}. To use: {fix}", check.means),
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
