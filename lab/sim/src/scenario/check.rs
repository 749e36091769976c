//! Checks for impossible scenarios.

use thalweg_units::reader::Table;
use thalweg_units::{Rate, Span};

use super::{INSPECTION, RECOVERY_BIN, Scenario, TimeFault, Topology, Workload};
use crate::Time;
use crate::topology::{Wiring, crossing_time, transmission_time};
use crate::workload;

/// An event's fields hold no more flows.
pub(super) const MOST_FLOWS: u32 = 1 << 20;
const MOST_HOSTS: u32 = 1 << 16;
/// Ports of all switches. With their queues they take some 200 bytes each.
const MOST_PORTS: u64 = 1 << 20;
/// Samples of a time series, all flows or hosts together, bins of the long flow's rate, and readings of
/// smoothed round-trip times.
const MOST_SAMPLES: u64 = 100_000_000;
/// Flows that arrive at random: each takes 40 bytes of the outcome.
const MOST_ARRIVALS: u64 = 50_000_000;

/// The tables that keys were taken from.
pub(super) struct Tables<'t, 's> {
    pub root: &'t Table<'s>,
    pub link: &'t Table<'s>,
    pub fabric: Option<&'t Table<'s>>,
    pub network: &'t Table<'s>,
    pub hosts: &'t Table<'s>,
    pub workload: &'t Table<'s>,
}

/// Checks that the network can exist. `table` is where its keys were taken from.
pub(super) fn check_topology(table: &Table<'_>, topology: Topology) {
    let key = match topology {
        Topology::FatTree { ports } if ports < 2 || ports % 2 != 0 => {
            let expected = "an even number of at least 2: half of a switch's ports lead up";
            return table.wrong("ports", ports.to_string(), expected);
        }
        Topology::LeafSpine { leaves, spines, .. } if leaves > 1 && spines == 0 => {
            let found = format!("0 beside {leaves} leaf switches");
            let expected = "at least 1: leaf switches cannot reach each other otherwise";
            return table.wrong("spines", found, expected);
        }
        Topology::LeafSpine { spines, .. } if spines > MOST_HOSTS => {
            return table.wrong(
                "spines",
                spines.to_string(),
                format!("at most {MOST_HOSTS}"),
            );
        }
        Topology::Star { .. } => "hosts",
        Topology::LeafSpine { .. } => "hosts_per_leaf",
        Topology::FatTree { .. } => "ports",
    };
    let hosts = topology.hosts();
    if !(2..=MOST_HOSTS.into()).contains(&hosts) {
        let found = format!("{hosts} in all");
        return table.wrong(key, found, format!("2 to {MOST_HOSTS} hosts"));
    }
    // A star and a fat tree of so many hosts have fewer.
    let ports = topology.ports();
    if let Topology::LeafSpine { leaves, spines, .. } = topology
        && ports > MOST_PORTS
    {
        let found = format!("{spines} beside {leaves} leaf switches, {ports} ports in all");
        let expected = format!("at most {MOST_PORTS} ports of all switches");
        table.wrong("spines", found, expected);
    }
}

/// Checks the whole scenario once all parts are known. Sets the time-out where none is given.
pub(super) fn check_scenario(tables: &Tables<'_, '_>, scenario: &mut Scenario) {
    check_times(tables.root, scenario);
    check_network(tables, scenario);
    // The remaining checks walk through the network.
    if tables.root.is_sound() {
        let wiring = Wiring::new(scenario);
        round_trip(tables, scenario, &wiring);
        check_flows(tables, scenario, &wiring);
    }
}

fn check_times(root: &Table<'_>, scenario: &Scenario) {
    for fault in scenario.time_faults() {
        root.wrong(fault.key, fault.found, fault.expected);
    }
}

