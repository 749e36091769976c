//! The receiving side.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use super::calls::{HEAD, Head};
use super::{LISTENING, Receipt, now_ns};
use crate::error::Error;

/// Interval of the notes of bytes received, ns.
const NOTE_NS: u64 = 10_000_000;

/// Listens and receives until the process is killed.
pub(super) fn run_server(address: SocketAddr) -> Result<(), Error> {
    let listener =
        TcpListener::bind(address).map_err(Error::system(format!("cannot listen on {address}")))?;
    println!("{LISTENING}");
    accept_connections(&listener);
    Ok(())
}

/// Receives each connection in a thread of its own.
pub(super) fn accept_connections(listener: &TcpListener) {
    for stream in listener.incoming() {
        match stream {
            // The client reports a connection that breaks.
            Ok(stream) => drop(std::thread::spawn(move || drop(receive_calls(stream)))),
            Err(error) => eprintln!("cannot accept: {error}"),
        }
    }
}

/// Reads calls and answers each with a receipt; or reads to the end and answers with one.
fn receive_calls(mut stream: TcpStream) -> io::Result<()> {
    let mut buffer = vec![0u8; 256 * 1024];
    let nothing = Receipt {
        bytes: 0,
        last_ns: 0,
        progress: Vec::new(),
    };
    let mut receipt = nothing.clone();
    let mut noted_ns = 0;
    let mut head = Vec::with_capacity(HEAD);
    loop {
        let read = stream.read(&mut buffer)?;
        if read == 0 {
            break;
        }
        let now = now_ns();
        receipt.bytes += read as u64;
        receipt.last_ns = now;
        let missing = HEAD - head.len();
        head.extend_from_slice(&buffer[..read.min(missing)]);
        if now - noted_ns >= NOTE_NS {
            receipt.progress.push((now, receipt.bytes));
            noted_ns = now;
        }
        // The next call begins after this one's receipt, so that no read has bytes of both.
        if let Some(call) = Head::from_message(&head)
            && receipt.bytes >= call.bytes
        {
            std::thread::sleep(Duration::from_micros(call.think_us));
            let mut line = serde_json::to_vec(&receipt)?;
            line.push(b'\n');
            stream.write_all(&line)?;
            receipt.clone_from(&nothing);
            head.clear();
        }
    }
    if receipt.bytes == 0 {
        receipt.last_ns = now_ns();
    }
    stream.write_all(&serde_json::to_vec(&receipt)?)
}
