//! `thalweg doctor`.

use anyhow::{Context, Result};
use thalweg_agent::config::Config;
use thalweg_agent::doctor::{Check, CheckState};
use thalweg_agent::view::{Newcomers, Status};
use thalweg_guest::{Error, kernels, qemu, uml};

use crate::client::Client;
use crate::failure::Failure;
use crate::options::{Global, Readable};
use crate::output;

/// Checks what this machine supports.
pub fn run(global: &Global) -> Result<()> {
    let Readable { config, fault } = global.readable()?;
    let mut checks = thalweg_agent::doctor::doctor(&config);
    checks.extend(fault.map(configuration));
    checks.extend(newcomers(&config));
    checks.push(user_mode_kernel()?);
    checks.push(virtual_time()?);
    output::show(global, &checks, || text(&checks))?;
    if checks
        .iter()
        .any(|check| check.state == CheckState::Missing)
    {
        return Err(Failure::Requirement.into());
    }
    Ok(())
}

/// Congestion controls that a running agent leaves out; none without an agent.
fn newcomers(config: &Config) -> Option<Check> {
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
fn configuration(fault: String) -> Check {
    Check {
        name: "configuration".to_owned(),
        state: CheckState::Missing,
        found: fault,
        means: "the agent does not start".to_owned(),
        fix: Some("`thalweg config check` shows all faults".to_owned()),
    }
}

/// Boots the packaged user-mode kernel for a moment.
fn user_mode_kernel() -> Result<Check> {
    let program = std::env::current_exe().context("cannot tell where this program is")?;
    let (state, found, fix) = match uml::try_out(&program) {
        Ok(trial) => {
            let how = if trial.wrapped {
                ", its ptrace wrapped because this processor has AMX"
            } else {
                ""
            };
            let found = format!("linux.uml {} boots{how}", trial.version);
            (CheckState::Ok, found, None)
        }
        Err(error) if error.is_interruption() => return Err(error.into()),
        Err(Error::Preconditions(missing)) => {
            let fix = "install the package user-mode-linux, where the system has it (Debian)";
            // The missing part, without installation advice.
            let line = missing.first().map_or("", String::as_str);
            let found = line.split(": ").next().unwrap_or_default().to_owned();
            (CheckState::Degraded, found, Some(fix))
        }
        Err(Error::Ended {
            line,
            remedy: Some(remedy),
            ..
        }) => {
            let found = format!("it ends, saying {line:?}: {}", remedy.why);
            (CheckState::Degraded, found, Some(remedy.fix))
        }
        Err(error) => {
            let fix = "run the lab on this kernel as root (--backend host or link)";
            let found = error.to_string();
            let line = found.lines().next().unwrap_or_default().to_owned();
            (CheckState::Degraded, line, Some(fix))
        }
    };
    let means = "the lab without root, and with the queues and delays that this kernel lacks";
    let fix = fix.map(str::to_owned);
    Ok(of_lab("user-mode kernel", state, found, means, fix))
}

/// A check that only the laboratory needs.
fn of_lab(name: &str, state: CheckState, found: String, means: &str, fix: Option<String>) -> Check {
    Check {
        name: name.to_owned(),
        state,
        found,
        means: match &fix {
            Some(_) => format!("without it: {means}"),
            None => means.to_owned(),
        },
        fix,
    }
}

/// Whether a stock kernel can run in virtual time; none is booted.
fn virtual_time() -> Result<Check> {
    let newest = match qemu::missing() {
        missing if missing.is_empty() => kernels::find(None).map(|stock| stock.name),
        missing => Err(Error::Preconditions(missing)),
    };
    let (state, found, fix) = match newest {
        Ok(name) => {
            let found = format!("{}, kernel {name}", qemu::version()?);
            (CheckState::Ok, found, None)
        }
        Err(Error::Preconditions(lines)) => {
            let line = lines.first().map_or("", String::as_str);
            let (found, fix) = line
                .split_once(": ")
                .unwrap_or((line, "see docs/reference/lab.md"));
            (CheckState::Degraded, found.to_owned(), Some(fix.to_owned()))
        }
        // For example, a cache in another user's HOME.
        Err(error) => {
            let fix = "set XDG_CACHE_HOME to a directory of your own";
            (
                CheckState::Degraded,
                error.to_string(),
                Some(fix.to_owned()),
            )
        }
    };
    let means = "measurements that do not depend on this machine (lab run --backend qemu)";
    Ok(of_lab("kernel in QEMU", state, found, means, fix))
}

fn text(checks: &[Check]) -> String {
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
