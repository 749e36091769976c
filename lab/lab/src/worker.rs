//! The laboratory's own traffic: a server that receives, and a client that opens flows by a plan.
//! Both are processes inside the two hosts, started by the hidden command `thalweg-lab worker`.
//!
//! iperf3's control connection would outweigh a short flow. A flow is one TCP connection: the
//! client sends and closes its side, then the server answers with bytes and times. Or a flow is one
//! of several calls over a connection (`calls`). Both hosts share CLOCK_MONOTONIC, as network
//! namespaces do not separate clocks.

mod bytes;
mod calls;
mod client;
mod fetch;
mod server;
mod tcp;
pub(crate) mod timers;
pub(crate) mod turns;
mod web;

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use thalweg_units::random::mix;

use crate::error::Error;

pub(crate) use bytes::{Bytes, Tail};
pub(crate) use calls::HEAD;
pub use web::OBJECTS;
pub(crate) use web::Web;

/// The line that a server prints when it listens.
pub(crate) const LISTENING: &str = "worker listening";
/// Time that a flow may stall, milliseconds.
pub(crate) const STALL_TIMEOUT_MS: u64 = 20_000;
/// How often a client samples its connection.
const SAMPLE: Duration = Duration::from_millis(100);
/// The bytes of one write.
static CHUNK: [u8; 64 * 1024] = [0; 64 * 1024];

/// A task of a worker process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Job {
    /// Receive until killed.
    Serve {
        /// The address to listen on.
        address: SocketAddr,
    },
    /// Open the flows of the plan on standard input and write their results.
    Send {
        /// File of the results.
        result: PathBuf,
    },
    /// Ask a web server for the pages of the plan on standard input and write their results.
    Fetch {
        /// File of the results.
        result: PathBuf,
    },
    /// Run the programs that are ordered on standard input, one after the other.
    Turns,
    /// Measure the lateness of timers and print it.
    Timers,
}

/// Does a job; a server does not return. A flow that fails is a result, not an error.
///
/// # Errors
/// The address cannot be listened on, the plan cannot be read, or the result cannot be written.
pub fn run_job(job: &Job) -> Result<(), Error> {
    match job {
        Job::Serve { address } => server::run_server(*address),
        Job::Send { result } => client::run_client(result),
        Job::Fetch { result } => fetch::run_fetch(result),
        Job::Turns => turns::run_orders(),
        Job::Timers => {
            println!("{}", timers::measure_both()?);
            Ok(())
        }
    }
}

/// The flows of one round.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Plan {
    /// The addresses that a sender's connections go to in turn; at least one.
    pub(crate) servers: Vec<SocketAddr>,
    /// Congestion controls among which chance decides for each connection of senders without one;
    /// none: the system's.
    pub(crate) arms: Vec<String>,
    /// Seed of that chance.
    pub(crate) seed: u64,
    /// All begin at once, each in a thread of its own.
    pub(crate) senders: Vec<Sender>,
}

impl Plan {
    /// The time for which its senders are measured, if they have one, milliseconds.
    pub(crate) fn sender_ms(&self) -> Option<u64> {
        let times = self.senders.iter().map(|sender| match sender.load {
            Load::FlowsFor { ms, .. } | Load::Calls { ms, .. } => Some(ms),
            Load::Stream { ms, skip_ms } => Some(ms - skip_ms),
            Load::Flows { .. } | Load::Web(_) => None,
        });
        times.collect::<Option<Vec<_>>>()?.into_iter().max()
    }

    /// The address of a sender's `n`-th connection.
    pub(crate) fn server_address(&self, n: usize) -> SocketAddr {
        self.servers[n % self.servers.len()]
    }

    /// The congestion control that the application sets for the `n`-th connection of the sender at
    /// a place.
    fn connection_cc(&self, place: usize, n: usize) -> Option<&str> {
        let own = self.senders[place].cc.as_deref();
        own.or_else(|| {
            let drawn = mix(mix(self.seed ^ place as u64) ^ n as u64);
            let place = drawn.checked_rem(self.arms.len() as u64)?;
            Some(&self.arms[place as usize])
        })
    }
}

