//! A small server in place of the agent, and its responses.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};
use tempfile::TempDir;

use thalweg_testbed::command_of;

/// A request as the server received it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seen {
    pub method: String,
    pub path: String,
    pub body: String,
}

/// The server, until the test ends.
pub struct Agent {
    pub directory: TempDir,
    pub seen: Arc<Mutex<Vec<Seen>>>,
}

impl Agent {
    /// A server that responds by method and path with status and body.
    pub fn new(answer: impl Fn(&str, &str) -> (u16, String) + Send + 'static) -> Self {
        let agent = Self::absent();
        let listener = UnixListener::bind(agent.socket()).unwrap();
        let seen = Arc::clone(&agent.seen);
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let Ok(stream) = stream else { return };
                let request = read(&stream);
                let (status, body) = answer(&request.method, &request.path);
                seen.lock().unwrap().push(request);
                let mut stream = stream;
                let reason = match status {
                    500 => "Internal Server Error",
                    _ => "X",
                };
                // The client may be gone, as the test intends.
                let _ = write!(
                    stream,
                    "HTTP/1.1 {status} {reason}\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}",
                    body.len()
                );
            }
        });
        agent
    }

    /// A path without a server.
    pub fn absent() -> Self {
        Self {
            directory: TempDir::new().unwrap(),
            seen: Arc::default(),
        }
    }

    pub fn socket(&self) -> PathBuf {
        self.directory.path().join("agent.sock")
    }

    pub fn seen(&self) -> Vec<Seen> {
        self.seen.lock().unwrap().clone()
    }

    pub fn command(&self, arguments: &[&str]) -> Command {
        let config = self.directory.path().join("t.toml");
        let pin = self.directory.path().join("pin");
        let text = format!("[paths]\nsocket = {:?}\npin = {pin:?}\n", self.socket());
        std::fs::write(&config, text).unwrap();
        if arguments.first() == Some(&"thalweg-lab") {
            let mut command = command_of(arguments);
            command.stdin(Stdio::null());
            return command;
        }
        let mut command = Command::new(env!("CARGO_BIN_EXE_thalweg"));
        command
            .arg("--config")
            .arg(config)
            .args(arguments)
            .stdin(Stdio::null());
        command
    }

    pub fn run(&self, arguments: &[&str]) -> Ran {
        Ran::from(self.command(arguments).output().unwrap())
    }
}

/// Outcome of a command.
#[derive(Debug)]
pub struct Ran {
    pub code: i32,
    pub out: String,
    pub error: String,
}

impl From<Output> for Ran {
    fn from(output: Output) -> Self {
        Self {
            code: output.status.code().expect("no signal"),
            out: String::from_utf8(output.stdout).unwrap(),
            error: String::from_utf8(output.stderr).unwrap(),
        }
    }
}

impl Ran {
    /// The output of a command that succeeded with an empty standard error.
    pub fn ok(self) -> String {
        assert_eq!((self.code, self.error.as_str()), (0, ""), "{}", self.out);
        let widest = self
            .out
            .lines()
            .map(|line| line.chars().count())
            .max()
            .unwrap_or(0);
        assert!(
            widest <= 100 || self.out.contains('{'),
            "{widest} columns:\n{}",
            self.out
        );
        self.out
    }

    /// The message of a command that failed with a code and printed nothing.
    pub fn failed(self, code: i32) -> String {
        assert_eq!((self.code, self.out.as_str()), (code, ""), "{}", self.error);
        assert_eq!(self.error.lines().count(), 1, "{}", self.error);
        self.error
    }
}

