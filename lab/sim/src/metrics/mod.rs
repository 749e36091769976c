//! Measurements and the report of a run.

mod histogram;
mod outcome;
mod slowdown;
mod statistic;

use std::collections::BTreeMap;

use crate::Time;
use crate::scenario::{RECOVERY_BIN, Scenario, Workload};
use crate::workload::Plan;

use histogram::Histogram;
pub use outcome::{
    Completion, Counts, FlowOutcome, Latency, LongShort, Offered, Outcome, PortOutcome,
    QueueSeries, Series, SmoothedDelay,
};
pub use slowdown::Slowdown;
pub use statistic::{Statistic, Summary};

/// The long flow has recovered when its rate is back at this share of the line rate.
const RECOVERED: f64 = 0.95;

/// Counts of a port in the measured time, packets.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PortCounts {
    pub switch: u32,
    pub rate_bps: f64,
    pub left: u64,
    pub dropped: u64,
}

/// Counters of a running simulation.
#[derive(Debug)]
pub(crate) struct Meter {
    scenario: String,
    seed: u64,
    duration: Time,
    warmup: Time,
    packet_bytes: u32,
    /// Packets, from the start.
    pub sent: u64,
    pub dropped: u64,
    pub delivered: u64,
    /// Packets that arrived without new data.
    pub wasted: u64,
    /// Packets that would arrive after the end.
    pub late: u64,
    pub underway: u64,
    pub decisions: u64,
    pub notifications: u64,
    pub pauses: u64,
    queued: Histogram,
    completions: Vec<Completion>,
    /// Only where flows come and go.
    offered: Option<Offered>,
    /// Start of each flow's current data; by flow.
    begun: Vec<Time>,
    /// Last ports of the flows' paths.
    last_ports: Vec<u32>,
    interval: Option<Time>,
    /// Packets that arrived in each interval, by flow.
    arrivals: Vec<Vec<u32>>,
    queues: BTreeMap<u32, Vec<(Time, u64)>>,
    interruptions: Option<Interruptions>,
}

/// When short flows were active, and the long flow's packets.
#[derive(Debug)]
struct Interruptions {
    active: u32,
    /// Start and end of each time in which short flows were active.
    times: Vec<(Time, Option<Time>)>,
    /// Packets of the long flow in each bin.
    bins: Vec<u32>,
}

impl Meter {
    pub fn new(scenario: &Scenario, plan: &Plan, seed: u64) -> Self {
        let flows = plan.flows.len();
        let bins = |width: Time| scenario.duration.ps().div_ceil(width.ps()) as usize;
        let mut last_ports: Vec<u32> = match plan.arrivals {
            Some(_) => (0..scenario.topology.hosts() as u32).collect(),
            None => plan.flows.iter().map(|flow| flow.to).collect(),
        };
        last_ports.sort_unstable();
        last_ports.dedup();
        Self {
            scenario: scenario.name.clone(),
            seed,
            duration: scenario.duration,
            warmup: scenario.warmup,
            packet_bytes: scenario.network.packet_bytes,
            sent: 0,
            dropped: 0,
            delivered: 0,
            wasted: 0,
            late: 0,
            underway: 0,
            decisions: 0,
            notifications: 0,
            pauses: 0,
            queued: Histogram::default(),
            completions: Vec::new(),
            offered: plan.arrivals.as_ref().map(|_| Offered::default()),
            begun: vec![Time::ZERO; flows],
            last_ports,
            interval: scenario.series,
            arrivals: scenario
                .series
                .map_or(Vec::new(), |width| vec![vec![0; bins(width)]; flows]),
            queues: BTreeMap::new(),
            interruptions: matches!(scenario.workload, Workload::LongShort { .. }).then(|| {
                Interruptions {
                    active: 0,
                    times: Vec::new(),
                    bins: vec![0; bins(RECOVERY_BIN)],
                }
            }),
        }
    }

    /// A new flow has arrived and has this slot.
    pub fn flow_offered(&mut self, flow: usize, packets: u32) {
        if self.begun.len() <= flow {
            self.begun.resize(flow + 1, Time::ZERO);
        }
        if let Some(offered) = &mut self.offered {
            offered.flows += 1;
            offered.unfinished += 1;
            offered.bytes += u64::from(packets) * u64::from(self.packet_bytes);
            offered.places = self.begun.len() as u64;
        }
    }

