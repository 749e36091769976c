//! `thalweg-lab link` end to end: real namespaces, TCP and iperf3. No root needed.

use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::sync::mpsc::{self, TryRecvError};
use std::time::{Duration, Instant};

use serde_json::Value;
use thalweg_testbed::virtual_time::in_virtual_time;
use thalweg_testbed::{PATIENCE, laboratory, skip};

fn link(arguments: &[&str]) -> Output {
    Command::new(laboratory())
        .arg("link")
        .args(arguments)
        .stdin(Stdio::null())
        .output()
        .unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Whether this machine and user can have a link at all.
pub fn available() -> bool {
    let tried = link(&["--", "true"]);
    tried.status.code() != Some(3) || skip(stderr(&tried).trim())
}

/// The report that `--json` puts on the last line of standard error.
fn report(output: &Output) -> Value {
    let text = stderr(output);
    let last = text.lines().last().unwrap_or_default();
    serde_json::from_str(last).unwrap_or_else(|error| panic!("{error}:\n{text}"))
}

/// iperf3's received rate in Mbit/s, and the link's report.
fn iperf(path: &[&str], client: &str) -> (f64, Value) {
    let far = [
        "--json",
        "--far",
        "iperf3 -s -1 >/dev/null 2>&1",
        "--far-port",
        "5201",
    ];
    let line = format!("iperf3 -c $THALWEG_LINK_FAR -J {client}");
    let arguments = [path, &far, &["--", "sh", "-c", &line]].concat();
    let output = link(&arguments);
    assert!(output.status.success(), "{}", stderr(&output));
    let measured: Value = serde_json::from_slice(&output.stdout).unwrap();
    let bps = measured["end"]["sum_received"]["bits_per_second"].as_f64();
    (bps.unwrap() / 1e6, report(&output))
}

/// This test binary as a program at one end of a link, see [`role`].
fn as_role(role: &str) -> String {
    let program = std::env::current_exe().unwrap();
    format!(
        "THALWEG_TEST_ROLE='{role}' '{}' --exact link::role --nocapture >/dev/null",
        program.display()
    )
}

/// Not a test: the program of [`as_role`]. Without a role it does nothing.
#[test]
fn role() {
    let Ok(role) = std::env::var("THALWEG_TEST_ROLE") else {
        return;
    };
    let far = || std::env::var("THALWEG_LINK_FAR").unwrap();
    let words: Vec<&str> = role.split(' ').collect();
    match words[..] {
        ["echo"] => {
            let socket = UdpSocket::bind("0.0.0.0:7").unwrap();
            let mut buffer = [0; 2048];
            loop {
                let (length, from) = socket.recv_from(&mut buffer).unwrap();
                socket.send_to(&buffer[..length], from).unwrap();
            }
        }
        // Round-trip times in µs, one a line, of packets that returned.
        ["ping", count, gap_ms, file] => {
            let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
            socket.connect((far(), 7)).unwrap();
            let gap = Duration::from_millis(gap_ms.parse().unwrap());
            let receiver = socket.try_clone().unwrap();
            let began = Instant::now();
            let count: u64 = count.parse().unwrap();
            let (all_sent, until) = mpsc::channel::<()>();
            let thread = std::thread::spawn(move || {
                receiver
                    .set_read_timeout(Some(Duration::from_millis(500)))
                    .unwrap();
                let mut text = String::new();
                let mut buffer = [0; 8];
                loop {
                    let over = until.try_recv() == Err(TryRecvError::Disconnected);
                    match receiver.recv(&mut buffer) {
                        Ok(_) => {}
                        // Nothing came for half a second after the last was sent.
                        Err(_) if over => break,
                        Err(_) => continue,
                    }
                    let sent_us = u64::from_le_bytes(buffer);
                    let rtt_us = began.elapsed().as_micros() as u64 - sent_us;
                    text += &format!("{rtt_us}\n");
                }
                text
            });
            for _ in 0..count {
                let now_us = began.elapsed().as_micros() as u64;
                socket.send(&now_us.to_le_bytes()).unwrap();
                std::thread::sleep(gap);
            }
            drop(all_sent);
            fs::write(file, thread.join().unwrap()).unwrap();
        }
        ["accept"] => {
            let listener = TcpListener::bind("0.0.0.0:80").unwrap();
            listener.incoming().for_each(drop);
        }
        // Time to connect, in µs.
        ["connect", file] => {
            let began = Instant::now();
            TcpStream::connect((far(), 80)).unwrap();
            fs::write(file, began.elapsed().as_micros().to_string()).unwrap();
        }
        _ => panic!("no role {role:?}"),
    }
}

/// Round-trip times in milliseconds over a path, sorted, and the report.
fn ping(path: &[&str], count: u32, gap_ms: u32) -> (Vec<f64>, Value) {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("times");
    let far = as_role("echo");
    let near = as_role(&format!("ping {count} {gap_ms} {}", file.display()));
    let ends = ["--json", "--far", &far, "--far-port", "7"];
    let output = link(&[path, &ends, &["--", "sh", "-c", &near]].concat());
    assert!(output.status.success(), "{}", stderr(&output));
    let text = fs::read_to_string(file).unwrap();
    let mut times: Vec<f64> = text
        .lines()
        .map(|line| line.parse::<f64>().unwrap() / 1e3)
        .collect();
    times.sort_by(f64::total_cmp);
    (times, report(&output))
}

/// The figure of one direction.
fn figure(report: &Value, direction: &str, name: &str) -> u64 {
    report[direction][name]
        .as_u64()
        .unwrap_or_else(|| panic!("no {name}: {report}"))
}

pub fn iperf3_gets_the_rate_and_no_more() {
    // 1448 of 1500 bytes are TCP payload: 19.3 Mbit/s.
    let (mbps, report) = iperf(&["--rate", "20mbit", "--delay", "5ms"], "-O 1 -t 3");
    println!("{mbps} Mbit/s");
    assert!((19.0..=19.4).contains(&mbps), "{mbps} {report}");
    assert_eq!(figure(&report, "near_to_far", "lost"), 0);
    // One bandwidth-delay product of 2 × 5 ms.
    assert!(figure(&report, "near_to_far", "max_queue_bytes") <= 25_000);
}

fn a_trace_gives_its_rate() {
    let directory = tempfile::tempdir().unwrap();
    let [up, down] = ["up", "down"].map(|name| directory.path().join(name));
    // 12 Mbit/s: a packet a millisecond, in bursts of two.
    fs::write(&up, "2\n2\n").unwrap();
    fs::write(&down, "1\n").unwrap();
    let both = format!("{},{}", up.display(), down.display());
    let (mbps, report) = iperf(&["--trace", &both, "--delay", "5ms"], "-O 1 -t 3");
    println!("{mbps} Mbit/s");
    // 1448 of 1500 bytes again: 11.6 Mbit/s.
    assert!((11.4..=11.7).contains(&mbps), "{mbps} {report}");
}

pub fn the_round_trip_time_is_twice_the_delay() {
    let (times, report) = ping(&["--delay", "20ms"], 100, 5);
    assert_eq!(times.len(), 100);
    assert!(times[0] >= 40.0, "{}", times[0]);
    println!("{} to {} ms", times[0], times[times.len() - 1]);
    // The link itself takes some 100,000 instructions per packet.
    assert!(times[50] < 41.0, "{} {report}", times[50]);
    let direction = &report["near_to_far"];
    assert!(
        direction["delay_error"]["p50_us"].as_f64().unwrap() < 100.0,
        "{report}"
    );

    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("time");
    let near = as_role(&format!("connect {}", file.display()));
    let far = as_role("accept");
    let output = link(&[
        "--delay",
        "20ms",
        "--far",
        &far,
        "--far-port",
        "80",
        "--",
        "sh",
        "-c",
        &near,
    ]);
    assert!(output.status.success(), "{}", stderr(&output));
    let us: u64 = fs::read_to_string(file).unwrap().parse().unwrap();
    println!("{us} us");
    assert!((40_000..43_000).contains(&us), "{us}");
}

#[test]
fn loss_is_counted_and_happens() {
    if !available() {
        return;
    }
    let (times, report) = ping(&["--loss", "20%", "--reverse-loss", "10%"], 500, 1);
    let lost = figure(&report, "near_to_far", "lost");
    let lost_back = figure(&report, "far_to_near", "lost");
    assert_eq!(times.len() as u64 + lost + lost_back, 500);
    // Five standard deviations of the binomial distribution.
    assert!(lost.abs_diff(100) <= 45, "{report}");
    assert!(lost_back.abs_diff(40) <= 30, "{report}");
    assert_eq!(figure(&report, "near_to_far", "received"), 500);
    assert_eq!(figure(&report, "far_to_near", "received"), 500 - lost);
}

pub fn ecn_marks_instead_of_dropping() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("report.json");
    let ecn = "echo 1 > /proc/sys/net/ipv4/tcp_ecn && echo cubic > \
               /proc/sys/net/ipv4/tcp_congestion_control";
    let far = format!("{ecn}; exec iperf3 -s -1 >/dev/null 2>&1");
    let near = format!("{ecn}; exec iperf3 -c $THALWEG_LINK_FAR -t 2 >/dev/null");
    let output = link(&[
        "--rate",
        "50mbit",
        "--delay",
        "5ms",
        "--queue",
        "4bdp",
        "--ecn",
        "5ms",
        "--json",
        "--report",
        file.to_str().unwrap(),
        "--far",
        &far,
        "--far-port",
        "5201",
        "--",
        "sh",
        "-c",
        &near,
    ]);
    assert!(output.status.success(), "{}", stderr(&output));
    let report: Value = serde_json::from_str(&fs::read_to_string(file).unwrap()).unwrap();
    assert!(figure(&report, "near_to_far", "marked") > 0, "{report}");
    assert_eq!(figure(&report, "far_to_near", "marked"), 0);
}

