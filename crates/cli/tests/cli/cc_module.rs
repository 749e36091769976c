//! htcp and dctcp in BPF against the kernel's own modules. The modules run in the laboratory's
//! user-mode kernel, in simulated time, the programs in BPF here; the path is the same, `thalweg
//! link` with the same arguments in both kernels, and so are the programs that send and measure.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::support::loaded::Loaded;
use crate::support::{THALWEG, guest, privileged, skip};
use serde_json::Value;

const SINK: &str = r#"
import socket, sys, threading
listener = socket.socket()
listener.setsockopt(socket.IPPROTO_TCP, 13, sys.argv[1].encode())
listener.bind(("0.0.0.0", 5001))
listener.listen()
def read(connection):
    while connection.recv(1 << 20):
        pass
while True:
    threading.Thread(target=read, args=(listener.accept()[0],), daemon=True).start()
"#;

/// Arguments: two numbers that are repeated, congestion control, flows, seconds. Flows that have always
/// something to send begin a second apart; the first third of the time does not count. A line of
/// JSON for each: goodput in bit/s, the median of the smoothed round-trip time in ms, the shares of
/// what was delivered with a mark and of what was sent again.
const MEASURE: &str = r#"
import json, os, socket, statistics, struct, sys, threading, time
case, run, control, number, seconds = (convert(word) for convert, word in zip([int, int, str, int, float], sys.argv[1:]))
begin = time.monotonic()
flows = []
def send(flow):
    chunk = bytes(65536)
    try:
        while True:
            flow.send(chunk)
    except OSError:
        pass
def sample(flow):
    information = flow.getsockopt(socket.IPPROTO_TCP, 11, 200)
    word = lambda at: struct.unpack_from("I", information, at)[0]
    acked = struct.unpack_from("Q", information, 120)[0]
    return time.monotonic(), acked, word(68), word(192), word(196), word(100), word(156)
for index in range(number):
    time.sleep(max(0, begin + index - time.monotonic()))
    flow = socket.socket()
    flow.setsockopt(socket.IPPROTO_TCP, 13, control.encode())
    flow.connect((os.environ["THALWEG_LINK_FAR"], 5001))
    name = flow.getsockopt(socket.IPPROTO_TCP, 13, 16).rstrip(b"\0").decode()
    assert name == control, name
    threading.Thread(target=send, args=(flow,), daemon=True).start()
    flows.append(flow)
time.sleep(max(0, begin + seconds / 3 - time.monotonic()))
samples = [[sample(flow)] for flow in flows]
while time.monotonic() < begin + seconds:
    time.sleep(0.02)
    for flow, seen in zip(flows, samples):
        seen.append(sample(flow))
for seen in samples:
    first, last = seen[0], seen[-1]
    grown = [end - start for start, end in zip(first, last)]
    print("RESULT", json.dumps({
        "case": case, "run": run, "bps": grown[1] * 8 / grown[0],
        "rtt_ms": statistics.median(row[2] for row in seen) / 1000,
        "marked": grown[4] / grown[3], "again": grown[5] / grown[6],
    }), flush=True)
"#;

/// What is compared on one path: for flows that it lasts, and with what `thalweg link` is called.
struct Case {
    control: &'static str,
    flows: u32,
    seconds: u32,
    link: &'static str,
}

/// Runs with loss, each with a seed of its own.
const SEEDS: u32 = 3;

const MARKS: &str = "--rate 10mbit --delay 20ms --queue 500kb --ecn 10ms";
const TAIL: &str = "--rate 10mbit --delay 20ms --queue 50kb";
const LOSS: &str = "--rate 10mbit --delay 25ms --queue 500kb --loss 0.1%";

const fn case(control: &'static str, flows: u32, seconds: u32, link: &'static str) -> Case {
    Case {
        control,
        flows,
        seconds,
        link,
    }
}

const CASES: [Case; 8] = [
    case("dctcp", 1, 9, MARKS),
    case("dctcp", 2, 18, MARKS),
    case("htcp", 1, 15, TAIL),
    case("htcp", 2, 21, TAIL),
    case("reno", 1, 15, TAIL),
    case("dctcp", 1, 12, LOSS),
    case("htcp", 1, 12, LOSS),
    case("reno", 1, 12, LOSS),
];

/// A run of a case in a shell's words; `control` is what the congestion control is called in that
/// kernel, `burst` how many segments TCP may hand over at a time.
fn command(
    directory: &Path,
    number: usize,
    case: &Case,
    run: u32,
    control: &str,
    burst: Option<u32>,
) -> String {
    let directory = directory.display();
    let mut ecn = "echo 1 >/proc/sys/net/ipv4/tcp_ecn".to_owned();
    if let Some(segments) = burst {
        ecn += &format!("; ip link set thalweg0 gso_max_segs {segments}");
    }
    let Case {
        flows,
        seconds,
        link,
        ..
    } = case;
    format!(
        "{THALWEG} link {link} --seed {run} --report /dev/null --far-port 5001 \
         --far '{ecn}; exec python3 {directory}/sink.py {control}' -- sh -c \
         '{ecn}; exec python3 {directory}/measure.py {number} {run} {control} {flows} {seconds}'\n"
    )
}

