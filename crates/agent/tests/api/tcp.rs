//! The API over TCP: who may ask it and for what, bad ports and tokens, and clients that hold it up.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;

use thalweg_testbed::{Bed, plain, privileged, wait_for};

const TOKEN: &str = "a-secret-of-24-characters";
const PORT: u16 = 9471;

/// A loopback address that no other test and no agent of the machine has.
pub fn own_address() -> String {
    static NEXT: AtomicU8 = AtomicU8::new(1);
    let [_, _, high, low] = std::process::id().to_be_bytes();
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    format!("127.{}.{low}.{}:{PORT}", high.max(1), 100 + number)
}

fn listening(address: &str) -> String {
    format!("[http]\nlisten = \"{address}\"\n")
}

fn token_file(bed: &Bed, text: &str, mode: u32) -> PathBuf {
    let file = bed.directory.path().join("token");
    fs::write(&file, text).unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(mode)).unwrap();
    file
}

/// Sends a request; returns status, head and body.
pub fn ask(address: &str, request: &str, headers: &str) -> (u16, String, String) {
    let mut stream = TcpStream::connect(address).unwrap();
    stream
        .set_read_timeout(Some(Duration::from_secs(20)))
        .unwrap();
    let text = format!("{request} HTTP/1.1\r\nConnection: close\r\n{headers}\r\n");
    stream.write_all(text.as_bytes()).unwrap();
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).unwrap();
    let text = String::from_utf8(bytes).unwrap();
    let (head, body) = text.split_once("\r\n\r\n").expect("a head");
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    (status, head.to_lowercase(), body.to_owned())
}

