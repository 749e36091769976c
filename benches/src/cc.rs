//! Costs of congestion controls in BPF: kernel time per call, and goodput on a path that only the
//! CPU limits, against the kernel's own reno. bbr, which paces as the learned rate controller does,
//! is beside them. The learned rate controller has two more figures: the time of one decision, and
//! a flow's goodput and CPU through 1 Gbit/s against cubic's.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Error, Result, bail};
use libbpf_rs::query::ProgInfoIter;
use thalweg_lab::host::{Pair, Side};
use thalweg_rate::Measurement;
use thalweg_rate::models::ModelFile;
use thalweg_tests::LoadError;
use thalweg_tests::network::Runner;

use crate::bed;
use crate::busy::busy;
use crate::kernel::enable_statistics;
use crate::table::{Spread, Target, line, spread};

const ROUNDS: usize = 9;
/// Data of one round, bytes.
const BYTES: &str = "500000000";
/// Loaded congestion controls, and the prefixes of their programs' names.
const CONTROLS: [(&str, &str); 3] = [("htcp", "htcp"), ("dctcp", "dctcp"), (MODEL, "rate")];
/// The model of the learned rate controller: the default.
pub const MODEL: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../models/adpg-plus.safetensors"
);
/// Data of a round through 1 Gbit/s, bytes: more than three seconds.
const SHAPED_BYTES: &str = "400000000";
/// Data of `megabyte`: the kernel counts idle time in units of 10 ms.
const MEGABYTES: usize = 800;
/// Decisions of a round.
const DECISIONS: u32 = 20_000;
/// The program that only makes decisions (bpf/network_vectors.bpf.c).
const DECIDES: &str = "network_vector";
/// The program that runs for an ACK (bpf/rate.bpf.c), and the data acknowledged in `learned`,
/// bytes.
const ACKNOWLEDGED: &str = "rate_control";
const LEARNED_BYTES: usize = 60_000_000;

/// Congestion controls loaded under names of this process.
pub struct Loaded {
    binary: PathBuf,
    pin: PathBuf,
    directory: tempfile::TempDir,
    /// Ids of their programs: other programs on this machine may have the same names.
    programs: BTreeSet<u32>,
}

impl Loaded {
    /// Loads congestion controls, given as for `thalweg cc load` with the prefixes of their
    /// programs' names.
    pub fn new(binary: &Path, controls: &[(&str, &str)]) -> Result<Self> {
        let directory = tempfile::tempdir()?;
        let pin = PathBuf::from(format!(
            "/sys/fs/bpf/thalweg-bench-{}-cc",
            std::process::id()
        ));
        fs::write(
            directory.path().join("agent.toml"),
            format!("[paths]\npin = {pin:?}\n"),
        )?;
        let before: BTreeSet<u32> = ProgInfoIter::default().map(|info| info.id).collect();
        let mut loaded = Self {
            binary: binary.to_owned(),
            pin,
            directory,
            programs: BTreeSet::new(),
        };
        for (what, program) in controls {
            let output = Command::new(&loaded.binary)
                .arg("--config")
                .arg(loaded.directory.path().join("agent.toml"))
                .args(["cc", "load", what, "--name", &name(program)])
                .output()
                .with_context(|| format!("running {}", loaded.binary.display()))?;
            if !output.status.success() {
                let said = String::from_utf8_lossy(&output.stderr);
                let faults = said.lines().filter(|line| !line.starts_with("warning: "));
                bail!("{}", faults.collect::<Vec<_>>().join("\n"));
            }
        }
        let after = ProgInfoIter::default().map(|info| info.id);
        loaded.programs = after.filter(|id| !before.contains(id)).collect();
        Ok(loaded)
    }
}

impl Drop for Loaded {
    fn drop(&mut self) {
        // If the first was refused, there is none.
        if let Err(error) = fs::remove_dir_all(&self.pin)
            && error.kind() != std::io::ErrorKind::NotFound
        {
            eprintln!("could not remove {}: {error}", self.pin.display());
        }
    }
}

/// The name of a congestion control here.
pub fn name(program: &str) -> String {
    format!("{}_{}", &program[..1], std::process::id())
}

/// Time (ns) and calls of each wanted program, by its name.
fn calls(wanted: impl Fn(u32, &str) -> bool) -> BTreeMap<String, (u64, u64)> {
    ProgInfoIter::default()
        .filter_map(|info| {
            let name = info.name.to_string_lossy().into_owned();
            wanted(info.id, &name).then_some((name, (info.run_time_ns, info.run_cnt)))
        })
        .collect()
}

/// Reads one connection to its end. Argument: congestion control.
const SINK: &str = r#"
import socket, sys
listener = socket.socket()
listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
listener.setsockopt(socket.IPPROTO_TCP, 13, sys.argv[1].encode())
listener.bind(("0.0.0.0", 5001))
listener.listen()
print("listening")
connection = listener.accept()[0]
# Into one buffer: a new one each time may cost more in page faults than all of TCP.
buffer = bytearray(1 << 20)
while connection.recv_into(buffer):
    pass
"#;