/// The script that runs all cases, those without loss `times` times.
fn script(directory: &Path, times: u32, name: impl Fn(&str) -> String) -> String {
    let mut text = "set -e\n".to_owned();
    for (number, case) in CASES.iter().enumerate() {
        for run in 1..=if case.link == LOSS { SEEDS } else { times } {
            text += &command(directory, number, case, run, &name(case.control), None);
        }
    }
    text
}

/// What the flows of a case had.
#[derive(Debug, Clone, Copy)]
struct Result {
    /// bit/s, all flows together.
    bps: f64,
    rtt_ms: f64,
    marked: f64,
    again: f64,
    /// Of the flow with the least, of what all had.
    least: f64,
}

/// By number of the case: of those with loss the medians of all runs, of others the run that had
/// most, which is the one that the machine disturbed least.
fn results(cases: &[Case], console: &str) -> Vec<Result> {
    let mut runs = vec![BTreeMap::<u64, Vec<Value>>::new(); cases.len()];
    for line in console.lines() {
        if let Some(json) = line.strip_prefix("RESULT ") {
            let value: Value = serde_json::from_str(json).unwrap();
            let number = |key: &str| value[key].as_u64().unwrap();
            let flows = runs[number("case") as usize].entry(number("run"));
            flows.or_default().push(value.clone());
        }
    }
    let of_case = |(case, runs): (&Case, BTreeMap<u64, Vec<Value>>)| {
        let mut all: Vec<Result> = runs.values().map(|flows| one_run(case, flows)).collect();
        assert!(!all.is_empty(), "{} {}: {console}", case.control, case.link);
        all.sort_by(|one, other| one.bps.total_cmp(&other.bps));
        let most = all[all.len() - 1];
        if case.link != LOSS {
            return most;
        }
        assert_eq!(all.len(), SEEDS as usize, "{console}");
        let middle = |of: fn(&Result) -> f64| {
            let mut numbers: Vec<f64> = all.iter().map(of).collect();
            numbers.sort_by(f64::total_cmp);
            numbers[numbers.len() / 2]
        };
        Result {
            bps: middle(|it| it.bps),
            rtt_ms: middle(|it| it.rtt_ms),
            marked: middle(|it| it.marked),
            again: middle(|it| it.again),
            ..most
        }
    };
    cases.iter().zip(runs).map(of_case).collect()
}

/// The flows of one run: sums of goodput, means of the rest.
fn one_run(case: &Case, flows: &[Value]) -> Result {
    assert_eq!(flows.len(), case.flows as usize, "{flows:?}");
    let of = |key: &'static str| flows.iter().map(move |flow| flow[key].as_f64().unwrap());
    let mean = |key| of(key).sum::<f64>() / flows.len() as f64;
    let bps = of("bps").sum::<f64>();
    Result {
        bps,
        rtt_ms: mean("rtt_ms"),
        marked: mean("marked"),
        again: mean("again"),
        least: of("bps").fold(f64::INFINITY, f64::min) / bps,
    }
}

/// The laboratory's kernel, built here unless it was before; none where there cannot be one.
fn kernel() -> Option<PathBuf> {
    // Ubuntu has neither user-mode Linux nor these sources.
    for needed in ["/usr/bin/linux.uml", "/usr/src/linux-source-6.1.tar.xz"] {
        if !Path::new(needed).exists() {
            let why = format!("no {needed} (scripts/setup.sh --kernel)");
            let release = std::fs::read_to_string("/etc/os-release").unwrap_or_default();
            if release.lines().any(|line| line == "ID=debian") {
                skip(&why);
            } else {
                eprintln!("skipped: {why}");
            }
            return None;
        }
    }
    let output = Command::new(THALWEG)
        .args(["lab", "build-kernel"])
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    let path = String::from_utf8(output.stdout).unwrap();
    Some(PathBuf::from(path.trim()))
}

/// A directory with the two programs.
fn programs() -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    for (name, program) in [("sink.py", SINK), ("measure.py", MEASURE)] {
        std::fs::write(directory.path().join(name), program).unwrap();
    }
    directory
}

/// What a script says in the laboratory's kernel.
fn in_simulated_time(kernel: &Path, script: &str) -> String {
    let words = [
        "time-travel=inf-cpu",
        "time-travel-start=1700000000000000000",
    ];
    guest::boot(kernel, &words, script, Duration::from_secs(3600))
}

