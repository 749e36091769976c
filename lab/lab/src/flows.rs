//! Traffic of the laboratory's own worker: flows of given size, competing flows, several senders at
//! once.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::SocketAddr;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use thalweg_process::Process;
use thalweg_units::random::mix;

use crate::error::Error;
use crate::host::{Pair, Remote, Side};
use crate::outcome::Connection;
use crate::scenario::{
    INCAST, INCUMBENT, Idle, LONG, SHORT, SMALL_CALLS, Sizes, Traffic, TrafficKind,
};
use crate::traffic::Pause;
use crate::worker::{self, Bytes, Flow, Load, Plan, STALL_TIMEOUT_MS, Sender};

/// Time that a client may take beyond its plan.
const GRACE: Duration = Duration::from_secs(10);

/// One round towards a remote host.
pub(crate) struct Round<'a> {
    /// Counted from 0.
    pub(crate) number: u32,
    /// Addresses of the server.
    pub(crate) servers: &'a [SocketAddr],
    /// Seed of its path.
    pub(crate) seed: u64,
    /// Congestion controls among which chance decides; none: the system's.
    pub(crate) arms: &'a [String],
}

impl Round<'_> {
    /// Seed of all that chance decides in it.
    fn round_seed(&self) -> u64 {
        mix(mix(self.seed) ^ u64::from(self.number))
    }

    /// The congestion control of its only connection, if chance decides.
    pub(crate) fn drawn_arm(&self) -> Option<&str> {
        let place = self.round_seed().checked_rem(self.arms.len() as u64)?;
        Some(&self.arms[place as usize])
    }
}

