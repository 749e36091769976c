//! Costs of a full table of hosts for the agent: bytes written, memory, and waits of the API.

use std::fs;
use std::io::Read as _;
use std::net::Ipv4Addr;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use libbpf_rs::{MapCore, MapFlags, MapHandle};
use nix::time::{ClockId, clock_gettime};
use thalweg_bpf_types::{bytes_of, host_to_raw, key_to_raw};
use thalweg_learner::{ArmState, Host, HostKey};
use thalweg_process::http::{self, Connection};

use crate::bed::{self, Agent};
use crate::table::{Target, line, spread};

const HOSTS: u32 = 65_536;
/// One host in this many changes between two snapshots.
const CHANGED: usize = 100;
const ROUNDS: u32 = 5;
const SCRAPES: u32 = 20;
const SCRAPE: Duration = Duration::from_millis(400);
/// Twice the bed's interval of snapshots: one has been taken.
const SNAPSHOT: Duration = Duration::from_secs(2);

/// Runs the measurement; returns whether the targets are met.
pub fn run(binary: &Path) -> Result<bool> {
    let pair = bed::pair("store")?;
    let agent = Agent::start(binary, &pair, "store")?;
    // A connection, so that there is a record to save.
    let change = |step: usize, connections: u32| -> Result<()> {
        learn(&agent, step, connections)?;
        bed::transfer(&pair, 1000, None)
    };
    let mut met = true;

    let before = written(agent.pid())?;
    change(1, 1)?;
    let deadline = Instant::now() + Duration::from_secs(60);
    while agent.status()?["snapshot_age_s"].is_null() {
        ensure!(Instant::now() < deadline, "no snapshot was saved");
        std::thread::sleep(Duration::from_millis(100));
    }
    std::thread::sleep(SNAPSHOT);
    println!(
        "{} hosts of four arms each; the first snapshot wrote {:.1} MB",
        agent.figure("/hosts")?,
        (written(agent.pid())? - before) as f64 / 1e6
    );

    let mut bytes = Vec::new();
    for round in 0..ROUNDS {
        let before = written(agent.pid())?;
        change(CHANGED, 2 + round)?;
        std::thread::sleep(SNAPSHOT);
        bytes.push((written(agent.pid())? - before) as f64 / 1e6);
    }
    met &= line(
        "written by a snapshot, one host in a hundred changed",
        "MB",
        &spread(&bytes),
        &Target::AtMost(2.0),
    );

    let mut longest = Vec::new();
    for round in 0..ROUNDS {
        change(CHANGED, 20 + round)?;
        let start = Instant::now();
        let mut waited = Duration::ZERO;
        while start.elapsed() < SNAPSHOT {
            let asked = Instant::now();
            ask(&agent)?;
            waited = waited.max(asked.elapsed());
            std::thread::sleep(Duration::from_millis(1));
        }
        longest.push(waited.as_secs_f64() * 1e3);
    }
    met &= line(
        "longest answer to a question to the store, with a snapshot",
        "ms",
        &spread(&longest),
        &Target::AtMost(20.0),
    );

    met &= scrapes(&agent)?;

    let document = tempfile::NamedTempFile::new()?;
    let path = document.path().to_str().context("a path of text")?;
    agent.command(&["export", path])?;
    agent.command(&["import", path])?;
    std::thread::sleep(SNAPSHOT);
    met &= line(
        "resident memory at most, snapshots, export and import included",
        "MiB",
        &spread(&[peak(agent.pid())? as f64 / 1024.0]),
        &Target::AtMost(64.0),
    );
    Ok(met)
}

/// What the page asks for at its start and later, beside the stream.
const PAGE: [&str; 5] = [
    "/v1/events?limit=50",
    "/v1/hosts?sort=traffic&limit=100",
    "/v1/hosts?sort=cost&limit=100",
    "/v1/history?interval=10&parts=60",
    "/v1/kernel",
];

