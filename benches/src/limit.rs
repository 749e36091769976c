//! Throughput of `thalweg limit` against the requested rate, and durations of requests beside bulk
//! traffic.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;
use thalweg_lab::host::{Pair, Side};
use thalweg_report::sample::nearest;

use crate::bed::{self, Worker};
use crate::cc::per_run;
use crate::kernel::enable_statistics;
use crate::table::{Spread, Target, line, spread};

const ROUNDS: usize = 5;
/// Tolerance of the rate on the wire, either way.
const ERROR_PERCENT: f64 = 3.0;
/// Limit of the mean round-trip time, in ms: without any limit it is some 0.1 ms.
const RTT_MS: f64 = 5.0;
/// Bytes of an IPv4 packet for each byte of payload: 1500 for 1448, with timestamps.
const WIRE: f64 = 1500.0 / 1448.0;
/// Requests of a round, and bytes of each.
const REQUESTS: usize = 100;
const REQUEST_BYTES: usize = 10_000;
/// Data for the time per packet, bytes.
const PACKET_BYTES: usize = 20_000_000;
/// Nine requests in ten must be over by then, in ms. Beyond twice the queue of 50 ms, which short
/// requests may use, they would have waited for a time-out, 200 ms.
const REQUEST_MS: f64 = 100.0;

/// Bulk traffic under a limit.
#[derive(Clone, Copy)]
struct Bulk {
    rate: &'static str,
    mbps: f64,
    congestion_control: &'static str,
    flows: u32,
    options: &'static [&'static str],
    /// An address in the client's own namespace instead of the server.
    loopback: Option<&'static str>,
    /// Whether the limit is set after the connections are open.
    older: bool,
    /// Duration of the measurement, s.
    seconds: u32,
}

const BULK: Bulk = Bulk {
    rate: "100mbit",
    mbps: 100.0,
    congestion_control: "cubic",
    flows: 1,
    options: &[],
    loopback: None,
    older: false,
    seconds: 4,
};

/// Runs the measurement; returns whether all targets are met.
pub fn run(binary: &Path) -> Result<bool> {
    let mut met = true;
    for (rate, mbps) in [("100mbit", 100.0), ("1gbit", 1000.0)] {
        for congestion_control in ["cubic", "bbr"] {
            for flows in [1, 4] {
                let bulk = Bulk {
                    rate,
                    mbps,
                    congestion_control,
                    flows,
                    ..BULK
                };
                let name = format!("{rate}, {congestion_control}, flows: {flows}");
                met &= report(&name, &bulk, &rounds(binary, &bulk)?);
            }
        }
    }
    let slow = Bulk {
        rate: "1mbit",
        mbps: 1.0,
        congestion_control: "bbr",
        seconds: 20,
        ..BULK
    };
    met &= report("1mbit, bbr, flows: 1", &slow, &rounds(binary, &slow)?);
    for address in ["127.0.0.1", "::1"] {
        let bulk = Bulk {
            loopback: Some(address),
            options: &["--loopback"],
            ..BULK
        };
        let name = format!("100mbit, cubic, flows: 1, {address}");
        met &= report(&name, &bulk, &rounds(binary, &bulk)?);
    }
    let older = Bulk {
        flows: 4,
        older: true,
        ..BULK
    };
    let name = "100mbit, cubic, flows: 4, older than the limit";
    met &= report(name, &older, &rounds(binary, &older)?);
    for congestion_control in ["cubic", "bbr"] {
        let bulk = Bulk {
            congestion_control,
            options: &["--no-pacing"],
            ..BULK
        };
        // For comparison: no target.
        let name = format!("100mbit, {congestion_control}, flows: 1, --no-pacing");
        tell(&name, &bulk, &rounds(binary, &bulk)?);
    }
    Ok(met & requests_beside(binary)?)
}

