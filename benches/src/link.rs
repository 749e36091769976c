//! Throughput and precision of a link: `thalweg-lab link` with iperf3 and with single packets; the
//! processor time that its queues take.

use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Error, Result, ensure};
use serde_json::Value;
use thalweg_link::aqm::Aqm;
use thalweg_link::engine::{Capacity, Direction, Engine};
use thalweg_report::sample::nearest_rank;
use thalweg_units::{Delay, Probability, Rate};

use crate::model;
use crate::table::{Target, line, spread};

const ROUNDS: usize = 5;

/// At most one packet in a hundred may be later than this, in milliseconds.
const ERROR_MS: f64 = 0.3;

/// Packets through a queue, and the processor time that each may take: a tenth of its time at
/// 1 Gbit/s.
const QUEUE_PACKETS: u64 = 1_000_000;
const QUEUE_NS: f64 = 1200.0;

/// Runs the measurement; returns whether all targets are met.
pub fn run(binary: &Path) -> Result<bool> {
    let mut met = true;
    let plain = rounds(|| iperf(binary, &[]))?;
    met &= line(
        "iperf3, no limit: carried",
        "Mbit/s",
        &spread(&column(&plain, |round| round.mbps)),
        &Target::AtLeast(1000.0),
    );
    // 1448 of 1500 bytes are TCP payload.
    for (rate, delay, floor) in [("100mbit", "20ms", 90.0), ("1gbit", "5ms", 900.0)] {
        let limited = rounds(|| iperf(binary, &["--rate", rate, "--delay", delay]))?;
        met &= line(
            &format!("iperf3, {rate}, {delay}: goodput (at most 96.5 % of the rate)"),
            "Mbit/s",
            &spread(&column(&limited, |round| round.mbps)),
            &Target::AtLeast(floor),
        );
        met &= line(
            &format!("iperf3, {rate}, {delay}: delay error p99, data"),
            "ms",
            &spread(&column(&limited, |round| round.error_ms)),
            &Target::AtMost(ERROR_MS),
        );
    }
    let single = rounds(|| ping(binary, 20))?;
    met &= line(
        "single packets, 20 ms each way: median round trip beyond 40 ms",
        "ms",
        &spread(&single),
        // Once each way. It includes the two processes' waits for a CPU, so the higher percentiles
        // are about the machine, not the link.
        &Target::AtMost(2.0 * ERROR_MS),
    );
    for name in ["fifo", "codel", "fq_codel"] {
        let aqm = (name != "fifo").then(|| name.parse().map_err(Error::msg));
        let direction = busy(aqm.transpose()?);
        met &= line(
            &format!("queue {name}: processor time of a packet"),
            "ns",
            &spread(&rounds(|| queue_ns(&direction))?),
            &Target::AtMost(QUEUE_NS),
        );
    }
    Ok(met)
}

/// A bottleneck whose queue is never empty.
fn busy(aqm: Option<Aqm>) -> Direction {
    Direction {
        ack_delay: Delay::ZERO,
        loss: Probability::ZERO,
        capacity: Capacity::Rate(Rate::from_bps(1_200_000_000)),
        queue_bytes: 1_500_000,
        ecn: None,
        aqm,
        delay: Delay::from_us(5_000),
        jitter: Delay::ZERO,
        reorder: Probability::ZERO,
        seed: 1,
    }
}

/// Processor time per packet of an engine: 1500 bytes of 16 flows, offered at 1.1 times the rate.
fn queue_ns(direction: &Direction) -> Result<f64> {
    let mut engine = Engine::new(direction.clone());
    let mut spare = Vec::new();
    let began = model::now()?;
    for number in 0..QUEUE_PACKETS {
        let now_ns = number * 9_000;
        while let Some((_, packet)) = engine.next_departure(now_ns) {
            spare.push(packet);
        }
        let mut packet = spare.pop().unwrap_or_default();
        packet.clear();
        packet.resize(1500, 0);
        packet[0] = 0x45;
        packet[9] = 17;
        packet[21] = number as u8 % 16;
        spare.extend(engine.packet_arrives(now_ns, packet));
    }
    Ok((model::now()? - began).as_nanos() as f64 / QUEUE_PACKETS as f64)
}

struct Round {
    mbps: f64,
    error_ms: f64,
}

fn rounds<T>(measure: impl FnMut() -> Result<T>) -> Result<Vec<T>> {
    std::iter::repeat_with(measure).take(ROUNDS).collect()
}

fn column(rounds: &[Round], value: fn(&Round) -> f64) -> Vec<f64> {
    rounds.iter().map(value).collect()
}

/// Three seconds of iperf3 after one that does not count.
fn iperf(binary: &Path, path: &[&str]) -> Result<Round> {
    let (output, report) = link(
        binary,
        path,
        ("exec iperf3 -s -1 >/dev/null 2>&1", "5201"),
        "exec iperf3 -c $THALWEG_LINK_FAR -J -O 1 -t 3",
    )?;
    let measured: Value = serde_json::from_str(&output).context("iperf3's answer")?;
    Ok(Round {
        mbps: number(&measured, "/end/sum_received/bits_per_second")? / 1e6,
        error_ms: number(&report, "/near_to_far/delay_error/p99_us")? / 1e3,
    })
}

/// Excess of a single packet's round-trip time over the requested delay: the median, in ms.
fn ping(binary: &Path, delay_ms: u32) -> Result<f64> {
    let program = std::env::current_exe().context("cannot tell where this program is")?;
    let worker = format!("exec '{}' worker", program.display());
    let (output, _) = link(
        binary,
        &["--delay", &format!("{delay_ms}ms")],
        (&format!("{worker} echo"), "7"),
        &format!("{worker} ping $THALWEG_LINK_FAR 200"),
    )?;
    let mut excess: Vec<f64> = output
        .lines()
        .map(|us| Ok(us.parse::<f64>()? / 1e3 - f64::from(2 * delay_ms)))
        .collect::<Result<_>>()?;
    ensure!(excess.len() == 200, "{} packets came back", excess.len());
    excess.sort_by(f64::total_cmp);
    Ok(nearest_rank(&excess, 0.5))
}

/// The output of the near command, and the link's report.
fn link(binary: &Path, path: &[&str], far: (&str, &str), near: &str) -> Result<(String, Value)> {
    let file = tempfile::NamedTempFile::new().context("a file for the report")?;
    let output = Command::new(crate::kernels::laboratory_beside(binary))
        .args(["link", "--json", "--report"])
        .arg(file.path())
        .args(path)
        .args(["--far", far.0, "--far-port", far.1])
        .args(["--", "sh", "-c", near])
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .context("thalweg-lab link")?;
    ensure!(
        output.status.success(),
        "thalweg-lab link: {}",
        output.status
    );
    let report = std::fs::read_to_string(file.path())?;
    let report = serde_json::from_str(&report).context("the link's report")?;
    Ok((String::from_utf8(output.stdout)?, report))
}

fn number(value: &Value, pointer: &str) -> Result<f64> {
    value
        .pointer(pointer)
        .and_then(Value::as_f64)
        .with_context(|| format!("no {pointer}"))
}
