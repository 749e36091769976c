//! Calls one after the other over one connection.
//!
//! A call begins with its length in bytes, so that the receiver knows its end, and the time that the
//! receiver thinks after the last byte. All other bytes are zeros, as are those of flows that end
//! with their connection. The receiver answers each call with a receipt of one line. Then the next
//! call begins.

use std::io::{self, BufRead, BufReader, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use super::{Bytes, CHUNK, Flow, Pause, Plan, Receipt, SAMPLE, STALL_TIMEOUT_MS, now_ns, tcp};

/// Bytes of a call's head.
pub(crate) const HEAD: usize = 8;

/// Bits of a call's length in its head. The other 26 hold more than a minute of microseconds.
const LENGTH_BITS: u32 = 38;

/// Most bytes of a call.
pub(crate) const MOST_BYTES: u64 = (1 << LENGTH_BITS) - 1;

/// The first bytes of a call: one little-endian number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Head {
    /// Bytes of the call, 1 to [`MOST_BYTES`], the head included.
    pub(super) bytes: u64,
    /// The receiver's time between the last byte and its receipt, at most 60 s.
    pub(super) think_us: u64,
}

impl Head {
    /// The head in the first bytes of a message; none for a flow that ends with its connection, and
    /// if bytes are missing.
    pub(super) fn from_message(message: &[u8]) -> Option<Self> {
        let number = u64::from_le_bytes(<[u8; HEAD]>::try_from(message).ok()?);
        let head = Self {
            bytes: number & MOST_BYTES,
            think_us: number >> LENGTH_BITS,
        };
        (head.bytes > 0).then_some(head)
    }

    fn to_message(self) -> [u8; HEAD] {
        (self.bytes | self.think_us << LENGTH_BITS).to_le_bytes()
    }
}

/// Calls of the sender at a place until the time is over, with pauses. The last one is finished. A
/// call that fails is the last.
pub(super) fn run_calls(
    plan: &Plan,
    place: usize,
    ms: u64,
    bytes: Bytes,
    pause: Pause,
    think_us: u64,
) -> Vec<Flow> {
    let end_ns = now_ns() + ms * 1_000_000;
    let mut flows = Vec::new();
    let flow = |n: usize| Flow {
        class: plan.senders[place].class.clone(),
        flow_bytes: Some(bytes.of_flow(n)),
        begun_ns: now_ns(),
        ..Flow::default()
    };
    let mut caller = match Caller::open_connection(plan, place, 0) {
        Ok(caller) => caller,
        Err(error) => {
            let error = Some(error.to_string());
            return vec![Flow { error, ..flow(0) }];
        }
    };
    while now_ns() < end_ns {
        let mut flow = flow(flows.len());
        let begun = Instant::now();
        let head = Head {
            bytes: bytes.of_flow(flows.len()),
            think_us,
        };
        let failed = caller.send_call(head, end_ns, &mut flow).err();
        flow.error = failed.map(|error| error.to_string());
        let last = flow.error.is_some();
        flows.push(flow);
        if last {
            break;
        }
        std::thread::sleep(match pause {
            Pause::After(ms) => Duration::from_millis(ms),
            Pause::Every(ms) => Duration::from_millis(ms).saturating_sub(begun.elapsed()),
        });
    }
    flows
}

/// An open connection on which calls are made.
pub(super) struct Caller {
    answers: BufReader<TcpStream>,
    /// The counters at the begin of the present call.
    before: tcp::Info,
    looked: Instant,
}

impl Caller {
    /// Opens the sender's `n`-th connection.
    pub(super) fn open_connection(plan: &Plan, place: usize, n: usize) -> io::Result<Self> {
        let patience = Duration::from_millis(STALL_TIMEOUT_MS);
        let server = plan.server_address(n);
        let socket = tcp::open_socket(server, plan.connection_cc(place, n), patience)?;
        let stream = tcp::connect_socket(socket, server)?;
        Ok(Self {
            before: tcp::tcp_info(&stream)?,
            answers: BufReader::new(stream),
            looked: Instant::now(),
        })
    }

    /// Sends a call with this head and waits for the receipt; `end_ns` ends the sender's time.
    pub(super) fn send_call(&mut self, head: Head, end_ns: u64, flow: &mut Flow) -> io::Result<()> {
        let Head { bytes, think_us } = head;
        let stream = self.answers.get_ref();
        flow.local_port = stream.local_addr()?.port();
        flow.server = Some(stream.peer_addr()?.ip());
        flow.begun_ns = now_ns();
        let head = head.to_message();
        let mut sent = 0;
        while sent < bytes {
            let first = if sent == 0 { &head[..] } else { &[] };
            let rest = (bytes - sent).min(CHUNK.len() as u64) as usize;
            let chunk = [first, &CHUNK[..rest - first.len()]].concat();
            self.answers
                .get_mut()
                .write_all(&chunk)
                .map_err(|error| tcp::while_doing("sending", error))?;
            sent += rest as u64;
            self.sample_info(flow, false)?;
        }
        let patience = Duration::from_millis(STALL_TIMEOUT_MS) + Duration::from_micros(think_us);
        let deadline = Instant::now() + patience;
        while !tcp::wait_readable(self.answers.get_ref(), SAMPLE)? {
            self.sample_info(flow, false)?;
            if Instant::now() >= deadline {
                return Err(tcp::stalled_error("waiting for the receiver"));
            }
        }
        let mut line = String::new();
        self.answers
            .read_line(&mut line)
            .map_err(|error| tcp::while_doing("waiting for the receiver", error))?;
        let receipt: Receipt = serde_json::from_str(&line)?;
        self.before = self.sample_info(flow, true)?;
        flow.cc = tcp::congestion_control(self.answers.get_ref())?;
        flow.received_bytes = receipt.bytes;
        flow.in_time_bytes = receipt.bytes_at(end_ns);
        flow.took_us = receipt.last_ns.saturating_sub(flow.begun_ns) as f64 / 1e3;
        if receipt.bytes == bytes {
            Ok(())
        } else {
            let message = format!("{} of {bytes} bytes arrived", receipt.bytes);
            Err(io::Error::new(io::ErrorKind::UnexpectedEof, message))
        }
    }

    /// Samples the connection, if `always` or if a sample is due.
    fn sample_info(&mut self, flow: &mut Flow, always: bool) -> io::Result<tcp::Info> {
        if !always && self.looked.elapsed() < SAMPLE {
            return Ok(self.before);
        }
        self.looked = Instant::now();
        let info = tcp::tcp_info(self.answers.get_ref())?;
        // 0 means that nothing was measured yet.
        flow.srtt_us
            .extend((info.srtt_us > 0).then_some(info.srtt_us));
        flow.min_rtt_us = (info.min_rtt_us != u32::MAX).then_some(info.min_rtt_us);
        flow.retransmits = info.retransmits - self.before.retransmits;
        flow.sent_segments = info.data_segments_sent - self.before.data_segments_sent;
        Ok(info)
    }
}