    /// A flow starts, or starts to send more.
    pub fn flow_started(&mut self, flow: usize, at: Time) {
        self.begun[flow] = at;
        if let Some(interruptions) = &mut self.interruptions
            && flow > 0
        {
            if interruptions.active == 0 {
                interruptions.times.push((at, None));
            }
            interruptions.active += 1;
        }
    }

    /// All data of a flow has arrived: a number of packets that take `alone` in an empty network.
    pub fn flow_completed(&mut self, flow: usize, at: Time, packets: u32, alone: Time) {
        let begun = self.begun[flow];
        if let Some(offered) = &mut self.offered {
            offered.unfinished -= 1;
        }
        self.completions.push(Completion {
            flow: flow as u32,
            start_us: begun.us(),
            time_us: (at - begun).us(),
            bytes: u64::from(packets) * u64::from(self.packet_bytes),
            slowdown: (at - begun).ps() as f64 / alone.ps() as f64,
        });
        if let Some(interruptions) = &mut self.interruptions {
            interruptions.active -= 1;
            if interruptions.active == 0
                && let Some(last) = interruptions.times.last_mut()
            {
                last.1 = Some(at);
            }
        }
    }

    /// A packet arrived at its receiver.
    #[inline]
    pub fn packet_delivered(
        &mut self,
        flow: usize,
        at: Time,
        new: bool,
        measured: bool,
        queued: Time,
    ) {
        self.delivered += 1;
        if measured {
            self.queued.record_time(queued);
        }
        if !new {
            self.wasted += 1;
            return;
        }
        if let Some(interval) = self.interval
            && let Some(arrivals) = self.arrivals.get_mut(flow)
        {
            arrivals[(at.ps() / interval.ps()) as usize] += 1;
        }
        if let Some(interruptions) = &mut self.interruptions
            && flow == 0
        {
            interruptions.bins[(at.ps() / RECOVERY_BIN.ps()) as usize] += 1;
        }
    }

    pub fn sample_interval(&self) -> Option<Time> {
        self.interval
    }

    pub fn sampled_ports(&self) -> &[u32] {
        &self.last_ports
    }

    pub fn queue_sampled(&mut self, port: u32, at: Time, bytes: u64) {
        self.queues.entry(port).or_default().push((at, bytes));
    }

    /// The report. `measured` has the packets of each flow that arrived within the measured time.
    pub fn into_outcome(
        self,
        plan: &Plan,
        measured: &[u64],
        ports: &[PortCounts],
        events: u64,
    ) -> Outcome {
        let seconds = (self.duration - self.warmup).secs();
        let bits = f64::from(self.packet_bytes) * 8.0;
        let rate = |packets: u64| packets as f64 * bits / seconds;
        let (flow_rates, host_rates) = compared_rates(plan, measured, rate);
        let last: Vec<f64> = self
            .last_ports
            .iter()
            .map(|port| {
                let port = ports[*port as usize];
                rate(port.left) / port.rate_bps * 100.0
            })
            .collect();
        let dropped_measured: u64 = ports.iter().map(|port| port.dropped).sum();
        let left_measured: u64 = self
            .last_ports
            .iter()
            .map(|port| ports[*port as usize].left)
            .sum();
        let outcome = Outcome {
            scenario: self.scenario.clone(),
            seed: self.seed,
            duration_s: self.duration.secs(),
            warmup_s: self.warmup.secs(),
            utilisation_percent: last.iter().sum::<f64>() / last.len().max(1) as f64,
            fairness_percent: min_max_fairness(&flow_rates),
            host_fairness_percent: min_max_fairness(&host_rates),
            jain: jain_index(&flow_rates),
            queue_latency: self.latency_metrics(),
            dropped_gbps: rate(dropped_measured) * 1e-9,
            dropped_percent: match dropped_measured + left_measured {
                0 => 0.0,
                all => dropped_measured as f64 / all as f64 * 100.0,
            },
            counts: self.packet_counts(events),
            long_short: self.interruptions.as_ref().map(|interruptions| {
                self.long_short(interruptions, ports[0].rate_bps, rate(measured[0]))
            }),
            flows: plan
                .flows
                .iter()
                .zip(measured)
                .map(|(flow, packets)| FlowOutcome {
                    from: flow.from,
                    to: flow.to,
                    gbps: rate(*packets) * 1e-9,
                })
                .collect(),
            ports: (0u32..)
                .zip(ports)
                .filter(|(_, counts)| counts.left + counts.dropped > 0)
                .map(|(port, counts)| PortOutcome {
                    port,
                    switch: counts.switch,
                    utilisation_percent: rate(counts.left) / counts.rate_bps * 100.0,
                    dropped_packets: counts.dropped,
                })
                .collect(),
            slowdowns: slowdown::slowdowns_by_size(&self.completions, self.warmup),
            offered: self.offered,
            series: self.time_series(),
            smoothed_delay: None,
            completions: self.completions,
        };
        debug_assert!(
            outcome.counts.all_packets_accounted(),
            "{:?}",
            outcome.counts
        );
        outcome
    }

