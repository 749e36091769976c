//! The learned rate controller on long, slow, marked, shared and changing paths, and under
//! applications that pause.

use std::fs;
use std::process::Command;

use thalweg_lab::host::{Side, WireKind};
use thalweg_lab::scenario::{Aqm, PathModel};
use thalweg_testbed::loaded::Loaded;
use thalweg_testbed::virtual_time::in_virtual_time;
use thalweg_testbed::{Bed, manifest_path, plain};

/// bytes/s; docs/reference/cc.md: 200 kbit/s.
const FLOOR: f64 = 25_000.0;
/// Flows that start in each other's queue learn the base round-trip time at the next common probe.
const PROBES_S: f64 = 5.0;
/// Time between two samples of a flow.
const SAMPLED_S: f64 = 0.03;
/// Least goodput of one flow, as a share of its link. A probe for the base round-trip time halves
/// the rate for some rounds, but for fewer than half of them.
const PROBED: f64 = 0.75;

fn model(tag: &str) -> Loaded {
    let file = manifest_path("models/proportional.safetensors");
    Loaded::new(tag, file.to_str().unwrap())
}

/// Reads all connections to their end.
const SINK: &str = r#"
import socket, threading
listener = socket.socket()
listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
listener.bind(("0.0.0.0", 5001))
listener.listen(64)
print("listening", flush=True)
def read(connection):
    buffer = bytearray(1 << 20)
    try:
        while connection.recv_into(buffer):
            pass
    except OSError:
        pass
while True:
    threading.Thread(target=read, args=(listener.accept()[0],), daemon=True).start()
"#;

/// Connects flows and samples them every 20 ms. Arguments: address, congestion control, flows, and
/// the phases of each as words: `send:SECONDS`, `pause:SECONDS`, `drip:SECONDS:BYTES` (bytes per 20
/// ms), `write:BYTES` (once), or `cap:BYTES_PER_SECOND` (SO_MAX_PACING_RATE). Flows whose first word
/// is `at:SECONDS` connect so long after a common probe. Prints a line of JSON per sample: flow,
/// seconds since the start, number of the word, bytes acknowledged, pacing rate, smoothed
/// round-trip time in us.
const FLOWS: &str = r#"
import json, socket, struct, sys, threading, time
address, control, number, words = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4:]
begin = time.monotonic()
said = []
def flow(which):
    if words[0].startswith("at:"):
        time.sleep((float(words[0][3:]) - time.clock_gettime(time.CLOCK_TAI)) % 5)
    connection = socket.socket()
    connection.setsockopt(socket.IPPROTO_TCP, 13, control.encode())
    connection.connect((address, 5001))
    name = connection.getsockopt(socket.IPPROTO_TCP, 13, 16).rstrip(b"\0").decode()
    assert name == control, name
    connection.setblocking(False)
    for at, word in enumerate(words):
        what, *amounts = word.split(":")
        if what == "at":
            continue
        if what == "cap":
            connection.setsockopt(socket.SOL_SOCKET, 47, int(amounts[0]))
            continue
        if what == "write":
            connection.send(bytes(int(amounts[0])))
            continue
        start = time.monotonic()
        sampled, dripped = start, start
        while (now := time.monotonic()) < start + float(amounts[0]):
            try:
                if what == "send":
                    connection.send(bytes(65536))
                elif what == "drip" and now >= dripped:
                    dripped += 0.02
                    connection.send(bytes(int(amounts[1])))
            except BlockingIOError:
                pass
            if now >= sampled:
                sampled = now + 0.02
                information = connection.getsockopt(socket.IPPROTO_TCP, 11, 128)
                rate, acked = struct.unpack_from("QxxxxxxxxQ", information, 104)
                rtt, = struct.unpack_from("I", information, 68)
                said.append([which, now - begin, at, acked, rate, rtt])
            time.sleep(0.01)
threads = [threading.Thread(target=flow, args=(which,)) for which in range(number)]
for thread in threads: thread.start()
for thread in threads: thread.join()
for sample in said: print(json.dumps(sample))
"#;

/// A sample of a flow.
#[derive(Clone, Copy, Debug)]
struct Sample {
    flow: usize,
    at_s: f64,
    word: usize,
    acked: f64,
    rate: f64,
    rtt_us: f64,
}

struct Samples(Vec<Sample>);

