//! Costs of a policy: kernel time of a connection, connection rate, memory, time to apply.

use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result, bail};
use serde_json::Value;
use thalweg_lab::host::Pair;

use crate::bed;
use crate::kernel::{enable_statistics, run_time};
use crate::rate::{Lane, in_turn};
use crate::table::{Target, line, spread};

/// Prefixes of the policy, each a rule.
const PREFIXES: u32 = 10_000;
const ROUNDS: usize = 20;
/// A setting without any work per connection.
const NOTHING: &str = "save_syn = true";
/// A setting at establishment.
const OPTION: &str = "cwnd_clamp = 1000";

/// Policies in the kernel, set by the command line, on a pair's cgroup.
pub struct Policies {
    binary: PathBuf,
    pin: PathBuf,
    directory: tempfile::TempDir,
}

impl Policies {
    /// Without a policy.
    pub fn new(binary: &Path, pair: &Pair) -> Result<Self> {
        let directory = tempfile::tempdir()?;
        let pin = PathBuf::from(format!(
            "/sys/fs/bpf/thalweg-bench-{}-policy",
            std::process::id()
        ));
        fs::write(
            directory.path().join("agent.toml"),
            format!(
                "cgroup = {:?}\n[paths]\npin = {pin:?}\nstate = {:?}\n",
                pair.cgroup_path(),
                directory.path().join("state")
            ),
        )?;
        Ok(Self {
            binary: binary.to_owned(),
            pin,
            directory,
        })
    }

    /// The output of `thalweg --json policy ARGUMENTS`.
    pub fn thalweg(&self, arguments: &[&str]) -> Result<Value> {
        let output = Command::new(&self.binary)
            .arg("--config")
            .arg(self.directory.path().join("agent.toml"))
            .args(["--json", "policy"])
            .args(arguments)
            .output()
            .with_context(|| format!("running {}", self.binary.display()))?;
        if !output.status.success() {
            bail!("{}", String::from_utf8_lossy(&output.stderr).trim_end());
        }
        Ok(serde_json::from_slice(&output.stdout)?)
    }

    /// Puts a policy in force; returns the duration, ms, and the memory of its tables, MB.
    fn apply(&self, policy: &str) -> Result<(f64, f64)> {
        let started = Instant::now();
        let said = self.put(policy, &[])?;
        let took = started.elapsed().as_secs_f64() * 1e3;
        let bytes = said["map_bytes"].as_f64().context("no map_bytes")?;
        Ok((took, bytes / 1e6))
    }

    /// Puts a policy in force with options of `thalweg policy apply`, and returns the output.
    pub fn put(&self, policy: &str, options: &[&str]) -> Result<Value> {
        let file = self.directory.path().join("policy.toml");
        fs::write(&file, policy)?;
        let file = file.to_str().context("the path is not text")?;
        self.thalweg(&[&["apply", file], options].concat())
    }

    /// Kernel time, ns per end of a connection, over some rounds of a lane.
    fn cost(&self, lane: &mut Lane, rounds: usize) -> Result<Vec<f64>> {
        let link = self.pin.join("policy/link");
        lane.round()?;
        (0..rounds)
            .map(|_| {
                let before = run_time(&link)?;
                let connections = lane.connections()?;
                let after = run_time(&link)?;
                Ok((after.0 - before.0) as f64 / (2.0 * connections))
            })
            .collect()
    }
}

impl Drop for Policies {
    fn drop(&mut self) {
        if let Err(error) = self.thalweg(&["remove"]) {
            eprintln!("could not remove {}: {error:#}", self.pin.display());
        }
    }
}

/// A policy of [`PREFIXES`] rules that set `set`, optionally with one for the hosts of a pair.
fn policy(set: &str, own: bool) -> Result<String> {
    rules(PREFIXES, set, own)
}

/// A policy with this number of rules.
fn rules(prefixes: u32, set: &str, own: bool) -> Result<String> {
    let mut text = "name = \"bench\"\n".to_owned();
    for index in 0..prefixes {
        let prefix = format!("172.{}.{}.0/24", 16 + index / 256, index % 256);
        writeln!(
            text,
            "[[rule]]\nname = \"r{index}\"\nmatch.remote = {prefix:?}\nset = {{ {set} }}"
        )?;
    }
    if own {
        writeln!(
            text,
            "[[rule]]\nname = \"own\"\nmatch.remote = \"10.0.0.0/24\"\nset = {{ {set} }}"
        )?;
    }
    Ok(text)
}

