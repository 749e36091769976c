//! A flow of the learned rate controller does not stall, whatever the model's weights. It is never
//! silent for longer than one TCP timer runs: on a clean path, under loss, and during an outage of
//! ACKs.

use std::fs;
use std::time::Duration;

use serde_json::Value;
use thalweg_bpf_types::raw;
use thalweg_lab::host::Side;
use thalweg_testbed::loaded::Loaded;
use thalweg_testbed::models::{Tree, network, tree};
use thalweg_testbed::virtual_time::in_virtual_time;
use thalweg_testbed::{Bed, plain};

/// A flow that always has data to send. Arguments: address, port, congestion control, milliseconds
/// of a packet at the lowest rate. It prints "sending" when data has been acknowledged. After each
/// line of input it prints its observations since the line before, as JSON:
///
/// - `silent`: the longest time since data was last sent. Its unit is that moment's time-out plus a
///   packet at the lowest rate, see [`LONGEST`];
/// - `stuck`: the longest time without anything newly acknowledged, in the same unit;
/// - `rto_ms`, `backoff`: the longest time-out and its largest number of doublings;
/// - `acked`, `retransmitted`: bytes, and segments.
///
/// The machine's own scheduling does not count. `silent` is the kernel's own clock
/// (`tcpi_last_data_sent`), read together with the time-out. `stuck` starts at the first sample
/// that shows the acknowledgement, so a late sampler sees less. Moments at which the application or
/// the receiver held the flow back are left out.
const SEND: &str = r#"
import json, select, socket, struct, sys, threading, time
connection = socket.socket()
connection.setsockopt(socket.IPPROTO_TCP, 13, sys.argv[3].encode())
connection.connect((sys.argv[1], int(sys.argv[2])))
name = connection.getsockopt(socket.IPPROTO_TCP, 13, 16).rstrip(b"\0").decode()
assert name == sys.argv[3], name
def send():
    chunk = bytes(65536)
    while True:
        connection.send(chunk)
threading.Thread(target=send, daemon=True).start()
def sample():
    information = connection.getsockopt(socket.IPPROTO_TCP, 11, 200)
    word = lambda at: struct.unpack_from("I", information, at)[0]
    long = lambda at: struct.unpack_from("Q", information, at)[0]
    return {"now": time.monotonic() * 1000, "backoff": information[4], "rto": word(8) / 1000,
            "unacked": word(24), "sent_ago": word(44), "retransmitted": word(100), "acked": long(120),
            "unsent": word(144), "closed": long(176)}
while not sample()["acked"]:
    time.sleep(0.001)
print("sending", flush=True)
first = last = sample()
moved = first["now"]
seen = {"silent": 0.0, "stuck": 0.0, "rto_ms": 0.0, "backoff": 0, "samples": 0}
while True:
    ready = select.select([sys.stdin], [], [], 0.01)[0]
    now = sample()
    unit = now["rto"] + float(sys.argv[4])
    held = not now["unsent"] or now["closed"] != last["closed"]
    if now["acked"] != last["acked"] or held:
        moved = now["now"]
    if not held:
        seen["samples"] += 1
        seen["silent"] = max(seen["silent"], now["sent_ago"] / unit)
        seen["stuck"] = max(seen["stuck"], (now["now"] - moved) / unit)
    seen["rto_ms"] = max(seen["rto_ms"], now["rto"])
    seen["backoff"] = max(seen["backoff"], now["backoff"])
    last = now
    if ready:
        if not sys.stdin.readline():
            break
        seen["acked"] = now["acked"] - first["acked"]
        seen["retransmitted"] = now["retransmitted"] - first["retransmitted"]
        print(json.dumps(seen), flush=True)
        first = now
        seen = {"silent": 0.0, "stuck": 0.0, "rto_ms": 0.0, "backoff": 0, "samples": 0}
"#;

/// Milliseconds of a packet at the lowest rate: 58.
const PACKET_MS: f64 = 1448.0 * 1e3 / raw::THALWEG_RATE_FLOOR as f64;
/// The longest run of one TCP timer, relative to its setting. The setting is a time-out plus the
/// delay of the next packet by pacing (`tcp_reset_xmit_timer` in include/net/tcp.h), at most a
/// packet at the lowest rate. Timers of more than 63 ticks end up to an eighth later
/// (kernel/time/timer.c).
const LONGEST: f64 = 1.125;
/// The longest time without anything newly acknowledged, in the same unit. The slowest flow, traced
/// without ACKs: all its data is acknowledged at 0 ms; its next packets leave at 58 and 116, each
/// in its turn. The probe leaves at 177, before the time-out of 204 is over, and sets it anew, with
/// 58 for pacing; it ends an eighth late, at 461. By the rule the probe may take a whole timer as
/// well. Each doubling leaves half of the time before, and adds one timer: 2.25 in the end.
const STUCK: f64 = PACKET_MS / (200.0 + PACKET_MS) + 2.0 * LONGEST;