/// Durations of requests beside bulk traffic; returns whether the target is met.
fn requests_beside(binary: &Path) -> Result<bool> {
    let mut met = true;
    for (congestion_control, flows) in [("", 0), ("cubic", 32), ("bbr", 4)] {
        let bulk = Bulk {
            rate: "10mbit",
            mbps: 10.0,
            congestion_control,
            flows,
            seconds: 60,
            ..BULK
        };
        let mut times = Vec::new();
        for _ in 0..ROUNDS {
            times.extend(requests(binary, &bulk)?);
        }
        times.sort_by(f64::total_cmp);
        let at = |share| nearest(&times, share);
        let beside = match flows {
            0 => "alone".to_owned(),
            flows => format!("beside {flows} of {congestion_control}"),
        };
        let name = format!("10mbit, requests of 10 kB {beside}");
        println!(
            "{name}: median {:.1} ms, p90 {:.1}, p99 {:.1}, longest {:.1}",
            at(0.5),
            at(0.9),
            at(0.99),
            at(1.0)
        );
        let p90 = Spread {
            median: at(0.9),
            low: at(0.5),
            high: at(1.0),
            count: times.len(),
        };
        let name = format!("{name}: p90 [median … longest]");
        met &= line(&name, "ms", &p90, &Target::AtMost(REQUEST_MS));
    }
    Ok(met)
}

/// Kernel time of a packet that leaves a limited cgroup, ns.
pub fn packet(binary: &Path) -> Result<f64> {
    let pair = bed::pair("packet")?;
    let _limit = Limit::set(binary, &pair, "100mbit", &[])?;
    let _statistics = enable_statistics()?;
    per_run("limit_egress", || bed::transfer(&pair, PACKET_BYTES, None))
}

struct Round {
    mbps: f64,
    rtt_ms: f64,
    /// Share of the bytes sent.
    dropped_percent: f64,
}

/// Prints the rate, its error, and drops; returns the spread of the error.
fn tell(name: &str, bulk: &Bulk, rounds: &[Round]) -> Spread {
    let rates: Vec<f64> = rounds.iter().map(|round| round.mbps).collect();
    let rates = spread(&rates);
    let error = |rate: f64| (rate / bulk.mbps - 1.0) * 100.0;
    let errors: Vec<f64> = rounds.iter().map(|round| error(round.mbps).abs()).collect();
    let dropped: Vec<f64> = rounds.iter().map(|round| round.dropped_percent).collect();
    println!(
        "{name}: wire rate {:.2} Mbit/s [{:.2} … {:.2}], {:+.2} %, {:.1} % dropped",
        rates.median,
        rates.low,
        rates.high,
        error(rates.median),
        spread(&dropped).median
    );
    spread(&errors)
}

/// As [`tell`], with the round-trip time and targets.
fn report(name: &str, bulk: &Bulk, rounds: &[Round]) -> bool {
    let errors = tell(name, bulk, rounds);
    let mut met = line(
        &format!("{name}: error, either way"),
        "%",
        &errors,
        &Target::AtMost(ERROR_PERCENT),
    );
    // A packet takes 12 ms at 1 Mbit/s.
    if bulk.mbps >= 100.0 {
        let rtts: Vec<f64> = rounds.iter().map(|round| round.rtt_ms).collect();
        met &= line(
            &format!("{name}: mean round trip"),
            "ms",
            &spread(&rtts),
            &Target::AtMost(RTT_MS),
        );
    }
    met
}

fn rounds(binary: &Path, bulk: &Bulk) -> Result<Vec<Round>> {
    (0..ROUNDS).map(|_| round(binary, bulk)).collect()
}

/// A process that ends with this value.
struct Ends(Child);

