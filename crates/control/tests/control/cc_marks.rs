//! The reaction of dctcp in BPF to marks on a path: it follows their share.

use std::path::Path;
use std::process::Command;

use serde_json::Value;
use thalweg_testbed::laboratory;
use thalweg_testbed::loaded::Loaded;
use thalweg_testbed::virtual_time::in_virtual_time;

const SINK: &str = r#"
import socket, sys
listener = socket.socket()
listener.setsockopt(socket.IPPROTO_TCP, 13, sys.argv[1].encode())
listener.bind(("0.0.0.0", 5001))
listener.listen()
connection = listener.accept()[0]
while connection.recv(1 << 20):
    pass
"#;

const SEND: &str = r#"
import os, socket, sys, time
connection = socket.socket()
connection.setsockopt(socket.IPPROTO_TCP, 13, sys.argv[1].encode())
connection.connect((os.environ["THALWEG_LINK_FAR"], 5001))
end = time.monotonic() + 4
while time.monotonic() < end:
    connection.send(bytes(65536))
"#;

/// Sends for four seconds over a path that marks beyond 3 ms of queueing delay, with a congestion
/// control at both ends. Returns the report of the data's direction.
fn marked_path(directory: &Path, name: &str) -> Value {
    let [sink, send] = [("sink.py", SINK), ("send.py", SEND)].map(|(file, program)| {
        let path = directory.join(file);
        std::fs::write(&path, program).unwrap();
        path
    });
    let ecn = "echo 1 >/proc/sys/net/ipv4/tcp_ecn";
    let far = format!("{ecn}; exec python3 {} {name}", sink.display());
    let near = format!("{ecn}; exec python3 {} {name}", send.display());
    let output = Command::new(laboratory())
        .args(["link", "--json", "--rate", "20mbit", "--delay", "10ms"])
        .args(["--queue", "4bdp", "--ecn", "3ms", "--far-port", "5001"])
        .args(["--far", &far, "--", "sh", "-c", &near])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    let report: Value = serde_json::from_str(said.lines().last().unwrap()).unwrap();
    report["near_to_far"].clone()
}

fn dctcp_answers_marks_by_their_share_where_reno_halves() {
    let loaded = Loaded::new("pd", "dctcp");
    let number = |report: &Value, name: &str| report[name].as_f64().unwrap();
    let mut rates = Vec::new();
    for name in [loaded.name.as_str(), "reno"] {
        let report = marked_path(loaded.directory(), name);
        assert!(number(&report, "marked") > 10.0, "{name}: {report}");
        assert_eq!(number(&report, "dropped_queue"), 0.0, "{name}: {report}");
        let share = number(&report, "marked") / number(&report, "delivered");
        rates.push((number(&report, "delivered_bytes"), share));
    }
    println!("bytes and share of marks: {rates:?}");
    let [(ours, our_share), (renos, reno_share)] = rates[..] else {
        unreachable!("two runs");
    };
    // 3 ms are more than a seventh of the round-trip time of 20 ms. That is enough for DCTCP to
    // keep the link busy (RFC 8257, section 4.1 of its source). Halving the window leaves the link
    // idle for times that depend on the marks. Four seconds of 20 Mbit/s are 10 MB.
    assert!(ours > 8.5e6, "{ours} bytes");
    assert!(ours > renos, "{ours} bytes, reno {renos}");
    assert!(
        our_share > 2.0 * reno_share,
        "a sender that answers each mark by a little meets more of them: {our_share} {reno_share}"
    );
}

in_virtual_time!(
    #[ignore = "slow: a minute of a processor"]
    [],
    dctcp_answers_marks_by_their_share_where_reno_halves,
);