/// Kernel time, ns per end of a connection, if none of 10,000 rules matches, and if one matches and
/// sets an option.
pub fn lookup(binary: &Path) -> Result<(f64, f64)> {
    let pair = bed::pair("lookup")?;
    let policies = Policies::new(binary, &pair)?;
    let _statistics = enable_statistics()?;
    let mut lane = Lane::new(&pair, pair.cgroup_path())?;
    let mut cost = |policy: Result<String>| -> Result<f64> {
        policies.apply(&policy?)?;
        Ok(spread(&policies.cost(&mut lane, 1)?).median)
    };
    let idle = cost(rules(0, NOTHING, true))?;
    let none = cost(policy(OPTION, false))?;
    let one = cost(policy(OPTION, true))?;
    Ok((none - idle, one - idle))
}

/// Runs the measurement; returns whether all targets are met.
pub fn run(binary: &Path) -> Result<bool> {
    let with = bed::pair("with")?;
    let without = bed::pair("without")?;
    let policies = Policies::new(binary, &with)?;
    let established = OPTION;
    let whole = "cwnd_clamp = 1000, rwnd_init = 40, sndbuf = \"1MB\", timeout_init = \"50ms\"";

    let mut met = applying(&policies, established)?;

    let statistics = enable_statistics()?;
    let mut lane = Lane::new(&with, with.cgroup_path())?;
    // Every figure includes entering the program and reading the clock for the statistics, at each
    // of three or four hooks. A policy without rules for connections shows that cost alone.
    policies.apply(&policy(NOTHING, true)?)?;
    let idle = policies.cost(&mut lane, ROUNDS)?;
    let floor = spread(&idle).median;
    met &= line(
        "ns per end of a connection, nothing to do: entry and measurement",
        "ns",
        &spread(&idle),
        &Target::AtMost(500.0),
    );
    for (name, set, own, most) in [
        ("no rule matches", established, false, 200.0),
        (
            "a rule sets one option when established",
            established,
            true,
            500.0,
        ),
        (
            "no rule matches, all stages looked at",
            whole,
            false,
            1000.0,
        ),
        (
            "a rule gives two answers, sets two options",
            whole,
            true,
            2000.0,
        ),
    ] {
        policies.apply(&policy(set, own)?)?;
        let cost: Vec<f64> = policies
            .cost(&mut lane, ROUNDS)?
            .iter()
            .map(|cost| cost - floor)
            .collect();
        let name = format!("above that: {name}");
        met &= line(&name, "ns", &spread(&cost), &Target::AtMost(most));
    }
    drop((lane, statistics));

    policies.apply(&policy(established, true)?)?;
    let mut with = Lane::new(&with, with.cgroup_path())?;
    let mut without = Lane::new(&without, without.cgroup_path())?;
    Ok(met & connections(&mut with, &mut without)?)
}

/// Costs of applying a policy; returns whether the targets are met.
fn applying(policies: &Policies, established: &str) -> Result<bool> {
    let mut took = Vec::new();
    let mut megabytes = Vec::new();
    for _ in 0..10 {
        let (ms, mb) = policies.apply(&policy(established, true)?)?;
        took.push(ms);
        megabytes.push(mb);
    }
    let met = line(
        "apply 10,000 rules, the whole command",
        "ms",
        &spread(&took),
        &Target::AtMost(1000.0),
    );
    Ok(met
        & line(
            "its tables in the kernel",
            "MB",
            &spread(&megabytes),
            &Target::AtMost(16.0),
        ))
}

/// Connections a second with a policy and without, in turn; returns whether the target is met.
fn connections(with: &mut Lane, without: &mut Lane) -> Result<bool> {
    let rounds = in_turn(2 * ROUNDS, with, without)?;
    let ratios: Vec<f64> = rounds.iter().map(|(fast, slow)| fast / slow).collect();
    Ok(line(
        "connections/s with the policy at both ends / without",
        "",
        &spread(&ratios),
        &Target::AtLeast(0.98),
    ))
}