/// Sends and prints bits per second. Arguments: address, congestion control, bytes.
const SEND: &str = r#"
import socket, sys, time
connection = socket.socket()
connection.setsockopt(socket.IPPROTO_TCP, 13, sys.argv[2].encode())
connection.connect((sys.argv[1], 5001))
name = connection.getsockopt(socket.IPPROTO_TCP, 13, 16).rstrip(b"\0").decode()
assert name == sys.argv[2], name
chunk, left = bytes(1 << 20), int(sys.argv[3])
begin = time.monotonic()
while left > 0:
    connection.sendall(chunk)
    left -= len(chunk)
connection.shutdown(socket.SHUT_WR)
connection.recv(1)
print(int(sys.argv[3]) * 8 / (time.monotonic() - begin))
"#;

/// Bits per second of one transfer; both ends have the congestion control.
fn transfer(pair: &Pair, control: &str, bytes: &str) -> Result<f64> {
    let mut server = pair
        .command_in(Side::Server, "python3")?
        .args(["-u", "-c", SINK, control])
        .stdout(Stdio::piped())
        .spawn()?;
    let mut said = String::new();
    BufReader::new(server.stdout.take().context("piped")?).read_line(&mut said)?;
    let output = pair
        .command_in(Side::Client, "python3")?
        .args(["-c", SEND])
        .arg(pair.first_address(Side::Server).to_string())
        .args([control, bytes])
        .output()?;
    if !output.status.success() {
        server.kill()?;
    }
    server.wait()?;
    let said = String::from_utf8(output.stdout)?;
    said.trim()
        .parse()
        .with_context(|| format!("{control}: {}", String::from_utf8_lossy(&output.stderr)))
}

/// Runs the measurement; returns whether all targets are met.
pub fn run(binary: &Path) -> Result<bool> {
    let pair = bed::pair("cc")?;
    let loaded = Loaded::new(binary, &CONTROLS)?;
    let mut met = true;
    for (_, program) in CONTROLS {
        let control = name(program);
        let begin = format!("{program}_");
        let wanted = |id, name: &str| loaded.programs.contains(&id) && name.starts_with(&begin);
        let statistics = enable_statistics()?;
        let mut costs: BTreeMap<String, Vec<f64>> = BTreeMap::new();
        for _ in 0..ROUNDS {
            let before = calls(wanted);
            transfer(&pair, &control, BYTES)?;
            for (name, (time_ns, count)) in calls(wanted) {
                let (earlier_ns, earlier) = before.get(&name).copied().unwrap_or_default();
                if count - earlier >= 100 {
                    let cost = (time_ns - earlier_ns) as f64 / (count - earlier) as f64;
                    costs.entry(name).or_default().push(cost);
                }
            }
        }
        for (name, costs) in costs {
            let name = format!("{program}: per call of {name}, measurement included");
            met &= line(&name, "ns", &spread(&costs), &Target::AtMost(300.0));
        }
        drop(statistics);
        let ratios = by_turns(&control, "reno", |control| transfer(&pair, control, BYTES))?;
        met &= line(
            &format!("{program}: goodput without a limit / reno's"),
            "",
            &spread(&ratios),
            &Target::AtLeast(0.9),
        );
    }
    let offered = thalweg_lab::host::available_congestion_controls()?;
    let has_bbr = offered.iter().any(|name| name == "bbr");
    if has_bbr {
        let ratios = by_turns("bbr", "reno", |control| transfer(&pair, control, BYTES))?;
        note(
            "bbr, the kernel's: goodput without a limit / reno's",
            &ratios,
        );
    }
    let name = "rate: per decision alone, measurement included";
    let alone = decisions(Path::new(MODEL), ROUNDS)?;
    met &= line(name, "ns", &spread(&alone), &Target::AtMost(700.0));
    met &= shaped(&self::name("rate"), has_bbr)?;
    Ok(met)
}

/// Measures both in turn, with alternating order, and returns the ratios of the rounds. The first
/// round warms caches up.
fn by_turns(
    ours: &str,
    other: &str,
    mut measure: impl FnMut(&str) -> Result<f64>,
) -> Result<Vec<f64>> {
    let mut ratios = Vec::new();
    for round in 0..=ROUNDS {
        let (mine, theirs) = if round % 2 == 0 {
            let mine = measure(ours)?;
            (mine, measure(other)?)
        } else {
            let theirs = measure(other)?;
            (measure(ours)?, theirs)
        };
        if round > 0 {
            ratios.push(mine / theirs);
        }
    }
    Ok(ratios)
}

/// A figure without a target.
fn note(name: &str, values: &[f64]) {
    let Spread {
        median,
        low,
        high,
        count,
    } = spread(values);
    println!("{name:<68} {median:>9.3}          [{low:.3} … {high:.3}] n={count}");
}

