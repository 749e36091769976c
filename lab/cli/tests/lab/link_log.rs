//! `thalweg-lab link --log`: what `mm-link` of Mahimahi would have written.

use std::fs;
use std::process::{Command, Output, Stdio};

use serde_json::Value;

use crate::link::available;
use thalweg_testbed::laboratory;

/// A second of iperf3 over a path, with reno, which fills any queue.
fn iperf(path: &[&str]) -> Output {
    let line = "exec iperf3 -c $THALWEG_LINK_FAR -C reno -t 1 >/dev/null";
    Command::new(laboratory())
        .args(["link", "--json", "--far-port", "5201", "--far"])
        .arg("exec iperf3 -s -1 >/dev/null 2>&1")
        .args(path)
        .args(["--", "sh", "-c", line])
        .stdin(Stdio::null())
        .output()
        .unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Sums of a log as `mm-throughput-graph` reads it, with its checks.
#[derive(Debug, Default)]
struct Sums {
    came: u64,
    dropped: u64,
    left: u64,
    left_bytes: u64,
    capacity_bytes: u64,
    longest_ms: u64,
    last_ms: u64,
}

fn read(text: &str) -> Sums {
    let mut sums = Sums::default();
    let mut base_ms = None;
    for line in text.lines() {
        if line.starts_with('#') {
            let base = line.strip_prefix("# base timestamp: ");
            base_ms = base_ms.or(base.map(|it| it.parse::<u64>().unwrap()));
            continue;
        }
        let words: Vec<&str> = line.split(' ').collect();
        let number = |at: usize| words[at].parse::<u64>().unwrap();
        let ms = number(0) - base_ms.expect("the base comes first");
        assert!(ms >= sums.last_ms, "{line:?} after {}", sums.last_ms);
        sums.last_ms = ms;
        match (words[1], words.len()) {
            ("+", 3) => sums.came += 1,
            ("#", 3) => sums.capacity_bytes += number(2),
            ("d", 4) => sums.dropped += number(2),
            ("-", 4) => {
                sums.left += 1;
                sums.left_bytes += number(2);
                assert!(number(3) <= ms, "{line:?}");
                sums.longest_ms = sums.longest_ms.max(number(3));
            }
            _ => panic!("{line:?}"),
        }
    }
    sums
}

#[test]
fn logs_say_what_the_report_says() {
    if !available() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name).to_str().unwrap().to_owned();
    let [trace, up, down] = ["trace", "up", "down"].map(path);
    fs::write(&trace, "1\n").unwrap();
    let both = format!("{up},{down}");
    let by_trace = ["--trace", &trace, "--queue", "30kB"];
    for bottleneck in [
        &by_trace[..],
        &[
            "--rate",
            "12mbit",
            "--aqm",
            "codel,target=1ms,interval=10ms",
        ],
    ] {
        let output = iperf(&[bottleneck, &["--log", &both]].concat());
        let text = stderr(&output);
        assert!(output.status.success(), "{text}");
        let report: Value = serde_json::from_str(text.lines().last().unwrap()).unwrap();
        for (file, direction) in [(&up, "near_to_far"), (&down, "far_to_near")] {
            let sums = read(&fs::read_to_string(file).unwrap());
            let figure = |name: &str| report[direction][name].as_u64().unwrap();
            assert_eq!(sums.came, figure("received"));
            // What was in flight at the end had left the queue.
            assert!(sums.left >= figure("delivered"), "{sums:?} {report}");
            let dropped = figure("dropped_queue") + figure("dropped_early");
            assert_eq!(sums.dropped, dropped, "{sums:?} {report}");
            assert!(sums.longest_ms.abs_diff(figure("max_queue_us") / 1000) <= 1);
            // Of 12 Mbit/s, as a trace counts packets or without their 4 bytes.
            let per_ms = sums.capacity_bytes as f64 / sums.last_ms as f64;
            assert!((1490.0..1510.0).contains(&per_ms), "{sums:?}");
            assert!(sums.left_bytes <= sums.capacity_bytes + 1504);
        }
        let sums = read(&fs::read_to_string(&up).unwrap());
        assert!(sums.dropped > 0 && sums.left > 500, "{sums:?}");
    }
}

#[test]
fn a_full_disk_costs_the_log_alone() {
    if !available() {
        return;
    }
    let output = iperf(&["--rate", "100mbit", "--log", "/dev/full"]);
    let text = stderr(&output);
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(
        text.contains("cannot write /dev/full: No space left"),
        "{text}"
    );
    // The disk is full later: the run goes on, and its report is whole.
    let directory = tempfile::tempdir().unwrap();
    let script = format!(
        "mount -t tmpfs -o size=16k none {0} && exec {1} link --rate 100mbit --json \
         --log {0}/up -- bash -c 'i=0; while [ $i -lt 3000 ]; do echo x >/dev/udp/$THALWEG_LINK_FAR/9; i=$((i+1)); done; \
         echo whole'",
        directory.path().display(),
        laboratory()
    );
    let output = Command::new("unshare")
        .args(["--user", "--map-root-user", "--mount", "bash", "-c"])
        .arg(script)
        .output()
        .unwrap();
    let text = stderr(&output);
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert_eq!(output.stdout, b"whole\n");
    let report = text.lines().find(|line| line.starts_with('{')).unwrap();
    let report: Value = serde_json::from_str(report).unwrap();
    assert!(report["near_to_far"]["delivered"].as_u64().unwrap() >= 900);
    assert!(text.contains("cannot write all of the log"), "{text}");
    assert!(text.contains("No space left on device"), "{text}");
}

#[test]
fn what_cannot_be_logged_is_refused_before_anything_runs() {
    for (options, code, part) in [
        (&["--log", "up"][..], 2, "--log needs --rate or --trace"),
        (
            &["--rate", "1mbit", "--log", "a,a"],
            2,
            "two different ones",
        ),
        (
            &["--rate", "1mbit", "--log", "a,b,c"],
            2,
            "two different ones",
        ),
        (
            &["--rate", "1mbit", "--log", "/no/such/log"],
            1,
            "cannot write /no/such/log",
        ),
    ] {
        let output = Command::new(laboratory())
            .arg("link")
            .args(options)
            .args(["--", "echo", "ran"])
            .output()
            .unwrap();
        let text = stderr(&output);
        assert_eq!(output.status.code(), Some(code), "{text}");
        assert!(text.contains(part), "{options:?}: {text}");
        assert_eq!(output.stdout, b"");
    }
}