impl Scenario {
    /// Faults of the times: nothing is measured, or there are more packets and samples than a run
    /// can number and keep. A scenario whose times are changed is to be checked again.
    pub fn time_faults(&self) -> Vec<TimeFault> {
        let fault = |key, found: String, expected: String| TimeFault {
            key,
            found,
            expected,
        };
        if self.duration == Time::ZERO {
            return vec![fault("duration", "0".to_owned(), "more".to_owned())];
        }
        let mut faults = Vec::new();
        let duration = to_span(self.duration);
        if self.warmup >= self.duration {
            let found = to_span(self.warmup).to_string();
            let expected = format!("less than the duration of {duration}, or nothing is measured");
            faults.push(fault("warmup", found, expected));
        }
        // Packets of a flow are numbered with 32 bits.
        let network = &self.network;
        let packet = transmission_time(network.packet_bytes, network.link.rate_bps);
        let packets = self.duration.ps() / packet.ps().max(1);
        if packets >= u64::from(u32::MAX) {
            let found = format!("{duration}, in which one flow could send {packets} packets");
            let expected = format!("at most {} packets", u32::MAX - 1);
            faults.push(fault("duration", found, expected));
        }
        let bins = self.duration.ps().div_ceil(RECOVERY_BIN.ps());
        if matches!(self.workload, Workload::LongShort { .. }) && bins > MOST_SAMPLES {
            let width = to_span(RECOVERY_BIN);
            let found = format!("{duration}, {bins} bins of {width} of the long flow's rate");
            let expected = format!("at most {MOST_SAMPLES} bins");
            faults.push(fault("duration", found, expected));
        }
        let readings = self.duration.ps().div_ceil(INSPECTION.ps());
        let readings = readings.saturating_mul(self.flows());
        if self.hosts.linux.is_some() && readings > MOST_SAMPLES {
            let (flows, every) = (self.flows(), to_span(INSPECTION));
            let found = format!(
                "{duration}, {readings} readings of round-trip times ({flows} flows every {every})"
            );
            let expected = format!("at most {MOST_SAMPLES} readings");
            faults.push(fault("duration", found, expected));
        }
        if self.series == Some(Time::ZERO) {
            let expected = "a time of more than nothing between samples";
            faults.push(fault("series", "0".to_owned(), expected.to_owned()));
        } else if let Some(series) = self.series {
            // Without a fixed number of flows the queue at each host is sampled.
            let (sampled, what) = match self.workload {
                Workload::Poisson { .. } => (self.topology.hosts(), "hosts"),
                _ => (self.flows(), "flows"),
            };
            let samples = sampled.saturating_mul(self.duration.ps().div_ceil(series.ps()));
            if samples > MOST_SAMPLES {
                let series = to_span(series);
                let found =
                    format!("{samples} samples ({sampled} {what} every {series} for {duration})");
                let expected = format!("at most {MOST_SAMPLES} samples");
                faults.push(fault("series", found, expected));
            }
        }
        faults
    }
}

fn check_network(tables: &Tables<'_, '_>, scenario: &Scenario) {
    let network = &scenario.network;
    let packet = u64::from(network.packet_bytes);
    if network.answer_bytes > network.packet_bytes {
        let found = format!("{} bytes", network.answer_bytes);
        let expected = format!("at most the {packet} of a packet");
        tables.network.wrong("answer", found, expected);
    }
    let fabric = tables.fabric.map(|table| (network.fabric, table));
    for (link, table) in [Some((network.link, tables.link)), fabric]
        .into_iter()
        .flatten()
    {
        if link.queue_bytes < packet {
            let found = format!("{} bytes", link.queue_bytes);
            table.wrong(
                "queue",
                found,
                format!("at least one packet of {packet} bytes"),
            );
        }
        if link.bucket_bytes > 0 && (link.bucket_bytes < packet || network.pause.is_some()) {
            let found = format!("{} bytes", link.bucket_bytes);
            let expected = match network.pause {
                Some(_) => "none beside `network.pause`".to_owned(),
                None => format!("at least one packet of {packet} bytes"),
            };
            table.wrong("bucket", found, expected);
        }
    }
    if let Some(linux) = &scenario.hosts.linux {
        if packet <= linux.header_bytes.into() {
            let found = format!("{packet} bytes");
            let expected = format!("more than the {} bytes of headers", linux.header_bytes);
            tables.network.wrong("packet", found, expected);
        }
        if network.pause.is_some() {
            let expected = "none: hosts of the sender \"linux\" cannot be paused";
            tables.network.wrong("pause", "thresholds", expected);
        }
    }
    if let Some(pause) = network.pause
        && pause.stop_bytes < packet
    {
        let found = format!("`stop` of {} bytes", pause.stop_bytes);
        let expected = format!("at least one packet of {packet} bytes");
        tables.network.wrong("pause", found, expected);
    }
}

fn to_span(time: Time) -> Span {
    Span::from_ps(time.ps())
}

