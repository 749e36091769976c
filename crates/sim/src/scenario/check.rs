//! What makes a scenario impossible.

use thalweg_units::{Rate, Span};

use super::file::{Document, Fault, span_of, time};
use super::{Scenario, Topology, Workload};
use crate::Time;
use crate::topology::{Wiring, crossing, transmission};
use crate::workload;

/// More would not fit an event.
pub(super) const MOST_FLOWS: u64 = 1 << 20;
const MOST_HOSTS: u64 = 1 << 16;
/// Samples of a time series, all flows together.
const MOST_SAMPLES: u64 = 100_000_000;

pub(super) fn too_many_flows() -> String {
    format!("expected at most {MOST_FLOWS} flows")
}

/// Whether there is such a network; if not, which key is at fault, and why.
pub(super) fn topology(topology: Topology) -> Result<(), (&'static str, String)> {
    let key = match topology {
        Topology::FatTree { ports } if ports < 2 || ports % 2 != 0 => {
            let message = format!(
                "a fat tree has half of a switch's ports up and half down: \
                 expected an even number of `ports`, at least 2, found {ports}"
            );
            return Err(("ports", message));
        }
        Topology::LeafSpine { leaves, spines, .. } if leaves > 1 && spines == 0 => {
            let message =
                format!("{leaves} leaf switches without a spine switch cannot reach each other");
            return Err(("spines", message));
        }
        Topology::LeafSpine { spines, .. } if u64::from(spines) > MOST_HOSTS => {
            let message = format!("expected at most {MOST_HOSTS} spine switches");
            return Err(("spines", message));
        }
        Topology::Star { .. } => "hosts",
        Topology::LeafSpine { .. } => "hosts_per_leaf",
        Topology::FatTree { .. } => "ports",
    };
    let hosts = topology.hosts();
    if !(2..=MOST_HOSTS).contains(&hosts) {
        let message = format!("expected 2 to {MOST_HOSTS} hosts, found {hosts}: {topology}");
        return Err((key, message));
    }
    Ok(())
}

/// The whole, once all parts are known. Fills in the time-out where there is none.
pub(super) fn document(document: &Document, scenario: &mut Scenario) -> Result<(), Fault> {
    times(document, scenario)?;
    network(document, scenario)?;
    if let Some(burst) = &document.hosts.burst
        && !(1..=1024).contains(burst.get_ref())
    {
        return Err((
            burst.span(),
            format!(
                "expected a `burst` of 1 to 1024 packets, found {}",
                burst.get_ref()
            ),
        ));
    }
    let wiring = Wiring::new(scenario);
    round_trip(document, scenario, &wiring)?;
    flows(document, scenario, &wiring)
}

fn times(document: &Document, scenario: &Scenario) -> Result<(), Fault> {
    let duration = document.duration.get_ref();
    if scenario.duration == Time::ZERO {
        return Err((
            document.duration.span(),
            "expected a `duration` of more than nothing".into(),
        ));
    }
    if scenario.warmup >= scenario.duration {
        return Err((
            span_of(&document.warmup, document.duration.span()),
            format!(
                "nothing would be measured: expected a `warmup` below the duration of {duration}"
            ),
        ));
    }
    if let Some(series) = &document.series
        && series.get_ref().ps() == 0
    {
        return Err((
            series.span(),
            "expected a time of more than nothing between samples".into(),
        ));
    }
    // Packets of a flow are numbered with 32 bits.
    let packets =
        scenario.duration.ps() / transmission_ps(scenario, scenario.network.link.rate_bps).max(1);
    if packets >= u64::from(u32::MAX) {
        return Err((
            document.duration.span(),
            format!(
                "one flow could send {packets} packets in {duration}: at most {} are numbered",
                u32::MAX - 1
            ),
        ));
    }
    Ok(())
}

fn transmission_ps(scenario: &Scenario, rate_bps: u64) -> u64 {
    transmission(scenario.network.packet_bytes, rate_bps).ps()
}

