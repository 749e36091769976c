//! The sending side.

use std::fs;
use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::path::Path;
use std::sync::Barrier;
use std::time::{Duration, Instant};

use super::calls::run_calls;
use super::{CHUNK, Flow, Load, Plan, Receipt, SAMPLE, STALL_TIMEOUT_MS, now_ns, tcp};
use crate::error::Error;

/// Reads the plan, sends, writes the result.
pub(super) fn run_client(result: &Path) -> Result<(), Error> {
    let parsed: Plan = serde_json::from_reader(io::stdin().lock())
        .map_err(|error| Error::system("cannot read the plan")(error.into()))?;
    let text = serde_json::to_vec(&send_plan(&parsed))
        .map_err(|error| Error::io("cannot write", result)(error.into()))?;
    fs::write(result, text).map_err(Error::io("cannot write", result))
}

/// Sends everything of a plan. The flows of a sender are in order.
pub(super) fn send_plan(plan: &Plan) -> Vec<Flow> {
    let start = Barrier::new(plan.senders.len());
    std::thread::scope(|scope| {
        let threads: Vec<_> = plan
            .senders
            .iter()
            .enumerate()
            .map(|(place, _)| {
                let start = &start;
                scope.spawn(move || {
                    start.wait();
                    sender_flows(plan, place)
                })
            })
            .collect();
        threads
            .into_iter()
            .flat_map(|thread| {
                thread
                    .join()
                    .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
            })
            .collect()
    })
}

/// The flows of the sender at a place.
fn sender_flows(plan: &Plan, place: usize) -> Vec<Flow> {
    let sender = &plan.senders[place];
    if let Load::Calls {
        ms,
        bytes,
        pause,
        think_us,
    } = sender.load
    {
        return run_calls(plan, place, ms, bytes, pause, think_us);
    }
    if let Load::Web(web) = sender.load {
        return web.send_pages(plan, place);
    }
    let end_ns = match sender.load {
        Load::FlowsFor { ms, .. } => now_ns() + ms * 1_000_000,
        _ => u64::MAX,
    };
    let mut flows = Vec::new();
    loop {
        let done = match sender.load {
            Load::Flows { count, .. } => flows.len() >= count as usize,
            // A sender that fails at once must not spin until its time is over.
            Load::FlowsFor { .. } => {
                let failed = flows.last().is_some_and(|flow: &Flow| flow.error.is_some());
                failed || now_ns() >= end_ns
            }
            Load::Stream { .. } | Load::Calls { .. } | Load::Web(_) => !flows.is_empty(),
        };
        if done {
            return flows;
        }
        let mut flow = Flow {
            class: sender.class.clone(),
            ..Flow::default()
        };
        let n = flows.len();
        flow.flow_bytes = match sender.load {
            Load::Flows { bytes, .. } => Some(bytes.of_flow(n)),
            Load::FlowsFor { bytes, .. } => Some(bytes),
            Load::Stream { .. } | Load::Calls { .. } | Load::Web(_) => None,
        };
        let way = (plan.server_address(n), plan.connection_cc(place, n));
        if let Err(error) = transfer_flow(way, sender.load, end_ns, &mut flow) {
            flow.error = Some(error.to_string());
        }
        flows.push(flow);
    }
}