    fn latency_metrics(&self) -> Latency {
        Latency {
            mean_us: self.queued.mean_us(),
            p50_us: self.queued.quantile_us(0.5),
            p90_us: self.queued.quantile_us(0.9),
            p99_us: self.queued.quantile_us(0.99),
            p999_us: self.queued.quantile_us(0.999),
            max_us: self.queued.max_us(),
        }
    }

    fn packet_counts(&self, events: u64) -> Counts {
        Counts {
            packet_bytes: self.packet_bytes,
            sent_packets: self.sent,
            delivered_packets: self.delivered,
            wasted_packets: self.wasted,
            dropped_packets: self.dropped,
            underway_packets: self.underway,
            decisions: self.decisions,
            notifications: self.notifications,
            pauses: self.pauses,
            events,
        }
    }

    fn time_series(&self) -> Option<Series> {
        let interval = self.interval?;
        let bits = f64::from(self.packet_bytes) * 8.0;
        let gbps = |packets: &u32| (f64::from(*packets) * bits / interval.secs()) * 1e-9;
        let queues = self.queues.iter().map(|(port, samples)| QueueSeries {
            port: *port,
            at_us: samples.iter().map(|(at, _)| at.us()).collect(),
            bytes: samples.iter().map(|(_, bytes)| *bytes).collect(),
        });
        Some(Series {
            interval_us: interval.us(),
            queue_latency: self.queued.cumulative_shares(),
            flow_gbps: (self.arrivals.iter())
                .map(|bins| bins.iter().map(gbps).collect())
                .collect(),
            queues: queues.collect(),
        })
    }

    fn long_short(&self, interruptions: &Interruptions, line_bps: f64, long_bps: f64) -> LongShort {
        let full = line_bps * RECOVERY_BIN.secs() / (f64::from(self.packet_bytes) * 8.0);
        let times = &interruptions.times;
        // Of each interruption the time to recovery, or without one to the next interruption.
        let mut waits = Vec::new();
        let mut missed = 0;
        for (number, (_, end)) in times.iter().enumerate() {
            let Some(end) = *end else { continue };
            if end < self.warmup {
                continue;
            }
            let follower = times.get(number + 1);
            let next = follower.map_or(self.duration, |(begin, _)| *begin);
            // Whole bins between the end and the next interruption.
            let first = end.ps().div_ceil(RECOVERY_BIN.ps()) as usize;
            let last = (next.ps() / RECOVERY_BIN.ps()) as usize;
            if first >= last {
                // Flows that start at random times leave such gaps within one interruption.
                continue;
            }
            let back = (first..last.min(interruptions.bins.len()))
                .find(|bin| f64::from(interruptions.bins[*bin]) >= RECOVERED * full);
            match back {
                Some(bin) => {
                    let at = Time::from_ps(bin as u64 * RECOVERY_BIN.ps());
                    waits.push(at.saturating_sub(end).secs());
                }
                // It may still recover when the run ends.
                None if follower.is_none() => {}
                None => {
                    missed += 1;
                    waits.push((next - end).secs());
                }
            }
        }
        let mean = (!waits.is_empty()).then(|| waits.iter().sum::<f64>() / waits.len() as f64);
        LongShort {
            recovery_s: mean.filter(|_| missed == 0),
            recovery_least_s: mean,
            recovered: waits.len() as u32 - missed,
            not_recovered: missed,
            long_gbps: long_bps * 1e-9,
        }
    }
}

