//! What congestion controls in BPF cost: kernel time of each call, and goodput on a path that
//! only the CPU limits, against the kernel's own reno. Of the learned rate controller also the
//! time of one decision.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use libbpf_rs::query::ProgInfoIter;
use thalweg_lab::host::{Pair, Side};

use crate::bed;
use crate::kernel::enable_statistics;
use crate::table::{Target, line, spread};

const ROUNDS: usize = 9;
/// Data of one round, bytes.
const BYTES: &str = "500000000";
/// What is loaded, and what its programs' names begin with. The model lies in the sources.
const CONTROLS: [(&str, &str); 3] = [
    ("htcp", "htcp"),
    ("dctcp", "dctcp"),
    (
        concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/../models/proportional.safetensors"
        ),
        "rate",
    ),
];
/// Callbacks that may take longer: this one decides, at most once in a round trip.
const DECIDES: &str = "rate_control";

/// Loaded under names of this process.
struct Loaded {
    binary: PathBuf,
    pin: PathBuf,
    directory: tempfile::TempDir,
}

impl Loaded {
    fn new(binary: &Path) -> Result<Self> {
        let directory = tempfile::tempdir()?;
        let pin = PathBuf::from(format!(
            "/sys/fs/bpf/thalweg-bench-{}-cc",
            std::process::id()
        ));
        fs::write(
            directory.path().join("agent.toml"),
            format!("[paths]\npin = {pin:?}\n"),
        )?;
        let loaded = Self {
            binary: binary.to_owned(),
            pin,
            directory,
        };
        for (what, program) in CONTROLS {
            let output = Command::new(&loaded.binary)
                .arg("--config")
                .arg(loaded.directory.path().join("agent.toml"))
                .args(["cc", "load", what, "--name", &name(program)])
                .output()
                .with_context(|| format!("running {}", loaded.binary.display()))?;
            if !output.status.success() {
                bail!("{}", String::from_utf8_lossy(&output.stderr));
            }
        }
        Ok(loaded)
    }
}

impl Drop for Loaded {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir_all(&self.pin) {
            eprintln!("could not remove {}: {error}", self.pin.display());
        }
    }
}

fn name(program: &str) -> String {
    format!("{}_{}", &program[..1], std::process::id())
}

/// Time (ns) and calls of each program of a congestion control, by the program's name.
fn calls(program: &str) -> BTreeMap<String, (u64, u64)> {
    ProgInfoIter::default()
        .filter_map(|info| {
            let name = info.name.to_string_lossy().into_owned();
            let ours = name.starts_with(&format!("{program}_"));
            ours.then_some((name, (info.run_time_ns, info.run_cnt)))
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
while connection.recv(1 << 20):
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
fn transfer(pair: &Pair, control: &str) -> Result<f64> {
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
        .arg(pair.address(Side::Server).to_string())
        .args([control, BYTES])
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
    let _loaded = Loaded::new(binary)?;
    let mut met = true;
    for (_, program) in CONTROLS {
        let control = name(program);
        let statistics = enable_statistics()?;
        let mut costs: BTreeMap<String, Vec<f64>> = BTreeMap::new();
        for _ in 0..ROUNDS {
            let before = calls(program);
            transfer(&pair, &control)?;
            for (name, (time_ns, count)) in calls(program) {
                let (earlier_ns, earlier) = before.get(&name).copied().unwrap_or_default();
                if count - earlier >= 100 {
                    let cost = (time_ns - earlier_ns) as f64 / (count - earlier) as f64;
                    costs.entry(name).or_default().push(cost);
                }
            }
        }
        for (name, costs) in costs {
            let most = if name == DECIDES { 700.0 } else { 300.0 };
            let name = format!("{program}: per call of {name}, measurement included");
            met &= line(&name, "ns", &spread(&costs), &Target::AtMost(most));
        }
        drop(statistics);
        let mut ratios = Vec::new();
        for round in 0..=ROUNDS {
            // Turn about, so that neither always comes first; the first round warms caches up.
            let (ours, reno) = if round % 2 == 0 {
                let ours = transfer(&pair, &control)?;
                (ours, transfer(&pair, "reno")?)
            } else {
                let reno = transfer(&pair, "reno")?;
                (transfer(&pair, &control)?, reno)
            };
            if round > 0 {
                ratios.push(ours / reno);
            }
        }
        met &= line(
            &format!("{program}: goodput without a limit / reno's"),
            "",
            &spread(&ratios),
            &Target::AtLeast(0.9),
        );
    }
    Ok(met)
}
