//! What `thalweg limit` lets through, set against what was asked for.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;
use thalweg_lab::host::{Pair, Side};

use crate::bed;
use crate::table::{Target, line, spread};

const ROUNDS: usize = 5;
/// The rate on the wire may be this much off, either way.
const ERROR_PERCENT: f64 = 3.0;
/// A mean round trip may be no longer, in ms: without any limit it is some 0.1 ms.
const RTT_MS: f64 = 5.0;
/// Bytes of an IPv4 packet for each byte of payload: 1500 for 1448, with timestamps.
const WIRE: f64 = 1500.0 / 1448.0;

/// Runs the measurement; returns whether all targets are met.
pub fn run(binary: &Path) -> Result<bool> {
    let mut met = true;
    for (rate, mbps) in [("100mbit", 100.0), ("1gbit", 1000.0)] {
        for congestion_control in ["cubic", "bbr"] {
            for flows in [1, 4] {
                let rounds = (0..ROUNDS)
                    .map(|_| round(binary, rate, congestion_control, flows, &[]))
                    .collect::<Result<Vec<_>>>()?;
                met &= report(
                    &format!("{rate}, {congestion_control}, flows: {flows}"),
                    mbps,
                    &rounds,
                );
            }
        }
    }
    for congestion_control in ["cubic", "bbr"] {
        let rounds = (0..ROUNDS)
            .map(|_| round(binary, "100mbit", congestion_control, 1, &["--no-pacing"]))
            .collect::<Result<Vec<_>>>()?;
        // For comparison: no target.
        let rates: Vec<f64> = rounds.iter().map(|round| round.mbps).collect();
        let rates = spread(&rates);
        println!(
            "100mbit, {congestion_control}, flows: 1, --no-pacing: {:.1} Mbit/s [{:.1} … {:.1}]",
            rates.median, rates.low, rates.high
        );
    }
    Ok(met)
}

struct Round {
    mbps: f64,
    rtt_ms: f64,
}

/// The rate as it is, its error, and the round trip.
fn report(name: &str, mbps: f64, rounds: &[Round]) -> bool {
    let rates: Vec<f64> = rounds.iter().map(|round| round.mbps).collect();
    let rates = spread(&rates);
    let error = |rate: f64| (rate / mbps - 1.0) * 100.0;
    let errors: Vec<f64> = rounds.iter().map(|round| error(round.mbps).abs()).collect();
    println!(
        "{name}: wire rate {:.2} Mbit/s [{:.2} … {:.2}], {:+.2} %",
        rates.median,
        rates.low,
        rates.high,
        error(rates.median)
    );
    let mut met = line(
        &format!("{name}: error, either way"),
        "%",
        &spread(&errors),
        &Target::AtMost(ERROR_PERCENT),
    );
    let rtts: Vec<f64> = rounds.iter().map(|round| round.rtt_ms).collect();
    met &= line(
        &format!("{name}: mean round trip"),
        "ms",
        &spread(&rtts),
        &Target::AtMost(RTT_MS),
    );
    met
}

/// Four seconds of iperf3 after one that does not count, in fresh namespaces.
fn round(
    binary: &Path,
    rate: &str,
    congestion_control: &str,
    flows: u32,
    options: &[&str],
) -> Result<Round> {
    let pair = bed::pair("limit")?;
    let limit = Limit::set(binary, &pair, rate, options)?;
    let mut server = pair
        .command_in(Side::Server, "iperf3")?
        .args(["-s", "-1"])
        .stdout(Stdio::null())
        .spawn()
        .context("starting iperf3")?;
    std::thread::sleep(Duration::from_millis(300));
    let output = pair
        .command_in(Side::Client, "iperf3")?
        .arg("-c")
        .arg(pair.address(Side::Server).to_string())
        .args(["-J", "-O", "1", "-t", "4", "-C", congestion_control, "-P"])
        .arg(flows.to_string())
        .output()
        .context("running iperf3")?;
    // It ends by itself after its client; if there was none, it must not stay.
    let _ = server.kill();
    let _ = server.wait();
    drop(limit);
    let measured: Value = serde_json::from_slice(&output.stdout).context("iperf3's answer")?;
    let goodput = measured
        .pointer("/end/sum_received/bits_per_second")
        .and_then(Value::as_f64);
    let Some(goodput) = goodput else {
        bail!("iperf3: {}", measured["error"]);
    };
    let streams = measured["end"]["streams"]
        .as_array()
        .context("no streams")?;
    let rtts_us: Vec<f64> = streams
        .iter()
        .filter_map(|stream| stream.pointer("/sender/mean_rtt")?.as_f64())
        .collect();
    ensure!(!rtts_us.is_empty(), "no round-trip time");
    Ok(Round {
        mbps: goodput * WIRE / 1e6,
        rtt_ms: rtts_us.iter().sum::<f64>() / rtts_us.len() as f64 / 1e3,
    })
}

/// A limit on the client's and server's cgroup; dropped, it is removed.
struct Limit {
    binary: PathBuf,
    configuration: tempfile::NamedTempFile,
}

impl Limit {
    fn set(binary: &Path, pair: &Pair, rate: &str, options: &[&str]) -> Result<Self> {
        let configuration = tempfile::NamedTempFile::new().context("a file")?;
        let pin = format!("/sys/fs/bpf/thalweg-bench-{}-limit", std::process::id());
        std::fs::write(&configuration, format!("[paths]\npin = {pin:?}\n"))?;
        let limit = Self {
            binary: binary.to_owned(),
            configuration,
        };
        let status = limit
            .command()
            .arg("--cgroup")
            .arg(pair.cgroup())
            .args(["--rate", rate])
            .args(options)
            .stdout(Stdio::null())
            .status()
            .with_context(|| format!("starting {}", binary.display()))?;
        ensure!(status.success(), "thalweg limit: {status}");
        Ok(limit)
    }

    fn command(&self) -> Command {
        let mut command = Command::new(&self.binary);
        command
            .arg("--config")
            .arg(self.configuration.path())
            .arg("limit");
        command
    }
}

impl Drop for Limit {
    fn drop(&mut self) {
        let removed = self
            .command()
            .args(["remove", "--all"])
            .stdout(Stdio::null())
            .status();
        if !removed.is_ok_and(|status| status.success()) {
            eprintln!("could not remove the limit");
        }
    }
}