/// A sender: its connections follow one another.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Sender {
    pub(crate) class: String,
    /// The congestion control that the application sets; none: the system's.
    pub(crate) cc: Option<String>,
    pub(crate) load: Load,
}

/// The load of a sender.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Load {
    /// `count` flows of `bytes` bytes each.
    Flows { count: u32, bytes: Bytes },
    /// Flows of `bytes` bytes until the time is over; the last one is finished.
    FlowsFor { ms: u64, bytes: u64 },
    /// Flows of `bytes` bytes over one connection, opened before, with pauses. The receiver thinks
    /// for `think_us` before it answers each.
    Calls {
        ms: u64,
        bytes: Bytes,
        pause: Pause,
        think_us: u64,
    },
    /// One flow until the time is over. The first `skip_ms` are not measured.
    Stream { ms: u64, skip_ms: u64 },
    /// Pages of several objects, each a call.
    Web(Web),
}

/// The pauses between calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Pause {
    /// This long after each call, milliseconds.
    After(u64),
    /// This long from one call's begin to the next's, milliseconds; none after a late one.
    Every(u64),
}

/// The result of one flow.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub(crate) struct Flow {
    pub(crate) class: String,
    /// The address that it went to; none without a connection.
    #[serde(default)]
    pub(crate) server: Option<IpAddr>,
    /// The client's port, shared by calls over one connection; 0 without a connection.
    pub(crate) local_port: u16,
    /// The congestion control at the end.
    pub(crate) cc: String,
    /// Bytes to send; none for a stream.
    pub(crate) flow_bytes: Option<u64>,
    /// Bytes that the receiver read; of a stream, within the measured time.
    pub(crate) received_bytes: u64,
    /// Bytes that the receiver read within the sender's time.
    #[serde(default)]
    pub(crate) in_time_bytes: u64,
    /// Time of the call of connect, or of the call's begin with [`Load::Calls`], on the shared
    /// clock, ns.
    pub(crate) begun_ns: u64,
    /// Time from then until the receiver had the last byte; of a stream, the measured time; µs.
    pub(crate) took_us: f64,
    pub(crate) retransmits: u64,
    pub(crate) sent_segments: u64,
    pub(crate) min_rtt_us: Option<u32>,
    /// Samples every 100 ms while it was measured, and at its end.
    pub(crate) srtt_us: Vec<u32>,
    /// Number of its page, counted from 0; none if it is no object of one.
    #[serde(default)]
    pub(crate) page: Option<u32>,
    /// Time from its page's moment until the receiver had its last byte, µs.
    #[serde(default)]
    pub(crate) page_us: f64,
    pub(crate) error: Option<String>,
}

/// The server's report on a connection that the client has closed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Receipt {
    bytes: u64,
    /// Time of the last byte, or of the close of an empty flow.
    last_ns: u64,
    /// Bytes read so far, noted at most every 10 ms: (time, bytes).
    progress: Vec<(u64, u64)>,
}

impl Receipt {
    /// Bytes read by a time, as last noted before it.
    fn bytes_at(&self, time_ns: u64) -> u64 {
        if time_ns >= self.last_ns {
            return self.bytes;
        }
        let after = self.progress.partition_point(|(at, _)| *at <= time_ns);
        after
            .checked_sub(1)
            .map_or(0, |place| self.progress[place].1)
    }
}

