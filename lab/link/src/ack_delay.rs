//! A peer that delays its ACKs, as RFC 1122 (section 4.2.3.2) permits.
//!
//! An ACK waits if it acknowledges new data, but less than two full segments more than the last ACK
//! that passed. ACKs with data, SACK blocks, SYN, FIN or RST never wait, nor do duplicates and window
//! updates. A later packet of the connection that passes acknowledges the same, so the ACK that waits
//! is dropped. A later ACK that must wait, too, replaces it and keeps its time.

use std::collections::{BTreeMap, VecDeque};

use crate::packet::{self, Segment};

/// The words of [`packet::hash_flow`], zeros behind them.
type Flow = [u64; 5];

/// The segment size of a peer that names none (RFC 9293, section 3.7.1).
const DEFAULT_MSS: u32 = 536;

/// The ACKs of a direction that wait.
#[derive(Debug)]
pub(crate) struct AckDelay {
    delay_ns: u64,
    /// Connections that have opened and not ended.
    connections: BTreeMap<Flow, Connection>,
    /// When ACKs pass, in order. The first one still waits; later ones may have been dropped.
    due: VecDeque<(u64, Flow)>,
}

#[derive(Debug)]
struct Connection {
    /// Payload and options of the largest segment that the peer takes, bytes.
    mss: u32,
    /// Number of the last ACK that passed; none before the first.
    passed: Option<u32>,
    waiting: Option<Waiting>,
}

#[derive(Debug)]
struct Waiting {
    due_ns: u64,
    number: u32,
    packet: Vec<u8>,
}

/// Fate of a packet that arrives.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    /// The packet passes at once.
    Passes(Vec<u8>),
    /// The packet waits.
    Waits {
        /// The ACK that waited before it.
        replaced: Option<Vec<u8>>,
    },
}

impl AckDelay {
    /// No connection yet.
    pub(crate) fn new(delay_ns: u64) -> Self {
        Self {
            delay_ns,
            connections: BTreeMap::new(),
            due: VecDeque::new(),
        }
    }

    /// Decides about a packet that arrives now.
    pub(crate) fn packet_arrives(&mut self, now_ns: u64, packet: Vec<u8>) -> Fate {
        let Some(segment) = Segment::from_packet(&packet) else {
            return Fate::Passes(packet);
        };
        let flow = flow_of(&packet);
        if segment.has_flag(Segment::FIN) || segment.has_flag(Segment::RST) {
            self.connections.remove(&flow);
        } else if segment.has_flag(Segment::SYN) {
            let connection = Connection {
                mss: segment.mss().unwrap_or(DEFAULT_MSS),
                passed: segment.ack_number(),
                waiting: None,
            };
            self.connections.insert(flow, connection);
        } else if let Some(connection) = self.connections.get_mut(&flow)
            && let Some(number) = segment.ack_number()
        {
            if connection.must_wait(&segment, number) {
                let before = connection.waiting.take();
                let due_ns = match &before {
                    Some(before) => before.due_ns,
                    None => now_ns + self.delay_ns,
                };
                if before.is_none() {
                    self.due.push_back((due_ns, flow));
                }
                connection.waiting = Some(Waiting {
                    due_ns,
                    number,
                    packet,
                });
                let replaced = before.map(|before| before.packet);
                return Fate::Waits { replaced };
            }
            connection.passed = Some(number);
            connection.waiting = None;
        }
        self.forget_dropped();
        Fate::Passes(packet)
    }

    /// When the next ACK passes.
    pub(crate) fn next_due_ns(&self) -> Option<u64> {
        self.due.front().map(|(due_ns, _)| *due_ns)
    }

    /// An ACK that passes now or should have passed before, and when it should.
    pub(crate) fn take_due(&mut self, now_ns: u64) -> Option<(u64, Vec<u8>)> {
        let (due_ns, flow) = self.due.front().filter(|(due_ns, _)| *due_ns <= now_ns)?;
        let (due_ns, connection) = (*due_ns, self.connections.get_mut(flow)?);
        let waiting = connection.waiting.take()?;
        connection.passed = Some(waiting.number);
        self.forget_dropped();
        Some((due_ns, waiting.packet))
    }

    /// Forgets the times of ACKs that no longer wait, up to the first that does.
    fn forget_dropped(&mut self) {
        while let Some((due_ns, flow)) = self.due.front() {
            let connection = self.connections.get(flow);
            let waiting = connection.and_then(|connection| connection.waiting.as_ref());
            if waiting.is_some_and(|waiting| waiting.due_ns == *due_ns) {
                return;
            }
            self.due.pop_front();
        }
    }
}

impl Connection {
    fn must_wait(&self, segment: &Segment<'_>, number: u32) -> bool {
        let Some(passed) = self.passed else {
            return false;
        };
        let options = segment.options.len() as u32;
        let full_segment = self.mss.saturating_sub(options);
        let last = self.waiting.as_ref().map_or(passed, |it| it.number);
        let is_new = (number.wrapping_sub(last) as i32) > 0;
        let acknowledged = number.wrapping_sub(passed);
        let is_plain = segment.payload_bytes == 0 && !segment.has_sack_blocks();
        is_plain && is_new && acknowledged < 2 * full_segment
    }
}

fn flow_of(packet: &[u8]) -> Flow {
    let mut flow = Flow::default();
    let mut places = flow.iter_mut();
    packet::hash_flow(packet, |word| {
        if let Some(place) = places.next() {
            *place = word;
        }
    });
    flow
}