fn round_trip(tables: &Tables<'_, '_>, scenario: &mut Scenario, wiring: &Wiring) {
    let network = &scenario.network;
    let links = wiring.longest_path();
    let there = crossing_time(&links, network.packet_bytes);
    let back = crossing_time(&links, network.answer_bytes);
    if let Some(base) = network.base_rtt
        && base < there + back
    {
        let expected = format!(
            "at least {}: over the {} links of the longest path a packet of {} bytes takes {}, \
             an answer of {} bytes {}",
            to_span(there + back),
            links.len(),
            network.packet_bytes,
            to_span(there),
            network.answer_bytes,
            to_span(back),
        );
        tables
            .network
            .wrong("base_rtt", to_span(base).to_string(), expected);
    }
    // The longest time of a packet that is not lost. Slow links may take longer to empty their
    // queues than a time holds; 26 days stand for more.
    let at_most = |ps: u128| Time::from_ps(ps.min(u128::from(u64::MAX / 8)) as u64);
    let queues = links[1..].iter().map(|link| {
        let bits = u128::from(link.queue_bytes) * 8 * 1_000_000_000_000;
        bits / u128::from(link.rate_bps)
    });
    let queues = at_most(queues.sum());
    let base = network.base_rtt.unwrap_or(there + back);
    let longest = base + queues;
    if !tables.hosts.has("timeout") {
        scenario.hosts.timeout = longest + longest;
    } else if scenario.hosts.timeout <= longest {
        let expected = format!(
            "more than {}: a round trip takes up to {} + {} in full queues, and packets that \
             are not lost would time out",
            to_span(longest),
            to_span(base),
            to_span(queues),
        );
        let found = to_span(scenario.hosts.timeout).to_string();
        tables.hosts.wrong("timeout", found, expected);
    }
}

fn check_flows(tables: &Tables<'_, '_>, scenario: &Scenario, wiring: &Wiring) {
    let key = match &scenario.workload {
        Workload::ManyToOne { .. } | Workload::LongShort { .. } => "flows",
        Workload::AllToAll { .. } => "flows_per_pair",
        Workload::Poisson { .. } | Workload::Flows(_) => "kind",
    };
    // The number of concurrent flows of a Poisson process is known only at run time.
    if let Workload::Poisson { sizes, load, until } = scenario.workload {
        let count = until.secs() / workload::mean_gap_s(scenario, sizes, load);
        if count > MOST_ARRIVALS as f64 {
            let found = format!("about {count:.0} flows in {}", to_span(until));
            let expected = format!("at most {MOST_ARRIVALS}");
            tables.workload.wrong("load", found, expected);
        }
        return;
    }
    let count = scenario.flows();
    if count > MOST_FLOWS.into() {
        let expected = format!("at most {MOST_FLOWS}");
        tables
            .workload
            .wrong(key, format!("{count} flows"), expected);
        return;
    }
    // Endless flows share links. None may be asked to send less than the lowest rate.
    let plan = workload::plan_flows(scenario, 0);
    let mut sharing = vec![0u64; wiring.ports.len()];
    let mut sending = vec![0u64; wiring.hosts as usize];
    for (number, flow) in (0u64..).zip(&plan.flows) {
        sending[flow.from as usize] += 1;
        for port in wiring.flow_path(flow.from, flow.to, number) {
            sharing[port as usize] += 1;
        }
    }
    let least = scenario.hosts.min_rate_bps;
    let own = scenario.network.link.rate_bps;
    let hosts = sending.iter().map(|flows| (own, *flows));
    let ports = wiring
        .ports
        .iter()
        .zip(&sharing)
        .map(|(port, flows)| (port.link.rate_bps, *flows));
    let too_many = hosts
        .chain(ports)
        .find(|(rate, flows)| flows.saturating_mul(least) > *rate);
    if let Some((rate, flows)) = too_many {
        let found = format!(
            "{flows} flows that share a link of {}, and need {} at the least rate of {}",
            Rate::from_bps(rate),
            Rate::from_bps(flows * least),
            Rate::from_bps(least),
        );
        let expected = format!(
            "at most {} flows, or a `min_rate` of at most {}",
            rate / least,
            Rate::from_bps(rate / flows),
        );
        match tables.hosts.has("min_rate") {
            true => tables.hosts.wrong("min_rate", found, expected),
            false => tables.workload.wrong(key, found, expected),
        }
    }
}