/// Two bulk flows and a sparse one over 20 Mbit/s and 2 × 10 ms: the flows' rates in Mbit/s, the
/// sparse one's round-trip times in ms, sorted, and the report.
fn shared(queue: &[&str]) -> (Vec<f64>, Vec<f64>, Value) {
    let directory = tempfile::tempdir().unwrap();
    let [times, rates] = ["times", "rates"].map(|it| directory.path().join(it));
    let far = format!("{} & exec iperf3 -s -1 >/dev/null 2>&1", as_role("echo"));
    let near = format!(
        "iperf3 -c $THALWEG_LINK_FAR -P 2 -O 2 -t 4 -C cubic -J >{} & sleep 2; {}; wait",
        rates.display(),
        as_role(&format!("ping 150 20 {}", times.display()))
    );
    let path = ["--rate", "20mbit", "--delay", "10ms", "--json"];
    let ends = ["--far", &far, "--far-port", "5201", "--", "sh", "-c", &near];
    let output = link(&[&path, queue, &ends].concat());
    assert!(output.status.success(), "{}", stderr(&output));
    let measured: Value = serde_json::from_str(&fs::read_to_string(rates).unwrap()).unwrap();
    let streams = measured["end"]["streams"].as_array().unwrap().iter();
    let rates = streams.map(|it| it["receiver"]["bits_per_second"].as_f64().unwrap() / 1e6);
    let mut times: Vec<f64> = fs::read_to_string(times)
        .unwrap()
        .lines()
        .map(|line| line.parse::<f64>().unwrap() / 1e3)
        .collect();
    times.sort_by(f64::total_cmp);
    (rates.collect(), times, report(&output))
}

