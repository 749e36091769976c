//! Features that this machine supports, the effect of a missing one, and the hint.

use std::path::Path;

use libbpf_rs::libbpf_sys::{BPF_CGROUP_SETSOCKOPT, BPF_CGROUP_SOCK_OPS};
use serde::{Deserialize, Serialize};
use thalweg_control::{links, privileges, system};
use thalweg_units::program;

use crate::config::Config;
use crate::features;
use crate::requirements::{Found, LEARNING, REQUIREMENTS, Requirement};

/// Result of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CheckState {
    /// The feature works.
    Ok,
    /// The feature works with restrictions.
    Degraded,
    /// The agent cannot run without it.
    Missing,
}

/// A line of the doctor's table.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Check {
    /// The subject of the check.
    pub name: String,
    /// Result of the check.
    pub state: CheckState,
    /// The finding.
    pub found: String,
    /// Effect of the result for the user.
    pub means: String,
    /// Hint for the user, if any.
    pub fix: Option<String>,
}

impl Check {
    fn ok(name: &str, found: impl Into<String>, means: &str) -> Self {
        Self {
            name: name.to_string(),
            state: CheckState::Ok,
            found: found.into(),
            means: means.to_string(),
            fix: None,
        }
    }

    fn not(
        name: &str,
        state: CheckState,
        found: impl Into<String>,
        means: &str,
        fix: &str,
    ) -> Self {
        Self {
            name: name.to_string(),
            state,
            found: found.into(),
            means: means.to_string(),
            fix: Some(fix.to_string()),
        }
    }
}

/// All requirements: the agent's own, then those of its features, then the others.
pub fn requirements() -> Vec<Requirement> {
    let (of_agent, others) = REQUIREMENTS.split_at(2);
    let of_features = features::all();
    [LEARNING]
        .into_iter()
        .chain(of_agent.iter().copied())
        .chain(of_features.iter().filter_map(|it| it.requirement()))
        .chain(others.iter().copied())
        .collect()
}

/// Runs all checks. They change nothing on the machine; queueing disciplines are tried in a
/// temporary network namespace.
pub fn doctor(config: &Config) -> Vec<Check> {
    let mut checks = vec![privileges(), cgroup(config), bpffs(config)];
    let release = release();
    checks.extend(
        requirements()
            .iter()
            .map(|row| check_requirement(row, &release)),
    );
    checks.push(congestion_controls(config));
    checks.extend([
        tool("ip", "iproute2", "the lab's namespaces"),
        tool("tc", "iproute2", "the lab's rates and queues"),
        tool("iperf3", "iperf3", "the lab's traffic"),
    ]);
    checks
}

fn privileges() -> Check {
    let name = "privileges";
    let fix = "run as root, or grant the capabilities";
    let found = privileges::missing_capabilities()
        .and_then(|missing| Ok((missing, privileges::missing_for_namespaces()?)));
    match found {
        Ok((missing, elsewhere)) if missing.is_empty() && elsewhere.is_empty() => {
            Check::ok(name, "sufficient", "programs can be loaded and attached")
        }
        Ok((missing, elsewhere)) if missing.is_empty() => Check::not(
            name,
            CheckState::Degraded,
            format!("without {}", elsewhere.join(" and ")),
            "programs can be loaded; connections in other network namespaces are left alone",
            fix,
        ),
        Ok((missing, _)) => Check::not(
            name,
            CheckState::Missing,
            format!("missing {}", missing.join(", ")),
            "no program can be loaded; commands that ask a running agent still work",
            fix,
        ),
        Err(error) => Check::not(
            name,
            CheckState::Degraded,
            format!("{error:#}"),
            "cannot tell whether programs can be loaded",
            "allow the system call capget",
        ),
    }
}

fn release() -> String {
    nix::sys::utsname::uname()
        .map(|uname| uname.release().to_string_lossy().into_owned())
        .unwrap_or_default()
}

/// Whether the kernel meets a requirement.
fn check_requirement(feature: &Requirement, release: &str) -> Check {
    let without = format!("without it: {}", feature.means);
    match feature.look() {
        Found::Yes => {
            let linux = feature.required.then(|| format!("Linux {release}"));
            let needs = feature.needs.iter().map(|need| need.words());
            let found: Vec<String> = linux.into_iter().chain(needs).collect();
            Check::ok(feature.name, found.join(", "), feature.means)
        }
        Found::No(found, fix) => {
            let state = match feature.required {
                true => CheckState::Missing,
                false => CheckState::Degraded,
            };
            Check::not(feature.name, state, found, &without, &fix)
        }
        Found::Unknown(found, fix) => {
            Check::not(feature.name, CheckState::Degraded, found, &without, &fix)
        }
    }
}

