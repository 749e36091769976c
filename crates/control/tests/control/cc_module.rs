//! htcp and dctcp in BPF against the kernel's own modules, on one stock kernel in virtual time.
//! Path, `thalweg-lab link` arguments, and the programs that send and measure are the same.
//! Measurements of long bursts need the laboratory's user-mode kernel, in simulated time: a Gbit/s
//! packet by packet is too much for QEMU.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use serde_json::Value;
use thalweg_testbed::loaded::Loaded;
use thalweg_testbed::virtual_time::in_virtual_time;
use thalweg_testbed::{guest, laboratory, privileged, skip_unpackaged};

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

/// Arguments: congestion control, flows, seconds. Flows that always have data start a second apart;
/// the first third of the time does not count. Prints a line of JSON for each: goodput in bit/s,
/// median of the smoothed round-trip time in ms, and shares of delivered segments with a mark and
/// of retransmitted ones.
const MEASURE: &str = r#"
import json, os, socket, struct, sys, threading, time
control, number, seconds = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
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
        "bps": grown[1] * 8 / grown[0],
        "rtt_ms": sorted(row[2] for row in seen)[len(seen) // 2] / 1000,
        "marked": grown[4] / grown[3], "again": grown[5] / grown[6],
    }), flush=True)
"#;

const MARKS: &str = "--rate 10mbit --delay 20ms --queue 500kb --ecn 10ms";
const TAIL: &str = "--rate 10mbit --delay 20ms --queue 50kb";
const LOSS: &str = "--rate 10mbit --delay 25ms --queue 500kb --loss 0.1%";

/// Figures of one run's flows.
#[derive(Debug, Clone, Copy)]
struct Result {
    /// bit/s, all flows together.
    bps: f64,
    rtt_ms: f64,
    marked: f64,
    again: f64,
    /// Goodput of the slowest flow, as a share of all goodput.
    least: f64,
}

/// A run as a shell command. `control` is the name of the congestion control there, `burst` the
/// number of segments that TCP may hand over at a time.
fn command(
    directory: &Path,
    link: &str,
    control: &str,
    (flows, seconds): (u32, u32),
    burst: Option<u32>,
) -> String {
    let directory = directory.display();
    let mut ecn = "echo 1 >/proc/sys/net/ipv4/tcp_ecn".to_owned();
    if let Some(segments) = burst {
        ecn += &format!("; ip link set thalweg0 gso_max_segs {segments}");
    }
    let laboratory = laboratory();
    format!(
        "{laboratory} link {link} --report /dev/null --far-port 5001 \
         --far '{ecn}; exec python3 {directory}/sink.py {control}' -- sh -c \
         '{ecn}; exec python3 {directory}/measure.py {control} {flows} {seconds}'\n"
    )
}

/// The flows of one run, from their output: sum of goodput, means of the rest.
fn result<'a>(lines: impl Iterator<Item = &'a str>) -> Result {
    let flows: Vec<Value> = lines
        .filter_map(|line| line.strip_prefix("RESULT "))
        .map(|json| serde_json::from_str(json).unwrap())
        .collect();
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

/// A directory with the two programs.
fn programs() -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    for (name, program) in [("sink.py", SINK), ("measure.py", MEASURE)] {
        std::fs::write(directory.path().join(name), program).unwrap();
    }
    directory
}

/// One run on this kernel.
fn here(link: &str, control: &str, flows: u32, seconds: u32) -> Result {
    let directory = programs();
    let script = command(directory.path(), link, control, (flows, seconds), None);
    let output = Command::new("sh").args(["-c", &script]).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said} {output:?}");
    assert_eq!(said.matches("RESULT ").count(), flows as usize, "{said}");
    result(said.lines())
}

/// Runs the BPF version and the module; prints and returns both results, in this order.
fn both(program: &str, link: &str, flows: u32, seconds: u32) -> [Result; 2] {
    let loaded = Loaded::new("m", program);
    let both = [loaded.name.as_str(), program].map(|name| here(link, name, flows, seconds));
    for (who, it) in ["BPF", "module"].iter().zip(&both) {
        println!(
            "{program} in {who}, {flows} flows, {link}: {:.2} Mbit/s, {:.1} ms, marked {:.2} %, \
             retransmitted {:.3} %, least share {:.2}",
            it.bps / 1e6,
            it.rtt_ms,
            it.marked * 100.0,
            it.again * 100.0,
            it.least,
        );
    }
    both
}