/// The plan of one round; none for traffic that iperf3 makes.
pub(crate) fn plan_round(traffic: &Traffic, round: &Round<'_>) -> Option<Plan> {
    let ms = traffic.duration.get() * 1000;
    let skip_ms = traffic.warmup.map_or(0, |warmup| warmup.get() * 1000);
    let sender = |class: &str, cc: Option<&str>, load| Sender {
        class: class.to_owned(),
        cc: cc.map(str::to_owned),
        load,
    };
    let seed = round.round_seed();
    let bytes = |sizes: &Sizes, place: u32| match sizes {
        Sizes::Each(size) => Bytes::Each(size.bytes()),
        Sizes::InTurn(sizes) => {
            let turn = round.number as usize % sizes.len();
            Bytes::Each(sizes[turn].bytes())
        }
        Sizes::Lognormal { median, mean, tail } => Bytes::Lognormal {
            median: median.bytes(),
            mean: mean.bytes(),
            tail: tail.map(|tail| worker::Tail {
                share: tail.share.fraction(),
                least: tail.least.bytes(),
                shape: tail.shape,
                most: tail.most.bytes(),
            }),
            seed: mix(seed ^ u64::from(place)),
        },
    };
    let senders = match &traffic.kind {
        TrafficKind::Bulk => return None,
        TrafficKind::Short { flows, sizes, .. } => {
            let (count, bytes) = (*flows, bytes(sizes, 0));
            vec![sender("", None, Load::Flows { count, bytes })]
        }
        TrafficKind::Responses {
            flows,
            sizes,
            idle,
            think,
        } => {
            let pause = match idle {
                Idle::After(time) => worker::Pause::After(time.us() / 1000),
                Idle::Every(time) => worker::Pause::Every(time.us() / 1000),
            };
            let one = |place| Load::Calls {
                ms,
                bytes: bytes(sizes, place),
                pause,
                think_us: think.us(),
            };
            let flows = 0..flows.in_round(round.number);
            flows.map(|place| sender("", None, one(place))).collect()
        }
        TrafficKind::Web(web) => {
            let load = worker::Web {
                ms,
                every_us: web.every.us(),
                objects: web.objects,
                at_once: web.at_once,
                persistent: web.persistent.fraction(),
                bytes: bytes(&web.sizes, 0),
                seed,
            };
            vec![sender("", None, Load::Web(load))]
        }
        TrafficKind::Competing { flows, against } => {
            let stream = Load::Stream { ms, skip_ms };
            let newcomers = (0..*flows).map(|_| sender("", None, stream));
            let cc = Some(against.cc.as_str());
            let incumbents = (0..against.flows).map(|_| sender(INCUMBENT, cc, stream));
            incumbents.chain(newcomers).collect()
        }
        TrafficKind::Streams { flows } => {
            let stream = Load::Stream { ms, skip_ms };
            let flows = 0..flows.in_round(round.number);
            flows.map(|_| sender("", None, stream)).collect()
        }
        TrafficKind::LongShort { flows, burst, idle } => {
            let calls = Load::Calls {
                ms,
                bytes: Bytes::Each(burst.bytes()),
                pause: worker::Pause::After(idle.us() / 1000),
                think_us: 0,
            };
            let long = sender(LONG, None, Load::Stream { ms, skip_ms: 0 });
            let short = (1..*flows).map(|_| sender(SHORT, None, calls));
            std::iter::once(long).chain(short).collect()
        }
        TrafficKind::Incast { senders, rpcs } => {
            let of_sort = |sort: usize| {
                let (class, bytes) = INCAST[sort];
                let load = match (bytes, rpcs) {
                    (Some(bytes), None) => Load::FlowsFor { ms, bytes },
                    (Some(bytes), Some(_)) => Load::Calls {
                        ms,
                        bytes: Bytes::Each(bytes),
                        pause: worker::Pause::After(0),
                        think_us: 0,
                    },
                    (None, _) => Load::Stream { ms, skip_ms },
                };
                sender(class, None, load)
            };
            let sorts: Vec<usize> = match rpcs {
                None => (0..INCAST.len()).collect(),
                Some(rpcs) => [*rpcs, SMALL_CALLS, 1]
                    .into_iter()
                    .enumerate()
                    .flat_map(|(sort, loops)| (0..loops).map(move |_| sort))
                    .collect(),
            };
            let flows = match rpcs {
                None => *senders as usize,
                Some(_) => *senders as usize * sorts.len(),
            };
            sorts.into_iter().cycle().take(flows).map(of_sort).collect()
        }
    };
    Some(Plan {
        servers: round.servers.to_vec(),
        arms: round.arms.to_vec(),
        seed,
        senders,
    })
}

/// The time limit of a plan in which every flow takes as long as it may.
fn time_limit(plan: &Plan) -> Duration {
    let patience = Duration::from_millis(STALL_TIMEOUT_MS);
    let longest = plan
        .senders
        .iter()
        .map(|sender| match sender.load {
            Load::Flows { count, .. } => 3 * patience * count,
            Load::FlowsFor { ms, .. } | Load::Stream { ms, .. } => {
                Duration::from_millis(ms) + 3 * patience
            }
            Load::Calls { ms, think_us, .. } => {
                Duration::from_millis(ms) + Duration::from_micros(think_us) + 3 * patience
            }
            // A page is given up with the first object that stalls.
            Load::Web(web) => Duration::from_millis(web.ms) + 6 * patience,
        })
        .max()
        .unwrap_or_default();
    longest + GRACE
}

