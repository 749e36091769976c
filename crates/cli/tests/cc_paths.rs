//! How the congestion controls in BPF behave on a path: dctcp answers marks by their share, and
//! htcp does what the kernel's own module does.

#![allow(clippy::unwrap_used, reason = "a test may fail by unwrap")]

mod support;

use std::path::Path;
use std::process::Command;

use serde_json::Value;
use support::loaded::Loaded;
use support::{THALWEG, privileged, skip};

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

/// Sends for four seconds with a congestion control at both ends over a path that marks beyond
/// 3 ms of queue; the report of the direction of the data.
fn marked_path(directory: &Path, name: &str) -> Value {
    let [sink, send] = [("sink.py", SINK), ("send.py", SEND)].map(|(file, program)| {
        let path = directory.join(file);
        std::fs::write(&path, program).unwrap();
        path
    });
    let ecn = "echo 1 >/proc/sys/net/ipv4/tcp_ecn";
    let far = format!("{ecn}; exec python3 {} {name}", sink.display());
    let near = format!("{ecn}; exec python3 {} {name}", send.display());
    let output = Command::new(THALWEG)
        .args(["link", "--json", "--rate", "50mbit", "--delay", "10ms"])
        .args(["--queue", "4bdp", "--ecn", "3ms", "--far-port", "5001"])
        .args(["--far", &far, "--", "sh", "-c", &near])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    let report: Value = serde_json::from_str(said.lines().last().unwrap()).unwrap();
    report["near_to_far"].clone()
}

#[test]
fn dctcp_answers_marks_by_their_share_where_reno_halves() {
    if !privileged() {
        return;
    }
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
    let [(ours, our_share), (renos, reno_share)] = rates[..] else {
        unreachable!("two runs");
    };
    // 3 ms are more than a seventh of the round trip of 20 ms, which is enough for DCTCP to keep
    // the link busy (RFC 8257, section 4.1 of its source); halving leaves it idle at times, how
    // long depends on when the marks fall.
    assert!(ours > renos, "{ours} bytes, reno {renos}");
    assert!(
        our_share > 1.5 * reno_share,
        "a sender that answers each mark by a little meets more of them: {our_share} {reno_share}"
    );
}

/// Median goodput of a mode on a backend, relative to reno's there.
fn against_reno(directory: &Path, backend: &str, mode: &str, loss: &str) -> f64 {
    let scenario = format!(
        "name = \"agree\"\n[path]\nrate = \"20mbit\"\nqueue = \"100kb\"\ndelay = \"20ms\"\n\
         loss = {loss:?}\noffload = false\n[traffic]\nconnections = 5\nduration = \"8s\"\n"
    );
    let directory = directory.join(format!("{backend}-{loss}"));
    std::fs::create_dir(&directory).unwrap();
    let file = directory.join("agree.toml");
    std::fs::write(&file, scenario).unwrap();
    let output = Command::new(THALWEG)
        .args(["--json", "lab", "run", "--backend", backend])
        .args(["--mode", mode, "--mode", "fixed:reno", "--out"])
        .arg(directory.join("out"))
        .arg(&file)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{backend}: {said}");
    let result: Value = serde_json::from_slice(&output.stdout).unwrap();
    let modes = &result["scenarios"][0]["modes"];
    let [ours, reno] = [0, 1].map(|index| {
        let mode: &Value = &modes[index];
        let median = mode["summary"]["median_bps"].as_f64().unwrap();
        println!("{backend}, loss {loss}: {} {median:.0} bit/s", mode["mode"]);
        median
    });
    assert_eq!(modes[1]["mode"], "fixed:reno");
    ours / reno
}

#[test]
#[ignore = "slow: three minutes"]
fn htcp_does_what_the_kernels_module_does() {
    if !privileged() {
        return;
    }
    if !Path::new("/usr/bin/linux.uml").exists() {
        skip("no user-mode-linux");
        return;
    }
    let loaded = Loaded::new("ph", "htcp");
    let directory = loaded.directory();
    let mode = format!("fixed:{}", loaded.name);
    for loss in ["0.1%", "1%"] {
        let (ours, module) = std::thread::scope(|scope| {
            let module = scope.spawn(|| against_reno(directory, "uml", "fixed:htcp", loss));
            let ours = against_reno(directory, "link", &mode, loss);
            (ours, module.join().unwrap())
        });
        // The two kernels lose and delay differently, so each is compared with its own reno.
        // What is left is chance: 8 s at 1 % see tens of losses, each of which may or may not
        // fall into a time of fast growth.
        let ratio = ours / module;
        println!("loss {loss}: {ours:.2} of reno, the module {module:.2}");
        assert!(
            (0.6..=1.7).contains(&ratio),
            "loss {loss}: {ours} against {module}"
        );
    }
}
