//! What this machine supports, what a miss means, and how to mend it.

use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

use libbpf_rs::ProgramType;
use serde::{Deserialize, Serialize};

use crate::config::Config;
use crate::{privileges, system};

/// Oldest kernel with everything the programs use (network namespace cookies in sockops).
const OLDEST_KERNEL: (u32, u32) = (5, 15);

/// How a check went.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CheckState {
    /// As it should be.
    Ok,
    /// Works, with less.
    Degraded,
    /// The agent cannot run without it.
    Missing,
}

/// One line of the table.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Check {
    /// What was looked at.
    pub name: String,
    /// How it went.
    pub state: CheckState,
    /// What was found.
    pub found: String,
    /// What that means for the user.
    pub means: String,
    /// What to do about it, if anything.
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

/// Runs all checks. Nothing of the machine is changed; queueing disciplines are tried in a
/// network namespace that goes with the trial.
pub fn doctor(config: &Config) -> Vec<Check> {
    let mut checks = vec![privileges(), kernel_version()];
    checks.push(program_type("BPF sockops", ProgramType::SockOps));
    checks.push(program_type(
        "BPF cgroup/setsockopt",
        ProgramType::CgroupSockopt,
    ));
    checks.extend([cgroup(config), bpffs(config), kernel_btf(), jit()]);
    checks.push(struct_ops());
    checks.push(congestion_controls(config));
    checks.extend(["fq", "tbf", "netem", "red"].map(qdisc));
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
    let found = privileges::missing()
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

fn kernel_version() -> Check {
    let release = nix::sys::utsname::uname()
        .map(|uname| uname.release().to_string_lossy().into_owned())
        .unwrap_or_default();
    let mut numbers = release
        .split(['.', '-'])
        .map_while(|part| part.parse::<u32>().ok());
    let version = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    let name = "kernel";
    if version >= OLDEST_KERNEL {
        return Check::ok(name, release, "has everything the programs use");
    }
    let (major, minor) = OLDEST_KERNEL;
    Check::not(
        name,
        CheckState::Missing,
        release,
        "the programs will not load",
        &format!("Linux {major}.{minor} or newer"),
    )
}

fn program_type(name: &str, kind: ProgramType) -> Check {
    match kind.is_supported() {
        Ok(true) => Check::ok(name, "supported", "connections can be reached"),
        Ok(false) => Check::not(
            name,
            CheckState::Missing,
            "not supported",
            "the agent cannot reach connections; the lab's baselines still work",
            "a kernel with CONFIG_BPF_SYSCALL and CONFIG_CGROUP_BPF, and root",
        ),
        Err(error) => Check::not(
            name,
            CheckState::Degraded,
            error.to_string(),
            "cannot tell",
            "run as root",
        ),
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
    match (&config.cgroup, system::cgroup2_mount()) {
        (_, Err(error)) => missing(
            format!("{error:#}"),
            "mount -t cgroup2 none /sys/fs/cgroup/unified",
        ),
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
        return Check::ok(
            name,
            existing.display().to_string(),
            "state outlives the agent",
        );
    }
    if existing == Path::new(system::BPFFS) {
        return Check::ok(name, "not mounted", "the agent mounts it when it starts");
    }
    Check::not(
        name,
        CheckState::Missing,
        format!("{} is not on one", pin.display()),
        "state could not outlive the agent",
        "a path under /sys/fs/bpf in [paths] pin",
    )
}

fn kernel_btf() -> Check {
    let name = "kernel BTF";
    if system::has_kernel_btf() {
        return Check::ok(
            name,
            "present",
            "busy time of connections is read from the kernel",
        );
    }
    Check::not(
        name,
        CheckState::Degraded,
        "absent",
        "connections are scored by wall time; idle ones are recognised less surely",
        "a kernel with CONFIG_DEBUG_INFO_BTF",
    )
}

fn jit() -> Check {
    let name = "BPF JIT";
    let value = std::fs::read_to_string("/proc/sys/net/core/bpf_jit_enable").unwrap_or_default();
    match value.trim() {
        "" | "0" => Check::not(
            name,
            CheckState::Degraded,
            "off",
            "programs run in the interpreter, several times slower",
            "sysctl net.core.bpf_jit_enable=1, where the kernel has a JIT",
        ),
        _ => Check::ok(name, "on", "programs run as machine code"),
    }
}

fn struct_ops() -> Check {
    let name = "BPF congestion controls";
    match crate::cc::check() {
        Ok(_) => Check::ok(
            name,
            "supported",
            "`thalweg cc load` brings those that are missing",
        ),
        Err(why) => Check::not(
            name,
            CheckState::Degraded,
            why.reason(),
            "those of the kernel are all there is to choose from",
            "a newer kernel, or its modules (tcp_htcp, tcp_dctcp)",
        ),
    }
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

/// Tries a queueing discipline on the loopback device of a throw-away network namespace.
fn qdisc(kind: &str) -> Check {
    let name = format!("qdisc {kind}");
    let mut command = Command::new("tc");
    command.args(["qdisc", "add", "dev", "lo", "root", kind]);
    match kind {
        "tbf" => command.args(["rate", "1mbit", "burst", "10kb", "latency", "10ms"]),
        "red" => command.args(["limit", "1000000", "avpkt", "1000", "bandwidth", "10mbit"]),
        _ => &mut command,
    };
    command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    // SAFETY: unshare is a plain system call, allowed between fork and exec.
    unsafe {
        command.pre_exec(|| {
            nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNET).map_err(Into::into)
        });
    }
    let use_of = match kind {
        "fq" => "paces what BBR sends (BBR paces by itself without it)",
        "tbf" => "the lab's rates",
        "netem" => "the lab's delays on this kernel",
        _ => "the lab's ECN marking on this kernel",
    };
    match command.status() {
        Ok(status) if status.success() => Check::ok(&name, "available", use_of),
        Ok(_) => Check::not(
            &name,
            CheckState::Degraded,
            "not available",
            &format!("without it: {use_of}"),
            &format!("modprobe sch_{kind}, where the kernel has it; root"),
        ),
        Err(error) => Check::not(
            &name,
            CheckState::Degraded,
            format!("cannot try: {error}"),
            use_of,
            "install iproute2, run as root",
        ),
    }
}

fn tool(name: &str, package: &str, use_of: &str) -> Check {
    let found = std::env::var_os("PATH")
        .iter()
        .flat_map(std::env::split_paths)
        .chain([
            Path::new("/usr/sbin").to_path_buf(),
            Path::new("/sbin").to_path_buf(),
        ])
        .map(|directory| directory.join(name))
        .find(|path| path.is_file());
    match found {
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