/// Runs a plan in the client's host and keeps the worker's output in a file. A flow that fails is a
/// result, not an error.
///
/// # Errors
/// The worker cannot be started, or SIGINT or SIGTERM came.
pub(crate) fn run_plan(
    (pair, remote): (&Pair, &Remote),
    worker: &Path,
    plan: &Plan,
    round: u32,
    raw: &Path,
    pauses: &[Pause<'_>],
) -> Result<Vec<Connection>, Error> {
    let text = serde_json::to_vec(plan).map_err(|error| Error::system("a plan")(error.into()))?;
    File::create(raw).map_err(Error::io("cannot create", raw))?;
    // Absolute: the worker may be started elsewhere.
    let result =
        std::path::absolute(raw).map_err(Error::io("cannot tell the full path of", raw))?;
    let worker = worker.to_string_lossy();
    // Where a server answers, the other end asks.
    let asks = plan
        .servers
        .iter()
        .all(|one| one.ip() == remote.address_of(Side::Client));
    let (mut command, job) = match asks {
        true => (pair.command_on(remote, &worker)?, "fetch"),
        false => (pair.command_in(Side::Client, &worker)?, "send"),
    };
    command
        .args(["worker", job])
        .arg(result)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped());
    let started = Instant::now();
    let mut process = Process::spawn_tied(&mut command)?;
    if let Some(mut input) = process.child_mut().stdin.take() {
        // A worker that ends without reading the plan says why by its status.
        let _ = input.write_all(&text);
    }
    let deadline = started + time_limit(plan);
    let status = crate::traffic::wait_for_client(&mut process, started, deadline, pauses)?;
    if status.is_none() {
        process.kill();
    }
    let wall_s = started.elapsed().as_secs_f64();
    let flows: Vec<Flow> = match status {
        Some(status) if status.success() => {
            let text = fs::read(raw).map_err(Error::io("cannot read", raw))?;
            serde_json::from_slice(&text).map_err(|error| {
                Error::system(format!("cannot understand {}", raw.display()))(error.into())
            })?
        }
        Some(status) => {
            let said = process.child_mut().stderr.take().map(|mut output| {
                let mut text = String::new();
                let _ = output.read_to_string(&mut text);
                text
            });
            let said = said.unwrap_or_default();
            return Err(Error::Worker(format!(
                "it ended ({status}): {}",
                said.trim()
            )));
        }
        None => return Err(Error::Worker("it did not end in time".into())),
    };
    // All addresses are on one link.
    let mut round_trips = pair.take_round_trips(remote.first_address())?;
    let several = plan.servers.len() > 1;
    Ok(flows
        .into_iter()
        .enumerate()
        .map(|(n, flow)| Connection {
            // Only traffic of one sender has several addresses.
            address: several.then(|| plan.server_address(n).ip()),
            rtt_us: flow.server.map_or_else(Vec::new, |server| {
                round_trips.take_connection(server, flow.local_port)
            }),
            part_bps: plan.sender_ms().map(|ms| part_bps(&flow, ms)),
            ..flow_connection(flow, round, wall_s)
        })
        .collect())
}

/// A flow's part of the goodput of a round of `ms` milliseconds, bit/s.
fn part_bps(flow: &Flow, ms: u64) -> f64 {
    match flow.error {
        Some(_) => 0.0,
        None => flow.in_time_bytes as f64 * 8e3 / ms as f64,
    }
}

fn flow_connection(flow: Flow, round: u32, wall_s: f64) -> Connection {
    let mean = flow.srtt_us.iter().map(|us| f64::from(*us)).sum::<f64>()
        / (flow.srtt_us.len().max(1) as f64);
    let fine = flow.error.is_none() && flow.took_us > 0.0;
    Connection {
        round,
        class: flow.class,
        host: String::new(),
        address: None,
        goodput_bps: if fine {
            flow.received_bytes as f64 * 8e6 / flow.took_us
        } else {
            0.0
        },
        retransmits: flow.retransmits,
        sent_segments: Some(flow.sent_segments),
        arm: flow.cc,
        mean_rtt_us: (!flow.srtt_us.is_empty()).then_some(mean),
        rtt_us: Vec::new(),
        srtt_us: flow.srtt_us,
        min_rtt_us: flow.min_rtt_us.map(f64::from),
        part_bps: None,
        flow_bytes: flow.flow_bytes,
        page: flow.page,
        page_us: flow.page.filter(|_| fine).map(|_| flow.page_us),
        fct_us: flow.flow_bytes.filter(|_| fine).map(|_| flow.took_us),
        wall_s,
        cpu: None,
        error: flow.error,
    }
}

#[cfg(test)]
#[path = "flows_tests.rs"]
mod tests;
