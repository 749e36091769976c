//! The learned rate controller on real connections. A model is loaded, carries flows, reports its
//! decisions, is replaced, and keeps its rate within limits for any weights.

use std::collections::BTreeMap;
use std::fs;
use std::io::Read;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use serde_json::{Value, json};
use thalweg_lab::host::{PairOptions, Side};
use thalweg_rate::models::ModelFile;
use thalweg_rate::{Flow, Measurement, next_rate};

use thalweg_testbed::models::{Tree, network, tree};
use thalweg_testbed::virtual_time::in_virtual_time;
use thalweg_testbed::{Bed, manifest_path, plain, privileged, thalweg, unique, wait_for};

/// bytes/s; docs/reference/cc.md: 200 kbit/s.
const FLOOR: u64 = 25_000;

fn shipped() -> PathBuf {
    manifest_path("models/proportional.safetensors")
}

fn success(bed: &Bed, arguments: &[&str]) -> String {
    let output = bed.thalweg(arguments);
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{arguments:?}: {text}");
    String::from_utf8(output.stdout).unwrap()
}

fn failure(bed: &Bed, arguments: &[&str]) -> String {
    let output = bed.thalweg(arguments);
    let text = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{arguments:?}: {text}");
    assert_eq!(text.lines().count(), 1, "{text}");
    text
}

fn row(bed: &Bed, name: &str) -> Value {
    let list = bed.json(&["cc", "list"]);
    let rows = list.as_array().unwrap();
    rows.iter()
        .find(|row| row["name"] == name)
        .cloned()
        .unwrap_or_default()
}

/// 20 Mbit/s behind a buffer of 200 kB: 80 ms.
fn deep(label: &str) -> PairOptions {
    let mut options = plain(label);
    options.path.rate = Some("20mbit".parse().unwrap());
    options.path.queue = Some("200kb".parse().unwrap());
    options
}

/// A flow that sends as fast as it may. Arguments: address, port, congestion control, seconds. The
/// first second does not count. Prints: acknowledged bits per second, the median of the smoothed
/// round-trip time in us, the lowest and highest pacing rate in bytes/s.
const SEND: &str = r#"
import socket, struct, sys, threading, time
connection = socket.socket()
connection.setsockopt(socket.IPPROTO_TCP, 13, sys.argv[3].encode())
connection.connect((sys.argv[1], int(sys.argv[2])))
name = connection.getsockopt(socket.IPPROTO_TCP, 13, 16).rstrip(b"\0").decode()
assert name == sys.argv[3], name
over = False
def send():
    chunk = bytes(65536)
    try:
        while not over:
            connection.send(chunk)
    except OSError:
        pass
threading.Thread(target=send, daemon=True).start()
begin, rtts, rates, first = time.monotonic(), [], [], None
while time.monotonic() < begin + float(sys.argv[4]):
    time.sleep(0.01)
    information = connection.getsockopt(socket.IPPROTO_TCP, 11, 128)
    now, have = time.monotonic(), struct.unpack_from("Q", information, 120)[0]
    rates.append(struct.unpack_from("Q", information, 104)[0])
    if now > begin + 1:
        first = first or (now, have)
        rtts.append(struct.unpack_from("I", information, 68)[0])