impl Samples {
    fn parse(text: &str) -> Self {
        let samples = text.lines().map(|line| {
            let numbers: Vec<f64> = serde_json::from_str(line).unwrap();
            Sample {
                flow: numbers[0] as usize,
                at_s: numbers[1],
                word: numbers[2] as usize,
                acked: numbers[3],
                rate: numbers[4],
                rtt_us: numbers[5],
            }
        });
        Self(samples.collect())
    }

    fn of(&self, keep: impl Fn(&Sample) -> bool) -> Self {
        Self(
            self.0
                .iter()
                .filter(|&sample| keep(sample))
                .copied()
                .collect(),
        )
    }

    /// Samples of one word, from some seconds after its start on.
    fn word(&self, word: usize, after_s: f64) -> Self {
        let own = self.of(|sample| sample.word == word);
        let begin = own
            .0
            .iter()
            .map(|sample| sample.at_s)
            .fold(f64::MAX, f64::min);
        own.of(|sample| sample.at_s >= begin + after_s)
    }

    /// Acknowledged bits per second, by flow.
    fn goodputs(&self) -> Vec<f64> {
        let flows = self.0.iter().map(|sample| sample.flow).max().unwrap() + 1;
        let goodput = |flow| {
            let own = self.of(|sample| sample.flow == flow).0;
            let (first, last) = (own[0], own[own.len() - 1]);
            (last.acked - first.acked) * 8.0 / (last.at_s - first.at_s)
        };
        (0..flows).map(goodput).collect()
    }

    fn goodput(&self) -> f64 {
        self.goodputs().iter().sum()
    }

    fn median(&self, number: impl Fn(&Sample) -> f64) -> f64 {
        let mut values: Vec<f64> = self.0.iter().map(number).collect();
        values.sort_by(f64::total_cmp);
        values[values.len() / 2]
    }

    fn median_rtt_ms(&self) -> f64 {
        self.median(|sample| sample.rtt_us / 1000.0)
    }

    fn highest_rate(&self) -> f64 {
        self.0.iter().map(|sample| sample.rate).fold(0.0, f64::max)
    }

    fn lowest_rate(&self) -> f64 {
        self.0
            .iter()
            .map(|sample| sample.rate)
            .fold(f64::MAX, f64::min)
    }
}

/// A path without loss, in the words of a scenario.
fn path(rate: &str, delay: &str, queue: &str) -> PathModel {
    PathModel {
        rate: Some(rate.parse().unwrap()),
        delay: delay.parse().unwrap(),
        queue: Some(queue.parse().unwrap()),
        offload: false,
        ..PathModel::default()
    }
}

/// Largest goodput of a link with this rate, bits/s: 1448 of 1514 bytes are data.
fn most(rate_bps: f64) -> f64 {
    rate_bps * 1448.0 / 1514.0
}

/// Flows over a path, and the number of packets that arrived with a mark.
fn over(label: &str, path: &PathModel, control: &str, words: &str) -> (Samples, u64) {
    let mut options = plain(label);
    options.path = path.clone();
    if path.aqm == Aqm::Step {
        // The kernel has no queueing discipline that marks above a queueing delay.
        options.wire = WireKind::Tun;
    }
    let ecn = u8::from(path.ecn).to_string();
    options.sysctl.insert("net.ipv4.tcp_ecn".into(), ecn);
    let bed = Bed::new(&options, "");
    let mut sink = bed.python(Side::Server, SINK, &[]);
    assert_eq!(sink.line(), "listening");
    let address = bed.server_address();
    let arguments: Vec<&str> = [address.as_str(), control]
        .into_iter()
        .chain(words.split(' '))
        .collect();
    let said = bed.python(Side::Client, FLOWS, &arguments).finish();
    (Samples::parse(&said), bed.netstat(Side::Server, "InCEPkts"))
}