/// TCP hands over up to 64 KiB at a time to near hosts. At 1 Gbit/s they take 0.53 ms, so where marks
/// begin at 0.5 ms a part of each burst is marked although the queue is short, and the kernel's own
/// module leaves half of the link unused. In bursts of 8 segments it fills the link.
#[test]
#[ignore = "slow: ten minutes"]
fn bursts_longer_than_the_step_cost_the_module_half_of_the_link() {
    if !privileged() {
        return;
    }
    let Some(kernel) = kernel() else {
        return;
    };
    let link = "--rate 1gbit --delay 1ms --queue 6mb --ecn 500us";
    let cases = [case("dctcp", 1, 2, link), case("dctcp", 1, 2, link)];
    let directory = programs();
    let script: String = [None, Some(8)]
        .into_iter()
        .enumerate()
        .map(|(number, burst)| command(directory.path(), number, &cases[number], 1, "dctcp", burst))
        .collect();
    let found = results(&cases, &in_simulated_time(&kernel, &script));
    for (burst, result) in ["64 KiB", "8 segments"].iter().zip(&found) {
        println!("bursts of {burst}: {:.0} Mbit/s", result.bps / 1e6);
    }
    // 1448 of 1500 bytes are data: 965 Mbit/s at most.
    assert!(found[0].bps < 800e6 && found[1].bps > 900e6, "{found:?}");
}

#[test]
#[ignore = "slow: ten minutes"]
fn htcp_and_dctcp_do_what_the_kernels_modules_do() {
    if !privileged() {
        return;
    }
    let Some(kernel) = kernel() else {
        return;
    };
    let directory = programs();
    let loaded = [("htcp", "mh"), ("dctcp", "md")];
    let loaded = loaded.map(|(program, tag)| (program, Loaded::new(tag, program)));
    let (ours, modules) = std::thread::scope(|scope| {
        let there = script(directory.path(), 1, str::to_owned);
        let modules = scope.spawn(move || results(&CASES, &in_simulated_time(&kernel, &there)));
        let here = script(directory.path(), 3, |control| {
            let ours = loaded.iter().find(|(program, _)| *program == control);
            ours.map_or_else(|| control.to_owned(), |(_, loaded)| loaded.name.clone())
        });
        let output = Command::new("bash").args(["-c", &here]).output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{said} {output:?}");
        println!("{said}");
        (results(&CASES, &said), modules.join().unwrap())
    });

    println!(
        "| | flows | path | Mbit/s | round trip, ms | marked, % | sent again, % | least share |"
    );
    println!("|---|---|---|---|---|---|---|---|");
    for ((case, ours), module) in CASES.iter().zip(&ours).zip(&modules) {
        let pair = |of: fn(&Result) -> f64, digits: usize| {
            format!("{:.digits$} / {:.digits$}", of(ours), of(module))
        };
        println!(
            "| {} | {} | {} | {} | {} | {} | {} | {} |",
            case.control,
            case.flows,
            case.link,
            pair(|it| it.bps / 1e6, 1),
            pair(|it| it.rtt_ms, 1),
            pair(|it| it.marked * 100.0, 2),
            pair(|it| it.again * 100.0, 3),
            pair(|it| it.least, 2),
        );
    }
    for (number, case) in CASES.iter().enumerate() {
        let (here, there) = (ours[number], modules[number]);
        let what = format!("{} over {}: {here:?}, {there:?}", case.control, case.link);
        let ratio = |of: fn(&Result) -> f64| of(&here) / of(&there);
        if case.link == LOSS {
            // The fate of the n-th packet is the same, but which it is differs, and so do the two
            // kernels' ways to repair; so each is compared with its own reno. What is left is
            // chance: some ten losses a run.
            let reno = CASES.len() - 1;
            let ratio = ratio(|it| it.bps) / (ours[reno].bps / modules[reno].bps);
            assert!((0.75..=1.35).contains(&ratio), "{what}");
            continue;
        }
        // Without chance: what differs is the machine, which is busy at times, and being held up
        // only ever costs. Reno has less than three quarters of dctcp's goodput where marks tell.
        assert!((0.8..=1.08).contains(&ratio(|it| it.bps)), "{what}");
        assert!((0.85..=1.15).contains(&ratio(|it| it.rtt_ms)), "{what}");
        if case.link == MARKS {
            assert!((0.6..=1.7).contains(&ratio(|it| it.marked)), "{what}");
            assert_eq!(here.again + there.again, 0.0, "{what}");
        } else {
            let again = (here.again - there.again).abs();
            assert!(again < 0.005, "{what}");
        }
        // Two flows come to equal parts slowly; neither is starved.
        let fair = 0.2 / f64::from(case.flows);
        assert!(here.least >= fair && there.least >= fair, "{what}");
    }
}