/// Metrics beside a full table and an open page: none of them walks the table.
fn scrapes(agent: &Agent) -> Result<bool> {
    let stream = Connection::open(&agent.socket)?;
    let mut stream = stream.send_request("GET", "/v1/stream", None, Duration::from_secs(10))?;
    ensure!(stream.status == 200, "the stream: {}", stream.status);
    std::thread::spawn(move || {
        let mut piece = [0; 4096];
        while stream.read(&mut piece).is_ok_and(|length| length > 0) {}
    });
    let mut took = Vec::new();
    for _ in 0..SCRAPES {
        for path in PAGE {
            let answer = http::request_once(&agent.socket, "GET", path)?;
            ensure!(answer.status == 200, "{path}: {}", answer.body);
        }
        // Within a moment the agent answers with what it has.
        std::thread::sleep(SCRAPE);
        let asked = Instant::now();
        let answer = http::request_once(&agent.socket, "GET", "/metrics")?;
        took.push(asked.elapsed().as_secs_f64() * 1e3);
        ensure!(answer.body.ends_with("# EOF\n"), "{}", answer.body);
    }
    let resident = field(&format!("/proc/{}/status", agent.pid()), "VmRSS:")?;
    let fast = line(
        "a scrape of the metrics",
        "ms",
        &spread(&took),
        &Target::AtMost(10.0),
    );
    let small = line(
        "resident memory, with snapshots, scrapes and an open page",
        "MiB",
        &spread(&[resident as f64 / 1024.0]),
        &Target::AtMost(32.0),
    );
    Ok(fast && small)
}

/// Puts every `step`th host into the kernel, as seen now.
fn learn(agent: &Agent, step: usize, connections: u32) -> Result<()> {
    let hosts = MapHandle::from_pinned_path(agent.pin.join("hosts"))?;
    let now = clock_gettime(ClockId::CLOCK_MONOTONIC)?;
    let seen_ns = now.tv_sec() as u64 * 1_000_000_000 + now.tv_nsec() as u64;
    let mut host = Host {
        connections,
        scored: connections,
        min_rtt_us: 1000,
        seen_ns,
        forgot_ns: seen_ns,
        ..Host::default()
    };
    for arm in &mut host.arms[..4] {
        *arm = ArmState {
            value: 40 << 16,
            max_rate: 1_000_000,
            weight_q16: 3 << 16,
            deviation_q16: 1 << 14,
            log_rate_q16: 20 << 16,
            srtt_us: 30_000,
            min_rtt_us: 25_000,
            chosen: 10,
            greedy: 5,
            scored: 10,
            segs: 8000,
            retrans: 10,
            ..ArmState::default()
        };
    }
    for n in (0..HOSTS).step_by(step) {
        let key = HostKey::new(1, Ipv4Addr::from(0x0a00_0000 + n).into(), 32, 64)?;
        hosts.update(
            bytes_of(&key_to_raw(&key)),
            bytes_of(&host_to_raw(&key, &host)),
            MapFlags::ANY,
        )?;
    }
    Ok(())
}

/// Requests an event, which only the store has.
fn ask(agent: &Agent) -> Result<()> {
    let answer = http::request_once(&agent.socket, "GET", "/v1/events?limit=1")?;
    ensure!(answer.status == 200, "{}", answer.body);
    Ok(())
}

/// Bytes that a process has written, including responses of the API.
fn written(pid: u32) -> Result<u64> {
    field(&format!("/proc/{pid}/io"), "wchar:")
}

/// Peak memory of a process, KiB.
fn peak(pid: u32) -> Result<u64> {
    field(&format!("/proc/{pid}/status"), "VmHWM:")
}

fn field(file: &str, name: &str) -> Result<u64> {
    let text = fs::read_to_string(file).with_context(|| format!("reading {file}"))?;
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    let value = line.and_then(|line| line.split_whitespace().next());
    Ok(value
        .with_context(|| format!("no {name} in {file}"))?
        .parse()?)
}