fn flows_that_start_together_share_a_path_by_equal_parts() {
    let loaded = model("js");
    let path = path("10mbit", "2500us", "200kb");
    let (samples, _) = over("rate-share", &path, &loaded.name, "8 send:12");
    let settled = samples.word(0, PROBES_S + 1.0);
    let goodputs = settled.goodputs();
    let sum: f64 = goodputs.iter().sum();
    let squares: f64 = goodputs.iter().map(|goodput| goodput * goodput).sum();
    let jain = sum * sum / (8.0 * squares);
    let rtt = settled.median_rtt_ms();
    println!("Jain {jain:.2}, {sum:.0} bit/s, {rtt:.1} ms");
    // If each flow takes the others' queue as part of its base round-trip time, shares are a matter
    // of chance: 0.24.
    assert!(jain > 0.95, "{jain}: {goodputs:?}");
    assert!(sum > 0.9 * most(10e6), "{sum} bit/s of 10 Mbit/s");
    // The signal's target for 1.25 Mbit/s is a queue of 0.1 * sqrt(10 Gbit/s / 1.25 Mbit/s) * 5 ms
    // = 45 ms; 200 kB take 160 ms.
    assert!(rtt < 80.0, "{rtt} ms");
}

fn long_round_trips_are_filled() {
    let loaded = model("jl");
    // Queues of four round trips; the signal's target, 0.1 * sqrt(10 Gbit/s / 10 Mbit/s), is 3.2.
    for (delay, queue, rtt_ms) in [("50ms", "500kb", 100.0), ("100ms", "1mb", 200.0)] {
        let path = path("10mbit", delay, queue);
        let (samples, _) = over("rate-long", &path, &loaded.name, "1 send:14");
        let settled = samples.word(0, 7.0);
        let (goodput, rtt) = (settled.goodput(), settled.median_rtt_ms());
        println!("{delay}: {goodput:.0} bit/s, {rtt:.1} ms");
        assert!(
            goodput > PROBED * most(10e6),
            "{delay}: {goodput} of 10 Mbit/s"
        );
        assert!(rtt >= rtt_ms, "{delay}: {rtt} ms");
    }
}

fn marks_keep_the_queue_shorter() {
    let loaded = model("je");
    let run = |ecn| {
        let mut path = path("10mbit", "10ms", "100kb");
        path.aqm = Aqm::Step;
        path.mark = Some("3ms".parse().unwrap());
        path.ecn = ecn;
        let (samples, marked) = over("rate-marks", &path, &loaded.name, "1 send:6");
        let settled = samples.word(0, 2.0);
        (settled.goodput(), settled.median_rtt_ms(), marked)
    };
    let (_, without, none) = run(false);
    let (goodput, with, marked) = run(true);
    println!("{goodput:.0} bit/s, {with:.1} ms, without marks {without:.1} ms; {marked} marked");
    assert_eq!(none, 0, "packets of who knows no ECN");
    assert!(marked > 100, "{marked}");
    assert!(
        goodput > PROBED * most(10e6),
        "{goodput} bit/s of 10 Mbit/s"
    );
    // The fixed point without marks is 0.1 * sqrt(10 Gbit/s / 10 Mbit/s) * 20 ms = 63 ms of queue.
    let queue = [with, without].map(|rtt| rtt - 20.0);
    assert!(queue[0] < queue[1] / 2.0, "{queue:?} ms of queue");
}

fn a_pause_costs_rate_and_not_the_flow() {
    let loaded = model("ji");
    // The first window of a new connection, below which the rate does not fall, is 181 kB/s here.
    let path = path("10mbit", "40ms", "400kb");
    let words = "1 send:3 pause:8 send:3";
    let (samples, _) = over("rate-pause", &path, &loaded.name, words);
    let before = samples.word(0, 2.0).median(|sample| sample.rate);
    let again = samples.word(2, 0.0);
    // Four seconds without data are four halvings; what is buffered is sent first. The first sample is up to 30 ms late, less than a round.
    let first = again.0[0].rate.min(again.0[1].rate);
    assert!(first < before / 4.0, "{first} bytes/s after {before}");
    let late = samples.word(2, 1.0).goodput();
    println!("{before} bytes/s, {first} after the pause, then {late} bit/s");
    assert!(late > PROBED * most(10e6), "{late} bit/s of 10 Mbit/s");
}

/// Seconds from the start of a word until so many bytes of it were acknowledged; infinite if they
/// never were.
fn time_of(samples: &Samples, word: usize, bytes: f64) -> f64 {
    let own = samples.word(word, 0.0);
    let first = own.0[0];
    let last = own
        .0
        .iter()
        .find(|sample| sample.acked - first.acked >= bytes);
    last.map_or(f64::INFINITY, |last| last.at_s - first.at_s)
}