/// A request by whoever names loopback.
fn get(address: &str, path: &str) -> (u16, String) {
    let (status, _, body) = ask(address, &format!("GET {path}"), "Host: localhost\r\n");
    (status, body)
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn without_a_token_others_get_metrics_and_with_one_they_read() {
    if !privileged() {
        return;
    }
    let address = own_address();
    let bed = Bed::running("tcp", &listening(&address));
    let (status, body) = get(&address, "/v1/status");
    assert_eq!(status, 403, "{body}");
    assert!(body.contains("http.token_file is not set"), "{body}");

    // The token is taken up by a reload, on the same port.
    let file = token_file(&bed, TOKEN, 0o600);
    let with_token = format!("{}token_file = {file:?}\n", listening(&address));
    bed.configure(&with_token);
    assert_eq!(bed.json(&["reload"])["changed"], true);
    let bearing = |token: &str| format!("Host: {address}\r\nAuthorization: Bearer {token}\r\n");
    let (status, head, body) = ask(&address, "GET /v1/status", "Host: localhost\r\n");
    assert_eq!(status, 401, "{body}");
    assert!(head.contains("www-authenticate: bearer"), "{head}");
    let (status, ..) = ask(&address, "GET /metrics", "Host: localhost\r\n");
    assert_eq!(status, 401);
    let (status, ..) = ask(
        &address,
        "GET /v1/status",
        &bearing("a-secret-of-24-charactert"),
    );
    assert_eq!(status, 401);
    let (status, _, body) = ask(&address, "GET /v1/status", &bearing(TOKEN));
    assert_eq!(status, 200, "{body}");
    // Names that lead here from a web page, and changes, are refused whoever asks.
    let elsewhere = format!("Host: example.com\r\nAuthorization: Bearer {TOKEN}\r\n");
    let (status, _, body) = ask(&address, "GET /v1/status", &elsewhere);
    assert_eq!(status, 403, "{body}");
    assert!(body.contains("Host must be localhost"), "{body}");
    for request in ["DELETE /v1/hosts", "POST /v1/detach", "OPTIONS /v1/status"] {
        let (status, head, body) = ask(&address, request, &bearing(TOKEN));
        assert_eq!(status, 405, "{body}");
        assert!(head.contains("allow: get"), "{head}");
    }

    // A new secret in the same file is a change.
    token_file(&bed, "another-secret-of-characters", 0o600);
    assert_eq!(bed.json(&["reload"])["changed"], true);
    let (status, ..) = ask(&address, "GET /v1/status", &bearing(TOKEN));
    assert_eq!(status, 401);
    assert_eq!(bed.json(&["reload"])["changed"], false);
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn port_in_use_at_start_is_a_problem_until_it_is_free() {
    if !privileged() {
        return;
    }
    let taken = own_address();
    let other = std::net::TcpListener::bind(&taken).unwrap();
    let bed = Bed::running("tcptaken", &listening(&taken));
    let told = || bed.json(&["status"])["problems"].to_string();
    let busy = format!("http.listen: {taken}: Address already in use");
    assert!(told().contains(&busy), "{}", told());
    let fix = bed.json(&["status"])["fixes"].to_string();
    assert!(fix.contains("ss -ltnp"), "{fix}");
    // A configuration with the same port is no obstacle, nor is the agent one.
    bed.configure(&format!("dry_run = true\n{}", listening(&taken)));
    assert_eq!(bed.json(&["reload"])["changed"], true);
    assert!(told().contains(&busy), "{}", told());
    drop(other);
    wait_for("the port", || (told() == "[]").then_some(()));
    assert_eq!(get(&taken, "/metrics").0, 200);
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn a_token_that_others_can_read_is_refused_in_a_line() {
    if !privileged() {
        return;
    }
    let (address, taken) = (own_address(), own_address());
    let _other = std::net::TcpListener::bind(&taken).unwrap();
    let busy = format!("http.listen: {taken}: Address already in use");
    let mut bed = Bed::new(&plain("tcpbusy"), "");
    let file = token_file(&bed, TOKEN, 0o644);
    let with_token = format!("{}token_file = {file:?}\n", listening(&address));
    bed.configure(&with_token);
    let told = bed.refused();
    assert!(told.contains("http.token_file: "), "{told}");
    assert!(
        told.contains("read or written by others (mode 644): chmod 600"),
        "{told}"
    );
    for (text, words) in [
        ("", "it is empty"),
        ("short\n", "it has 5 bytes; expected 16 to 512"),
    ] {
        token_file(&bed, text, 0o600);
        let told = bed.refused();
        assert!(
            told.contains("http.token_file: ") && told.contains(words),
            "{told}"
        );
    }
    fs::remove_file(&file).unwrap();
    let told = bed.refused();
    assert!(told.contains("token: No such file or directory"), "{told}");
    assert_eq!(bed.run_command().status().unwrap().code(), Some(78));
    // As an error of the disk: the file is there, and cannot be read now.
    std::os::unix::fs::symlink(&file, &file).unwrap();
    assert_eq!(bed.run_command().status().unwrap().code(), Some(1));
    fs::remove_file(&file).unwrap();

    // At a reload the one before stays in force, its port included.
    bed.configure(&listening(&address));
    bed.start();
    bed.configure(&format!("dry_run = true\n{}", listening(&taken)));
    let output = bed.thalweg(&["reload"]);
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && told.contains(&busy), "{told}");
    assert_eq!(bed.json(&["status"])["dry_run"], false);
    assert!(
        bed.json(&["status"])["problems"]
            .to_string()
            .contains(&busy)
    );
    assert_eq!(get(&address, "/v1/status").0, 403);

    // Another port, or none, takes the place of the old one.
    let next = own_address();
    bed.configure(&listening(&next));
    assert_eq!(bed.json(&["reload"])["changed"], true);
    assert_eq!(get(&next, "/v1/status").0, 403);
    wait_for("the old port to be free", || {
        TcpStream::connect(&address).err()
    });
    bed.configure("");
    assert_eq!(bed.json(&["reload"])["changed"], true);
    wait_for("the port to be free", || TcpStream::connect(&next).err());

    // Ended and started at once, it has its port again.
    bed.configure(&listening(&next));
    bed.json(&["reload"]);
    assert_eq!(get(&next, "/v1/status").0, 403);
    bed.end(Signal::SIGTERM);
    bed.start();
    assert_eq!(get(&next, "/v1/status").0, 403);
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn connection_with_the_token_outlives_a_flood_without() {
    if !privileged() {
        return;
    }
    let address = own_address();
    let bed = Bed::running("tcpflood", "");
    let token = token_file(&bed, TOKEN, 0o600);
    bed.configure(&format!(
        "[http]\nlisten = \"{address}\"\ntoken_file = \"{}\"\n",
        token.display()
    ));
    assert_eq!(bed.json(&["reload"])["changed"], true);
    let mut own = TcpStream::connect(&address).unwrap();
    own.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let mut ask = |path: &str| {
        let request = format!(
            "GET {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {TOKEN}\r\n\r\n"
        );
        own.write_all(request.as_bytes()).unwrap();
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            let mut byte = [0];
            own.read_exact(&mut byte).unwrap();
            head.extend_from_slice(&byte);
        }
        let head = String::from_utf8(head).unwrap().to_lowercase();
        assert!(head.starts_with("http/1.1 200"), "{head}");
        let (_, length) = head.split_once("content-length: ").unwrap();
        let length = length.split_once('\r').unwrap().0.parse().unwrap();
        let mut body = vec![0; length];
        own.read_exact(&mut body).unwrap();
    };
    ask("/v1/arms");
    let idle: Vec<_> = (0..200)
        .map(|_| TcpStream::connect(&address).unwrap())
        .collect();
    // Once this one is refused, all of those before it were taken.
    assert_eq!(get(&address, "/v1/status").0, 401);
    ask("/v1/arms");
    drop(idle);
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn clients_that_hold_the_port_neither_close_it_nor_the_socket() {
    if !privileged() {
        return;
    }
    let address = own_address();
    let bed = Bed::running("tcpheld", &listening(&address));
    // Silent, within a head, and in words that are none of HTTP.
    let mut held = Vec::new();
    for number in 0..150 {
        let mut stream = TcpStream::connect(&address).unwrap();
        let begun: &[u8] = [&b""[..], b"GET /v1/sta", b"\x16\x03\x01\x02\0\x01\xff"][number % 3];
        // It may have been closed by now.
        let _ = stream.write_all(begun);
        held.push(stream);
    }
    let began = Instant::now();
    assert_eq!(bed.json(&["status"])["problems"].to_string(), "[]");
    assert_eq!(get(&address, "/v1/status").0, 403);
    assert!(
        began.elapsed() < Duration::from_secs(3),
        "{:?}",
        began.elapsed()
    );
    // Each is closed within the limit of a head (docs/reference/api.md).
    for mut stream in held {
        stream
            .set_read_timeout(Some(Duration::from_secs(20)))
            .unwrap();
        let mut rest = Vec::new();
        if let Err(error) = stream.read_to_end(&mut rest) {
            assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
        }
    }
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn clients_that_leave_at_once_do_not_pile_work_up() {
    if !privileged() {
        return;
    }
    let address = own_address();
    let bed = Bed::running("tcpleft", &listening(&address));
    assert_eq!(get(&address, "/metrics").0, 200);
    let tasks = format!("/proc/{}/task", bed.json(&["status"])["pid"]);
    let threads = || fs::read_dir(&tasks).unwrap().count();
    let before = threads();
    let mut most = 0;
    // Longer than the answer above serves the others.
    let began = Instant::now();
    while began.elapsed() < Duration::from_secs(2) {
        let mut stream = TcpStream::connect(&address).unwrap();
        // It may give way to the next.
        let _ = stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n");
        drop(stream);
        most = most.max(threads());
    }
    // A thread that has just done the work may not be free for the next yet.
    assert!(most <= before + 4, "{most} threads, {before} before");
    assert_eq!(get(&address, "/metrics").0, 200);
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn what_is_pinned_is_read_by_whoever_may_read() {
    if !privileged() {
        return;
    }
    let bed = Bed::running("pinned", "");
    bed.apply("name = \"mine\"\n[[rule]]\nname = \"all\"\nmatch = { remote_port = 5001 }\nset = { notsent_lowat = \"16KiB\" }\n");
    let answer = thalweg_process::http::request_once(&bed.socket(), "GET", "/v1/kernel").unwrap();
    let shown: serde_json::Value = serde_json::from_str(&answer.body).unwrap();
    assert_eq!(shown["unreadable"], serde_json::json!([]));
    let names: Vec<&str> = shown["programs"]
        .as_array()
        .unwrap()
        .iter()
        .map(|program| program["name"].as_str().unwrap())
        .collect();
    assert_eq!(
        names,
        ["learn_setsockopt", "learn_sockops", "policy_sockops"]
    );
    let is_measured = shown["statistics"].as_bool().unwrap();
    assert_eq!(shown["programs"][0]["runs"].is_u64(), is_measured);
    assert_eq!(shown["policy"]["rules"][0]["name"], "all");
    let cubic = shown["cc"].as_array().unwrap().iter();
    let cubic = cubic
        .into_iter()
        .find(|one| one["name"] == "cubic")
        .unwrap();
    assert!(cubic["use"]["flows"].is_u64(), "{cubic}");
}