fn near(ours: f64, module: f64, share: f64) -> bool {
    (ours - module).abs() <= share * module
}

fn dctcp_answers_marks_as_the_module_does() {
    for (flows, seconds) in [(1, 9), (2, 18)] {
        let [ours, module] = both("dctcp", MARKS, flows, seconds);
        let what = format!("{flows} flows: {ours:?}, {module:?}");
        assert!(near(ours.bps, module.bps, 0.01), "{what}");
        assert!(near(ours.rtt_ms, module.rtt_ms, 0.02), "{what}");
        assert!(near(ours.marked, module.marked, 0.1), "{what}");
        assert_eq!(ours.again + module.again, 0.0, "{what}");
        // Two flows converge slowly to equal shares; neither is starved.
        let fair = 0.2 / f64::from(flows);
        assert!(ours.least >= fair && module.least >= fair, "{what}");
    }
}

fn htcp_fills_a_queue_as_the_module_does() {
    for (flows, seconds) in [(1, 15), (2, 21)] {
        let [ours, module] = both("htcp", TAIL, flows, seconds);
        let what = format!("{flows} flows: {ours:?}, {module:?}");
        assert!(near(ours.bps, module.bps, 0.01), "{what}");
        assert!(near(ours.rtt_ms, module.rtt_ms, 0.1), "{what}");
        assert!((ours.again - module.again).abs() < 0.002, "{what}");
        let fair = 0.2 / f64::from(flows);
        assert!(ours.least >= fair && module.least >= fair, "{what}");
    }
}

/// The fate of the n-th packet is the same. H-TCP's growth depends on the time since the last
/// congestion. Its cut depends on the rate, which the module measures in another way
/// (docs/measurements/cc.md).
fn losses_cost_as_much_as_with_the_module() {
    for (program, share) in [("dctcp", 0.01), ("htcp", 0.2)] {
        for seed in 1..=3 {
            let [ours, module] = both(program, &format!("{LOSS} --seed {seed}"), 1, 12);
            let what = format!("{program}, seed {seed}: {ours:?}, {module:?}");
            assert!(near(ours.bps, module.bps, share), "{what}");
        }
    }
}

in_virtual_time!(
    #[ignore = "slow: minutes"]
    [],
    dctcp_answers_marks_as_the_module_does,
    htcp_fills_a_queue_as_the_module_does,
    losses_cost_as_much_as_with_the_module,
);

/// The laboratory's kernel, built here unless it exists; none if it cannot be built.
fn kernel() -> Option<PathBuf> {
    // Ubuntu has neither user-mode Linux nor these sources.
    for needed in ["/usr/bin/linux.uml", "/usr/src/linux-source-6.1.tar.xz"] {
        if !Path::new(needed).exists() {
            skip_unpackaged(&format!("no {needed} (scripts/setup.sh --kernel)"));
            return None;
        }
    }
    let output = Command::new(laboratory())
        .args(["build-kernel"])
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    let path = String::from_utf8(output.stdout).unwrap();
    Some(PathBuf::from(path.trim()))
}

/// TCP hands over up to 64 KiB at a time to near hosts, which take 0.53 ms at 1 Gbit/s. If marks
/// start at 0.5 ms, a part of each burst is marked although the queue is short. The kernel's own
/// module then leaves half of the link unused. In bursts of 8 segments it fills the link.
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
    let directory = programs();
    let script: String = [None, Some(8)]
        .map(|burst| command(directory.path(), link, "dctcp", (1, 2), burst))
        .concat();
    let words = [
        "time-travel=inf-cpu",
        "time-travel-start=1700000000000000000",
    ];
    let script = format!("set -e\n{script}");
    let said = guest::boot(&kernel, &words, &script, Duration::from_secs(3600));
    let found: Vec<f64> = said
        .lines()
        .filter(|line| line.starts_with("RESULT "))
        .map(|line| result(std::iter::once(line)).bps)
        .collect();
    println!("Mbit/s in bursts of 64 KiB and of 8 segments: {found:.0?}");
    // 1448 of 1500 bytes are data: 965 Mbit/s at most.
    assert!(
        matches!(found[..], [long, short] if long < 800e6 && short > 900e6),
        "{found:?} {said}"
    );
}
