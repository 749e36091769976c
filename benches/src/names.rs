//! Costs of a table of named networks: time to load, memory of the agent and of the kernel.

use std::collections::HashSet;
use std::fmt::Write as _;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::Path;
use std::time::Instant;

use anyhow::{Context, Result};
use thalweg_units::random::Random;

use crate::bed::{self, Agent};
use crate::table::{Target, line, spread};

/// Prefixes of each family, and their networks: about the Internet's.
const IPV4: usize = 1_000_000;
const IPV6: usize = 250_000;
const NETWORKS: u64 = 80_000;
const ROUNDS: usize = 3;

/// Runs the measurement; returns whether the targets are met.
pub fn run(binary: &Path) -> Result<bool> {
    let pair = bed::pair("names")?;
    let directory = tempfile::tempdir()?;
    let file = directory.path().join("networks.txt");
    let text = table();
    std::fs::write(&file, &text)?;
    println!(
        "{} prefixes, {:.0} MB of text",
        IPV4 + IPV6,
        text.len() as f64 / 1e6
    );

    let agent = Agent::start(binary, &pair, "names")?;
    let (mut seconds, mut without) = (Vec::new(), Vec::new());
    let figures = |agent: &Agent| -> Result<[f64; 2]> {
        let figure = |name: &str| anyhow::Ok(agent.figure(name)? as f64 / (1 << 20) as f64);
        // The kernel's own account leaves out nodes between prefixes.
        Ok([figure("/resident_bytes")?, slab()?])
    };
    let before = figures(&agent)?;
    let mut after = before;
    for _ in 0..ROUNDS {
        agent.configure(&format!("[networks]\ntable = {file:?}\n"))?;
        seconds.push(reload(&agent)?);
        after = figures(&agent)?;
        agent.configure("")?;
        without.push(reload(&agent)?);
    }
    let mut met = true;
    for (name, unit, values, most) in [
        ("a reload with the table", "s", &seconds[..], 10.0),
        ("a reload without it", "s", &without[..], 5.0),
        (
            "memory of the agent, more",
            "MiB",
            &[after[0] - before[0]],
            100.0,
        ),
        (
            "memory of the kernel, more",
            "MiB",
            &[after[1] - before[1]],
            250.0,
        ),
    ] {
        met &= line(name, unit, &spread(values), &Target::AtMost(most));
    }
    Ok(met)
}

/// The kernel's small allocations, MiB.
fn slab() -> Result<f64> {
    let text = std::fs::read_to_string("/proc/meminfo")?;
    let line = text.lines().find(|line| line.starts_with("Slab:"));
    let number = line.and_then(|line| line.split_whitespace().nth(1));
    let kib: f64 = number.context("no Slab in /proc/meminfo")?.parse()?;
    Ok(kib / 1024.0)
}

/// Time until a new configuration is in force, seconds.
fn reload(agent: &Agent) -> Result<f64> {
    let began = Instant::now();
    agent.command(&["reload"])?;
    Ok(began.elapsed().as_secs_f64())
}

/// Prefixes each once, with lengths as in the Internet's tables: half are /24 or /48.
fn table() -> String {
    let mut random = Random::new(1);
    let mut known = HashSet::new();
    let mut text = String::new();
    while known.len() < IPV4 + IPV6 {
        let shorter = (random.u64().trailing_zeros() % 9) as u8;
        let (address, length): (IpAddr, u8) = if known.len() < IPV4 {
            let length = 24 - shorter;
            let bits = random.u64() as u32 & u32::MAX << (32 - length);
            (Ipv4Addr::from(bits).into(), length)
        } else {
            let length = 48 - shorter;
            let bits = u128::from(random.u64()) << 64 & u128::MAX << (128 - length);
            (Ipv6Addr::from(bits).into(), length)
        };
        if known.insert((address, length)) {
            let network = random.below(NETWORKS);
            let _ = writeln!(text, "{address}/{length} AS{network}");
        }
    }
    text
}
