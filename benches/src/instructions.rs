//! Thalweg's costs in instructions of the processor: numbers that depend neither on the machine nor
//! on its load. In QEMU's virtual time an instruction takes a nanosecond, so the kernel's own BPF
//! statistics count them. Every figure that is not a difference includes entering a program and
//! reading the clock for the statistics. What a megabyte costs is the time that the CPU was not idle.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};
use thalweg_guest::kernels;
use thalweg_guest::qemu;
use thalweg_lab::units::Size;

use crate::kernels::inside;
use crate::table::{Target, line, spread};
use crate::{cc, decisions, kernel, long, policy};

/// Rounds of connections: in virtual time a second round equals the first.
const ROUNDS: usize = 1;
/// Allowed growth of a cost over the file, percent.
const GROWTH_PERCENT: f64 = 3.0;
/// 50,000 hosts, the agent and its state, in a file system in memory.
const MEMORY: Size = Size::from_bytes(1500 << 20);
/// What a megabyte costs a whole machine, and how much more it may cost by the learned rate
/// controller.
const CUBIC: &str = "cubic: a megabyte through 1 Gbit/s, both ends";
const THALWEG_RL: &str = "thalweg_rl: a megabyte through 1 Gbit/s, both ends";
const MEGABYTE: f64 = 1.05;
/// Cost of a look, which is mostly code of the agent: a debug build takes more than twice as much.
const SOCKET: &str = "look: an open socket";
/// Start of the file.
const HEAD: &str = "\
# Instructions that each thing costs in the kernel, counted by `thalweg-bench instructions`.
# It fails where one costs 3 % more than here; `thalweg-bench instructions --write` writes the
# file anew. The numbers hold for this kernel and this version of QEMU.
";

/// The file `instructions.toml`.
#[derive(Serialize, Deserialize)]
struct Costs {
    /// Release of the kernel.
    kernel: String,
    /// QEMU's version.
    qemu: String,
    instructions: BTreeMap<String, u64>,
}

/// Change of a cost.
#[derive(Debug, PartialEq)]
struct Change<'a> {
    name: &'a str,
    count: u64,
    earlier: Option<u64>,
    /// Whether it grew too much.
    grown: bool,
}

/// Counts on a kernel in QEMU, and compares with the file, or writes it; returns whether none has
/// grown. The default kernel is the file's, or the newest. With another kernel or version of QEMU
/// than the file's, it only counts.
pub fn run(binary: &Path, asked: Option<&OsStr>, write: bool) -> Result<bool> {
    ensure!(
        !write || !cfg!(debug_assertions),
        "--write takes a release build: scripts/bench.sh instructions"
    );
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("instructions.toml");
    let place = || file.display().to_string();
    let text = fs::read_to_string(&file).with_context(place)?;
    let before: Costs = toml::from_str(&text).with_context(place)?;
    let stock = match asked {
        Some(_) => kernels::find_kernel(asked)?,
        None => kernels::find_kernel(Some(before.kernel.as_ref()))
            .or_else(|_| kernels::find_kernel(None))?,
    };
    let counted: BTreeMap<String, f64> = inside(&stock, binary, "count", cc::MODEL, &[], MEMORY)?;
    let costs = Costs {
        kernel: stock.name,
        qemu: qemu::qemu_version()?,
        instructions: counted
            .into_iter()
            .filter(|(name, _)| !cfg!(debug_assertions) || name != SOCKET)
            .map(|(name, count)| (name, count.round() as u64))
            .collect(),
    };
    let before = if write {
        let text = toml::to_string(&costs).context("the costs as TOML")?;
        fs::write(&file, format!("{HEAD}{text}")).with_context(place)?;
        &costs
    } else {
        &before
    };
    println!("{}, {}", costs.kernel, costs.qemu);
    let megabyte = costs.instructions[THALWEG_RL] as f64 / costs.instructions[CUBIC] as f64;
    let cheap = line(
        &format!("{THALWEG_RL} / cubic's"),
        "",
        &spread(&[megabyte]),
        &Target::AtMost(MEGABYTE),
    );
    let Some(changes) = costs.since(before) else {
        println!(
            "not compared: {} was counted on {}, {}",
            file.display(),
            before.kernel,
            before.qemu
        );
        for (name, count) in &costs.instructions {
            println!("{name:<85} {count:>6} instructions");
        }
        return Ok(cheap);
    };
    for change in &changes {
        let earlier = change.earlier.map_or("not".into(), |it| it.to_string());
        let verdict = if change.grown { "GREW" } else { "met" };
        println!(
            "{:<85} {:>6} instructions, {earlier:>6} in the file, \
             target ≤ +{GROWTH_PERCENT} % {verdict}",
            change.name, change.count
        );
    }
    Ok(cheap && !changes.iter().any(|change| change.grown))
}

