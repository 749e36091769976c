//! `thalweg remove-all`: what the scripts of the packages call before the command goes.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use clap::Args;
use thalweg_agent::config::Config;
use thalweg_control::{cc, leftovers, sockops, system};
use thalweg_terminal::{failure, output};

use crate::commands::{detach, policy};
use crate::options::Global;

/// The directories of pins.
#[derive(Debug, Args)]
pub struct Options {
    /// Directories of pins to clear. Default: the configured one and all that are found.
    #[arg(value_name = "DIR")]
    directories: Vec<PathBuf>,
}

/// Ends agents and removes their programs, policies, sockops objects and congestion controls.
/// Goes on after a failure.
///
/// # Errors
/// A configuration that cannot be read; otherwise at the end, with all that is still in force.
pub fn run(global: &Global, options: &Options) -> Result<()> {
    let paths = global.readable_or_warn()?.paths;
    let mut directories = options.directories.clone();
    let mut left = Vec::new();
    if directories.is_empty() {
        directories.extend(leftovers::pin_directories());
        // The last: what it says of others is then true.
        directories.retain(|pin| !is_same(pin, &paths.pin));
        directories.push(paths.pin.clone());
    }
    for pin in &directories {
        let is_configured = is_same(pin, &paths.pin);
        let global = Global {
            other_pin: (!is_configured).then(|| pin.clone()),
            ..global.clone()
        };
        clear_directory(&global, pin, &mut left);
    }
    if paths.state != Config::default().paths.state && paths.state.exists() {
        let state = paths.state.display();
        let note = format!("{state} stays, with what was learned: `rm -r {state}` removes it");
        failure::print_note(&note, global.format.json);
    }
    if !left.is_empty() {
        bail!("still in force: {}", left.join("; "));
    }
    Ok(())
}

fn is_same(one: &Path, other: &Path) -> bool {
    let found = one.canonicalize().ok();
    one == other || (found.is_some() && found == other.canonicalize().ok())
}

/// Removes what is pinned in a directory. The agent is first: it would put back what is gone.
fn clear_directory(global: &Global, pin: &Path, left: &mut Vec<String>) {
    let mut note = |result: Result<()>| {
        let told = |error: anyhow::Error| format!("{}: {error:#}", pin.display());
        left.extend(result.err().map(told));
    };
    note(detach::run(global));
    note(match global.other_pin {
        None => policy::run(global, &policy::PolicyCommand::Remove),
        Some(_) => remove_other_policy(global, pin),
    });
    // Without pins no privilege is needed.
    let objects = match pin.join("sockops").exists() {
        true => sockops::list(pin),
        false => Ok(Vec::new()),
    };
    match objects {
        Ok(all) => all
            .iter()
            .for_each(|it| note(sockops::unload(pin, &it.name).map_err(Into::into))),
        Err(error) => note(Err(error.into())),
    }
    match cc::loaded_controls(pin) {
        Ok(all) => all
            .iter()
            .for_each(|(name, _)| note(remove_control(pin, name))),
        Err(error) => note(Err(error.into())),
    }
}

/// Removes the policy of another agent, whose state directory is unknown.
fn remove_other_policy(global: &Global, pin: &Path) -> Result<()> {
    system::check_sees_pins(pin)?;
    let config = global.readable_or_warn()?;
    let removed = thalweg_control::policy::remove(pin);
    // Without a hierarchy of cgroups nothing else can be seen.
    if let Ok(cgroup) = config.cgroup.map_or_else(system::cgroup2_mount, Ok) {
        leftovers::detach_policies(pin, &cgroup)?;
    }
    removed?;
    Ok(())
}

/// Withdraws a congestion control from new connections; those that have it keep it. Warns where a
/// network namespace goes on giving it to new ones: a second call would not find it.
///
/// # Errors
/// The congestion control cannot be withdrawn.
fn remove_control(pin: &Path, name: &str) -> Result<()> {
    let Err(refused) = cc::unload(pin, name) else {
        return Ok(());
    };
    let used = cc::count_usage()?.get(name).copied().unwrap_or_default();
    if !used.has_sockets() && used.default_in == 0 {
        return Err(refused.into());
    }
    // Nobody will call `cc unload --drain`. TCP forgets the name with its pins.
    let all = pin.join("cc");
    let own = all.join(name);
    fs::remove_dir_all(&own).with_context(|| format!("removing {}", own.display()))?;
    for directory in [all.as_path(), pin] {
        // Not empty means in use, which is no error.
        let _ = fs::remove_dir(directory);
    }
    if used.default_in > 0 {
        output::print_warning(&format!(
            "{name} is the default of {} network namespace{}, where new connections get it until \
             another is named, with: sysctl net.ipv4.tcp_congestion_control=cubic",
            used.default_in,
            if used.default_in == 1 { "" } else { "s" }
        ));
        return Ok(());
    }
    output::print(&format!(
        "{name} is withdrawn: {} keep it until they end\n",
        cc::describe_sockets(used)
    ))
}