/// One connection, to an address and with a congestion control.
fn transfer_flow(
    (server, cc): (SocketAddr, Option<&str>),
    load: Load,
    end_ns: u64,
    flow: &mut Flow,
) -> io::Result<()> {
    let patience = Duration::from_millis(STALL_TIMEOUT_MS);
    let socket = tcp::open_socket(server, cc, patience)?;
    flow.begun_ns = now_ns();
    let mut stream = tcp::connect_socket(socket, server)?;
    flow.local_port = stream.local_addr()?.port();
    flow.server = Some(server.ip());
    let mut last_look = Instant::now();
    let mut look = |stream: &TcpStream, flow: &mut Flow, always: bool| -> io::Result<()> {
        if always || last_look.elapsed() >= SAMPLE {
            last_look = Instant::now();
            let info = tcp::tcp_info(stream)?;
            // 0 means that nothing was measured yet.
            flow.srtt_us
                .extend((info.srtt_us > 0).then_some(info.srtt_us));
            flow.min_rtt_us = (info.min_rtt_us != u32::MAX).then_some(info.min_rtt_us);
            flow.retransmits = info.retransmits;
            flow.sent_segments = info.data_segments_sent;
        }
        Ok(())
    };
    let stream_ns = match load {
        Load::Stream { ms, skip_ms } => Some([ms * 1_000_000, skip_ms * 1_000_000]),
        _ => None,
    };
    if let Some([stream_ns, skip_ns]) = stream_ns {
        let (measured, end) = (flow.begun_ns + skip_ns, flow.begun_ns + stream_ns);
        send_until(&mut stream, flow, end, measured, &mut look)?;
    } else {
        let mut left = flow.flow_bytes.unwrap_or(0);
        while left > 0 {
            let length = left.min(CHUNK.len() as u64) as usize;
            stream
                .write_all(&CHUNK[..length])
                .map_err(|error| tcp::while_doing("sending", error))?;
            left -= length as u64;
            look(&stream, flow, false)?;
        }
    }
    stream.shutdown(Shutdown::Write)?;
    let receipt = await_receipt(&mut stream, flow, &mut look)?;
    // At the end nothing is in flight, so that the sample holds for the whole connection.
    look(&stream, flow, true)?;
    flow.cc = tcp::congestion_control(&stream)?;
    match stream_ns {
        Some([stream_ns, skip_ns]) => {
            let until = |ns| receipt.bytes_at(flow.begun_ns + ns);
            flow.received_bytes = until(stream_ns) - if skip_ns > 0 { until(skip_ns) } else { 0 };
            flow.in_time_bytes = flow.received_bytes;
            flow.took_us = (stream_ns - skip_ns) as f64 / 1e3;
        }
        None => {
            flow.received_bytes = receipt.bytes;
            flow.in_time_bytes = receipt.bytes_at(end_ns);
            flow.took_us = receipt.last_ns.saturating_sub(flow.begun_ns) as f64 / 1e3;
            let wanted = flow.flow_bytes.unwrap_or(0);
            if receipt.bytes != wanted {
                let message = format!("{} of {wanted} bytes arrived", receipt.bytes);
                return Err(io::Error::new(io::ErrorKind::UnexpectedEof, message));
            }
        }
    }
    Ok(())
}

/// Sends until `end_ns`, and samples the connection from `measured_ns` on.
fn send_until(
    stream: &mut TcpStream,
    flow: &mut Flow,
    end_ns: u64,
    measured_ns: u64,
    look: &mut impl FnMut(&TcpStream, &mut Flow, bool) -> io::Result<()>,
) -> io::Result<()> {
    let patience = Duration::from_millis(STALL_TIMEOUT_MS);
    tcp::limit_unsent(stream)?;
    let mut blocked_since = Instant::now();
    loop {
        let now = now_ns();
        if now >= end_ns {
            return Ok(());
        }
        let left = Duration::from_nanos(end_ns - now);
        if tcp::wait_writable(stream, left.min(SAMPLE))? {
            // One chunk at most, so that it does not block beyond its time.
            match tcp::write_some(stream, &CHUNK) {
                Ok(_) => blocked_since = Instant::now(),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
        } else if blocked_since.elapsed() >= patience {
            return Err(tcp::stalled_error("sending"));
        }
        if now >= measured_ns {
            look(stream, flow, false)?;
        }
    }
}

/// Waits for the receipt, and samples the connection meanwhile.
fn await_receipt(
    stream: &mut TcpStream,
    flow: &mut Flow,
    look: &mut impl FnMut(&TcpStream, &mut Flow, bool) -> io::Result<()>,
) -> io::Result<Receipt> {
    let deadline = Instant::now() + Duration::from_millis(STALL_TIMEOUT_MS);
    while !tcp::wait_readable(stream, SAMPLE)? {
        look(stream, flow, false)?;
        if Instant::now() >= deadline {
            return Err(tcp::stalled_error("waiting for the receiver"));
        }
    }
    let mut text = Vec::new();
    stream
        .read_to_end(&mut text)
        .map_err(|error| tcp::while_doing("waiting for the receiver", error))?;
    Ok(serde_json::from_slice(&text)?)
}
