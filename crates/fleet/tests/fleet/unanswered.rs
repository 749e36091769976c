//! A server that does not answer for one bucket.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use thalweg_fleet::{Fleet, Outgoing};

use super::support::{Bed, connected, status, wait_for};

/// A request that the server does not answer, under each name of its API.
const UNANSWERED: &str = "API.STREAM.INFO.KV_thalweg-priors ";

/// Passes on what a client says, but for [`UNANSWERED`] while that is held back.
fn pass_requests(
    client: TcpStream,
    mut server: TcpStream,
    is_held: &AtomicBool,
) -> std::io::Result<()> {
    let mut reader = BufReader::new(client);
    let mut line = String::new();
    while reader.read_line(&mut line)? != 0 {
        let mut body = Vec::new();
        if line.starts_with("PUB ") || line.starts_with("HPUB ") {
            let length = line.split_whitespace().next_back().unwrap();
            let length: usize = length.parse().unwrap();
            body.resize(length + 2, 0);
            reader.read_exact(&mut body)?;
        }
        if !(is_held.load(Ordering::Relaxed) && line.contains(UNANSWERED)) {
            server.write_all(line.as_bytes())?;
            server.write_all(&body)?;
        }
        line.clear();
    }
    server.shutdown(Shutdown::Both)
}

/// Stands before a server without TLS; its address.
fn stand_before(real: String, is_held: Arc<AtomicBool>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    thread::spawn(move || {
        for client in listener.incoming() {
            let client = client.unwrap();
            let server = TcpStream::connect(&real).unwrap();
            let (mut from, mut to) = (server.try_clone().unwrap(), client.try_clone().unwrap());
            thread::spawn(move || {
                let _ = std::io::copy(&mut from, &mut to);
                let _ = to.shutdown(Shutdown::Both);
            });
            let is_held = Arc::clone(&is_held);
            // That the client has gone is as it should be.
            thread::spawn(move || drop(pass_requests(client, server, &is_held)));
        }
    });
    address
}

#[test]
fn unanswered_bucket_keeps_back_no_statuses() {
    let Some(mut bed) = Bed::new(&["a"]) else {
        return;
    };
    bed.servers[0].kill();
    let file = bed.path("server-0/nats-server.conf");
    let text = fs::read_to_string(&file).unwrap();
    let (before, tls) = text.split_once("tls {").unwrap();
    let (_, after) = tls.split_once('}').unwrap();
    fs::write(&file, format!("{before}{after}")).unwrap();
    bed.servers[0].restart();

    let is_held = Arc::new(AtomicBool::new(false));
    let real = bed.servers[0].address.clone();
    let address = stand_before(real, Arc::clone(&is_held));
    let mut settings = bed.settings("a");
    settings.servers = vec![format!("nats://{address}")];
    // At rest it asks nothing about that bucket, but for those who ask for statuses.
    settings.take = false;
    settings.pace.timeout = Duration::from_secs(60);
    settings.pace.ping = Duration::from_secs(60);
    let a = Fleet::start(&settings).unwrap();
    connected(&a);
    a.offer_message(&Outgoing::Status(status("a"))).unwrap();
    wait_for("the status", || (a.state().published == 1).then_some(()));
    is_held.store(true, Ordering::Relaxed);
    let members = a.request_statuses(Duration::from_secs(40)).unwrap();
    assert_eq!(members.len(), 1);
}