/// Rates of flows and of hosts for the fairness indices. They are those of endless flows; without
/// any, of all flows.
fn compared_rates(
    plan: &Plan,
    measured: &[u64],
    rate: impl Fn(u64) -> f64,
) -> (Vec<f64>, Vec<f64>) {
    let endless = plan.flows.iter().any(|flow| flow.packets.is_none());
    let mut by_flow = Vec::new();
    let mut by_host: BTreeMap<u32, f64> = BTreeMap::new();
    for (flow, packets) in plan.flows.iter().zip(measured) {
        if !endless || flow.packets.is_none() {
            let rate = rate(*packets);
            by_flow.push(rate);
            *by_host.entry(flow.from).or_insert(0.0) += rate;
        }
    }
    (by_flow, by_host.into_values().collect())
}

/// Min/max fairness, percent; 100 without flows, 0 where nothing of any flow arrived: flows that
/// starve alike are not fair.
fn min_max_fairness(rates: &[f64]) -> f64 {
    if rates.is_empty() {
        return 100.0;
    }
    let least = rates.iter().copied().fold(f64::INFINITY, f64::min);
    let greatest = rates.iter().copied().fold(0.0, f64::max);
    if greatest == 0.0 {
        return 0.0;
    }
    least / greatest * 100.0
}

