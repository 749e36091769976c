//! A server that sends what it likes: memory of the client stays bounded, and it goes on.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use thalweg_fleet::setup::{self, Authority, Validity};
use thalweg_fleet::{Fleet, Operator, Settings};
use thalweg_process::Process;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::{ServerConfig, ServerConnection, StreamOwned};

use super::support::Bed;

/// Most memory of a process that talks to any server, KiB.
const RSS_MAX_KIB: u64 = 150 << 10;
/// The largest answer that is read.
const ANSWER_MAX: usize = 256 << 10;
/// Bytes that an attack sends, unless the client ends it.
const FLOOD: usize = 200 << 20;
/// What an attack takes at most.
const PATIENCE: Duration = Duration::from_secs(10);
/// What all attacks take at most.
const ALL: Duration = Duration::from_secs(300);
/// Where the client of a test finds its settings.
const WHERE: &str = "THALWEG_TEST_HOSTILE";

/// What a server sends: a beginning, and a piece again and again.
struct Attack {
    name: &'static str,
    /// As the first bytes, before TLS.
    is_before_tls: bool,
    /// The beginning is the body of an answer to the client's request.
    is_answer: bool,
    begin: Vec<u8>,
    piece: Vec<u8>,
    pause: Duration,
}

/// All attacks. Subscriptions of the client have low numbers.
fn attacks() -> Vec<Attack> {
    let attack = |name, begin: &[u8], piece: Vec<u8>| Attack {
        name,
        is_before_tls: false,
        is_answer: false,
        begin: begin.to_vec(),
        piece,
        pause: Duration::ZERO,
    };
    let before = |name, begin: &[u8], piece: Vec<u8>| Attack {
        is_before_tls: true,
        ..attack(name, begin, piece)
    };
    let to_all = |message: &dyn Fn(u32) -> Vec<u8>| (1..10).flat_map(message).collect::<Vec<u8>>();
    let body = |length: usize| "x".repeat(length);
    let large = to_all(&|sid| format!("MSG $KV.a {sid} 1000000\r\n{}\r\n", body(1_000_000)).into());
    let small = to_all(&|sid| format!("MSG a {sid} 1\r\nx\r\n").into()).repeat(1000);
    let bells = to_all(&|sid| {
        let body = body(500_000);
        format!("MSG thalweg.bell.all {sid} 500000\r\n{body}\r\n").into()
    });
    let headers = to_all(&|sid| {
        let block = format!("NATS/1.0\r\n{}\r\n", "a:\r\n".repeat(250_000));
        let length = block.len();
        format!("HMSG $KV.a {sid} {length} {length}\r\n{block}\r\n").into()
    });
    let filler = vec![b'x'; 1 << 16];
    let info = format!("INFO {{\"go\":\"{}\"}}\r\n", body(60_000)).into_bytes();
    let mut drip = attack("drip", b"MSG a 1 100000\r\n", vec![b'x']);
    drip.pause = Duration::from_millis(20);
    let answer = |name, length: usize| Attack {
        is_answer: true,
        pause: Duration::from_millis(20),
        ..attack(name, &nested_arrays(length), b"\r\n".to_vec())
    };
    vec![
        before(
            "MSG before TLS",
            b"MSG x 1 100000000000\r\n",
            filler.clone(),
        ),
        before("INFO without end", b"INFO {\"go\":\"", filler.clone()),
        before(
            "length that wraps",
            b"MSG x 1 18446744073709551612\r\n",
            vec![],
        ),
        before("random bytes", b"\x16\x03\x01\xff\xff", filler.clone()),
        attack("MSG", b"MSG x 1 100000000000\r\n", filler.clone()),
        attack("HMSG", b"HMSG x 1 20 100000000000\r\n", filler.clone()),
        attack(
            "MSG that wraps",
            b"MSG x 1 18446744073709551612\r\n",
            filler.clone(),
        ),
        attack(
            "HMSG that wraps",
            b"HMSG x 1 18446744073709551612 18446744073709551612\r\n",
            filler.clone(),
        ),
        attack("line without end", b"MSG ", filler.clone()),
        attack("INFO without end, again", b"INFO ", filler),
        attack("large messages", b"", large),
        attack("small messages", b"", small),
        attack("notifications", b"", bells),
        attack("headers", b"", headers),
        attack("PINGs", b"", b"PING\r\n".repeat(10_000)),
        attack(
            "errors",
            b"",
            format!("-ERR '{}'\r\n", body(60_000)).into_bytes(),
        ),
        attack("INFO again and again", b"", info),
        drip,
        answer("answer of nested arrays", ANSWER_MAX),
        answer("answer that is too large", ANSWER_MAX + 1),
    ]
}