fn a_small_first_write_and_a_pause_cost_the_start_nothing() {
    let loaded = model("jw");
    let mut slower = false;
    for (rate, delay, queue, bytes, pauses_s, again_s) in [
        (
            "24mbit",
            "60ms",
            "720kb",
            6e6,
            &[0.25, 5.0][..],
            &[2.0, 5.0][..],
        ),
        ("24mbit", "1ms", "100kb", 1.5e6, &[0.25], &[]),
    ] {
        let path = path(rate, delay, queue);
        // What is timed begins at the same time after a common probe, which costs some rounds.
        let time = |before: &str, before_s: f64| {
            let word = 1 + before.split_whitespace().count();
            let words = format!("1 at:{} {before} send:6", 0.2 - before_s);
            let words = words.split_whitespace().collect::<Vec<_>>().join(" ");
            let (samples, _) = over("rate-first", &path, &loaded.name, &words);
            time_of(&samples, word, bytes)
        };
        let plain = time("", 0.0);
        for pause_s in pauses_s {
            let beside = time(&format!("write:37 pause:{pause_s}"), *pause_s);
            println!("{rate} {delay} pause {pause_s} s: {beside:.2} s, {plain:.2} s without");
            slower |= beside > 1.1 * plain + SAMPLED_S;
        }
        for pause_s in again_s {
            let again = time(&format!("send:6 pause:{pause_s}"), 6.0 + pause_s);
            println!("{rate} {delay} after {pause_s} s: {again:.2} s, {plain:.2} s at first");
            slower |= again > 1.1 * plain + SAMPLED_S;
        }
    }
    assert!(!slower, "see above");
}

fn an_application_that_sends_little_gets_it_through_and_no_more_rate() {
    let loaded = model("ja");
    let path = path("10mbit", "10ms", "100kb");
    // 5 kB each 20 ms are 2 Mbit/s.
    let words = "1 drip:5:5000 send:5";
    let (samples, _) = over("rate-drip", &path, &loaded.name, words);
    let limited = samples.word(0, 2.0);
    let (goodput, highest) = (limited.goodput(), limited.highest_rate());
    println!("{goodput:.0} bit/s, at most {highest} bytes/s");
    assert!((goodput / 2e6 - 1.0).abs() < 0.02, "{goodput} of 2 Mbit/s");
    // Unused capacity is not requested. The start may have reached twice the delivery rate of its
    // fastest round, which is the link's rate.
    assert!(highest <= 2.0 * 10e6 / 8.0, "{highest} bytes/s");
    let free = samples.word(1, 2.0).goodput();
    assert!(free > PROBED * most(10e6), "{free} bit/s of 10 Mbit/s");
}

fn less_than_a_packet_in_a_round_trip_goes_on() {
    let loaded = model("jp");
    // A full packet takes 40 ms, twice the round-trip time.
    let path = path("300kbit", "10ms", "60kb");
    let (samples, _) = over("rate-packet", &path, &loaded.name, "1 send:16");
    // The start fills the queue, which takes 1.6 s. At the lowest rate it takes five seconds to
    // drain.
    let settled = samples.word(0, 8.0);
    let (goodput, lowest) = (settled.goodput(), samples.lowest_rate());
    println!("{goodput:.0} bit/s, at least {lowest} bytes/s");
    // The lowest rate counts data only.
    let goodput_floor = 0.95 * FLOOR * 8.0;
    assert!(goodput > goodput_floor, "{goodput} bit/s of 300 kbit/s");
    assert!(lowest >= FLOOR, "{lowest} bytes/s");
}

fn the_sockets_own_limit_of_the_rate_holds() {
    let loaded = model("jc");
    let path = path("10mbit", "1ms", "200kb");
    // 500 kB/s are 4 Mbit/s.
    let words = "1 cap:500000 send:4";
    let (samples, _) = over("rate-cap", &path, &loaded.name, words);
    let settled = samples.word(1, 1.0);
    let goodput = settled.goodput();
    println!("{goodput:.0} bit/s");
    assert!((3.8e6..4.05e6).contains(&goodput), "{goodput} of 4 Mbit/s");
    assert!(settled.highest_rate() <= 5e5, "{}", settled.highest_rate());
}