fn codel_keeps_the_queue_short_and_fq_codel_spares_sparse_flows() {
    let median = |times: &[f64]| times[times.len() / 2];
    let (rates, times, plain) = shared(&["--queue", "250kB"]);
    println!("fifo: {rates:?} Mbit/s, {} ms", median(&times));
    // 250 kB are 100 ms.
    assert!(median(&times) > 60.0, "{plain}");

    let (rates, times, report) = shared(&["--aqm", "codel"]);
    println!("codel: {rates:?} Mbit/s, {} ms", median(&times));
    assert!(rates.iter().sum::<f64>() > 17.5, "{rates:?} {report}");
    // 20 ms and a queue near the target of 5 ms.
    assert!((22.0..32.0).contains(&median(&times)), "{report}");
    assert!(
        figure(&report, "near_to_far", "dropped_early") > 0,
        "{report}"
    );

    let (rates, times, report) = shared(&["--aqm", "fq_codel"]);
    println!("fq_codel: {rates:?} Mbit/s, {} ms", median(&times));
    assert!(rates.iter().sum::<f64>() > 17.5, "{rates:?} {report}");
    assert!((rates[0] / rates[1] - 1.0).abs() < 0.1, "{rates:?}");
    // The sparse flow waits for the packet that is being sent, 0.6 ms, and no queue.
    assert!((20.0..21.5).contains(&median(&times)), "{report}");
    assert_eq!(times.len(), 150);
}

