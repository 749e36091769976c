//! `thalweg-lab doctor`.

use anyhow::{Context, Result};
use serde::Serialize;
use thalweg_guest::{Error, kernels, qemu, uml};
use thalweg_terminal::{Format, output};

/// A check of this machine.
#[derive(Serialize)]
struct Check {
    name: &'static str,
    /// "ok", or "degraded": what is missing is needed by a part of the laboratory alone.
    state: State,
    found: String,
    means: String,
    /// How to mend it; null if nothing is missing.
    fix: Option<String>,
}

#[derive(Clone, Copy, Serialize)]
#[serde(rename_all = "lowercase")]
enum State {
    Ok,
    Degraded,
}

/// Checks what the laboratory can use on this machine.
///
/// # Errors
/// An interruption; standard output cannot be written.
pub fn run(format: &Format) -> Result<()> {
    let checks = [user_mode_kernel()?, virtual_time()?];
    output::show_value(format, &checks, || checks_text(&checks))
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
            (State::Ok, found, None)
        }
        Err(error) if error.is_interruption() => return Err(error.into()),
        Err(Error::Preconditions(missing)) => {
            let fix = "install the package user-mode-linux, where the system has it (Debian)";
            // The missing part, without installation advice.
            let line = missing.first().map_or("", String::as_str);
            let found = line.split(": ").next().unwrap_or_default().to_owned();
            (State::Degraded, found, Some(fix))
        }
        Err(Error::Ended {
            line,
            remedy: Some(remedy),
            ..
        }) => {
            let found = format!("it ends, saying {line:?}: {}", remedy.why);
            (State::Degraded, found, Some(remedy.fix))
        }
        Err(error) => {
            let fix = "run the lab on this kernel as root (--backend host or link)";
            let found = error.to_string();
            let line = found.lines().next().unwrap_or_default().to_owned();
            (State::Degraded, line, Some(fix))
        }
    };
    let means = "the lab without root, and with the queues and delays that this kernel lacks";
    let fix = fix.map(str::to_owned);
    Ok(build_check("user-mode kernel", state, found, means, fix))
}

fn build_check(
    name: &'static str,
    state: State,
    found: String,
    means: &str,
    fix: Option<String>,
) -> Check {
    Check {
        name,
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
    let newest = match qemu::missing_requirements() {
        missing if missing.is_empty() => kernels::find_kernel(None).map(|stock| stock.name),
        missing => Err(Error::Preconditions(missing)),
    };
    let (state, found, fix) = match newest {
        Ok(name) => {
            let found = format!("{}, kernel {name}", qemu::qemu_version()?);
            (State::Ok, found, None)
        }
        Err(Error::Preconditions(lines)) => {
            let line = lines.first().map_or("", String::as_str);
            let (found, fix) = line
                .split_once(": ")
                .unwrap_or((line, "see docs/reference/lab.md"));
            (State::Degraded, found.to_owned(), Some(fix.to_owned()))
        }
        // For example, a cache in another user's HOME.
        Err(error) => {
            let fix = "set XDG_CACHE_HOME to a directory of your own";
            (State::Degraded, error.to_string(), Some(fix.to_owned()))
        }
    };
    let means = "measurements that do not depend on this machine (thalweg-lab run --backend qemu)";
    Ok(build_check("kernel in QEMU", state, found, means, fix))
}

fn checks_text(checks: &[Check]) -> String {
    let rows = checks.iter().map(|check| {
        let state = match check.state {
            State::Ok => "ok",
            State::Degraded => "less",
        };
        let means = match &check.fix {
            Some(fix) => format!("{}. To mend: {fix}", check.means),
            None => check.means.clone(),
        };
        vec![
            check.name.to_owned(),
            state.to_owned(),
            check.found.clone(),
            means,
        ]
    });
    output::table(&["Check", "State", "Found", "Means"], &[], rows.collect())
}
