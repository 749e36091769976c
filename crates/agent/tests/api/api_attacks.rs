//! Attacks by the local API's clients on the agent and on each other. They hold connections, read
//! slowly, send endless requests and documents, and put files in the socket's place.

use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use serde_json::{Value, json};
use thalweg_testbed::{Bed, plain, privileged};

/// Largest number of the agent's connections (docs/reference/api.md).
const CONNECTIONS: usize = 64;
/// A bound for slow and busy machines; docs/reference/api.md has measurements.
const PROMPT: Duration = Duration::from_secs(2);
/// The agent's memory, KiB.
const RESIDENT_KIB: u64 = 64 * 1024;

/// Sends a request without a body; returns status and body.
fn ask(bed: &Bed, request: &str) -> (u16, String) {
    let mut stream = UnixStream::connect(bed.socket()).unwrap();
    let text = format!("{request}\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    stream.write_all(text.as_bytes()).unwrap();
    answer(stream)
}

fn answer(mut stream: UnixStream) -> (u16, String) {
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).unwrap();
    let text = String::from_utf8(bytes).unwrap();
    let (head, body) = text.split_once("\r\n\r\n").expect("a head");
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    (status, body.to_owned())
}

/// A document with this number of hosts, each with measurements of two arms.
fn document(hosts: u32) -> Value {
    let arm = |value: u32| {
        json!({
            "value": value, "max_rate": 125_000_000, "weight_q16": 65_536, "deviation_q16": 1000,
            "log_rate_q16": 1_700_000, "srtt_us": 20_000, "min_rtt_us": 19_000,
            "chosen": 3, "greedy": 2, "scored": 3,
        })
    };
    let hosts: Vec<Value> = (0..hosts)
        .map(|n| {
            json!({
                "netns": 1, "address": format!("10.{}.{}.{}", n >> 16, n >> 8 & 255, n & 255),
                "prefix": 32, "connections": 6, "scored": 6, "switched": 0,
                "min_rtt_us": 19_000, "max_rate": 125_000_000, "seen_age_ms": 1000,
                "forgot_age_ms": null, "arms": { "cubic": arm(2_000_000), "bbr": arm(1_900_000) },
            })
        })
        .collect();
    json!({
        "format": "thalweg-hosts", "version": 2, "mode": "thalweg", "boot_id": "another",
        "own_netns": 1, "saved_at_ms": 0, "hosts": hosts,
    })
}

fn import(bed: &Bed, hosts: u32) {
    let file = bed.directory.path().join("hosts.json");
    fs::write(&file, document(hosts).to_string()).unwrap();
    let answer = bed.json(&["import", file.to_str().unwrap()]);
    assert_eq!(answer["imported"], hosts);
}