fn cgroup(config: &Config) -> Check {
    let name = "cgroup v2";
    let missing = |found: String, fix: &str| {
        Check::not(
            name,
            CheckState::Missing,
            found,
            "programs have nothing to attach to",
            fix,
        )
    };
    let mount = system::cgroup2_mount();
    let watched = config.cgroup.as_ref().or(mount.as_ref().ok());
    let kinds = [BPF_CGROUP_SOCK_OPS, BPF_CGROUP_SETSOCKOPT].into_iter();
    if let Some(cgroup) = watched
        && let Some(other) = kinds
            .filter_map(|kind| links::find_exclusive(cgroup, kind))
            .next()
    {
        return missing(other.to_string(), &other.hint());
    }
    match (&config.cgroup, mount) {
        (_, Err(error)) => missing(format!("{error:#}"), &system::cgroup2_hint()),
        (None, Ok(mount)) => Check::ok(
            name,
            mount.display().to_string(),
            if system::is_root_cgroup(&mount) {
                "all connections of the machine"
            } else {
                "connections of this container: its cgroup namespace is private"
            },
        ),
        (Some(path), Ok(_)) if path.is_dir() => Check::ok(
            name,
            path.display().to_string(),
            "connections of this cgroup",
        ),
        (Some(path), Ok(mount)) => missing(
            format!("{} does not exist", path.display()),
            &format!(
                "create it, or set cgroup = \"auto\" for all of {}",
                mount.display()
            ),
        ),
    }
}

fn bpffs(config: &Config) -> Check {
    let name = "BPF file system";
    let pin = &config.paths.pin;
    let existing = pin
        .ancestors()
        .find(|path| path.exists())
        .unwrap_or(Path::new("/"));
    if system::is_bpffs(existing).unwrap_or(false) {
        if let Err(error) = system::check_outlives(existing) {
            let found = format!("{error:#}");
            let means = "state could not outlive the agent";
            let fix = "run it with the mounts of the machine";
            return Check::not(name, CheckState::Missing, found, means, fix);
        }
        return Check::ok(
            name,
            existing.display().to_string(),
            "state outlives the agent",
        );
    }
    if existing == Path::new(system::BPFFS) {
        return Check::ok(name, "none yet", "the agent mounts it when it starts");
    }
    Check::not(
        name,
        CheckState::Missing,
        format!("{} is not on one", pin.display()),
        "state could not outlive the agent",
        "a path under /sys/fs/bpf in [paths] pin",
    )
}

fn congestion_controls(config: &Config) -> Check {
    let name = "congestion controls";
    let available = match system::available_ccs() {
        Ok(available) => available,
        Err(error) => {
            return Check::not(
                name,
                CheckState::Missing,
                format!("{error:#}"),
                "there is nothing to choose from",
                "mount /proc",
            );
        }
    };
    let default = system::default_cc().unwrap_or_default();
    let found = format!("{} (default {default})", available.join(" "));
    let wanted: Vec<&String> = config
        .arms
        .load
        .iter()
        .filter(|name| !available.contains(name))
        .collect();
    let usable = available
        .iter()
        .filter(|name| config.arms.permits(name))
        .count();
    if usable < 2 {
        return Check::not(
            name,
            CheckState::Degraded,
            found,
            "fewer than two may be chosen: there is nothing to learn",
            "modprobe tcp_bbr, or [arms] allow",
        );
    }
    if wanted.is_empty() {
        return Check::ok(name, found, "can be chosen");
    }
    let names: Vec<&str> = wanted.iter().map(|name| name.as_str()).collect();
    let modules: Vec<String> = names.iter().map(|name| format!("tcp_{name}")).collect();
    Check::not(
        name,
        CheckState::Degraded,
        found,
        &format!(
            "{} not offered yet: the agent tries to load them",
            names.join(", ")
        ),
        &format!("modprobe {}", modules.join(" ")),
    )
}

fn tool(name: &str, package: &str, use_of: &str) -> Check {
    match program::find_program(name) {
        Some(path) => Check::ok(
            &format!("program {name}"),
            path.display().to_string(),
            use_of,
        ),
        None => Check::not(
            &format!("program {name}"),
            CheckState::Degraded,
            "not found",
            &format!("without it: {use_of}"),
            &format!("install the package {package}"),
        ),
    }
}