/// JSON that takes some seventy times its length where it is read without a type.
fn nested_arrays(length: usize) -> Vec<u8> {
    let arrays = [[b'['; 126], [b']'; 126]].concat();
    let mut text = [b"[", &arrays[..]].concat();
    while text.len() + arrays.len() + 2 <= length {
        text.push(b',');
        text.extend_from_slice(&arrays);
    }
    text.push(b']');
    text.resize(length, b' ');
    text
}

/// Serves an attack a connection, and then what a real server says.
struct Hostile {
    address: String,
    served: Arc<AtomicUsize>,
    count: usize,
}

impl Hostile {
    fn new(authority: &Authority, real: &str) -> Self {
        let (pem, key) = authority
            .server_certificate("127.0.0.1", Validity::default())
            .unwrap();
        let certificates = CertificateDer::pem_slice_iter(pem.as_bytes());
        let certificates = certificates.collect::<Result<_, _>>().unwrap();
        let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).unwrap();
        let config = ServerConfig::builder().with_no_client_auth();
        let config = Arc::new(config.with_single_cert(certificates, key).unwrap());
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let served = Arc::new(AtomicUsize::new(0));
        let (real, counted) = (real.to_owned(), Arc::clone(&served));
        let attacks = attacks();
        let count = attacks.len();
        thread::spawn(move || {
            let mut attacks = attacks.into_iter();
            for stream in listener.incoming() {
                let stream = stream.unwrap();
                stream.set_read_timeout(Some(PATIENCE)).unwrap();
                stream.set_write_timeout(Some(PATIENCE)).unwrap();
                match attacks.next() {
                    // That the client has gone is as it should be.
                    Some(attack) => {
                        println!("attack: {}", attack.name);
                        drop(serve(stream, &attack, &config));
                    }
                    None => pass_on(stream, &real),
                }
                counted.fetch_add(1, Ordering::Release);
            }
        });
        Self {
            address,
            served,
            count,
        }
    }
}

fn serve(
    mut stream: TcpStream,
    attack: &Attack,
    config: &Arc<ServerConfig>,
) -> std::io::Result<()> {
    if attack.is_before_tls {
        return flood(&mut stream, attack);
    }
    stream.write_all(
        b"INFO {\"server_id\":\"x\",\"nonce\":\"n\",\"max_payload\":1000000,\"headers\":true}\r\n",
    )?;
    let tls = ServerConnection::new(Arc::clone(config)).unwrap();
    let mut reader = BufReader::new(StreamOwned::new(tls, stream));
    let mut line = String::new();
    while line != "PING\r\n" {
        line.clear();
        if reader.read_line(&mut line)? == 0 {
            return Ok(());
        }
    }
    reader.get_mut().write_all(b"PONG\r\n")?;
    reader.get_mut().flush()?;
    // It has subscribed and asks.
    while !line.starts_with("PUB") {
        line.clear();
        if reader.read_line(&mut line)? == 0 {
            return Ok(());
        }
    }
    if attack.is_answer {
        let inbox = line.split(' ').nth(2).unwrap_or_default();
        // All answers come by the subscription 0.
        let line = format!("\r\nMSG {inbox} 0 {}\r\n", attack.begin.len());
        reader.get_mut().write_all(line.as_bytes())?;
    }
    flood(reader.get_mut(), attack)
}

fn flood(stream: &mut impl Write, attack: &Attack) -> std::io::Result<()> {
    let begun = Instant::now();
    stream.write_all(&attack.begin)?;
    let mut sent = 0;
    while sent < FLOOD && begun.elapsed() < PATIENCE && !attack.piece.is_empty() {
        stream.write_all(&attack.piece)?;
        stream.flush()?;
        sent += attack.piece.len();
        thread::sleep(attack.pause);
    }
    Ok(())
}