/// A figure of a process: a line of /proc/PID/status.
fn figure(pid: u32, name: &str) -> u64 {
    let text = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = text.lines().find(|line| line.starts_with(name)).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

fn open_files(pid: u32) -> usize {
    fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count()
}

/// Sends a request and reads nothing of the response.
fn unread(bed: &Bed, request: &str) -> UnixStream {
    let mut stream = UnixStream::connect(bed.socket()).unwrap();
    let text = format!("{request}\r\nHost: localhost\r\n\r\n");
    // It may already be closed.
    let _ = stream.write_all(text.as_bytes());
    stream
}

/// Requests the status many times before it reads; until told to stop.
fn pipeline(bed: &Bed, stop: &Arc<AtomicBool>) -> JoinHandle<()> {
    let (socket, stop) = (bed.socket(), Arc::clone(stop));
    std::thread::spawn(move || {
        let batch = "GET /v1/status HTTP/1.1\r\nHost: localhost\r\n\r\n".repeat(200);
        while !stop.load(Ordering::Relaxed) {
            let Ok(mut stream) = UnixStream::connect(&socket) else {
                continue;
            };
            let mut other = stream.try_clone().unwrap();
            let reader = std::thread::spawn(move || {
                let mut buffer = [0; 1 << 16];
                while matches!(other.read(&mut buffer), Ok(count) if count > 0) {}
            });
            while !stop.load(Ordering::Relaxed) && stream.write_all(batch.as_bytes()).is_ok() {}
            // Wakes the reader; the agent may have closed it before.
            let _ = stream.shutdown(std::net::Shutdown::Both);
            reader.join().unwrap();
        }
    })
}

/// Announces 400 MB, and sends a few bytes.
fn held_import(bed: &Bed) -> UnixStream {
    let mut stream = UnixStream::connect(bed.socket()).unwrap();
    let head = "POST /v1/import HTTP/1.1\r\nHost: localhost\r\nContent-Length: 400000000\r\n\r\n";
    let _ = stream.write_all(head.as_bytes());
    stream.set_nonblocking(true).unwrap();
    let part = vec![b' '; 1 << 16];
    let mut left = 8 << 20;
    while left > 0 {
        match stream.write(&part) {
            Ok(count) => left -= count.min(left),
            Err(error) if error.kind() == ErrorKind::WouldBlock => break,
            Err(_) => break,
        }
    }
    stream
}

/// The longest duration of several `thalweg status`.
fn slowest_status(bed: &Bed) -> Duration {
    (0..10)
        .map(|_| {
            let begin = Instant::now();
            bed.json(&["status"]);
            begin.elapsed()
        })
        .max()
        .unwrap()
}

/// All attacks at once on an agent with `hosts` hosts: it answers, stays small, and learns.
fn attacked(label: &str, hosts: u32) {
    let bed = Bed::running(label, "");
    let address = bed.server_address();
    let _sink = bed.sink(&address);
    import(&bed, hosts);
    let calm = slowest_status(&bed);
    let stop = Arc::new(AtomicBool::new(false));
    let pipelines: Vec<_> = (0..2).map(|_| pipeline(&bed, &stop)).collect();
    let mut held: Vec<UnixStream> = Vec::new();
    held.extend((0..300).map(|_| unread(&bed, "GET /v1/hosts HTTP/1.1")));
    held.extend((0..60).map(|_| unread(&bed, "GET /v1/export HTTP/1.1")));
    held.extend((0..20).map(|_| unread(&bed, "GET /v1/events/stream HTTP/1.1")));
    held.extend((0..6).map(|_| held_import(&bed)));
    // Slow writers: half a request head.
    held.extend((0..114).map(|_| {
        let mut stream = UnixStream::connect(bed.socket()).unwrap();
        let _ = stream.write_all(b"GET /v1/status HT");
        stream
    }));
    assert_eq!(held.len(), 500);

    let slowest = slowest_status(&bed);
    bed.measure(&address);
    let resident = figure(bed.pid(), "VmHWM:");
    println!("status took {slowest:?} at most, the agent {resident} KiB");
    stop.store(true, Ordering::Relaxed);
    for pipeline in pipelines {
        pipeline.join().unwrap();
    }
    let prompt = PROMPT.max(5 * calm);
    assert!(slowest < prompt, "status took {slowest:?}, before {calm:?}");
    assert!(resident < RESIDENT_KIB, "the agent took {resident} KiB");
    // Slow clients are served, too, once the others are gone.
    drop(held);
    assert_eq!(
        bed.json(&["hosts"])["hosts"].as_array().unwrap().len() as u32,
        hosts + 1
    );
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn the_agent_answers_and_learns_under_attack() {
    if privileged() {
        attacked("attack", 2000);
    }
}

#[test]
#[ignore = "slow: 60,000 hosts, two minutes without optimisation"]
fn the_agent_answers_and_learns_under_attack_with_many_hosts() {
    if privileged() {
        attacked("attack60k", 60_000);
    }
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn thousands_of_connections_are_not_held() {
    if !privileged() {
        return;
    }
    let bed = Bed::running("thousands", "");
    let before = open_files(bed.pid());
    let mut held = Vec::new();
    for _ in 0..3000 {
        held.push(UnixStream::connect(bed.socket()).unwrap());
        // Enough descriptors in this process: the agent's own limit is tested.
        if held.len() > 800 {
            held.drain(..400);
        }
    }
    bed.json(&["status"]);
    let most = before + CONNECTIONS + 10;
    let now = open_files(bed.pid());
    assert!(now <= most, "{now} open files");
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn a_connection_that_says_nothing_is_closed() {
    if !privileged() {
        return;
    }
    let bed = Bed::running("silent", "");
    let mut silent = UnixStream::connect(bed.socket()).unwrap();
    silent
        .set_read_timeout(Some(thalweg_testbed::PATIENCE))
        .unwrap();
    // With a time limit, a signal ends a read; this begins it anew.
    let read = silent.read_to_end(&mut Vec::new());
    assert_eq!(read.expect("closed by the agent"), 0);
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn every_fault_of_a_request_is_told_in_json() {
    if !privileged() {
        return;
    }
    let bed = Bed::running("faults", "");
    for (request, status, part) in [
        ("PUT /v1/status HTTP/1.1", 405, "PUT"),
        ("GET /v1/import HTTP/1.1", 405, "GET"),
        ("GET /v1/nothing HTTP/1.1", 404, "no such resource"),
        ("GET /v1/hosts/nonsense HTTP/1.1", 400, "nonsense"),
        ("GET /v1/hosts/%ff HTTP/1.1", 400, "UTF-8"),
        (
            "GET /v1/hosts/192.0.2.0%2F24 HTTP/1.1",
            400,
            "expected an address, or a prefix of length 32,",
        ),
        (
            "DELETE /v1/hosts/2001:db8::%2F48 HTTP/1.1",
            400,
            "found \"2001:db8::/48\", expected an address, or a prefix of length 64,",
        ),
        (
            "GET /v1/hosts/2001:db8::%2F64 HTTP/1.1",
            404,
            "nothing is known of 2001:db8::/64",
        ),
        (
            "GET /v1/hosts?sort=bytes HTTP/1.1",
            400,
            "sort: found \"bytes\", expected traffic, recent or cost",
        ),
        (
            "GET /v1/hosts?limit=0 HTTP/1.1",
            400,
            "limit: found \"0\", expected a whole number from 1 to 1000",
        ),
        ("GET /v1/hosts?limit=1&limit=2 HTTP/1.1", 400, "limit"),
        ("GET /v1/events?limit=many HTTP/1.1", 400, "limit"),
        ("GET /v1/events/stream?since=x HTTP/1.1", 400, "since"),
        (
            "POST /v1/import HTTP/1.1\r\nContent-Length: 99999999999",
            413,
            "bytes",
        ),
        ("POST /v1/import HTTP/1.1", 400, "document"),
    ] {
        let (found, body) = ask(&bed, request);
        assert_eq!(found, status, "{request}: {body}");
        let told: Value = serde_json::from_str(&body)
            .unwrap_or_else(|error| panic!("{request}: {error} in {body:?}"));
        let text = told["error"].as_str().expect("a text");
        assert!(text.contains(part), "{request}: {text}");
    }
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn imports_come_one_at_a_time_and_whole() {
    if !privileged() {
        return;
    }
    let bed = Bed::running("imports", "");
    let first = held_import(&bed);
    let file = bed.directory.path().join("hosts.json");
    fs::write(&file, document(3).to_string()).unwrap();
    let file = file.to_str().unwrap();
    let second = thalweg_testbed::wait_for("the first import to have begun", || {
        let output = bed.thalweg(&["import", file]);
        (!output.status.success()).then_some(output)
    });
    let said = String::from_utf8_lossy(&second.stderr).into_owned();
    assert!(said.contains("another import"), "{said}");
    drop(first);
    thalweg_testbed::wait_for("an import after the first was broken off", || {
        bed.thalweg(&["import", file])
            .status
            .success()
            .then_some(())
    });
    assert_eq!(bed.json(&["hosts"])["hosts"].as_array().unwrap().len(), 3);
    // A fault at the end: nothing of it is used.
    bed.json(&["reset", "--yes"]);
    let mut faulty = document(300);
    faulty["hosts"][299]["arms"]["bbr"]["greedy"] = json!(99);
    let text = faulty.to_string();
    let (status, body) = ask_with(&bed, &text);
    assert_eq!(status, 400, "{body}");
    assert!(body.contains("hosts[299].arms.bbr.greedy"), "{body}");
    assert_eq!(bed.json(&["status"])["hosts"], 0);
}

fn ask_with(bed: &Bed, body: &str) -> (u16, String) {
    let mut stream = UnixStream::connect(bed.socket()).unwrap();
    let length = body.len();
    let head = format!(
        "POST /v1/import HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).unwrap();
    stream.write_all(body.as_bytes()).unwrap();
    answer(stream)
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn a_stopped_agent_is_named_and_not_waited_for() {
    if !privileged() {
        return;
    }
    let bed = Bed::running("stopped", "");
    bed.signal(Signal::SIGSTOP);
    let begin = Instant::now();
    let output = bed.thalweg(&["status"]);
    let took = begin.elapsed();
    bed.signal(Signal::SIGCONT);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{said}");
    let pid = bed.pid();
    assert!(said.contains(&format!("kill -CONT {pid}")), "{said}");
    assert!(took < thalweg_testbed::PATIENCE, "{took:?}");
    bed.json(&["status"]);
}

fn refused_start(bed: &Bed, part: &str) {
    let output = bed.run_command().output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains(part), "{said}");
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn what_is_no_socket_stays_where_it_is() {
    if !privileged() {
        return;
    }
    let bed = Bed::new(&plain("nosocket"), "");
    let socket = bed.socket();
    fs::write(&socket, "precious").unwrap();
    refused_start(&bed, "not a socket");
    assert_eq!(fs::read_to_string(&socket).unwrap(), "precious");
    fs::remove_file(&socket).unwrap();

    nix::unistd::mkfifo(&socket, nix::sys::stat::Mode::S_IRWXU).unwrap();
    refused_start(&bed, "not a socket");
    assert!(kind(&socket).is_fifo());
    fs::remove_file(&socket).unwrap();

    std::os::unix::fs::symlink("/etc/hostname", &socket).unwrap();
    refused_start(&bed, "not a socket");
    assert!(kind(&socket).is_symlink());
    fs::remove_file(&socket).unwrap();

    // A stale one gives way.
    drop(std::os::unix::net::UnixListener::bind(&socket).unwrap());
    let mut bed = bed;
    bed.start();
    bed.json(&["status"]);
}

fn kind(path: &Path) -> fs::FileType {
    fs::symlink_metadata(path).unwrap().file_type()
}
