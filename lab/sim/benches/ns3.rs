//! The simulator side by side with ns-3: an incast of 64 flows from 64 hosts through one switch, at
//! fixed rates and with DCTCP.
//!
//! `cargo bench -p thalweg-sim --bench ns3` compiles `benches/peers/ns3_incast.cc` and runs both
//! simulators in turn. It needs Debian's `libns3-dev` and `libgsl-dev`, and is skipped without
//! them. The measure is delivered packets per second of processor time, without set-up. ns-3 sends
//! whole datagrams and segments through a model of a host's protocol stack, which is part of its
//! cost. The exit status is 1 where the median ratio is below the target.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use nix::sys::resource::{UsageWho, getrusage};
use thalweg_report::sample::nearest_rank;
use thalweg_sim::cc::{Kind, Spec};
use thalweg_sim::{Outcome, Scenario, Simulation};

const FLOWS: u32 = 64;
const ROUNDS: usize = 5;
/// Simulated time, in ns-3 and here. Here a run must be long enough to be timed.
const PEER_MS: u64 = 5;
const OWN_MS: u64 = 200;
/// Target: this many times the packets per second of ns-3.
const TARGET: f64 = 10.0;
const MODULES: [&str; 4] = [
    "ns3-applications",
    "ns3-internet",
    "ns3-point-to-point",
    "ns3-traffic-control",
];

type Failure = Box<dyn std::error::Error>;

/// Compiler flags of ns-3, if it is installed.
fn flags() -> Option<Vec<String>> {
    let output = Command::new("pkg-config")
        .args(["--cflags", "--libs"])
        .args(MODULES)
        .output()
        .ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    output
        .status
        .success()
        .then(|| text.split_whitespace().map(str::to_owned).collect())
}

fn compile(flags: &[String]) -> Result<PathBuf, Failure> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../benches/peers/ns3_incast.cc");
    let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join("ns3_incast");
    let status = Command::new("g++")
        .args(["-O2", "-std=c++17", "-o"])
        .arg(&program)
        .arg(&source)
        .args(flags)
        .status()
        .map_err(|error| format!("g++: {error}"))?;
    if !status.success() {
        return Err(format!("g++ could not compile {}", source.display()).into());
    }
    Ok(program)
}

/// Delivered packets per second of processor time, and the utilisation of the link.
struct Speed {
    packets_per_second: f64,
    share: f64,
}

fn share(packets: f64, milliseconds: u64) -> f64 {
    packets * 8192.0 / (milliseconds as f64 * 1e-3 * 100e9)
}

fn peer(program: &Path, control: &str) -> Result<Speed, Failure> {
    let flows = FLOWS.to_string();
    let output = Command::new(program)
        .args([&flows, &flows, &PEER_MS.to_string(), control])
        .output()?;
    if !output.status.success() {
        let message = String::from_utf8_lossy(&output.stderr);
        return Err(format!("ns3_incast failed: {message}").into());
    }
    let report: serde_json::Value = serde_json::from_slice(&output.stdout)?;
    let field = |name: &str| {
        report[name]
            .as_f64()
            .ok_or_else(|| format!("ns3_incast printed no number {name}"))
    };
    let packets = field("packets")?;
    Ok(Speed {
        packets_per_second: packets / field("user_s")?,
        share: share(packets, PEER_MS),
    })
}

/// The network of `ns3_incast.cc` as a scenario.
fn scenario() -> Scenario {
    let hosts = FLOWS + 1;
    let text = format!(
        r#"
        name = "ns3-incast"
        duration = "{OWN_MS}ms"
        topology = {{ kind = "star", hosts = {hosts} }}
        link = {{ rate = "100gbit", delay = "3us", queue = "10mib" }}
        network = {{ ecn = {{ min = "400kib", max = "400kib", probability = "100%" }} }}
        hosts = {{ reaction = "0s", timeout = "4ms" }}
        workload = {{ kind = "many-to-one", flows = {FLOWS} }}
        "#
    );
    Scenario::parse(&text, Path::new("ns3.rs")).expect("a scenario")
}

fn user_seconds() -> Result<f64, Failure> {
    let time = getrusage(UsageWho::RUSAGE_THREAD)?.user_time();
    Ok(time.tv_sec() as f64 + time.tv_usec() as f64 * 1e-6)
}

fn own(control: &Spec) -> Result<Speed, Failure> {
    let control = control.clone();
    let simulation = Simulation::new(&scenario(), move |_, _| control.build(), 1);
    let begin = user_seconds()?;
    let outcome: Outcome = simulation.run();
    let took = user_seconds()? - begin;
    let packets = outcome.counts.delivered_packets as f64;
    Ok(Speed {
        packets_per_second: packets / took,
        share: share(packets, OWN_MS),
    })
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    nearest_rank(&values, 0.5)
}

fn main() -> Result<ExitCode, Failure> {
    let Some(flags) = flags() else {
        println!("ns3: skipped: ns-3 is not installed (scripts/setup.sh --peers installs it)");
        return Ok(ExitCode::SUCCESS);
    };
    let program = compile(&flags)?;
    // As in ns3_incast.cc: each flow has its share of the receiver's link less 5 %.
    let fixed = format!("fixed:fraction={}", 0.95 / f64::from(FLOWS)).parse()?;
    println!("{FLOWS} flows to one host, 100 Gbit/s, packets that arrived per second of processor");
    println!("time, set-up apart; medians of {ROUNDS} runs in turn, ratio with least and greatest");
    println!("control  ns-3 M/s  load %  thalweg M/s  load %   ratio");
    let mut met = true;
    for (name, spec) in [("fixed", fixed), ("dctcp", Kind::Dctcp.spec())] {
        let (mut theirs, mut ours, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
        let mut shares = (0.0, 0.0);
        for _ in 0..ROUNDS {
            let (one, other) = (peer(&program, name)?, own(&spec)?);
            theirs.push(one.packets_per_second);
            ours.push(other.packets_per_second);
            ratios.push(other.packets_per_second / one.packets_per_second);
            shares = (one.share, other.share);
        }
        let ratio = median(ratios.clone());
        let least = ratios.iter().copied().fold(f64::INFINITY, f64::min);
        let greatest = ratios.iter().copied().fold(0.0, f64::max);
        let enough = ratio >= TARGET;
        met &= enough;
        println!(
            "{name:7} {:9.3} {:7.1} {:12.2} {:7.1} {ratio:7.0} [{least:.0} … {greatest:.0}] \
             target ≥ {TARGET} {}",
            median(theirs) * 1e-6,
            shares.0 * 100.0,
            median(ours) * 1e-6,
            shares.1 * 100.0,
            if enough { "met" } else { "MISSED" },
        );
    }
    Ok(if met {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}
