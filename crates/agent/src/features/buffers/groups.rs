//! Connections that do without raised limits: a sixteenth of each namespace's, so that what larger
//! buffers bring is known by network, and all to networks where they brought a longer queue alone.
//!
//! In BPF: `buffers.bpf.c`.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use anyhow::Result;
use thalweg_bpf_objects::names::buffers::{maps, programs};
use thalweg_bpf_types::{key_from_raw, raw};
use thalweg_control::system;
use thalweg_learner::{HostKey, Level};

use super::view;
use crate::kernel::Kernel;
use crate::reporter::{Load, Reporter, Source};
use crate::trials::account::{Account, Kind, Transfer};
use crate::trials::{COMPARED, Effect, Times, Wait, oldest, share};
use crate::view::FeatureEffect;

/// The program.
static SOURCE: Source = Source {
    object: "thalweg_buffers",
    packed: thalweg_bpf_objects::BUFFERS,
    program: programs::BUFFERS_SOCKOPS,
    table: maps::BUFFER_BOUNDS,
    reports: maps::BUFFER_REPORTS,
    lost: maps::BUFFER_LOST,
    pin: None,
};

/// Interval at which bounds in the kernel are renewed, and their life without that.
const RENEW_NS: u64 = Duration::from_secs(30).as_nanos() as u64;
const LIFE_NS: u64 = 4 * RENEW_NS;
/// Share of connections that are bounded, Q16.
const SHARE_Q16: u32 = raw::THALWEG_ONE_Q16 / 16;
/// Most known networks.
const NETWORKS_MAX: usize = raw::THALWEG_BUFFERS_NETWORKS as usize / 2;
/// Gain below which a longer queue is harm, as a ratio of times, and such a queue, bits of the
/// smoothed RTT over the least.
const NO_GAIN: f64 = 0.95;
const LONGER_BITS: f64 = 0.32;

/// Sums over a group of connections.
#[derive(Clone, Debug, Default, PartialEq)]
struct Sums {
    connections: f64,
    segs: f64,
    retrans: f64,
    /// Sum of log₂ of the smoothed RTT over the least one.
    queue_bits: f64,
    times: Times,
}

impl Sums {
    fn mean_queue_bits(&self) -> f64 {
        share(self.queue_bits, self.connections)
    }
}

/// Knowledge of a network; pairs are of connections with raised limits and of bounded ones.
#[derive(Clone, Debug, Default, PartialEq)]
struct Network {
    groups: [Sums; 2],
    /// Whether all connections are bounded.
    is_held: bool,
    wait: Wait,
    seen_ns: u64,
}

impl Network {
    fn effect(&self) -> Option<Effect> {
        let [raised, bounded] = &self.groups;
        Effect::new([(&bounded.times, &raised.times)])
    }

    /// Notes a connection that is over.
    fn note(&mut self, report: &raw::thalweg_buffers_report, now_ns: u64) {
        self.seen_ns = now_ns;
        if self.is_held && self.wait.is_over(now_ns) {
            self.is_held = false;
            self.groups = Default::default();
        }
        let group = &mut self.groups[usize::from(report.bounded != 0)];
        group.connections += 1.0;
        group.segs += f64::from(report.segs_out);
        group.retrans += f64::from(report.retrans);
        group.times.add(report.busy_us, report.bytes, 1, None);
        if report.min_rtt_us > 0 && report.srtt_us > 0 {
            let ratio = f64::from(report.srtt_us) / f64::from(report.min_rtt_us);
            group.queue_bits += ratio.log2();
        }
        if !self.is_held && self.is_harmed() {
            self.is_held = true;
            self.wait.begin(now_ns);
        }
    }

    /// Whether larger buffers made transfers slower, or brought a longer queue alone.
    fn is_harmed(&self) -> bool {
        let [raised, bounded] = &self.groups;
        if raised.connections < COMPARED || bounded.connections < COMPARED {
            return false;
        }
        let is_longer = raised.mean_queue_bits() - bounded.mean_queue_bits() > LONGER_BITS;
        let harms = |it: Effect| it.is_harm() || (is_longer && it.ratio() > NO_GAIN);
        self.effect().is_some_and(harms)
    }
}

/// Limits of a namespace before the agent raised them, receiving and sending, bytes.
pub type FirstLimits = [u64; 2];