#[test]
fn exit_codes_pass_through() {
    if !available() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let plain = directory.path().join("plain");
    fs::write(&plain, "no program").unwrap();
    for (command, code) in [
        (&["sh", "-c", "exit 0"][..], 0),
        (&["sh", "-c", "exit 7"], 7),
        (&["sh", "-c", "kill -KILL $$"], 137),
        (&["/no/such/program"], 127),
        (&[plain.to_str().unwrap()], 126),
    ] {
        let output = link(&[&["--"], command].concat());
        assert_eq!(output.status.code(), Some(code), "{}", stderr(&output));
    }
    // The table is the report without --json, also after a failed command.
    let output = link(&["--", "sh", "-c", "echo out; exit 7"]);
    assert_eq!(output.stdout, b"out\n");
    let text = stderr(&output);
    assert!(text.contains("delay error p99, ms"), "{text}");
    assert!(!text.contains("exit code 7"), "{text}");
}

fn two_links_do_not_know_of_each_other() {
    let slow = std::thread::spawn(|| ping(&["--delay", "50ms"], 20, 10));
    let (fast, _) = ping(&["--delay", "10ms"], 100, 5);
    let (slow, _) = slow.join().unwrap();
    assert_eq!((fast.len(), slow.len()), (100, 20));
    println!("{} and {} ms", fast[50], slow[10]);
    assert!(fast[0] >= 20.0 && fast[50] < 21.0, "{fast:?}");
    assert!(slow[0] >= 100.0 && slow[10] < 101.0, "{slow:?}");
}

#[test]
fn wrong_usage_is_code_2_and_says_what_was_expected() {
    for (arguments, part) in [
        (
            &["--loss", "120%"][..],
            "expected a percentage from \"0%\" to \"100%\"",
        ),
        (&["--rate", "0mbit"], "expected a rate from \"1kbit\""),
        (&["--rate", "10mbps"], "units bit, kbit, mbit, gbit"),
        (&["--delay", "20"], "units us, ms, s"),
        (&["--delay", "2m"], "units us, ms, s"),
        (&["--queue", "many"], "bandwidth-delay product"),
        (&["--rate", "1mbit", "--ecn", "5%"], "or a time"),
        (&["--trace", "a,b,c"], "two with a comma"),
        (
            &["--jitter", "5ms"],
            "--jitter 5ms is more than --delay 0ms",
        ),
        (&["--queue", "1bdp"], "--queue needs --rate or --trace"),
        (&["--rate", "1mbit", "--trace", "x"], "give one of them"),
        (&["--far-port", "80"], "--far"),
        (&["--aqm", "codel"], "--aqm needs --rate or --trace"),
        (
            &["--rate", "1mbit", "--aqm", "red"],
            "expected codel or fq_codel, found \"red\"",
        ),
        (
            &["--rate", "1mbit", "--aqm", "codel", "--ecn", "5ms"],
            "--aqm and --ecn",
        ),
    ] {
        let output = link(&[arguments, &["--", "false"]].concat());
        let text = stderr(&output);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {text}");
        assert!(text.contains(part), "{arguments:?}: {text}");
    }
    assert_eq!(link(&["--delay", "1ms"]).status.code(), Some(2));
}

#[test]
fn a_trace_that_cannot_be_used_is_named_with_its_place() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("bad.trace");
    fs::write(&file, "1\n2\nx3\n").unwrap();
    let path = file.to_str().unwrap();
    let missing = format!("{path}.missing");
    for (trace, part) in [
        (path, format!("{path}:3:1: expected a whole number")),
        (&missing, format!("cannot read {missing}")),
    ] {
        let output = link(&["--trace", trace, "--", "true"]);
        let text = stderr(&output);
        assert_eq!(output.status.code(), Some(1), "{text}");
        assert!(text.contains(&part), "{text}");
    }
}