/// CLOCK_MONOTONIC, the same in both hosts, ns.
fn now_ns() -> u64 {
    let clock = nix::time::ClockId::CLOCK_MONOTONIC;
    // Linux has this clock: it cannot fail.
    let now = nix::time::clock_gettime(clock).expect("CLOCK_MONOTONIC exists");
    now.tv_sec() as u64 * 1_000_000_000 + now.tv_nsec() as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    const ONE_BYTE: Load = Load::Flows {
        count: 1,
        bytes: Bytes::Each(1),
    };

    fn send(senders: Vec<Sender>) -> Vec<Flow> {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let server = listener.local_addr().unwrap();
        std::thread::spawn(move || server::accept_connections(&listener));
        client::send_plan(&plan(server, senders))
    }

    fn plan(server: SocketAddr, senders: Vec<Sender>) -> Plan {
        Plan {
            servers: vec![server],
            arms: Vec::new(),
            seed: 1,
            senders,
        }
    }

    fn sender(class: &str, load: Load) -> Sender {
        Sender {
            class: class.into(),
            cc: None,
            load,
        }
    }

    #[test]
    fn short_flows_arrive_whole_and_are_timed() {
        let before = now_ns();
        let load = Load::Flows {
            count: 5,
            bytes: Bytes::Each(100_000),
        };
        let flows = send(vec![sender("", load)]);
        let wall_us = (now_ns() - before) as f64 / 1e3;
        assert_eq!(flows.len(), 5);
        let mut last = 0;
        for flow in &flows {
            assert_eq!(flow.error, None);
            assert_eq!(
                (flow.flow_bytes, flow.received_bytes),
                (Some(100_000), 100_000)
            );
            assert!(flow.took_us > 1.0 && flow.took_us < wall_us, "{flow:?}");
            assert!(!flow.cc.is_empty() && flow.sent_segments > 0);
            assert_ne!(flow.local_port, 0);
            assert!(flow.begun_ns > last, "one after the other");
            last = flow.begun_ns;
        }
        let sum: f64 = flows.iter().map(|flow| flow.took_us).sum();
        assert!(sum < wall_us, "{sum} of {wall_us} µs");
    }

    #[test]
    fn streams_stop_in_time_and_run_at_once() {
        let stream = || {
            sender(
                "stream",
                Load::Stream {
                    ms: 300,
                    skip_ms: 0,
                },
            )
        };
        let calls = sender(
            "calls",
            Load::FlowsFor {
                ms: 300,
                bytes: 1_000,
            },
        );
        let flows = send(vec![stream(), stream(), calls]);
        let streams: Vec<&Flow> = flows.iter().filter(|flow| flow.class == "stream").collect();
        assert_eq!(streams.len(), 2);
        for flow in &streams {
            assert_eq!(flow.error, None);
            assert!((flow.took_us - 300e3).abs() < 1.0, "{flow:?}");
            assert!(flow.received_bytes > 100_000, "{flow:?}");
            assert!(flow.srtt_us.len() >= 2, "{flow:?}");
        }
        let apart = streams[0].begun_ns.abs_diff(streams[1].begun_ns);
        assert!(apart < 100_000_000, "{apart} ns");
        assert!(flows.len() > 5, "{} flows", flows.len());
    }

    #[test]
    fn calls_share_a_connection_and_are_timed_one_by_one() {
        let before = now_ns();
        let (ms, bytes) = (200, 100_001);
        let calls = |class| {
            sender(
                class,
                Load::Calls {
                    ms,
                    bytes: Bytes::Each(bytes),
                    pause: Pause::After(0),
                    think_us: 0,
                },
            )
        };
        let one_byte = sender(
            "",
            Load::Calls {
                ms,
                bytes: Bytes::Each(8),
                pause: Pause::After(0),
                think_us: 0,
            },
        );
        let flows = send(vec![calls("a"), calls("b"), one_byte]);
        let wall_us = (now_ns() - before) as f64 / 1e3;
        for class in ["a", "b"] {
            let own: Vec<&Flow> = flows.iter().filter(|flow| flow.class == class).collect();
            assert!(own.len() > 2, "{} calls", own.len());
            let mut end_ns = 0;
            for flow in &own {
                assert_eq!(flow.error, None);
                assert_eq!(flow.local_port, own[0].local_port);
                assert_eq!((flow.flow_bytes, flow.received_bytes), (Some(bytes), bytes));
                // Retransmissions of earlier calls do not count. Loopback has segments of 64 KiB at
                // most.
                assert!((2..1_000).contains(&flow.sent_segments), "{flow:?}");
                assert!(flow.begun_ns > end_ns, "one after the other");
                end_ns = flow.begun_ns + (flow.took_us * 1e3) as u64;
            }
            let sum: f64 = own.iter().map(|flow| flow.took_us).sum();
            assert!(sum < wall_us, "{sum} of {wall_us} µs");
            // Only the last flow may be late.
            let (last, others) = own.split_last().unwrap();
            assert!(others.iter().all(|flow| flow.in_time_bytes == bytes));
            assert!(last.in_time_bytes <= bytes);
        }
        assert!(flows.iter().any(|flow| flow.received_bytes == 8));
    }

    #[test]
    fn server_thinks_before_it_answers_and_times_of_calls_do_not_include_it() {
        let calls = |class, think_us| {
            let load = Load::Calls {
                ms: 300,
                bytes: Bytes::Each(10_000),
                pause: Pause::After(0),
                think_us,
            };
            sender(class, load)
        };
        let flows = send(vec![calls("thinks", 100_000), calls("answers", 0)]);
        let of = |class: &str| -> Vec<&Flow> {
            flows.iter().filter(|flow| flow.class == class).collect()
        };
        assert!(of("answers").len() > 3);
        let own = of("thinks");
        assert!((2..=3).contains(&own.len()), "{} calls", own.len());
        for flow in &own {
            assert_eq!((flow.received_bytes, &flow.error), (10_000, &None));
        }
        for pair in own.windows(2) {
            let end_ns = pair[0].begun_ns + (pair[0].took_us * 1e3) as u64;
            assert!(pair[1].begun_ns - end_ns >= 100_000_000, "{pair:?}");
        }
    }

    #[test]
    fn a_congestion_control_is_asked_for_before_the_connection() {
        let mut one = sender("", ONE_BYTE);
        one.cc = Some("reno".into());
        let mut none = one.clone();
        none.cc = Some("no_such".into());
        let flows = send(vec![one, none]);
        assert_eq!((flows[0].cc.as_str(), &flows[0].error), ("reno", &None));
        let error = flows[1].error.as_deref().unwrap();
        assert!(error.contains("no_such"), "{error}");
    }

    #[test]
    fn calls_at_an_interval_begin_at_it_unless_one_is_late() {
        let load = |every_ms| Load::Calls {
            ms: 1000,
            bytes: Bytes::Each(1_000),
            pause: Pause::Every(every_ms),
            think_us: 0,
        };
        let flows = send(vec![sender("slow", load(400)), sender("quick", load(0))]);
        let begun = |class: &str| -> Vec<u64> {
            let of = flows.iter().filter(|flow| flow.class == class);
            of.map(|flow| flow.begun_ns).collect()
        };
        assert!(begun("quick").len() > 3);
        let begun = begun("slow");
        // A busy machine begins the last ones late, or not before the end.
        assert!((2..=3).contains(&begun.len()), "{begun:?}");
        for pair in begun.windows(2) {
            assert!(pair[1] - pair[0] >= 400_000_000, "{begun:?}");
        }
    }

    #[test]
    fn chance_decides_for_each_connection_unless_the_application_does() {
        let server = "127.0.0.1:1".parse().unwrap();
        let mut plan = plan(server, vec![sender("", ONE_BYTE), sender("", ONE_BYTE)]);
        assert_eq!(plan.connection_cc(0, 0), None);
        plan.arms = ["a", "b", "c"].map(str::to_owned).into();
        let drawn = |place| -> Vec<&str> {
            (0..300)
                .map(|n| plan.connection_cc(place, n).unwrap())
                .collect()
        };
        for arm in ["a", "b", "c"] {
            // 100 are expected, with a standard deviation of 8.
            let count = drawn(0).into_iter().filter(|one| *one == arm).count();
            assert!((60..140).contains(&count), "{arm}: {count}");
        }
        assert_ne!(drawn(0), drawn(1));
        plan.senders[1].cc = Some("own".to_owned());
        assert_eq!(plan.connection_cc(1, 5), Some("own"));
    }

    #[test]
    fn nobody_there_is_an_error_of_the_flow() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let server = listener.local_addr().unwrap();
        drop(listener);
        let flows = client::send_plan(&plan(server, vec![sender("", ONE_BYTE)]));
        let error = flows[0].error.as_deref().unwrap();
        assert!(error.contains("connect"), "{error}");
        assert_eq!(flows[0].flow_bytes, Some(1));
    }

    #[test]
    fn a_receipt_knows_what_had_come_when() {
        let receipt = Receipt {
            bytes: 100,
            last_ns: 50,
            progress: vec![(10, 20), (30, 70)],
        };
        let at = [0, 10, 29, 30, 49, 50, 99].map(|time| receipt.bytes_at(time));
        assert_eq!(at, [0, 20, 20, 70, 70, 100, 100]);
    }
}
