//! Senders and receivers as Linux's TCP has them, in place of network cards.
//!
//! A connection sends bursts, each with one time stamp, when its pacing timer expires or an ACK
//! makes room. Its receiver merges packets and delays ACKs. So a controller hears of the network
//! in lumps. Every mechanism is an option of the scenario ([`Linux`]). Functions bear the names of
//! the kernel's (6.12, net/ipv4/tcp_output.c and tcp_input.c).
//!
//! What is simpler: losses are known with the ACK of a later packet, without a reordering window;
//! a time-out is the scenario's, per packet; there is always room in socket buffers, and small
//! queues (TSQ) never hold a sender back.
//!
//! [`Linux`]: crate::scenario::Linux

mod ack;
mod offload;
mod outside;
mod receiver;
mod sender;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use thalweg_rate::kernel::Path;

use crate::Time;
use crate::cc::tcp::{CaState, Event, INFINITE_SSTHRESH, INITIAL_CWND, Sample, Socket};
use crate::cc::{Controller, Setup};
use crate::engine::EventQueue;
use crate::rng::{Random, random_stream};
use crate::scenario::{INSPECTION, Linux, Scenario};

use super::state::Flow;
use super::{EventKind, Simulation};

/// All connections, and what they share.
pub(super) struct Hosts {
    pub options: Linux,
    pub connections: Vec<Connection>,
    /// What connections between two hosts know of their path.
    paths: BTreeMap<Ends, Path>,
    /// Payload of a packet, bytes.
    mss: u32,
    /// The clock of all hosts at the start, ns.
    tai_ns: u64,
    /// Of the lateness of timers.
    random: Random,
    /// Smoothed round-trip times in the measured time, µs.
    pub smoothed_us: Vec<u32>,
    /// The shortest round-trip time of all connections, µs.
    pub shortest_us: u32,
    /// The connection for which the caller must decide, and the ACK.
    waiting: Option<(usize, Sample)>,
}

/// A burst in flight: segments sent at once, with one time stamp.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Burst {
    /// Numbers of its packets that are not acknowledged.
    first: u32,
    last: u32,
    /// `skb_mstamp_ns`.
    stamp: Time,
    /// Segments delivered when it was sent (`tx.delivered`).
    delivered: u32,
    is_app_limited: bool,
    is_retransmission: bool,
}

/// An ACK on its way to the sender.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Acknowledgement {
    /// All packets up to this number have arrived or are lost.
    number: u32,
    /// The first segment that is missing (`ack_seq`).
    una: u32,
    /// Packets that have arrived since the ACK before; of them marked.
    packets: u32,
    marked: u32,
    /// Round-trip time of the newest packet, had it been acknowledged at once.
    own_rtt: Time,
    /// Whether the delayed-ACK timer sent it.
    is_delayed: bool,
}

/// Packets that receive offload has merged.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Run {
    packets: u32,
    is_marked: bool,
    /// Number and position of the last packet.
    number: u32,
    index: u32,
    /// Arrival of the last packet.
    at: Time,
    own_rtt: Time,
}

/// The receiving end of a connection.
#[derive(Debug, Default)]
struct Receiver {
    run: Run,
    /// Packets received since the last ACK, and of them marked.
    pending: u32,
    marked: u32,
    newest: Run,
    /// ACKs that are sent at once (`icsk_ack.quick`).
    quick: u32,
    /// Whether the last packet was marked (DCTCP's `ce_state`).
    ce_state: bool,
    /// Lost segments that have not arrived since, by position.
    missing: BTreeSet<u32>,
    /// First position beyond all that have arrived.
    end: u32,
    /// When a run ends without a further packet, and when the delayed ACK is due.
    flush_at: Time,
    delayed_at: Time,
}

/// A sending host, and the last port on the way to a receiving one: no other host has that port.
type Ends = (u32, u32);

/// Both ends of a connection.
#[derive(Debug, Default)]
pub(super) struct Connection {
    pub socket: Socket,
    ends: Ends,
    bursts: VecDeque<Burst>,
    acks: VecDeque<Acknowledgement>,
    /// No burst leaves before this (`tcp_wstamp_ns`).
    wstamp: Time,
    /// Departure of the last burst.
    sent_at: Time,
    /// Time of the pacing timer's event; others are stale.
    timer_at: Time,
    /// Segments sent, ever (`data_segs_out`).
    data_segs_out: u64,
    /// Positions from here on were sent after the loss (`high_seq`).
    high_seq: u32,
    /// First missing segment that the sender knows.
    una: u32,
    /// The sample is limited by the application until so many are delivered; 0: it is not.
    app_limited: u32,
    /// Number of packets sent when the use of the window was last measured.
    cwnd_usage: u32,
    /// `delivered`, `delivered_ce` and `lost` at the caller's last decision.
    told: [u32; 3],
    receiver: Receiver,
}

impl Hosts {
    pub fn new(scenario: &Scenario, seed: u64) -> Option<Self> {
        let options = scenario.hosts.linux.clone()?;
        let mut random = random_stream(seed, 1 << 41);
        // A clock that no run has in common with another: probes come at different times.
        let tai_ns = random.u64() % 1_000_000_000_000;
        Some(Self {
            mss: scenario.network.packet_bytes - options.header_bytes,
            options,
            connections: Vec::new(),
            paths: BTreeMap::new(),
            tai_ns,
            random,
            smoothed_us: Vec::new(),
            shortest_us: u32::MAX,
            waiting: None,
        })
    }
}