/// Kernel time, ns, of an ACK in the learned rate controller, decisions included, and of a decision
/// alone.
pub fn learned(binary: &Path, model: &Path) -> Result<(f64, f64)> {
    let mut options = bed::options("learned");
    options.path.rate = Some("100mbit".parse().map_err(Error::msg)?);
    options.path.queue = Some("200kb".parse().map_err(Error::msg)?);
    let pair = Pair::new(&options)?;
    let file = model.to_str().context("the model's path is not text")?;
    let _loaded = Loaded::new(binary, &[(file, "rate")])?;
    let control = name("rate");
    let statistics = enable_statistics()?;
    let acknowledged = per_run(ACKNOWLEDGED, || {
        bed::transfer(&pair, LEARNED_BYTES, Some(&control))
    })?;
    drop(statistics);
    let alone = decisions(model, 1)?;
    Ok((acknowledged, spread(&alone).median))
}

/// CPU time, ns, of a megabyte by cubic and by the learned rate controller: all that the machine
/// does for both ends, through 1 Gbit/s, a round trip of 2 ms, and 2 MB of queue.
pub fn megabyte(binary: &Path, model: &Path) -> Result<[f64; 2]> {
    let mut options = bed::options("megabyte");
    options.path.rate = Some("1gbit".parse().map_err(Error::msg)?);
    options.path.queue = Some("2mb".parse().map_err(Error::msg)?);
    options.path.delay = "1ms".parse().map_err(Error::msg)?;
    let pair = Pair::new(&options)?;
    let file = model.to_str().context("the model's path is not text")?;
    let _loaded = Loaded::new(binary, &[(file, "rate")])?;
    let cost = |control: &str| -> Result<f64> {
        let (seconds, ()) = busy(|| bed::transfer(&pair, MEGABYTES * 1_000_000, Some(control)))?;
        Ok(seconds * 1e9 / MEGABYTES as f64)
    };
    Ok([cost("cubic")?, cost(&name("rate"))?])
}

/// Kernel time, ns, of one run of the programs with a name during `work`.
pub fn per_run(program: &str, work: impl FnOnce() -> Result<()>) -> Result<f64> {
    let so_far = || calls(|_, name| name == program).remove(program);
    let before = so_far().with_context(|| format!("no program {program}"))?;
    work()?;
    let after = so_far().with_context(|| format!("no program {program}"))?;
    let runs = after.1 - before.1;
    if runs < 100 {
        bail!("{program} ran {runs} times, expected some thousand");
    }
    Ok((after.0 - before.0) as f64 / runs as f64)
}

/// Kernel time of a decision alone, ns, one value per round. A program that does nothing else calls
/// the congestion control's header.
fn decisions(model: &Path, rounds: usize) -> Result<Vec<f64>> {
    let read = ModelFile::read(model)?;
    let model = read
        .policy
        .integer_model()
        .context("the model has no integers")?;
    let mut runner = match thalweg_tests::network::kernel() {
        Ok(runner) => runner,
        Err(LoadError::Privilege(why) | LoadError::Refused(why)) => bail!("{why}"),
    };
    runner.begin(model).map_err(Error::msg)?;
    let _statistics = enable_statistics()?;
    let mut round = || {
        for step in 0..u64::from(DECISIONS) {
            // Queues of 0 to 4 ms and rates of 1 Mbit/s to 8 Gbit/s, in random order.
            let mixed = step.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 20;
            let measurement = Measurement {
                rtt_ns: 2_000_000 + mixed % 4_000_000,
                base_rtt_ns: 2_000_000,
                rate: 125_000 + mixed % 1_000_000_000,
                line_rate: 1_250_000_000,
            };
            let step = runner.step(measurement, 25_000, 1 << 39);
            step.map_err(Error::msg)?;
        }
        Ok(())
    };
    (0..rounds).map(|_| per_run(DECIDES, &mut round)).collect()
}

/// Goodput and CPU of a flow through 1 Gbit/s with 2 MB of queue, against cubic's.
fn shaped(control: &str, with_bbr: bool) -> Result<bool> {
    let mut options = bed::options("cc-shaped");
    options.path.rate = Some("1gbit".parse().map_err(Error::msg)?);
    options.path.queue = Some("2mb".parse().map_err(Error::msg)?);
    let pair = Pair::new(&options)?;
    let (goodput, cpu) = against_cubic(&pair, control)?;
    let name = "rate: goodput through 1 Gbit/s / cubic's";
    let mut met = line(name, "", &spread(&goodput), &Target::AtLeast(0.98));
    let name = "rate: CPU for the same data, all that the machine does / cubic's";
    met &= line(name, "", &spread(&cpu), &Target::AtMost(1.05));
    if with_bbr {
        let (_, cpu) = against_cubic(&pair, "bbr")?;
        note("bbr, the kernel's: the same CPU / cubic's", &cpu);
    }
    Ok(met)
}

/// Goodput and CPU of transfers, as ratios to cubic's in the adjacent round.
fn against_cubic(pair: &Pair, control: &str) -> Result<(Vec<f64>, Vec<f64>)> {
    let goodput = by_turns(control, "cubic", |control| {
        transfer(pair, control, SHAPED_BYTES)
    })?;
    let cpu = by_turns(control, "cubic", |control| {
        Ok(busy(|| transfer(pair, control, SHAPED_BYTES))?.0)
    })?;
    Ok((goodput, cpu))
}