pub fn read(stream: &UnixStream) -> Seen {
    let mut reader = BufReader::new(stream);
    let mut line = String::new();
    reader.read_line(&mut line).unwrap();
    let mut words = line.split(' ').map(str::to_owned);
    let (method, path) = (words.next().unwrap(), words.next().unwrap_or_default());
    let mut length = 0;
    loop {
        let mut header = String::new();
        reader.read_line(&mut header).unwrap();
        match header.trim().to_lowercase().strip_prefix("content-length:") {
            Some(value) => length = value.trim().parse().unwrap(),
            None if header.trim().is_empty() => break,
            None => {}
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).unwrap();
    Seen {
        method,
        path,
        body: String::from_utf8(body).unwrap(),
    }
}

pub fn arm(name: &str, next: f64, evidence: f64) -> Value {
    json!({
        "arm": name, "metric": 39_500_000u64, "count": 61, "greedy": 55, "min_rtt_us": 9_800,
        "max_rate": 118, "scored": 58, "evidence": evidence, "cost_bits": 39.5,
        "deviation_bits": 0.25, "rate_bytes_per_s": 61_250_000.0, "srtt_us": 12_300,
        "next_probability": next
    })
}

pub fn host(address: &str, connections: u32, arms: &[Value]) -> Value {
    json!({
        "address": address, "netns": 1, "connections": connections, "scored": 60, "switched": 2,
        "min_rtt_us": 9_800, "max_rate_bytes_per_s": 118_000_000u64, "idle_s": 75,
        "best": "bbr", "arms": arms
    })
}

pub fn hosts() -> Value {
    json!({ "hosts": [
        host("2001:db8:aaaa:bbbb::/64", 3, &[arm("bbr", 1.0, 3.0)]),
        host("192.0.2.10", 9, &[arm("bbr", 0.9375, 8.0), arm("cubic", 0.0625, 0.0)]),
        host("192.0.2.9", 500, &[arm("cubic", 1.0, 2.0)]),
    ]})
}

pub fn event(id: i64, closed: bool) -> Value {
    let mut event = json!({
        "id": id, "time_ms": 1_760_000_000_000i64 + id, "kind": "decision", "connection": id,
        "netns": 1, "host": "192.0.2.10", "remote": "192.0.2.10", "remote_port": 443,
        "local_port": 50_000, "arm": "bbr", "chosen": "bbr", "system_arm": "cubic",
        "reason": "greedy", "propensity": 0.9375, "passive": false, "ecn": false,
        "dry_run": false, "switched": false, "error": null
    });
    if closed {
        event["kind"] = "close".into();
        event["measurement"] = json!({
            "end": "fin-local", "outcome": "scored", "bytes": 104_857_600u64,
            "duration_us": 1_700_000, "rate_bytes_per_s": 61_250_000, "srtt_us": 12_300,
            "min_rtt_us": 9_800, "segs_out": 72_000, "retrans": 310, "cost": 39_500_000,
            "weight": 1.0
        });
    }
    event
}

pub fn status() -> Value {
    let counters = json!({
        "established": 1000, "decided": 900, "changed": 450, "refused": 1, "closed": 980,
        "scored": 700, "skipped_small": 200, "skipped_app_limited": 50,
        "skipped_not_tracked": 20, "skipped_overridden": 0, "windows_overridden": 0, "skipped_timeout": 6, "switched": 7, "withdrawn": 5, "outside": 4, "control": 3,
        "app_owned": 30, "events": 1880, "events_dropped": 0, "by_group": 40, "windows": 30, "windows_raised": 20,
        "windows_refused": 0, "windows_left": 3, "windows_scored": 15, "hosts_created": 12,
        "hosts_missed": 0, "conns_missed": 0, "visited": 0, "stretches": 0, "anew": 0, "moved": 0
    });
    json!({
        "version": "0.1.0", "machine": "web1", "pid": 4242, "uptime_s": 3725, "session": 1, "mode": "thalweg", "dry_run": true,
        "cgroup": "/sys/fs/cgroup", "pin": "/sys/fs/bpf/thalweg",
        "store": "/var/lib/thalweg/thalweg.db", "abi_version": 2, "took_over": true,
        "kernel_busy_time": false, "looks": null,
        "clamps": { "hosts": 1, "connections": 8, "set": 90, "refused": 2,
                    "looks": { "number": 100, "cpu_us": 100_000, "interval_s": 0.2 } },
        "buffers": { "namespaces": 3, "raised": 2, "left": 1, "raises": 5, "lowerings": 1, "step_backs": 0,
                     "memory_bytes": 12_000_000u64, "memory_mark_bytes": 300_000_000u64,
                     "looks": { "number": 100, "cpu_us": 40_000, "interval_s": 0.2 } },
        "hosts": 12, "hosts_max": 65_536, "map_bytes": 61_000_000u64,
        "resident_bytes": 12_300_000u64, "counters": counters, "events_stored": 1880, "events_lost": 3,
        "events_share": 0.25, "events_left_out": 5600, "snapshot_age_s": 12, "health": "warning", "problems": ["kernel BTF is absent", "the store is full"],
        "fixes": ["use a kernel with BTF", "free space"]
    })
}

pub fn answer(method: &str, path: &str) -> (u16, String) {
    let body = match (method, path) {
        ("GET", "/v1/status") => status(),
        ("GET", "/v1/arms") => json!([
            { "index": 0, "name": "cubic", "present": true, "needs_ecn": false,
              "system_default": true, "refused": null, "refusals": 0 },
            { "index": 1, "name": "dctcp", "present": true, "needs_ecn": true,
              "system_default": false, "refused": "Operation not permitted", "refusals": 3 },
        ]),
        ("GET", "/v1/clamps") => json!({ "prefixes": ["10.0.0.0/8"], "sets": false, "hosts": [
            { "address": "10.0.0.7", "netns": 1, "segments": 83, "max_rate_bytes_per_s": 125_000_000u64,
              "min_rtt_us": 380, "connections": 9, "clamped": 8, "left": 1 },
            { "address": "10.0.0.8", "netns": 1, "container": "web", "segments": null, "max_rate_bytes_per_s": 0,
              "min_rtt_us": 0, "connections": 1, "clamped": 0, "left": 0 },
        ] }),
        ("GET", "/v1/buffers") => {
            json!({ "enabled": true, "sets": false, "max_bytes": 134_217_728u64, "namespaces": [
            { "netns": 1, "left": false,
              "receive": { "first_bytes": 6_291_456u64, "now_bytes": 6_291_456u64, "wanted_bytes": null, "connections": 0 },
              "send": { "first_bytes": 4_194_304u64, "now_bytes": 16_777_216u64, "wanted_bytes": 33_554_432u64, "connections": 7 } },
            { "netns": 4711, "container": "web", "left": true,
              "receive": { "first_bytes": 6_291_456u64, "now_bytes": 6_291_456u64, "wanted_bytes": null, "connections": 0 },
              "send": { "first_bytes": 200_000u64, "now_bytes": 200_000u64, "wanted_bytes": null, "connections": 2 } },
        ] })
        }
        ("GET", "/v1/hosts") => hosts(),
        ("GET", "/v1/hosts/192.0.2.10" | "/v1/hosts/2001%3Adb8%3A%3A1") => json!([{
            "host": host("192.0.2.10", 9, &[arm("bbr", 0.9375, 8.0), arm("cubic", 0.0625, 0.0)]),
            "summary": "bbr next, because its mean cost is lowest.",
            "recent": [event(2, true), event(1, false)]
        }]),
        ("GET", "/v1/events?limit=20" | "/v1/events?limit=20&host=192.0.2.10") => {
            json!([event(2, true), event(1, false)])
        }
        ("GET", "/v1/gain" | "/v1/gain?by=port") => gain(),
        ("GET", "/v1/networks") => json!({
            "networks": [], "limits_untold": null,
            "limits": advice(&[])["networks"]
        }),
        ("GET", "/v1/advise" | "/v1/advise?by=arm") => advice(&[]),
        ("GET", "/v1/advise?by=prefix" | "/v1/advise?prefix=192.0.2.7") => advice(&["prefix"]),
        ("GET", "/v1/advise?by=port") => {
            let mut advice = advice(&[]);
            advice["networks"] = json!([]);
            advice["features"] = json!([]);
            advice["limits_untold"] = "The kernel does not tell what holds connections up.".into();
            advice
        }
        ("GET", "/v1/gain?rule=iw-40") => gain_of_rule(),
        ("POST", "/v1/gain/resume") => json!({ "resumed": 1 }),
        ("GET", "/v1/events/stream") => {
            let lines = [
                event(2, true),
                event(0, false),
                json!({ "missed": 5 }),
                event(0, true),
            ];
            let lines = lines.map(|mut line| {
                if line["id"] == 0 {
                    line["time_ms"] = 1_760_000_001_000i64.into();
                }
                line.to_string() + "\n"
            });
            return (200, lines.concat());
        }
        ("DELETE", "/v1/hosts") => json!({ "removed": 12 }),
        ("DELETE", "/v1/hosts/192.0.2.10") => json!({ "removed": 1 }),
        ("GET", "/v1/export") => document(),
        ("POST", "/v1/import") => json!({ "imported": 1, "left_out": 2 }),
        ("POST", "/v1/detach") => json!({ "removed": ["link_sockops", "hosts"] }),
        ("GET", _) => {
            return (
                404,
                json!({ "error": "nothing is known of it" }).to_string(),
            );
        }
        _ => return (500, "not JSON".to_owned()),
    };
    (200, body.to_string())
}

pub fn gain() -> Value {
    let row = |measure: &str, size: Option<&str>, verdict: &str, known_in_s: Option<u64>| {
        let unit = if measure == "failed" {
            "points"
        } else {
            "percent"
        };
        json!({
            "measure": measure, "size": size, "unit": unit, "control": 1204, "treated": 22_876,
            "effect": -18.0, "low": if verdict == "unknown" { None } else { Some(-24.0) },
            "high": if verdict == "unknown" { None } else { Some(-12.0) }, "verdict": verdict,
            "known_in_s": known_in_s
        })
    };
    let rows = [
        row("time", None, "better", None),
        row("failed", None, "same", None),
        row("time", Some("100 kB to 1 MB"), "unknown", Some(90_000)),
    ];
    json!({
        "summary": "Transfers take 18 % less time.", "age_s": 604_800, "left_out": 3,
        "events_dropped": 5,
        "groups": [
            { "by": "all", "name": "", "rows": rows },
            { "by": "port", "name": "443", "rows": [row("rtt", None, "worse", None)] },
        ],
        "reverts": [{ "arm": "bbr", "why": "Transfers take 20 % more time", "age_s": 10,
                      "left_s": 7_200 }],
        "features": [{
            "feature": "timers", "treated": 9000, "control": 600,
            "goodput": { "ratio": 1.25, "low": 1.125, "high": 1.5 }, "completion": null,
            "completion_p99": { "ratio": 0.25, "low": 0.1875, "high": 0.375 },
            "retransmitted": { "ratio": 1.0, "low": 0.75, "high": 1.25 }
        }]
    })
}

/// Advice, with two prefixes or none.
pub fn advice(by: &[&str]) -> Value {
    let row = |measure: &str, effect: f64, interval: Option<(f64, f64)>, treated: u64| {
        json!({
            "measure": measure, "size": null, "unit": "percent", "control": 1204,
            "treated": treated, "effect": effect, "low": interval.map(|it| it.0),
            "high": interval.map(|it| it.1), "verdict": "unknown", "known_in_s": null
        })
    };
    let choice = |arm: &str, by: &str, verdict: &str, rows: Value| {
        json!({
            "by": by, "arm": arm, "verdict": verdict, "words": "", "ended": verdict == "worse",
            "known_in_s": if verdict == "unknown" { Some(90_000) } else { None }, "rows": rows
        })
    };
    let better = choice(
        "bbr",
        "trial",
        "better",
        json!([
            row("time", -23.0, Some((-28.0, -18.0)), 310),
            row("retransmitted", 0.1, None, 310)
        ]),
    );
    let worse = row("time", 31.0, Some((20.0, 44.0)), 310);
    let worse = choice("reno", "trial", "worse", json!([worse]));
    let itself = row("time", -3.0, None, 12);
    let itself = choice("htcp", "itself", "unknown", json!([itself]));
    let group = |by: &str, name: &str, verdict: &str, choices: Value, finding: Value| {
        json!({
            "by": by, "name": name, "verdict": verdict,
            "best": if verdict == "take" { Some("bbr") } else { None },
            "words": "bbr would take 23 % less time than cubic.",
            "known_in_s": if verdict == "unknown" { Some(90_000) } else { None },
            "choices": choices,
            "limits": {
                "connections": 4321, "busy_s": 1234.5, "receiver": 0.03, "buffer": 0.41,
                "network": 0.56, "idle": 0.2, "findings": [finding]
            }
        })
    };
    let finding = |words: &str| {
        json!({
            "limit": "buffer", "setting": "net.ipv4.tcp_wmem", "now_bytes": 4_194_304,
            "needed_bytes": 8_000_000, "predicted_bytes_per_s": null, "rate_bytes_per_s": 20e6,
            "rtt_us": 100_000, "words": words
        })
    };
    let full = "The send buffer holds transfers up for 41 % of their busy time.";
    let choices = json!([better, worse, itself]);
    let mut groups = vec![group("all", "", "take", choices.clone(), finding(full))];
    if by == ["prefix"] {
        groups.push(group(
            "prefix",
            "192.0.2.0/24",
            "take",
            choices,
            finding(full),
        ));
        let small = finding("The receiver's window is small.");
        groups.push(group(
            "prefix",
            "203.0.113.0/24",
            "unknown",
            json!([]),
            small,
        ));
    }
    json!({
        "summary": "bbr would take 23 % less time than cubic.", "source": "advice",
        "system_arm": "cubic", "trials": 0.05, "age_s": 604_800, "left_out": 0,
        "events_dropped": 0, "limits_untold": null, "groups": groups,
        "networks": [network_limits(finding("The window holds transfers up."))],
        "features": [{
            "feature": "timers", "lines": ["advise.only = false"], "settings": [{
                "name": "192.0.2.0/24", "netns": 1, "setting": "floor 48 ms, SYN 60 ms",
                "reason": "12 of 400 connections waited for a timeout"
            }]
        }]
    })
}

/// What limits a network's connections, with a finding.
fn network_limits(finding: Value) -> Value {
    json!({
        "name": "198.51.100.0/24", "level": "prefix", "netns": 1,
        "limits": {
            "connections": 17, "busy_s": 12.5, "receiver": 0.6, "buffer": 0.1, "network": 0.3,
            "idle": 0.2, "findings": [finding]
        },
        "free_connections": 3, "free_bytes_per_s": 5e6, "fastest_bytes_per_s": 6e6
    })
}

/// A rule that was worse, so that nothing gets it.
fn gain_of_rule() -> Value {
    let mut gain = gain();
    let revert = json!({ "arm": null, "why": "Transfers take 20 % more time", "age_s": 10,
                         "left_s": 7_200 });
    gain["reverts"] = json!([revert]);
    gain["features"] = json!([]);
    gain["rule"] = json!({ "policy": "windows", "name": "iw-40", "share": 0.125, "taken": 321,
                           "left": 2_345 });
    gain
}

pub fn document() -> Value {
    json!({
        "format": "thalweg-hosts", "version": 1, "mode": "thalweg", "boot_id": "b",
        "own_netns": 1, "saved_at_ms": 1, "hosts": [{
            "netns": 1, "address": "192.0.2.10", "prefix": 32, "connections": 1, "scored": 1,
            "switched": 0, "min_rtt_us": 1, "max_rate": 1, "seen_age_ms": 0,
            "forgot_age_ms": null, "arms": {}
        }]
    })
}

impl Ran {
    /// As [`Ran::ok`], for lines of events, whose length is not limited.
    pub fn ok_but_wide(self) -> String {
        assert_eq!((self.code, self.error.as_str()), (0, ""), "{}", self.out);
        self.out
    }
}