over = True
print((have - first[1]) * 8 / (now - first[0]), sorted(rtts)[len(rtts) // 2], min(rates), max(rates))
"#;

#[derive(Debug)]
struct Sent {
    goodput_bps: f64,
    rtt_us: f64,
    lowest_rate: f64,
    highest_rate: f64,
}

fn send(bed: &Bed, control: &str, seconds: &str) -> Sent {
    let address = bed.server_address();
    let said = bed
        .python(Side::Client, SEND, &[&address, "5001", control, seconds])
        .finish();
    let numbers: Vec<f64> = said
        .split_whitespace()
        .map(|word| word.parse().unwrap())
        .collect();
    Sent {
        goodput_bps: numbers[0],
        rtt_us: numbers[1],
        lowest_rate: numbers[2],
        highest_rate: numbers[3],
    }
}

/// A command that runs until it is dropped.
struct Tracer(Child);

impl Tracer {
    /// Starts one and waits until the kernel traces.
    fn new(bed: &Bed, name: &str, arguments: &[&str]) -> Self {
        let child = Command::new(thalweg())
            .arg("--config")
            .arg(bed.configuration())
            .args(["--json", "cc", "trace"])
            .args(arguments)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let tracer = Self(child);
        let path = bed.pin.join("cc").join(name).join("map_trace");
        wait_for("the trace", || {
            use libbpf_rs::{MapCore, MapFlags, MapHandle};
            let map = MapHandle::from_pinned_path(&path).unwrap();
            let value = map.lookup(&[0; 4], MapFlags::ANY).unwrap().unwrap();
            value[..8].iter().any(|&byte| byte != 0).then_some(())
        });
        tracer
    }

    /// Ends it; returns its output, line by line, and its errors.
    fn finish(mut self) -> (Vec<Value>, String) {
        let mut out = self.0.stdout.take().unwrap();
        let reader = std::thread::spawn(move || {
            let mut text = String::new();
            out.read_to_string(&mut text).unwrap();
            text
        });
        // The ring is read every tenth of a second; the last decisions do not matter.
        self.0.kill().unwrap();
        let text = reader.join().unwrap();
        let mut complaint = String::new();
        let mut error = self.0.stderr.take().unwrap();
        error.read_to_string(&mut complaint).unwrap();
        let whole = text.rfind('\n').map_or(0, |end| end + 1);
        let lines = text[..whole].lines();
        let parsed = lines.map(|line| serde_json::from_str(line).unwrap());
        (parsed.collect(), complaint)
    }
}

impl Drop for Tracer {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

pub fn a_model_fills_the_path_with_a_short_queue() {
    let bed = Bed::new(&deep("rate-queue"), "");
    let ours = unique("rq");
    let said = success(
        &bed,
        &["cc", "load", shipped().to_str().unwrap(), "--name", &ours],
    );
    assert_eq!(said, format!("loaded {ours}\n"));
    let listed = row(&bed, &ours);
    assert_eq!(listed["model"]["name"], "proportional", "{listed}");
    assert_eq!(listed["model"]["reference_rate_bps"], 10_000_000_000u64);
    let target = listed["model"]["target"].as_f64().unwrap();
    assert!((target - 0.1).abs() < 1e-6, "{listed}");

    let address = bed.server_address();
    let _sink = bed.sink(&address);
    let [sent, other] = [ours.as_str(), "cubic"].map(|control| send(&bed, control, "4"));
    let (share, delay) = (
        sent.goodput_bps / other.goodput_bps,
        sent.rtt_us / other.rtt_us,
    );
    println!(
        "{share} of cubic's goodput, {delay} of its {} us",
        other.rtt_us
    );
    // Without cubic's queue there is no reference: cubic keeps 0.7 of 80 ms and more.
    assert!(other.rtt_us > 0.7 * 80e3, "{} us", other.rtt_us);
    assert!(share > 0.9, "{share} of cubic's goodput");
    assert!(delay < 0.5, "{delay} of cubic's queueing delay");
}

/// The kernel's decisions equal those of the reference for the same measurements, step by step.
fn traced_decisions_are_those_of_the_reference() {
    let bed = Bed::new(&deep("rate-trace"), "");
    let forest = bed.directory.path().join("forest.safetensors");
    fs::write(&forest, tree(&Tree::ByError)).unwrap();
    let dense = bed.directory.path().join("dense.safetensors");
    let weights = |layer: usize, row: usize, column: usize| {
        // Fixed, without a pattern that a swap of rows or columns would preserve.
        let mixed = (layer * 131 + row * 31 + column * 17 + 7) * 2_654_435_761 % 1_000;
        mixed as f32 / 500.0 - 1.0
    };
    fs::write(&dense, network(&weights)).unwrap();
    let address = bed.server_address();
    let _sink = bed.sink(&address);
    let trained = manifest_path("models/adpg-plus.safetensors");
    let files = [
        ("rp", shipped()),
        ("ra", trained),
        ("rf", forest),
        ("rd", dense),
    ];
    for (tag, file) in files {
        let ours = unique(tag);
        success(
            &bed,
            &["cc", "load", file.to_str().unwrap(), "--name", &ours],
        );
        let tracer = Tracer::new(&bed, &ours, &["--name", &ours, &address]);
        let second = failure(&bed, &["cc", "trace", "--name", &ours]);
        assert!(second.contains("traced already"), "{second}");
        send(&bed, &ours, "2");
        let (decisions, complaint) = tracer.finish();
        assert_eq!(complaint, "", "decisions were lost");

        let read = ModelFile::read(&file).unwrap();
        let model = read.policy.integer_model().unwrap();
        let (mut flows, mut compared) = (BTreeMap::new(), 0);
        for decision in &decisions {
            let number = |key: &str| decision[key].as_u64().unwrap_or_else(|| panic!("{key}"));
            assert_eq!(decision["remote"], address.as_str());
            assert_eq!(number("remote_port"), 5001);
            let first = decision["first"].as_bool().unwrap();
            let port = number("local_port");
            assert_eq!(first, !flows.contains_key(&port), "{decision}");
            let flow = flows.entry(port).or_insert_with(Flow::default);
            let measurement = Measurement {
                rtt_ns: number("rtt_ns"),
                base_rtt_ns: number("base_rtt_ns"),
                rate: number("rate"),
                line_rate: number("reference_rate"),
            };
            let action = model.decide_action(flow, &measurement);
            assert_eq!(
                decision["action_q15"],
                json!(action),
                "{compared}: {decision}"
            );
            assert_eq!(decision["inputs"], json!(flow.inputs()), "{decision}");
            let (floor, cap) = (number("floor"), number("cap"));
            // At most the former rate: a floor never raises it.
            assert!(
                (FLOOR..=measurement.rate.max(FLOOR)).contains(&floor),
                "{decision}"
            );
            let next = next_rate(measurement.rate, action, floor, cap);
            let next = ((next * number("keep_q16")) >> 16).max(floor);
            assert_eq!(number("next_rate"), next, "{decision}");
            compared += 1;
        }
        println!("{tag}: {compared} decisions");
        // One decision per round: two seconds have at least 24 rounds of 82 ms, and at most 1000 of
        // 2 ms.
        assert!((24..=1000).contains(&compared), "{tag}: {compared}");
    }
}

/// The delivery rate bounds the rates only of flows that can measure it. With less than 16 KiB per
/// base round trip, two ACKs more or less are most of the measurement. Such a bound would keep fast
/// flows fast and cut slow ones by chance (docs/reference/cc.md).
fn what_arrives_bounds_only_rates_that_it_tells() {
    let held = |rate: &str, label: &str, tag: &str| {
        let mut options = deep(label);
        options.path.rate = Some(rate.parse().unwrap());
        let bed = Bed::new(&options, "");
        let ours = unique(tag);
        success(
            &bed,
            &["cc", "load", shipped().to_str().unwrap(), "--name", &ours],
        );
        let address = bed.server_address();
        let _sink = bed.sink(&address);
        let tracer = Tracer::new(&bed, &ours, &["--name", &ours, &address]);
        send(&bed, &ours, "2");
        let (decisions, complaint) = tracer.finish();
        assert_eq!(complaint, "", "decisions were lost");
        let (mut coarse, mut others) = (0, 0);
        for pair in decisions.windows(2) {
            let decision = &pair[1];
            let number = |key: &str| decision[key].as_u64().unwrap_or_else(|| panic!("{key}"));
            let (rate, base_us) = (number("rate"), number("base_rtt_ns") / 1000);
            // The larger of two rounds; the program stores the earlier one in KiB/s.
            let before = pair[0]["delivered_rate"].as_u64().unwrap() >> 10 << 10;
            let arriving = number("delivered_rate").max(before);
            if rate * base_us < 16_384 * 1_000_000 {
                coarse += 1;
                assert_eq!(number("floor"), FLOOR, "{decision}");
                assert!(number("cap") >= rate - rate / 8 - 1, "{decision}");
            } else {
                others += 1;
                // The reduction that empties the queue in four base round trips; a quarter at most.
                let queue = (number("rtt_ns") / 1000 - base_us).clamp(base_us / 4, base_us);
                let drained = arriving - arriving * queue / (4 * base_us);
                assert_eq!(number("floor"), rate.min(drained).max(FLOOR), "{decision}");
            }
        }
        eprintln!("{rate}: {coarse} coarse, {others} others");
        (coarse, others)
    };
    // 5 kB in a base round trip of 2 ms, and 100 kB.
    let (coarse, others) = held("20mbit", "rate-coarse", "rc");
    assert!(coarse > 20 && coarse > others, "{coarse}, {others}");
    let (coarse, others) = held("400mbit", "rate-fine", "ri");
    assert!(others > 20 && others > coarse, "{coarse}, {others}");
}

/// A dead trace leaves decisions in the kernel's ring; the next trace does not report them.
fn a_trace_does_not_begin_with_what_another_left() {
    let bed = Bed::new(&deep("rate-stale"), "");
    let ours = unique("rl");
    success(
        &bed,
        &["cc", "load", shipped().to_str().unwrap(), "--name", &ours],
    );
    let address = bed.server_address();
    let _sink = bed.sink(&address);
    // The kernel goes on tracing for three seconds, and nobody reads.
    let dead = Tracer::new(&bed, &ours, &["--name", &ours, &address]);
    dead.finish();
    send(&bed, &ours, "2");
    let tracer = Tracer::new(&bed, &ours, &["--name", &ours, "192.0.2.1"]);
    send(&bed, &ours, "1.2");
    let (decisions, _) = tracer.finish();
    assert_eq!(decisions.first(), None, "{} decisions", decisions.len());
}

/// The rate stays within its limits for any weights. cc_rate_stall.rs shows that the flow does not
/// stall.
fn no_weights_leave_the_limits_of_the_rate() {
    let bed = Bed::new(&deep("rate-wild"), "");
    let address = bed.server_address();
    let _sink = bed.sink(&address);
    type Weights = fn(usize, usize, usize) -> f32;
    let wild: [(&str, Weights); 3] = [
        ("all 127", |_, _, _| 1.0),
        (
            "-127 in the end",
            |layer, _, _| {
                if layer == 2 { -1.0 } else { 1.0 }
            },
        ),
        ("by turns", |layer, row, column| {
            if (layer + row + column) % 2 == 0 {
                1.0
            } else {
                -1.0
            }
        }),
    ];
    let ours = unique("rw");
    let file = bed.directory.path().join("wild.safetensors");
    let file = file.to_str().unwrap();
    let mut files: Vec<(String, Vec<u8>)> = wild
        .iter()
        .map(|(what, weights)| ((*what).to_owned(), network(weights)))
        .collect();
    // Decisions that no network here makes in every state: always faster, always slower.
    files.push(("up".into(), tree(&Tree::Always(32767))));
    files.push(("down".into(), tree(&Tree::Always(-32767))));
    for (number, (what, bytes)) in files.iter().enumerate() {
        fs::write(file, bytes).unwrap();
        if number == 0 {
            success(&bed, &["cc", "load", file, "--name", &ours]);
        } else {
            success(&bed, &["cc", "swap", &ours, file]);
        }
        let sent = send(&bed, &ours, "4");
        println!("{what}: {sent:?}");
        // A probe for the shortest round trip halves the rate, but not below the floor.
        assert!(
            sent.lowest_rate >= FLOOR as f64,
            "{what}: {}",
            sent.lowest_rate
        );
        // It starts with ten packets in a millisecond; then its rate is twice the delivery rate.
        assert!(
            sent.highest_rate < 15e6,
            "{what}: runs away to {}",
            sent.highest_rate
        );
        assert!(
            sent.goodput_bps > 0.95 * 8.0 * FLOOR as f64,
            "{what}: {} bit/s",
            sent.goodput_bps
        );
        if what == "down" {
            assert!(
                sent.goodput_bps < 2.0 * 8.0 * FLOOR as f64,
                "{what}: the model was not obeyed: {}",
                sent.goodput_bps
            );
        }
    }
}

/// Connections come and go while models are replaced ten times a second and the agent is killed.
fn models_are_replaced(label: &str, tag: &str, threads: u32, each: u32, swaps: u32) {
    let ours = unique(tag);
    // Named, because the agent takes at most 16, and other tests may have loaded theirs.
    let allow = format!("[arms]\nallow = [\"cubic\", \"reno\", {ours:?}]\n");
    let mut bed = Bed::running(label, &allow);
    let forest = bed.directory.path().join("forest.safetensors");
    fs::write(&forest, tree(&Tree::ByError)).unwrap();
    let files = [
        shipped().to_str().unwrap().to_owned(),
        forest.to_str().unwrap().to_owned(),
    ];
    success(&bed, &["cc", "load", &files[0], "--name", &ours]);
    let address = bed.server_address();
    let _sink = bed.sink(&address);
    let connections = r#"
import socket, sys, threading
def one(number):
    for _ in range(int(sys.argv[4])):
        connection = socket.create_connection((sys.argv[1], 5001))
        connection.setsockopt(socket.IPPROTO_TCP, 13, sys.argv[2].encode())
        connection.sendall(bytes(50000))
        connection.shutdown(socket.SHUT_WR)
        connection.recv(1)
        connection.close()
        done[number] += 1
done = [0] * int(sys.argv[3])
threading.stack_size(65536)
threads = [threading.Thread(target=one, args=(number,)) for number in range(len(done))]
for thread in threads: thread.start()
for thread in threads: thread.join()
print(sum(done))
"#;
    let (wide, deep) = (threads.to_string(), each.to_string());
    let traffic = bed.python(Side::Client, connections, &[&address, &ours, &wide, &deep]);
    let begin = Instant::now();
    // An even number: the first model is the last.
    for number in 0..swaps {
        success(
            &bed,
            &["cc", "swap", &ours, &files[(number as usize + 1) % 2]],
        );
        if number == swaps / 2 {
            bed.end(Signal::SIGKILL);
        }
        // Ten times a second, or as fast as the machine allows.
        let due = Duration::from_millis(100) * (number + 1);
        std::thread::sleep(due.saturating_sub(begin.elapsed()));
    }
    assert_eq!(
        traffic.finish().trim(),
        (threads * each).to_string(),
        "connections that ended well"
    );
    assert_eq!(row(&bed, &ours)["model"]["name"], "proportional");
    wait_for("the end of all connections", || {
        (row(&bed, &ours)["use"]["flows"] == 0).then_some(())
    });
    success(&bed, &["cc", "unload", &ours]);
    assert!(row(&bed, &ours).is_null());
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn models_are_replaced_under_connections() {
    if privileged() {
        models_are_replaced("rate-swap", "rs", 20, 25, 20);
    }
}

#[test]
#[ignore = "slow: a minute"]
fn models_are_replaced_under_a_thousand_connections() {
    if privileged() {
        models_are_replaced("rate-many", "rm", 1000, 5, 60);
    }
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn what_is_no_model_is_refused_and_leaves_nothing() {
    if !privileged() {
        return;
    }
    let bed = Bed::new(&plain("rate-bad"), "");
    let ours = unique("rb");
    let good = fs::read(shipped()).unwrap();
    let bad = bed.directory.path().join("bad.safetensors");
    let bad = bad.to_str().unwrap();
    fs::write(bad, &good[..good.len() - 5]).unwrap();
    let said = failure(&bed, &["cc", "load", bad, "--name", &ours]);
    assert!(said.contains("bad.safetensors: header: found"), "{said}");
    let odd = String::from_utf8_lossy(&good).contains("\\\"target\\\": 0.1");
    assert!(
        odd,
        "the shipped model's target has changed; change this test"
    );
    let negative = replaced(&good, b"\\\"target\\\": 0.1", b"\\\"target\\\": -.1");
    fs::write(bad, negative).unwrap();
    let said = failure(&bed, &["cc", "load", bad, "--name", &ours]);
    assert!(
        said.contains("bad.safetensors: metadata `thalweg`:1:"),
        "{said}"
    );
    let said = failure(&bed, &["cc", "load", "thalweg_rl"]);
    assert!(said.contains("give the model's file"), "{said}");
    let said = failure(&bed, &["cc", "load", "htcp", "--reference-rate", "1gbit"]);
    assert!(said.contains("belong to models; htcp is none"), "{said}");
    let shipped = shipped();
    let shipped = shipped.to_str().unwrap();
    let said = failure(&bed, &["cc", "load", shipped, "--reference-rate", "1kbit"]);
    assert!(said.contains("expected 200 kbit/s to 8 Tbit/s"), "{said}");
    let said = failure(&bed, &["cc", "trace"]);
    assert!(
        said.contains("no learned rate controller is loaded"),
        "{said}"
    );
    assert!(row(&bed, &ours).is_null());
    // A failed swap keeps the present version.
    success(&bed, &["cc", "load", shipped, "--name", &ours]);
    failure(&bed, &["cc", "swap", &ours, bad]);
    assert_eq!(row(&bed, &ours)["model"]["name"], "proportional");
}

/// Replaces the first `from` by `to`, of the same length.
fn replaced(bytes: &[u8], from: &[u8], to: &[u8]) -> Vec<u8> {
    assert_eq!(from.len(), to.len());
    let at = bytes
        .windows(from.len())
        .position(|part| part == from)
        .unwrap();
    [&bytes[..at], to, &bytes[at + from.len()..]].concat()
}

in_virtual_time!(
    #[ignore = "slow: more cases in virtual time"]
    [
        "models/proportional.safetensors",
        "models/adpg-plus.safetensors"
    ],
    traced_decisions_are_those_of_the_reference,
    what_arrives_bounds_only_rates_that_it_tells,
    a_trace_does_not_begin_with_what_another_left,
    no_weights_leave_the_limits_of_the_rate,
);