/// Longer than the time-out, so that it doubles: 200 ms plus 80 ms of queue, at the lowest rate a
/// little more.
const WITHOUT_ACKS: Duration = Duration::from_millis(1500);

/// Models by name, each on a path that is clean, loses packets, carries no ACKs for a while, and is
/// clean again.
fn goes_on(label: &str, models: &[(&str, Vec<u8>)]) {
    // 20 Mbit/s behind a buffer of 200 kB: 80 ms.
    let mut options = plain(label);
    options.path.rate = Some("20mbit".parse().unwrap());
    options.path.queue = Some("200kb".parse().unwrap());
    options.path.offload = false;
    // Neither buffer holds a flow back, whatever the model does to its window.
    for which in ["rmem", "wmem"] {
        let sizes = "4096 16777216 33554432".to_owned();
        options
            .sysctl
            .insert(format!("net.ipv4.tcp_{which}"), sizes);
    }
    let bed = Bed::new(&options, "");
    let address = bed.server_address();
    let _sink = bed.sink(&address);
    for (what, bytes) in models {
        let file = bed.directory.path().join("model.safetensors");
        fs::write(&file, bytes).unwrap();
        let model = Loaded::new("st", file.to_str().unwrap());
        let packet = PACKET_MS.to_string();
        let arguments = [&address, "5001", &model.name, &packet];
        let mut flow = bed.python(Side::Client, SEND, &arguments);
        assert_eq!(flow.line(), "sending", "{what}");
        let mut path = options.path.clone();
        let mut phase = |name: &str, loss: &str, reverse_loss: &str, time: Duration| -> Value {
            path.loss = Some(loss.parse().unwrap());
            path.reverse_loss = reverse_loss.parse().unwrap();
            bed.pair.change_path(&path).unwrap();
            std::thread::sleep(time);
            flow.go_on();
            let line = flow.line();
            println!("{what}, {name}: {line}");
            let seen: Value = serde_json::from_str(&line).unwrap();
            let number = |key: &str| seen[key].as_f64().unwrap();
            // One sample per 10 ms, less their own time: nothing else held the flow back.
            let samples = 0.95 * time.as_secs_f64() / 0.01;
            assert!(number("samples") > samples, "{what}, {name}: {line}");
            for (wait, longest) in [("silent", LONGEST), ("stuck", STUCK)] {
                assert!(number(wait) <= longest, "{what}, {name}: {line}");
            }
            seen
        };
        let second = Duration::from_secs(1);
        let clean = phase("clean", "0%", "0%", second);
        assert!(clean["acked"].as_u64() > Some(10_000), "{what}: {clean}");
        // At the lowest rate some 27 packets leave in this time, and all of them may arrive.
        let lost = (0..8).any(|_| {
            let lossy = phase("loss", "5%", "1%", second * 3 / 2);
            lossy["retransmitted"].as_u64() > Some(0)
        });
        assert!(lost, "{what}: nothing was retransmitted");
        // The time-out doubles, or this was no outage.
        let without = phase("no ACKs", "0%", "100%", WITHOUT_ACKS);
        assert!(without["backoff"].as_u64() > Some(0), "{what}: {without}");
        // It may start with the rest of a time-out that doubles once more.
        let doubled = Duration::from_millis(2 * without["rto_ms"].as_f64().unwrap() as u64);
        let after = phase("after", "0%", "0%", doubled + 3 * second / 2);
        assert!(after["acked"].as_u64() > Some(10_000), "{what}: {after}");
    }
}

/// The model closest to silence: slower, whatever happens.
fn a_model_that_always_slows_down_does_not_stall() {
    goes_on("rate-slow", &[("down", tree(&Tree::Always(-32767)))]);
}

fn no_weights_make_a_flow_wait_longer_than_two_time_outs() {
    let same = |weight: f32| network(&move |_, _, _| weight);
    let mixed = |layer: usize, row: usize, column: usize| {
        let odd = (layer + row + column) % 2 == 1;
        if odd { -1.0 } else { 1.0 }
    };
    let models = [
        ("all +127", same(1.0)),
        ("all -127", same(-1.0)),
        ("mixed", network(&mixed)),
        // Decisions that none of these makes in every state.
        ("up", tree(&Tree::Always(32767))),
    ];
    goes_on("rate-stall", &models);
}

in_virtual_time!(
    #[ignore = "slow: two minutes of a processor"]
    [],
    a_model_that_always_slows_down_does_not_stall,
    no_weights_make_a_flow_wait_longer_than_two_time_outs,
);