fn network(document: &Document, scenario: &Scenario) -> Result<(), Fault> {
    let network = &scenario.network;
    let packet = u64::from(network.packet_bytes);
    if network.answer_bytes > network.packet_bytes {
        return Err((
            span_of(&document.network.answer, 0..0),
            format!(
                "an answer of {} bytes is larger than a packet of {packet}",
                network.answer_bytes
            ),
        ));
    }
    for (link, span) in [
        (network.link, document.link.span()),
        (
            network.fabric,
            span_of(&document.fabric, document.link.span()),
        ),
    ] {
        if link.queue_bytes < packet {
            return Err((
                span,
                format!(
                    "a `queue` of {} bytes is too small for one packet of {packet} bytes",
                    link.queue_bytes
                ),
            ));
        }
    }
    if let (Some(ecn), Some(table)) = (network.ecn, &document.network.ecn)
        && ecn.min_bytes > ecn.max_bytes
    {
        return Err((
            table.span(),
            format!(
                "expected `min` of at most `max`, found {} and {} bytes",
                ecn.min_bytes, ecn.max_bytes
            ),
        ));
    }
    if let (Some(pause), Some(table)) = (network.pause, &document.network.pause)
        && (pause.go_bytes >= pause.stop_bytes || pause.stop_bytes < packet)
    {
        return Err((
            table.span(),
            format!(
                "expected `go` below `stop`, and `stop` of at least a packet of {packet} bytes, \
                 found {} and {} bytes",
                pause.go_bytes, pause.stop_bytes
            ),
        ));
    }
    Ok(())
}

fn span(time: Time) -> Span {
    Span::from_ps(time.ps())
}

fn round_trip(document: &Document, scenario: &mut Scenario, wiring: &Wiring) -> Result<(), Fault> {
    let network = &scenario.network;
    let links = wiring.longest();
    let there = crossing(&links, network.packet_bytes);
    let back = crossing(&links, network.answer_bytes);
    if let (Some(base), Some(spanned)) = (network.base_rtt, &document.network.base_rtt)
        && base < there + back
    {
        return Err((
            spanned.span(),
            format!(
                "the longest path has {} links: a packet of {} bytes takes {} over them, an \
                 answer of {} bytes {}: expected a `base_rtt` of at least {}, found {}",
                links.len(),
                network.packet_bytes,
                span(there),
                network.answer_bytes,
                span(back),
                span(there + back),
                span(base),
            ),
        ));
    }
    // The longest that a packet which is not lost can take.
    let queues = links[1..].iter().fold(Time::ZERO, |sum, link| {
        let bits = u128::from(link.queue_bytes) * 8 * 1_000_000_000_000;
        sum + Time::from_ps((bits / u128::from(link.rate_bps)) as u64)
    });
    let base = network.base_rtt.unwrap_or(there + back);
    let longest = base + queues;
    match &document.hosts.timeout {
        None => scenario.hosts.timeout = longest + longest,
        Some(timeout) if time(*timeout.get_ref()) <= longest => {
            return Err((
                timeout.span(),
                format!(
                    "packets that are not lost would time out: a round trip takes up to {} + {} \
                     in full queues: expected a `timeout` above {}, found {}",
                    span(base),
                    span(queues),
                    span(longest),
                    timeout.get_ref(),
                ),
            ));
        }
        Some(_) => {}
    }
    Ok(())
}

fn flows(document: &Document, scenario: &Scenario, wiring: &Wiring) -> Result<(), Fault> {
    let place = document.workload.count_place();
    let count = match &scenario.workload {
        Workload::ManyToOne { flows, .. } | Workload::LongShort { flows, .. } => u64::from(*flows),
        Workload::AllToAll { flows_per_pair } => {
            let hosts = u64::from(wiring.hosts);
            hosts * (hosts - 1) * u64::from(*flows_per_pair)
        }
        // How many there are at a time is seen when it runs.
        Workload::Poisson { .. } => 0,
        Workload::Flows(list) => list.len() as u64,
    };
    if count > MOST_FLOWS {
        return Err((place, format!("{}, found {count}", too_many_flows())));
    }
    if let Some(series) = scenario.series {
        let samples = count * scenario.duration.ps().div_ceil(series.ps());
        if samples > MOST_SAMPLES {
            return Err((
                span_of(&document.series, place),
                format!(
                    "{count} flows every {} for {} are {samples} samples: expected at most \
                     {MOST_SAMPLES}",
                    span(series),
                    span(scenario.duration),
                ),
            ));
        }
    }
    // Endless flows share links; none may be asked to send less than the least rate.
    let plan = workload::plan(scenario, 0);
    let mut sharing = vec![0u64; wiring.ports.len()];
    let mut sending = vec![0u64; wiring.hosts as usize];
    for (number, flow) in (0u64..).zip(&plan.flows) {
        sending[flow.from as usize] += 1;
        for port in wiring.path(flow.from, flow.to, number) {
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
    for (rate, flows) in hosts.chain(ports) {
        if flows.saturating_mul(least) > rate {
            return Err((
                span_of(&document.hosts.min_rate, place),
                format!(
                    "{flows} flows share a link of {}: at the least rate of {} they need {}: \
                     expected at most {} flows, or a `min_rate` of at most {}",
                    Rate::from_bps(rate),
                    Rate::from_bps(least),
                    Rate::from_bps(flows * least),
                    rate / least,
                    Rate::from_bps(rate / flows),
                ),
            ));
        }
    }
    Ok(())
}