#[test]
fn a_report_is_written_only_if_the_command_ran() {
    if !available() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("report.json");
    let path = file.to_str().unwrap();
    let run = |program| {
        link(&["--json", "--report", path, "--", program])
            .status
            .code()
    };
    assert_eq!(run("/no/such/program"), Some(127));
    assert!(!file.exists());
    assert_eq!(run("false"), Some(1));
    let report: Value = serde_json::from_str(&fs::read_to_string(&file).unwrap()).unwrap();
    assert_eq!(report["format"], 1);
    fs::write(&file, "x".repeat(100_000)).unwrap();
    assert_eq!(run("/no/such/program"), Some(127));
    assert_eq!(fs::metadata(&file).unwrap().len(), 100_000);
    assert_eq!(run("true"), Some(0));
    serde_json::from_str::<Value>(&fs::read_to_string(&file).unwrap()).unwrap();
    let output = link(&["--report", "/no/such/report", "--", "true"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("cannot write /no/such/report"));
}

#[test]
fn a_far_end_that_is_not_ready_is_an_error() {
    if !available() {
        return;
    }
    let began = Instant::now();
    let output = link(&["--far", "exit 3", "--far-port", "80", "--", "true"]);
    let text = stderr(&output);
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.contains("before it listened on port 80"), "{text}");
    assert!(began.elapsed() < PATIENCE / 2);
    // Without a port it is only noted.
    let output = link(&["--far", "exit 3", "--", "sleep", "0.3"]);
    assert!(output.status.success());
    assert!(
        stderr(&output).contains("exit status: 3"),
        "{}",
        stderr(&output)
    );
}

#[test]
fn forbidden_user_namespaces_are_named() {
    // A user namespace that allows no nested ones, and a process in it without capabilities.
    let line = format!(
        "echo 0 > /proc/sys/user/max_user_namespaces && exec setpriv --bounding-set=-all \
         --inh-caps=-all {} link -- true",
        laboratory()
    );
    let output = Command::new("unshare")
        .args(["--user", "--map-root-user", "sh", "-c", &line])
        .output()
        .unwrap();
    let text = stderr(&output);
    if text.contains("unshare failed") {
        skip(text.trim());
        return;
    }
    assert_eq!(output.status.code(), Some(3), "{text}");
    assert!(text.contains("cannot create a user namespace"), "{text}");
    assert!(text.contains("sysctl user.max_user_namespaces="), "{text}");
}

#[test]
fn a_missing_tun_device_is_named() {
    // A mount namespace in which another file is mounted over it.
    let line = format!(
        "mount --bind /dev/null /dev/net/tun && exec {} link -- true",
        laboratory()
    );
    let output = Command::new("unshare")
        .args(["--user", "--map-root-user", "--mount", "sh", "-c", &line])
        .output()
        .unwrap();
    let text = stderr(&output);
    if !Path::new("/dev/net/tun").exists() || text.contains("unshare failed") {
        skip(text.trim());
        return;
    }
    assert_eq!(output.status.code(), Some(3), "{text}");
    assert!(
        text.contains("/dev/net/tun") || text.contains("TUN"),
        "{text}"
    );
}

#[test]
fn an_address_that_nobody_has_is_refused_at_once() {
    if !available() {
        return;
    }
    // 192.0.2.0/24 is for documentation (RFC 5737).
    let connect = "exec 2>/dev/null 3<>/dev/tcp/192.0.2.1/80";
    let output = link(&[
        "--delay", "10ms", "--", "timeout", "10", "bash", "-c", connect,
    ]);
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
}

#[test]
fn standard_input_and_output_are_the_commands() {
    if !available() {
        return;
    }
    let mut child = Command::new(laboratory())
        .args(["link", "--delay", "1ms", "--", "cat"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(b"through").unwrap();
    let mut text = String::new();
    child
        .stdout
        .take()
        .unwrap()
        .read_to_string(&mut text)
        .unwrap();
    assert!(child.wait().unwrap().success());
    assert_eq!(text, "through");
}

in_virtual_time!(
    #[ignore = "slow: more cases in virtual time"]
    [],
    a_trace_gives_its_rate,
    two_links_do_not_know_of_each_other,
    codel_keeps_the_queue_short_and_fq_codel_spares_sparse_flows,
);