/// TCP's clock: whole microseconds.
fn microseconds(time: Time) -> u64 {
    time.ps() / 1_000_000
}

impl<C: Controller, Q: EventQueue> Simulation<C, Q> {
    /// Both ends of a connection. Only called where there are any.
    #[inline]
    fn connection(&mut self, index: usize) -> &mut Connection {
        let hosts = (self.linux.as_mut()).expect("only hosts with Linux's TCP call this");
        &mut hosts.connections[index]
    }

    /// The controller's TCP is up: the handshake's round trip is measured.
    pub(super) fn tcp_begin(&mut self, index: usize) {
        let now = self.now;
        let handshake = self.handshake(index);
        let ends = self.ends(index);
        let Some(hosts) = &mut self.linux else { return };
        while hosts.connections.len() <= index {
            hosts.connections.push(Connection::default());
        }
        let rtt_us = microseconds(handshake).max(1) as u32;
        hosts.shortest_us = hosts.shortest_us.min(rtt_us);
        let receiver = Receiver {
            flush_at: Time::MAX,
            delayed_at: Time::MAX,
            ..Receiver::default()
        };
        let socket = Socket {
            tcp_mstamp: microseconds(now),
            tai_ns: hosts.tai_ns + now.ps() / 1000,
            mss_cache: hosts.mss,
            srtt_us: rtt_us << 3,
            min_rtt_us: rtt_us,
            // The SYN.
            delivered: 1,
            snd_cwnd: INITIAL_CWND,
            snd_ssthresh: INFINITE_SSTHRESH,
            ..Socket::default()
        };
        hosts.connections[index] = Connection {
            socket,
            ends,
            timer_at: Time::MAX,
            told: [1, 0, 0],
            receiver,
            ..Connection::default()
        };
        if self.set.needs.tcp {
            self.tell(index, Event::Init);
        }
    }

    /// Round-trip time of a handshake that ends now: that of empty queues, and the queues.
    fn handshake(&self, index: usize) -> Time {
        let flow: &Flow = &self.transport.flows[index];
        let setup: &Setup = &self.control.setups[index];
        let queued = self
            .fabric
            .flow_path(flow)
            .iter()
            .fold(Time::ZERO, |sum, port| {
                sum + self.fabric.ports[*port as usize].queueing_delay(self.now)
            });
        setup.base_rtt + queued
    }

    /// The hosts of a connection.
    fn ends(&self, index: usize) -> Ends {
        let flow: &Flow = &self.transport.flows[index];
        let last = self.fabric.flow_path(flow).last();
        (flow.host, last.copied().unwrap_or(u32::MAX))
    }

    /// Tells a controller of an event.
    fn tell(&mut self, index: usize, event: Event) {
        let Some(hosts) = &mut self.linux else { return };
        let connection = &mut hosts.connections[index];
        let (ends, socket) = (connection.ends, &mut connection.socket);
        let known = hosts.paths.get(&ends).copied();
        socket.path = known;
        self.control.controllers[index].on_tcp(&event, socket);
        socket.snd_cwnd = socket.snd_cwnd.max(1);
        if let Some(path) = socket.path
            && known != socket.path
        {
            hosts.paths.insert(ends, path);
        }
    }

    /// Takes over the command of a controller that knows nothing of TCP.
    fn obey(&mut self, index: usize) {
        let flow = &self.transport.flows[index];
        let packet_bytes = self.set.packet_bytes;
        let line = self.transport.hosts[flow.host as usize].rate_bps;
        let line = line.min(self.control.setups[index].line_rate_bps);
        let command = flow.command;
        let Some(hosts) = &mut self.linux else { return };
        let socket = &mut hosts.connections[index].socket;
        // Without a window the cast gives the largest one.
        let window = (command.window_bytes / f64::from(packet_bytes)) as u32;
        socket.snd_cwnd = window.clamp(1, 1 << 30);
        socket.sk_pacing_needed = command.rate_bps < line;
        if socket.sk_pacing_needed {
            let share = f64::from(hosts.mss) / f64::from(packet_bytes);
            socket.sk_pacing_rate = (command.rate_bps / 8.0 * share) as u64;
        } else {
            socket.update_pacing_rate();
        }
    }

    /// Reads all smoothed round-trip times.
    pub(super) fn inspect(&mut self) {
        let Some(hosts) = &mut self.linux else { return };
        if self.now >= self.set.warmup {
            let started = (hosts.connections.iter()).filter(|one| one.socket.srtt_us > 0);
            hosts
                .smoothed_us
                .extend(started.map(|one| one.socket.srtt_us >> 3));
        }
        if self.now + INSPECTION < self.set.end {
            self.schedule_event(self.now + INSPECTION, EventKind::Inspect, 0, 0);
        }
    }

    /// Schedules the first event of hosts with Linux's TCP.
    pub(super) fn schedule_inspection(&mut self) {
        if self.linux.is_some() {
            self.schedule_event(INSPECTION, EventKind::Inspect, 0, 0);
        }
    }

    /// Whether losses are being repaired.
    fn is_repairing(&mut self, index: usize) -> bool {
        self.connection(index).socket.ca_state != CaState::Open
    }
}