impl Drop for Ends {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// iperf3's server, for one client.
fn iperf_server(pair: &Pair, side: Side) -> Result<Ends> {
    let server = pair
        .command_in(side, "iperf3")?
        .args(["-s", "-1"])
        .stdout(Stdio::null())
        .spawn()
        .context("starting iperf3")?;
    std::thread::sleep(Duration::from_millis(300));
    Ok(Ends(server))
}

/// iperf3's client; the first seconds do not count.
fn iperf_client(pair: &Pair, bulk: &Bulk, first: u32) -> Result<Ends> {
    let address = match bulk.loopback {
        Some(address) => address.to_owned(),
        None => pair.address(Side::Server).to_string(),
    };
    let client = pair
        .command_in(Side::Client, "iperf3")?
        .args(["-J", "-c", &address, "-C", bulk.congestion_control])
        .args(["-O", &first.to_string(), "-t", &bulk.seconds.to_string()])
        .args(["-P", &bulk.flows.to_string()])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .context("starting iperf3")?;
    Ok(Ends(client))
}

/// Some seconds of iperf3 after some that do not count, in fresh namespaces.
fn round(binary: &Path, bulk: &Bulk) -> Result<Round> {
    let pair = bed::pair("limit")?;
    let set = || Limit::set(binary, &pair, bulk.rate, bulk.options);
    let side = match bulk.loopback {
        Some(_) => Side::Client,
        None => Side::Server,
    };
    let server = iperf_server(&pair, side)?;
    let (limit, mut client) = if bulk.older {
        let client = iperf_client(&pair, bulk, 4)?;
        std::thread::sleep(Duration::from_secs(2));
        (set()?, client)
    } else {
        (set()?, iperf_client(&pair, bulk, 1)?)
    };
    let output = client.0.stdout.take().context("piped")?;
    let measured: Value = serde_json::from_reader(output).context("iperf3's answer")?;
    drop((client, server));
    let shown = limit.show()?;
    drop(limit);
    let count = |name: &str| shown[name].as_f64().with_context(|| format!("no {name}"));
    let (passed, dropped) = (count("bytes")?, count("dropped_bytes")?);
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
    // Loopback carries 64 KiB at once, of which headers are a thousandth.
    let wire = if bulk.loopback.is_some() { 1.001 } else { WIRE };
    Ok(Round {
        mbps: goodput * wire / 1e6,
        rtt_ms: rtts_us.iter().sum::<f64>() / rtts_us.len() as f64 / 1e3,
        dropped_percent: 100.0 * dropped / (passed + dropped).max(1.0),
    })
}

/// Durations of requests beside bulk traffic, or alone without flows of it, ms.
fn requests(binary: &Path, bulk: &Bulk) -> Result<Vec<f64>> {
    let pair = bed::pair("limit")?;
    let limit = Limit::set(binary, &pair, bulk.rate, bulk.options)?;
    let bytes = REQUEST_BYTES.to_string();
    let mut holder = Worker::start(
        &pair,
        Side::Server,
        &["hold", "1", &bytes].map(String::from),
    )?;
    holder.line()?;
    let mut ends = Vec::new();
    if bulk.flows > 0 {
        ends.push(iperf_server(&pair, Side::Server)?);
        ends.push(iperf_client(&pair, bulk, 0)?);
        std::thread::sleep(Duration::from_secs(2));
    }
    let address = pair.address(Side::Server).to_string();
    let number = REQUESTS.to_string();
    let arguments = ["request", &address, &number, &bytes].map(String::from);
    let mut client = Worker::start(&pair, Side::Client, &arguments)?;
    let times = (0..REQUESTS)
        .map(|_| {
            let us: f64 = client.line()?.parse().context("a worker's answer")?;
            Ok(us / 1e3)
        })
        .collect();
    let measured = limit.show()?["measured_bps"].as_f64();
    ensure!(
        bulk.flows == 0 || measured > Some(bulk.mbps * 0.5e6),
        "the limit was not filled: {measured:?} bit/s"
    );
    times
}

/// A limit on the client's and server's cgroup, removed with this value.
pub struct Limit {
    binary: PathBuf,
    cgroup: PathBuf,
    configuration: tempfile::NamedTempFile,
}

impl Limit {
    /// Sets one on a pair's cgroup.
    pub fn set(binary: &Path, pair: &Pair, rate: &str, options: &[&str]) -> Result<Self> {
        let configuration = tempfile::NamedTempFile::new().context("a file")?;
        let pin = format!("/sys/fs/bpf/thalweg-bench-{}-limit", std::process::id());
        std::fs::write(&configuration, format!("[paths]\npin = {pin:?}\n"))?;
        let limit = Self {
            binary: binary.to_owned(),
            cgroup: pair.cgroup().to_owned(),
            configuration,
        };
        let output = limit
            .command()
            .arg("--cgroup")
            .arg(pair.cgroup())
            .args(["--rate", rate])
            .args(options)
            .output()
            .with_context(|| format!("starting {}", binary.display()))?;
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "{}", said.trim_end());
        Ok(limit)
    }

    /// Its figures.
    pub fn show(&self) -> Result<Value> {
        let output = self
            .command()
            .args(["show", "--json", "--cgroup"])
            .arg(&self.cgroup)
            .output()
            .with_context(|| format!("starting {}", self.binary.display()))?;
        serde_json::from_slice(&output.stdout).context("the limit's figures")
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