/// Bytes both ways, for as long as the test.
fn pass_on(client: TcpStream, real: &str) {
    let server = TcpStream::connect(real).unwrap();
    client.set_read_timeout(None).unwrap();
    for (mut from, mut to) in [
        (client.try_clone().unwrap(), server.try_clone().unwrap()),
        (server, client),
    ] {
        thread::spawn(move || {
            let _ = std::io::copy(&mut from, &mut to);
            let _ = to.shutdown(Shutdown::Both);
        });
    }
}

/// The most memory that a process has had, KiB.
fn most_memory(id: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{id}/status")).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmHWM:"));
    let words = line.unwrap().split_whitespace().nth(1);
    words.unwrap().parse().unwrap()
}

/// Runs a client against all attacks, in a process of its own. It ends when its input does.
fn survives(case: &str) {
    let Some(bed) = Bed::new(&["a"]) else { return };
    let hostile = Hostile::new(&bed.authority, &bed.servers[0].address);
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args(["--ignored", "--exact", "--nocapture", case])
        .env(
            WHERE,
            format!("{}\n{}", hostile.address, bed.directory.path().display()),
        )
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut client = Process::spawn(&mut command).unwrap();
    let child = client.child_mut();
    let id = child.id();
    let mut output = BufReader::new(child.stdout.take().unwrap());
    let mut errors = child.stderr.take().unwrap();
    let input = child.stdin.take();
    let mut said = String::new();
    while !said.contains("connected") {
        assert!(output.read_line(&mut said).unwrap() > 0, "it ended: {said}");
    }
    let most = most_memory(id);
    drop(input);
    let mut wrong = String::new();
    errors.read_to_string(&mut wrong).unwrap();
    println!("{most} KiB at most\n{said}");
    assert!(hostile.served.load(Ordering::Acquire) >= hostile.count);
    assert!(most <= RSS_MAX_KIB, "{most} KiB");
    assert!(!wrong.contains("panicked"), "{wrong}");
    for expected in [
        "\", expected a NATS server",
        "a line of more than 65536 bytes",
        "a message of 100000000000 bytes, expected at most 262144",
        "a message of 262145 bytes, expected at most 262144",
        "data did not match any variant",
        "the server sent more than was asked for",
        "the server sent PINGs and reads no answer",
    ] {
        assert!(said.contains(expected), "{expected}: {said}");
    }
}

#[test]
fn agent_with_hostile_server_stays_small_and_connects_again() {
    survives("hostile::agent_for_a_test");
}

#[test]
fn operator_with_hostile_server_stays_small_and_connects_again() {
    survives("hostile::operator_for_a_test");
}

/// Settings of a client that was started by a test.
fn settings(user: &str, key: &str) -> Option<Settings> {
    let text = std::env::var(WHERE).ok()?;
    let (address, directory) = text.split_once('\n').unwrap();
    let at = std::path::Path::new(directory);
    let key = thalweg_fleet::Identity::Nkey(at.join(key));
    let servers = vec![format!("tls://{address}")];
    let mut settings = Settings::new(servers, super::support::name(user), key);
    settings.ca = Some(at.join("ca.pem"));
    settings.pace = super::support::QUICK;
    Some(settings)
}

fn end_of_input() {
    let mut rest = String::new();
    std::io::stdin().read_to_string(&mut rest).unwrap();
}

#[test]
#[ignore = "a process of the tests above"]
fn agent_for_a_test() {
    let Some(settings) = settings("a", "agents/a/agent.nk") else {
        return;
    };
    let fleet = Fleet::start(&settings).unwrap();
    let mut last = None;
    wait_for_long(|| {
        let state = fleet.state();
        if state.last != last {
            println!("{}", state.last.as_ref().unwrap().fault);
            last.clone_from(&state.last);
        }
        state.connected.is_some()
    });
    println!("connected");
    end_of_input();
}

#[test]
#[ignore = "a process of the tests above"]
fn operator_for_a_test() {
    let Some(settings) = settings(setup::OPERATOR, "operator.nk") else {
        return;
    };
    wait_for_long(|| {
        let asked = Operator::connect(&settings);
        match asked.and_then(|mut operator| operator.statuses()) {
            Ok(_) => true,
            Err(error) => {
                println!("{error}");
                false
            }
        }
    });
    println!("connected");
    end_of_input();
}

/// Waits for as long as all attacks may take.
fn wait_for_long(mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + ALL;
    while !condition() {
        assert!(Instant::now() < deadline, "the real server was not reached");
        thread::sleep(Duration::from_millis(10));
    }
}
