//! A live trace of the learned rate controller's decisions.

use std::cell::{Cell, RefCell};
use std::fs::File;
use std::net::{IpAddr, Ipv6Addr};
use std::path::Path;
use std::time::{Duration, Instant};

use libbpf_rs::{MapCore, MapFlags, MapHandle, RingBufferBuilder};
use nix::fcntl::{Flock, FlockArg};
use serde::Serialize;
use thalweg_bpf_types::{bytes_of, from_bytes, raw};

use super::rate::{self, DECISIONS, TRACE};
use super::{ControlPins, DIRECTORY, MAP, control_names};
use crate::error::{Context, Error, Result, bail};
use crate::pins::RecoverablePins;
use crate::{batch, privileges, system};

/// The kernel stops tracing this long after the last renewal.
const LEASE: Duration = Duration::from_secs(3);
const RENEW: Duration = Duration::from_secs(1);
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// One decision. Rates in bytes per second.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Decision {
    /// The congestion control.
    pub name: String,
    /// Time, ns of the monotonic clock.
    pub time_ns: u64,
    /// The other host.
    pub remote: IpAddr,
    /// Remote port.
    pub remote_port: u16,
    /// Port of this host.
    pub local_port: u16,
    /// Inode of the flow's network namespace.
    pub netns: u32,
    /// Round-trip time in the model's input, ns: base plus queue.
    pub rtt_ns: u64,
    /// Base round-trip time in the model's input, ns.
    pub base_rtt_ns: u64,
    /// Rate before.
    pub rate: u64,
    /// Rate that counts as 1.
    pub reference_rate: u64,
    /// The model's inputs, Q15, oldest decision first, padded with zeros.
    pub inputs: [i16; raw::THALWEG_MODEL_INPUTS as usize],
    /// The model's output, Q15.
    pub action_q15: i16,
    /// Lower limit of the next rate.
    pub floor: u64,
    /// Upper limit of the next rate.
    pub cap: u64,
    /// Share of the rate kept after losses and marks, Q16.
    pub keep_q16: u32,
    /// The next rate.
    pub next_rate: u64,
    /// Delivery rate in the round.
    pub delivered_rate: u64,
    /// Shortest round-trip time of the last seconds, us.
    pub min_rtt_us: u32,
    /// Window, segments.
    pub window: u32,
    /// The flow's first.
    pub first: bool,
    /// No growth was allowed.
    pub held: bool,
    /// The application sent less than it could have.
    pub app_limited: bool,
    /// A probe for the shortest round-trip time starts.
    pub probing: bool,
    /// Beside flows that fill the queue the rate is that of a window like theirs: `floor` and
    /// `cap`.
    pub competing: bool,
}

impl Decision {
    fn new(name: &str, raw: &raw::thalweg_rate_decision) -> Self {
        let has = |flag: raw::thalweg_rate_flag| u32::from(raw.flags) & flag != 0;
        Self {
            name: name.to_owned(),
            time_ns: raw.time_ns,
            remote: Ipv6Addr::from(raw.remote).to_canonical(),
            remote_port: raw.remote_port,
            local_port: raw.local_port,
            netns: raw.netns,
            rtt_ns: raw.measurement.rtt_ns,
            base_rtt_ns: raw.measurement.base_rtt_ns,
            rate: raw.measurement.rate,
            reference_rate: raw.measurement.line_rate,
            inputs: raw.inputs,
            action_q15: raw.action_q15,
            floor: raw.floor,
            cap: raw.cap,
            keep_q16: raw.keep_q16,
            next_rate: raw.next_rate,
            delivered_rate: raw.delivered_rate,
            min_rtt_us: raw.min_rtt_us,
            window: raw.window,
            first: has(raw::THALWEG_RATE_FIRST),
            held: has(raw::THALWEG_RATE_HELD),
            app_limited: has(raw::THALWEG_RATE_LIMITED),
            probing: has(raw::THALWEG_RATE_PROBING),
            competing: has(raw::THALWEG_RATE_COMPETING),
        }
    }

    /// Factor by which the rate changes.
    pub fn rate_multiplier(&self) -> f64 {
        self.next_rate as f64 / self.rate.max(1) as f64
    }
}

/// A loaded controller that is traced.
struct TraceSource {
    name: String,
    trace: MapHandle,
    decisions: MapHandle,
    _lock: Flock<File>,
}