/// A wire between two namespaces, with 5 Mbit/s, 50 kB of queue, and a changing delay. Arguments:
/// the namespaces, and one-way delays in ms with their start in seconds, `0:10 6:40`. Time starts
/// with the first packet. Addresses are 10.98.0.1 and 10.98.0.2.
const WIRE: &str = r#"
import collections, ctypes, fcntl, os, select, struct, subprocess, sys, time
libc = ctypes.CDLL(None, use_errno=True)
def end(namespace, address):
    with open("/run/netns/" + namespace) as there:
        assert libc.setns(there.fileno(), 0) == 0, os.strerror(ctypes.get_errno())
    device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(device, 0x400454CA, struct.pack("16sH22x", b"wire0", 0x1001))
    for words in (["address", "add", address + "/24", "dev", "wire0"], ["link", "set", "wire0", "up"]):
        subprocess.run(["ip", *words], check=True)
    return device
def packets(device):
    try:
        while True:
            yield os.read(device, 2048)
    except BlockingIOError:
        pass
ends = [end(sys.argv[1], "10.98.0.1"), end(sys.argv[2], "10.98.0.2")]
plan = [tuple(map(float, word.split(":"))) for word in sys.argv[3:]]
print("up", flush=True)
began, busy = None, [0.0, 0.0]
waiting = [collections.deque(), collections.deque()]
while True:
    now = time.monotonic()
    due = min((queue[0][0] for queue in waiting if queue), default=now + 1)
    for device in select.select(ends, [], [], max(0, due - now))[0]:
        side = ends.index(device)
        now = time.monotonic()
        began = began or now
        delay = [ms for second, ms in plan if now - began >= second][-1] / 1000
        for packet in packets(device):
            if (busy[side] - now) * 5e6 / 8 > 50_000:
                continue
            busy[side] = max(now, busy[side]) + len(packet) * 8 / 5e6
            waiting[side].append((busy[side] + delay, packet))
    now = time.monotonic()
    for side, queue in enumerate(waiting):
        while queue and queue[0][0] <= now:
            os.write(ends[1 - side], queue.popleft()[1])
"#;

fn a_route_that_becomes_longer_and_shorter_is_followed() {
    let bed = Bed::new(&plain("rate-route"), "");
    let loaded = model("jr");
    let namespaces =
        [Side::Client, Side::Server].map(|side| bed.pair.namespace_name(side).to_owned());
    let wire = loaded.directory().join("wire.py");
    fs::write(&wire, WIRE).unwrap();
    let mut wire = Command::new("python3");
    wire.arg("-u").arg(loaded.directory().join("wire.py"));
    wire.args(&namespaces).args(["0:5", "5:40", "16:5"]);
    let mut wire = thalweg_testbed::Traffic::spawn(wire);
    assert_eq!(wire.line(), "up");
    let mut sink = bed.python(Side::Server, SINK, &[]);
    assert_eq!(sink.line(), "listening");
    let flow = bed.python(
        Side::Client,
        FLOWS,
        &["10.98.0.2", &loaded.name, "1", "send:22"],
    );
    let samples = Samples::parse(&flow.finish());
    let begin = samples.0[0].at_s;
    // Each range starts a while after the change, so that the next common probe is before it. A
    // flow that took the longer path for a queue would go down to the lowest rate.
    for (from, to, rtt_ms) in [(2.0, 5.0, 10.0), (11.5, 16.0, 80.0), (18.0, 22.0, 10.0)] {
        let phase = samples.of(|sample| (begin + from..begin + to).contains(&sample.at_s));
        let (goodput, rtt) = (phase.goodput(), phase.median_rtt_ms());
        println!("{from} to {to} s: {goodput:.0} bit/s, {rtt:.1} ms");
        assert!(
            goodput > PROBED * most(5e6),
            "{from} s: {goodput} of 5 Mbit/s"
        );
        assert!(rtt >= rtt_ms, "{from} s: {rtt} ms");
    }
}

in_virtual_time!(
    #[ignore = "slow: two minutes of a processor"]
    ["models/proportional.safetensors"],
    flows_that_start_together_share_a_path_by_equal_parts,
    long_round_trips_are_filled,
    marks_keep_the_queue_shorter,
    a_pause_costs_rate_and_not_the_flow,
    a_small_first_write_and_a_pause_cost_the_start_nothing,
    an_application_that_sends_little_gets_it_through_and_no_more_rate,
    less_than_a_packet_in_a_round_trip_goes_on,
    the_sockets_own_limit_of_the_rate_holds,
    a_route_that_becomes_longer_and_shorter_is_followed,
);