/// Jain, Chiu and Hawe 1984: (Σx)² / (n·Σx²), from 1/n to 1; 1 without flows, 0 where nothing of
/// any flow arrived.
fn jain_index(rates: &[f64]) -> f64 {
    if rates.is_empty() {
        return 1.0;
    }
    let sum: f64 = rates.iter().sum();
    let squares: f64 = rates.iter().map(|rate| rate * rate).sum();
    if squares == 0.0 {
        return 0.0;
    }
    sum * sum / (rates.len() as f64 * squares)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recovery_of_the_long_flow_by_hand() {
        let us = Time::from_us;
        let mut scenario = crate::sim::test_support::many_to_one(1);
        scenario.warmup = us(60);
        scenario.duration = us(1_000);
        scenario.workload = Workload::LongShort {
            senders: 3,
            flows: 3,
            burst_bytes: 1_024,
            idle: us(100),
            per_host: false,
            together: true,
        };
        let plan = crate::workload::plan_flows(&scenario, 1);
        // In 10 µs the line carries 122.07 packets of 1 KiB; 95 % are 115.97.
        let arrive = |meter: &mut Meter, at_us: u64, packets: u32| {
            for _ in 0..packets {
                meter.packet_delivered(0, us(at_us), true, true, Time::ZERO);
            }
        };
        let report = |arriving_at_455: u32| {
            let mut meter = Meter::new(&scenario, &plan, 1);
            meter.flow_started(0, us(0));
            // Over before the measured time starts.
            meter.flow_started(1, us(10));
            meter.flow_completed(1, us(50), 1, us(1));
            arrive(&mut meter, 50, 122);
            // Two short flows that overlap are one interruption, until 203 µs. The bin from 200 µs
            // started before that. The bin from 210 µs has one packet too few. So it is 220 µs −
            // 203 µs.
            meter.flow_started(1, us(100));
            meter.flow_started(2, us(110));
            meter.flow_completed(1, us(150), 1, us(1));
            arrive(&mut meter, 170, 122);
            meter.flow_completed(2, us(203), 1, us(1));
            arrive(&mut meter, 205, 122);
            arrive(&mut meter, 215, 115);
            arrive(&mut meter, 229, 116);
            // Until 450 µs; the next starts at 465 µs. The bin from 460 µs was interrupted, so it is
            // no recovery.
            meter.flow_started(2, us(400));
            meter.flow_completed(2, us(450), 1, us(1));
            arrive(&mut meter, 455, arriving_at_455);
            arrive(&mut meter, 461, 122);
            // No whole bin from 476 to 484 µs: the interruption goes on.
            meter.flow_started(1, us(465));
            meter.flow_completed(1, us(476), 1, us(1));
            meter.flow_started(2, us(484));
            // Until 500 µs, at the border of a bin: recovered at once, 0 µs.
            meter.flow_completed(2, us(500), 1, us(1));
            arrive(&mut meter, 500, 116);
            // Over before the end, which comes before a recovery.
            meter.flow_started(1, us(900));
            meter.flow_completed(1, us(950), 1, us(1));
            let interruptions = meter.interruptions.as_ref().expect("long-short");
            meter.long_short(interruptions, 100e9, 42e9)
        };
        let near =
            |found: Option<f64>, us: f64| (found.expect("measured") - us * 1e-6).abs() < 1e-12;
        // 17, 0 and 0 µs.
        let found = report(116);
        assert_eq!((found.recovered, found.not_recovered), (3, 0));
        assert!(near(found.recovery_s, 17.0 / 3.0), "{found:?}");
        assert_eq!(found.recovery_least_s, found.recovery_s);
        assert_eq!(found.long_gbps, 42.0);
        // 17 µs, more than the 15 µs to the next interruption, and 0.
        let found = report(100);
        assert_eq!((found.recovered, found.not_recovered), (2, 1));
        assert_eq!(found.recovery_s, None);
        assert!(near(found.recovery_least_s, 32.0 / 3.0), "{found:?}");

        let never = Meter::new(&scenario, &plan, 1);
        let interruptions = never.interruptions.as_ref().expect("long-short");
        let found = never.long_short(interruptions, 100e9, 42e9);
        assert_eq!((found.recovery_s, found.recovery_least_s), (None, None));
    }

    #[test]
    fn fairness_measures() {
        assert_eq!(min_max_fairness(&[1.0, 2.0, 4.0]), 25.0);
        assert_eq!(min_max_fairness(&[]), 100.0);
        // (1+3)² / (2·(1+9)) = 16/20.
        assert!((jain_index(&[1.0, 3.0]) - 0.8).abs() < 1e-12);
        assert!((jain_index(&[5.0; 7]) - 1.0).abs() < 1e-12);
        // Where all starve nobody is better off than another, which is not fair.
        assert_eq!(
            (min_max_fairness(&[0.0; 3]), jain_index(&[0.0; 3])),
            (0.0, 0.0)
        );
        assert_eq!(
            (min_max_fairness(&[0.0, 1.0]), jain_index(&[0.0, 1.0])),
            (0.0, 0.5)
        );
        assert_eq!(jain_index(&[]), 1.0);
    }

    #[test]
    fn run_in_which_nothing_arrived_has_no_queue_latency_and_is_not_fair() {
        let scenario = crate::sim::test_support::many_to_one(2);
        let plan = crate::workload::plan_flows(&scenario, 1);
        // Port 0 leads to the receiver.
        let report = |packets: u64| {
            let ports = [PortCounts {
                switch: 0,
                rate_bps: 100e9,
                left: 2 * packets,
                dropped: 0,
            }];
            Meter::new(&scenario, &plan, 1).into_outcome(&plan, &[packets; 2], &ports, 0)
        };
        let of = |outcome: &Outcome| {
            [
                Statistic::Utilisation,
                Statistic::Fairness,
                Statistic::HostFairness,
                Statistic::QueueLatency,
                Statistic::QueueLatencyP99,
            ]
            .map(|statistic| statistic.value_in(outcome))
        };
        let dead = report(0);
        let zero = Some(0.0);
        assert_eq!(of(&dead), [zero, zero, zero, None, None]);
        assert_eq!(dead.jain, 0.0);
        // Two flows alike, whose packets have not waited.
        let alive = report(1_000);
        assert_eq!(of(&alive)[1..], [Some(100.0), Some(100.0), zero, zero]);
        assert_eq!(alive.jain, 1.0);
    }
}