impl Costs {
    /// Change of each cost; a new one counts as grown. None if the two counts are not comparable.
    fn since<'a>(&'a self, before: &Self) -> Option<Vec<Change<'a>>> {
        let alike = self.kernel == before.kernel && self.qemu == before.qemu;
        let change = |(name, &count): (&'a String, &u64)| {
            let earlier = before.instructions.get(name).copied();
            let most = earlier.map(|earlier| earlier as f64 * (1.0 + GROWTH_PERCENT / 100.0));
            let grown = most.is_none_or(|most| count as f64 > most);
            Change {
                name,
                count,
                earlier,
                grown,
            }
        };
        alike.then(|| self.instructions.iter().map(change).collect())
    }
}

/// Each cost on this kernel, ns, by name.
pub fn measure(binary: &Path, model: &Path) -> Result<BTreeMap<String, f64>> {
    let connections = kernel::measure(binary, ROUNDS)?;
    let of = |us: &[f64]| spread(us).median * 1000.0;
    let timers = kernel::with_timers(binary)?;
    let (none, one) = policy::lookup(binary)?;
    let looks = long::measure(binary, long::FEW)?;
    let (acknowledgement, decision) = cc::learned(binary, model)?;
    let [cubic, thalweg_rl] = cc::megabyte(binary, model)?;
    let mut costs = decisions::measure(binary)?.instructions;
    let others = [
        ("establishment", of(&connections.established_us)),
        ("close", of(&connections.closed_us)),
        ("establishment, with timers", of(&timers.established_us)),
        ("close, with timers", of(&timers.closed_us)),
        (
            "establishment: a new host of a known network",
            of(&kernel::new_hosts(binary, true)?.established_us),
        ),
        (
            "establishment: a new host, without networks",
            of(&kernel::new_hosts(binary, false)?.established_us),
        ),
        ("retransmission", kernel::retransmission(binary)?),
        ("policy: no rule of 10,000 matches", none),
        ("policy: one of 10,001 rules sets an option", one),
        (SOCKET, looks.socket_ns),
        ("look: a stretch that is scored", looks.stretch_ns),
        ("thalweg_rl: an acknowledgement", acknowledgement),
        ("thalweg_rl: a decision", decision),
        (CUBIC, cubic),
        (THALWEG_RL, thalweg_rl),
    ];
    costs.extend(others.map(|(name, count)| (name.into(), count)));
    Ok(costs)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn costs(kernel: &str, counts: &[(&str, u64)]) -> Costs {
        let counts = counts.iter().map(|(name, count)| ((*name).into(), *count));
        Costs {
            kernel: kernel.into(),
            qemu: "7.2".into(),
            instructions: counts.collect(),
        }
    }

    #[test]
    fn growth_is_told() {
        let before = costs("6.12.1", &[("close", 1000), ("packet", 1000)]);
        let now = costs("6.12.1", &[("close", 1030), ("new", 1), ("packet", 1031)]);
        let changes = now.since(&before).unwrap();
        let told: Vec<_> = changes.iter().map(|it| (it.name, it.grown)).collect();
        assert_eq!(told, [("close", false), ("new", true), ("packet", true)]);
        assert!(costs("6.12.2", &[]).since(&before).is_none());
    }
}