/// The groups.
#[derive(Default)]
pub struct Groups {
    program: Load<Reporter<raw::thalweg_buffers_report>>,
    networks: HashMap<HostKey, Network>,
    /// Namespaces with bounds in the kernel.
    raised: BTreeMap<u64, FirstLimits>,
    renewed_ns: u64,
    salt: u32,
    fault: Option<String>,
    /// Account of raised limits, for the gain.
    account: Account,
}

/// Transfer of a connection to a network whose connections are not all bounded.
fn transfer_of_report(report: &raw::thalweg_buffers_report, network: HostKey) -> Transfer {
    let is_treated = report.bounded == 0;
    let bounded = f64::from(SHARE_Q16) / f64::from(raw::THALWEG_ONE_Q16);
    Transfer {
        network,
        is_treated,
        probability: if is_treated { 1.0 - bounded } else { bounded },
        kind: Kind::Long,
        cluster: None,
        bytes: report.bytes,
        us: report.busy_us,
        segs: report.segs_out,
        retrans: report.retrans,
    }
}

/// Key of a whole namespace.
fn namespace_key(netns: u64) -> HostKey {
    HostKey {
        netns,
        addr: [0; 16],
        prefix_len: 0,
        level: Level::Prefix,
    }
}

/// Windows that limits of buffers permit, bytes: the kernel offers half of a receive buffer, and a send
/// buffer has its overhead, three tenths.
fn bounds(first: FirstLimits, share_q16: u32, salt: u32) -> raw::thalweg_buffers_bounds {
    let bounded = |bytes: u64| u32::try_from(bytes).unwrap_or(u32::MAX);
    raw::thalweg_buffers_bounds {
        until_ns: system::monotonic_ns() + LIFE_NS,
        receive: bounded(first[0] / 2),
        send: bounded(first[1] / 10 * 7),
        share_q16,
        salt,
    }
}

impl Groups {
    /// Loads the program, if it is not loaded and not refused.
    pub fn start(&mut self, kernel: &Kernel, salt: u32) {
        self.program
            .ensure_loaded(|| Reporter::load(kernel, &SOURCE));
        self.salt = salt;
    }

    /// Ends the bounds of new connections, and the program.
    pub fn stop(&mut self) {
        self.program = Load::default();
        self.raised.clear();
        self.account = Account::default();
    }

    fn program(&self) -> Option<&Reporter<raw::thalweg_buffers_report>> {
        self.program.loaded()
    }

    /// Reason that there are no groups.
    pub fn problem(&self) -> Option<String> {
        match self.program.program.as_ref()? {
            Err(why) => Some(format!("what larger buffers bring is not measured: {why}")),
            Ok(program) => match program.check() {
                Err(error) => Some(format!("{error:#}")),
                Ok(()) => self.fault.clone(),
            },
        }
    }

    /// Follows the learner to another cgroup.
    pub fn reattach(&mut self, kernel: &Kernel) {
        let attached = self.program().map(|it| it.reattach(kernel));
        if let Some(Err(error)) = attached {
            self.fault = Some(format!("{error:#}"));
        }
    }

    /// Reads reports, and puts the bounds of the namespaces with raised limits into the kernel.
    pub fn follow(&mut self, raised: BTreeMap<u64, FirstLimits>) {
        let outcome = self.note_reports().and_then(|()| self.write(raised));
        self.fault = outcome.err().map(|error| format!("{error:#}"));
    }

    fn note_reports(&mut self) -> Result<()> {
        let Some(program) = self.program() else {
            return Ok(());
        };
        let reports = program.take_reports()?;
        let now_ns = system::monotonic_ns();
        for report in &reports {
            let key = key_from_raw(&report.key);
            let least = (self.raised.get(&key.netns)).map(|it| it[1] / 10 * 7);
            // A small transfer fits into any buffer.
            if least.is_none_or(|least| report.bytes < least) {
                continue;
            }
            if self.networks.len() >= NETWORKS_MAX && !self.networks.contains_key(&key) {
                for old in oldest(&self.networks, |it| it.seen_ns) {
                    self.networks.remove(&old);
                    self.release(&old)?;
                }
            }
            let network = self.networks.entry(key).or_default();
            let before = network.is_held;
            if !before && report.bounded != raw::THALWEG_BOUNDED_WITH_ALL {
                self.account.add(&transfer_of_report(report, key));
            }
            network.note(report, now_ns);
            match (before, network.is_held) {
                (false, true) => self.hold(&key)?,
                (true, false) => self.release(&key)?,
                _ => {}
            }
        }
        Ok(())
    }