impl TraceSource {
    /// None if the congestion control has no model.
    fn open(directory: &Path, name: &str) -> Result<Option<Self>> {
        let own = directory.join(name);
        let map = |map: &str| MapHandle::from_pinned_path(own.join(format!("{MAP}{map}")));
        if !own.join(format!("{MAP}{DECISIONS}")).exists() {
            return Ok(None);
        }
        if let Err(other) = rate::settings_in(&own) {
            bail!(
                Damaged,
                "{name} cannot be traced: {other}; `thalweg cc swap {name} MODEL` replaces it"
            );
        }
        let file = File::open(&own).with_context(|| format!("opening {}", own.display()))?;
        let Ok(lock) = Flock::lock(file, FlockArg::LockExclusiveNonblock) else {
            bail!(
                Busy,
                "the decisions of {name} are being traced already; there can be one at a time"
            );
        };
        Ok(Some(Self {
            name: name.to_owned(),
            trace: map(TRACE).context("opening the map of the trace")?,
            decisions: map(DECISIONS).context("opening the ring of decisions")?,
            _lock: lock,
        }))
    }

    /// Extends the lease. Returns the number of decisions lost since then because the ring was
    /// full.
    fn renew_lease(&self, remote: Ipv6Addr) -> Result<u64> {
        let key = 0u32.to_ne_bytes();
        let before = self.trace.lookup(&key, MapFlags::ANY)?;
        let before = before.and_then(|bytes| from_bytes::<raw::thalweg_rate_trace>(&bytes));
        let which = raw::thalweg_rate_trace {
            until_ns: system::monotonic_ns() + LEASE.as_nanos() as u64,
            remote: remote.octets(),
            lost: 0,
        };
        self.trace
            .update(&key, bytes_of(&which), MapFlags::ANY)
            .with_context(|| format!("telling {} what to trace", self.name))?;
        Ok(before.map_or(0, |before| before.lost))
    }
}

impl Drop for TraceSource {
    fn drop(&mut self) {
        let none = raw::thalweg_rate_trace::default();
        // If it fails, the lease still ends it.
        let _ = self
            .trace
            .update(&0u32.to_ne_bytes(), bytes_of(&none), MapFlags::ANY);
    }
}

/// Streams decisions of flows to one host, or to all (none), of one loaded controller, or of all.
/// `each` is called with every decision, `lost` with the number that did not fit the ring. The
/// trace ends when `until` returns true.
///
/// # Errors
/// None is loaded, another version of Thalweg loaded it, another process traces, or the error of
/// `each`.
pub fn stream_decisions<E: From<Error>>(
    pin: &Path,
    name: Option<&str>,
    remote: Option<IpAddr>,
    mut each: impl FnMut(&Decision) -> Result<(), E>,
    mut lost: impl FnMut(u64),
    mut until: impl FnMut() -> bool,
) -> Result<(), E> {
    privileges::check_privileges()?;
    let directory = pin.join(DIRECTORY);
    // Recovers from an interrupted call.
    let all = ControlPins::open(pin)?;
    let mut sources = Vec::new();
    for have in control_names(&directory)? {
        if name.is_none_or(|name| name == have) {
            sources.extend(TraceSource::open(&directory, &have)?);
        }
    }
    drop(all);
    if sources.is_empty() {
        let text = match name {
            Some(name) => format!("no learned rate controller {name:?} is loaded"),
            None => "no learned rate controller is loaded; `thalweg cc load MODEL` does it".into(),
        };
        return Err(Error::NotFound(text).into());
    }
    let remote = remote.map_or(Ipv6Addr::UNSPECIFIED, |remote| match remote {
        IpAddr::V4(address) => address.to_ipv6_mapped(),
        IpAddr::V6(address) => address,
    });
    let failure = Cell::new(None);
    let begun = Cell::new(u64::MAX);
    let each = RefCell::new(&mut each);
    let mut builder = RingBufferBuilder::new();
    for source in &sources {
        let (each, failure, begun) = (&each, &failure, &begun);
        let added = builder.add(&source.decisions, move |bytes| {
            let Some(raw) = from_bytes::<raw::thalweg_rate_decision>(bytes) else {
                return 0;
            };
            if raw.time_ns < begun.get() {
                return 0;
            }
            match (each.borrow_mut())(&Decision::new(&source.name, &raw)) {
                Ok(()) => 0,
                Err(error) => {
                    failure.set(Some(error));
                    -1
                }
            }
        });
        added.map_err(Error::from)?;
    }
    let ring = builder.build().map_err(Error::from)?;
    let mut renewed: Option<Instant> = None;
    while !until() {
        if renewed.is_none_or(|at| at.elapsed() >= RENEW) {
            let missed: u64 = sources
                .iter()
                .map(|source| source.renew_lease(remote))
                .sum::<Result<u64>>()?;
            // Discards decisions of an earlier trace, here and in the rings.
            if renewed.is_none() {
                begun.set(system::monotonic_ns());
            } else if missed > 0 {
                lost(missed);
            }
            renewed = Some(Instant::now());
        }
        batch::poll_ring(&ring, POLL_INTERVAL, "the ring of decisions", &failure)?;
    }
    Ok(())
}
