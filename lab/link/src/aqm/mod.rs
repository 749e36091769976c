//! Queues that keep their delay short by themselves (active queue management): CoDel and FQ-CoDel.
//! No I/O and no clock, as the engine.

mod codel;
mod fq;

use std::collections::VecDeque;
use std::fmt;
use std::str::FromStr;

use thalweg_units::{Delay, Size};

pub(crate) use codel::Codel;
use fq::FqCodel;

/// A queue's algorithm.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Aqm {
    /// CoDel (RFC 8289): one queue.
    Codel(Control),
    /// FQ-CoDel (RFC 8290): a queue for each flow, as far as hashes tell them apart.
    FqCodel {
        /// Control of each queue.
        control: Control,
        /// Bytes that a queue may send in a row.
        quantum: Size,
        /// Number of queues.
        flows: u32,
    },
}

/// When CoDel drops or marks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Control {
    /// Time in the queue that is accepted.
    pub target: Delay,
    /// How long it must have been longer: a round-trip time, somewhat above the usual.
    pub interval: Delay,
}

impl Aqm {
    /// Capacity if none is given, in bytes: 10,240 full-sized packets, RFC 8290's default.
    pub const LIMIT_BYTES: u64 = 10_240 * 1500;

    /// Parameters of RFC 8289 and RFC 8290.
    const CONTROL: Control = Control {
        target: Delay::from_us(5_000),
        interval: Delay::from_us(100_000),
    };
    const QUANTUM: Size = Size::from_bytes(1514);
    const FLOWS: u32 = 1024;

    /// An empty queue for this many bytes, with a salt for its hashes.
    pub(crate) fn empty_queue(self, limit_bytes: u64, salt: u64) -> Discipline {
        match self {
            Self::Codel(control) => Discipline::Codel {
                codel: Codel::new(control),
                queue: Queue::default(),
                limit_bytes,
            },
            Self::FqCodel {
                control,
                quantum,
                flows,
            } => Discipline::Fq(FqCodel::new(control, quantum, flows, limit_bytes, salt)),
        }
    }
}

impl fmt::Display for Aqm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (Self::Codel(control) | Self::FqCodel { control, .. }) = self;
        let Control { target, interval } = control;
        match self {
            Self::Codel(_) => write!(f, "codel,target={target},interval={interval}"),
            Self::FqCodel { quantum, flows, .. } => write!(
                f,
                "fq_codel,target={target},interval={interval},quantum={quantum},flows={flows}"
            ),
        }
    }
}

impl FromStr for Aqm {
    type Err = String;

    /// Parses a name and parameters, as `fq_codel,target=1ms,flows=64`.
    fn from_str(text: &str) -> Result<Self, String> {
        let (name, parameters) = text.split_once(',').unwrap_or((text, ""));
        let is_fair = match name {
            "codel" => false,
            "fq_codel" => true,
            _ => return Err(format!("expected codel or fq_codel, found {name:?}")),
        };
        let (mut control, mut quantum, mut flows) = (Self::CONTROL, Self::QUANTUM, Self::FLOWS);
        for parameter in parameters.split(',').filter(|it| !it.is_empty()) {
            let (key, value) = parameter.split_once('=').unwrap_or((parameter, ""));
            let fault = |why: String| format!("{key}: {why}");
            let time = || match value.parse::<Delay>() {
                Ok(time) if time > Delay::ZERO => Ok(time),
                Ok(_) => Err(fault("expected more than 0".to_owned())),
                Err(why) => Err(fault(why)),
            };
            match key {
                "target" => control.target = time()?,
                "interval" => control.interval = time()?,
                "quantum" if is_fair => {
                    let size: Option<Size> = value.parse().ok();
                    let size = size.filter(|it| (64..=1 << 20).contains(&it.bytes()));
                    let expected = "expected a size from 64B to 1MiB";
                    quantum = size.ok_or_else(|| fault(format!("{expected}, found {value:?}")))?;
                }
                "flows" if is_fair => {
                    let number = value.parse().ok().filter(|it| (1..=65_536).contains(it));
                    let expected = "expected a number from 1 to 65536";
                    flows = number.ok_or_else(|| fault(format!("{expected}, found {value:?}")))?;
                }
                _ => {
                    let known = ["target, interval", "target, interval, quantum, flows"];
                    let known = known[usize::from(is_fair)];
                    return Err(format!(
                        "expected parameters of {name} ({known}), found {key:?}"
                    ));
                }
            }
        }
        if control.target >= control.interval {
            return Err(format!(
                "target {} is not below interval {}: CoDel waits an interval for the queue to \
                 fall below the target",
                control.target, control.interval
            ));
        }
        Ok(match is_fair {
            false => Self::Codel(control),
            true => Self::FqCodel {
                control,
                quantum,
                flows,
            },
        })
    }
}