    /// Bounds all connections to a network.
    fn hold(&self, key: &HostKey) -> Result<()> {
        let first = self.raised.get(&key.netns);
        let (Some(program), Some(first)) = (self.program(), first) else {
            return Ok(());
        };
        program.set(key, &bounds(*first, raw::THALWEG_ONE_Q16, self.salt))
    }

    fn release(&self, key: &HostKey) -> Result<()> {
        self.program().map_or(Ok(()), |it| it.remove(key))
    }

    fn write(&mut self, raised: BTreeMap<u64, FirstLimits>) -> Result<()> {
        let now_ns = system::monotonic_ns();
        if self.program().is_none()
            || (raised == self.raised && now_ns < self.renewed_ns + RENEW_NS)
        {
            return Ok(());
        }
        for netns in self.raised.keys().filter(|it| !raised.contains_key(it)) {
            self.release(&namespace_key(*netns))?;
        }
        self.raised = raised;
        self.renewed_ns = now_ns;
        for (netns, first) in &self.raised {
            let entry = bounds(*first, SHARE_Q16, self.salt);
            if let Some(program) = self.program() {
                program.set(&namespace_key(*netns), &entry)?;
            }
        }
        let held = self.networks.iter().filter(|(_, it)| it.is_held);
        held.map(|(key, _)| key).try_for_each(|key| self.hold(key))
    }

    /// Effect of raised limits on large transfers.
    pub fn effect(&self, feature: &str) -> FeatureEffect {
        self.account.effect(feature)
    }

    /// The networks, for the view.
    pub fn networks(&self, containers: &HashMap<u64, String>) -> Vec<view::NetworkBuffers> {
        let networks = self.networks.iter();
        let mut shown: Vec<_> = networks
            .map(|(key, network)| {
                let [raised, bounded] = &network.groups;
                let effect = network.effect();
                view::NetworkBuffers {
                    name: key.to_string(),
                    netns: key.netns,
                    container: containers.get(&key.netns).cloned(),
                    bounded: network.is_held,
                    raised_connections: raised.connections as u64,
                    bounded_connections: bounded.connections as u64,
                    retransmitted: share(raised.retrans, raised.segs),
                    bounded_retransmitted: share(bounded.retrans, bounded.segs),
                    queue_ratio: raised.mean_queue_bits().exp2(),
                    bounded_queue_ratio: bounded.mean_queue_bits().exp2(),
                    time_ratio: effect.map(|it| it.ratio()),
                    time_interval: effect.map(|it| it.interval()),
                }
            })
            .collect();
        shown.sort_by(|one, other| one.name.cmp(&other.name));
        shown
    }
}

#[cfg(test)]
mod tests {
    use thalweg_bpf_types::raw;

    use super::Network;

    /// A transfer of 100 MB.
    fn transfer(bounded: bool, busy_us: u64, srtt_us: u32) -> raw::thalweg_buffers_report {
        raw::thalweg_buffers_report {
            bytes: 100_000_000,
            busy_us,
            segs_out: 70_000,
            min_rtt_us: 20_000,
            srtt_us,
            bounded: u32::from(bounded),
            ..raw::thalweg_buffers_report::default()
        }
    }

    fn after(raised: (u64, u32), bounded: (u64, u32)) -> Network {
        let mut network = Network::default();
        for number in 0..40 {
            network.note(&transfer(false, raised.0 + 100 * number, raised.1), 1);
            network.note(&transfer(true, bounded.0 + 100 * number, bounded.1), 1);
        }
        network
    }

    #[test]
    fn larger_buffers_that_bring_something_stay() {
        let network = after((400_000, 30_000), (900_000, 20_500));
        assert!(!network.is_held);
        let ratio = network.effect().map(|it| it.ratio());
        assert!(ratio > Some(0.4) && ratio < Some(0.5), "{ratio:?}");
    }

    #[test]
    fn a_longer_queue_alone_bounds_a_network_for_a_time() {
        let mut network = after((900_000, 60_000), (900_000, 21_000));
        assert!(network.is_held);
        let later = 1 + crate::trials::WAIT_NS;
        network.note(&transfer(true, 900_000, 21_000), later);
        assert!(!network.is_held);
    }

    #[test]
    fn slower_transfers_bound_a_network() {
        assert!(after((1_100_000, 20_500), (900_000, 20_500)).is_held);
        assert!(!after((900_000, 20_500), (900_000, 20_500)).is_held);
    }
}