/// A packet that waits.
#[derive(Debug)]
pub(crate) struct Waiting {
    pub(crate) number: u64,
    pub(crate) since_ns: u64,
    pub(crate) packet: Vec<u8>,
}

impl Waiting {
    fn packet_bytes(&self) -> u64 {
        self.packet.len() as u64
    }
}

/// Packets in the order of their arrival.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    packets: VecDeque<Waiting>,
    bytes: u64,
}

impl Queue {
    pub(crate) fn push(&mut self, waiting: Waiting) {
        self.bytes += waiting.packet_bytes();
        self.packets.push_back(waiting);
    }

    pub(crate) fn pop(&mut self) -> Option<Waiting> {
        let first = self.packets.pop_front()?;
        self.bytes -= first.packet_bytes();
        Some(first)
    }
}

/// Results of a call: packets dropped and marked.
#[derive(Debug, Default)]
pub(crate) struct Fates {
    /// Dropped for want of room.
    pub(crate) full: Vec<Waiting>,
    /// Dropped because packets waited too long.
    pub(crate) early: Vec<Waiting>,
    /// How many were marked instead.
    pub(crate) marked: u64,
}

/// Packets before a bottleneck.
#[derive(Debug)]
pub(crate) enum Discipline {
    Codel {
        codel: Codel,
        queue: Queue,
        limit_bytes: u64,
    },
    Fq(FqCodel),
}

impl Discipline {
    /// Bytes that wait.
    pub(crate) fn queued_bytes(&self) -> u64 {
        match self {
            Self::Codel { queue, .. } => queue.bytes,
            Self::Fq(queues) => queues.queued_bytes(),
        }
    }

    /// Takes a packet; drops some if there is no room.
    pub(crate) fn enqueue(&mut self, waiting: Waiting, fates: &mut Fates) {
        match self {
            Self::Codel {
                queue, limit_bytes, ..
            } => {
                if queue.bytes + waiting.packet_bytes() > *limit_bytes {
                    fates.full.push(waiting);
                } else {
                    queue.push(waiting);
                }
            }
            Self::Fq(queues) => queues.enqueue(waiting, fates),
        }
    }

    /// The packet to be sent now; none only if none waits.
    pub(crate) fn dequeue(&mut self, now_ns: u64, fates: &mut Fates) -> Option<Waiting> {
        match self {
            Self::Codel { codel, queue, .. } => codel.dequeue_or_drop(now_ns, queue, fates),
            Self::Fq(queues) => queues.dequeue(now_ns, fates),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_those_of_the_rfcs_unless_given() {
        let control = Control {
            target: Delay::from_us(5000),
            interval: Delay::from_us(100_000),
        };
        assert_eq!("codel".parse(), Ok(Aqm::Codel(control)));
        let fair = Aqm::FqCodel {
            control,
            quantum: Size::from_bytes(1514),
            flows: 1024,
        };
        assert_eq!("fq_codel".parse(), Ok(fair));
        let given = Aqm::FqCodel {
            control: Control {
                target: Delay::from_us(1000),
                interval: Delay::from_us(20_000),
            },
            quantum: Size::from_bytes(300),
            flows: 64,
        };
        let text = "fq_codel,target=1ms,interval=20ms,quantum=300B,flows=64";
        assert_eq!(text.parse(), Ok(given));
        for aqm in [Aqm::Codel(control), fair, given] {
            assert_eq!(aqm.to_string().parse(), Ok(aqm));
        }
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (text, part) in [
            ("", "expected codel or fq_codel, found \"\""),
            ("pie", "found \"pie\""),
            ("codel,target", "target:"),
            ("codel,target=0ms", "target: expected more than 0"),
            ("codel,target=5", "target:"),
            (
                "codel,flows=2",
                "parameters of codel (target, interval), found \"flows\"",
            ),
            (
                "fq_codel,flows=0",
                "flows: expected a number from 1 to 65536, found \"0\"",
            ),
            (
                "fq_codel,quantum=1B",
                "quantum: expected a size from 64B to 1MiB",
            ),
            ("fq_codel,ecn=1", "found \"ecn\""),
            ("codel,interval=5ms", "target 5ms is not below interval 5ms"),
        ] {
            let said = text.parse::<Aqm>().unwrap_err();
            assert!(said.contains(part), "{text}: {said}");
        }
    }
}
