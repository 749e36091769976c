//! A simulation: who does what when.

mod control;
mod explicit;
mod network;
mod open;
mod receiver;
mod sender;
mod state;
#[cfg(test)]
pub(crate) mod test_support;

use crate::Time;
use crate::cc::{Controller, Needs, Setup, TIMERS};
use crate::engine::{Event, EventQueue, Wheel};
use crate::metrics::{Meter, Outcome};
use crate::prefetch::prefetch;
use crate::rng::Rng;
use crate::scenario::{Recovery, Scenario, Workload};
use crate::topology::{Wiring, crossing, transmission};
use crate::workload::{self, Plan};

use explicit::{Links, Sender};
use state::{ENDLESS, Flow, Host, Losses, MAX_HOPS, Port, Slab, Telemetry};

pub use control::{Decision, External, Pending};

/// What happens, in the upper bits of [`Event::what`]; whom it concerns is below.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
enum Kind {
    /// A flow begins, or goes on after a pause.
    Start,
    /// A flow may send.
    Turn,
    /// A flow's next packet begins to leave its host.
    Depart,
    /// A packet (argument) reaches a port.
    Arrive,
    /// A packet (argument) leaves a port; with telemetry only.
    Leave,
    /// A flow's probe was answered, or its loss is known.
    Response,
    /// An acknowledgement (argument) reaches the sender.
    Ack,
    /// An acknowledgement (argument) reaches the controller.
    Acked,
    /// A report of a gap (argument) reaches the sender.
    Gap,
    /// A dropped packet (argument) has timed out.
    Timeout,
    /// The controller hears of a loss (argument: how it was found).
    Lost,
    /// A congestion notification reaches the controller.
    Notify,
    /// A controller's timer (argument) goes off.
    Timer,
    /// The controller hears of a packet that has left.
    Sent,
    /// All of a flow's data has arrived.
    Complete,
    /// The queue of a port is sampled.
    Sample,
    /// A flow comes.
    Arrival,
    /// The place of a flow that has gone is free again.
    Release,
    /// A host with a list has sent a packet.
    Free,
    /// A pause frame arrives at the sender of a link (argument: stop or go).
    Pause,
}

const KINDS: [Kind; 20] = [
    Kind::Start,
    Kind::Turn,
    Kind::Depart,
    Kind::Arrive,
    Kind::Leave,
    Kind::Response,
    Kind::Ack,
    Kind::Acked,
    Kind::Gap,
    Kind::Timeout,
    Kind::Lost,
    Kind::Notify,
    Kind::Timer,
    Kind::Sent,
    Kind::Complete,
    Kind::Sample,
    Kind::Arrival,
    Kind::Release,
    Kind::Free,
    Kind::Pause,
];

const SUBJECT_BITS: u32 = 27;

/// A simulation of one scenario with one kind of controller.
///
/// Monomorphic in both: the calls per packet are direct. `Box<dyn Controller>` is a controller
/// too where that does not matter.
pub struct Simulation<C, Q = Wheel> {
    now: Time,
    end: Time,
    warmup: Time,
    reaction: Time,
    timeout: Time,
    packet_bytes: u32,
    burst: u32,
    min_rate_bps: f64,
    recovery: Recovery,
    needs: Needs,
    events: Q,
    flows: Vec<Flow>,
    controllers: Vec<C>,
    setups: Vec<Setup>,
    timers: Vec<[Time; TIMERS]>,
    /// When each timer's event goes off; others are stale.
    timer_events: Vec<[Time; TIMERS]>,
    /// Whether any controller has ever set a timer.
    timed: bool,
    hosts: Vec<Host>,
    ports: Vec<Port>,
    paths: Vec<u32>,
    /// Where queues are lists.
    links: Option<Links>,
    packets: Slab,
    telemetry: Vec<Telemetry>,
    answer_telemetry: Vec<Telemetry>,
    losses: Vec<Losses>,
    plan: Plan,
    /// Where flows come and go.
    open: Option<open::Open<C>>,
    meter: Meter,
    /// Where pending decisions go, if they are made outside.
    pending: Option<Vec<Pending>>,
    /// An event that waits for a decision.
    held: Option<Event>,
    handled: u64,
}

impl<C: Controller> Simulation<C> {
    /// A simulation at its begin. `factory` makes the controller of a flow, given by its number.
    /// The same scenario, factory and seed give the same run. Where flows come and go, numbers
    /// are given again, and the factory is asked whenever a flow comes.
    pub fn new(
        scenario: &Scenario,
        factory: impl FnMut(u32, &Setup) -> C + Send + Sync + 'static,
        seed: u64,
    ) -> Self {
        Self::with_queue(scenario, factory, seed)
    }
}

impl<C: Controller, Q: EventQueue> Simulation<C, Q> {
    /// As [`Simulation::new`], with another event queue.
    pub fn with_queue(
        scenario: &Scenario,
        mut factory: impl FnMut(u32, &Setup) -> C + Send + Sync + 'static,
        seed: u64,
    ) -> Self {
        let mut simulation = Self::assemble(scenario, &mut factory, seed);
        simulation.renew(factory);
        simulation
    }

    /// A simulation that has no controllers yet for flows that come.
    fn assemble(scenario: &Scenario, factory: &mut dyn FnMut(u32, &Setup) -> C, seed: u64) -> Self {
        let wiring = Wiring::new(scenario);
        let plan = workload::plan(scenario, seed);
        let packet_bytes = scenario.network.packet_bytes;
        let (paths, mut flows) = flows(scenario, &wiring, &plan);
        let setups = setups(scenario, &wiring, &plan, &flows, &paths, seed);
        let hosts = hosts(&wiring, packet_bytes);
        let listed = scenario.network.explicit_queues || scenario.network.pause.is_some();
        let ports = ports(scenario, &wiring, &hosts, &flows, &paths, seed);
        let controllers: Vec<C> = (0..)
            .zip(&setups)
            .map(|(flow, setup)| factory(flow, setup))
            .collect();
        let needs = match controllers.first() {
            Some(controller) => controller.needs(),
            // What controllers want to hear of is the same for all.
            None => factory(0, &open::any_setup(scenario, &wiring, seed)).needs(),
        };
        let open = (plan.arrivals.is_some()).then(|| open::Open::new(scenario, wiring, seed));
        for (flow, setup) in flows.iter_mut().zip(&setups) {
            flow.command.rate_bps = setup.line_rate_bps;
        }
        let count = flows.len();
        let mut simulation = Self {
            now: Time::ZERO,
            end: scenario.duration,
            warmup: scenario.warmup,
            reaction: scenario.hosts.reaction,
            timeout: scenario.hosts.timeout,
            packet_bytes,
            burst: scenario.hosts.burst_packets,
            min_rate_bps: scenario.hosts.min_rate_bps as f64,
            recovery: scenario.hosts.recovery,
            needs,
            events: Q::new(),
            timers: vec![[Time::MAX; TIMERS]; count],
            timer_events: vec![[Time::MAX; TIMERS]; count],
            timed: false,
            telemetry: Vec::new(),
            answer_telemetry: if needs.telemetry {
                vec![[crate::cc::Hop::default(); MAX_HOPS]; count]
            } else {
                Vec::new()
            },
            losses: (0..count).map(|_| Losses::default()).collect(),
            links: listed.then(|| Links {
                senders: vec![Sender::default(); ports.len() + hosts.len()],
                pause: scenario.network.pause,
            }),
            meter: Meter::new(scenario, &plan, seed),
            plan,
            open,
            flows,
            controllers,
            setups,
            hosts,
            ports,
            paths,
            packets: Slab::default(),
            pending: None,
            held: None,
            handled: 0,
        };
        for flow in 0..count {
            let start = simulation.plan.flows[flow].start;
            simulation.schedule(start, Kind::Start, flow as u32, 0);
        }
        simulation.schedule_arrival();
        simulation.schedule_samples();
        simulation
    }

    /// Runs to the end.
    pub fn run(mut self) -> Outcome {
        while self.step() {}
        self.outcome()
    }

    /// Runs to the end as long as `go_on` wants so; none if it did not. It is asked again and
    /// again, with the simulated time, and not for so long that a user would notice.
    pub fn run_while(mut self, mut go_on: impl FnMut(Time) -> bool) -> Option<Outcome> {
        // Some milliseconds.
        const EVENTS: u32 = 1 << 16;
        loop {
            for _ in 0..EVENTS {
                if !self.step() {
                    return Some(self.outcome());
                }
            }
            if !go_on(self.now) {
                return None;
            }
        }
    }

    /// The time of the last event.
    pub fn now(&self) -> Time {
        self.now
    }

    /// Handles the next event; whether there was one before the end.
    fn step(&mut self) -> bool {
        match self.next() {
            Some(event) if event.time < self.end => {
                self.handle(event);
                true
            }
            other => {
                self.held = other;
                false
            }
        }
    }

    /// Takes the next event, and fetches what those that come before long concern.
    #[inline]
    fn next(&mut self) -> Option<Event> {
        let (flows, controllers) = (&self.flows, &self.controllers);
        self.events.pop_hinting(|event| {
            let subject = (event.what & ((1 << SUBJECT_BITS) - 1)) as usize;
            let kind = event.what >> SUBJECT_BITS;
            if kind == Kind::Turn as u32 || kind == Kind::Response as u32 {
                prefetch::<_, 2>(&flows[subject]);
                if kind == Kind::Response as u32 {
                    prefetch::<_, 1>(&controllers[subject]);
                }
            }
        })
    }

    fn handle(&mut self, event: Event) {
        self.now = event.time;
        self.handled += 1;
        let subject = (event.what & ((1 << SUBJECT_BITS) - 1)) as usize;
        match KINDS[(event.what >> SUBJECT_BITS) as usize] {
            Kind::Start => self.start(subject),
            Kind::Turn => self.turn(subject),
            Kind::Depart => self.depart(subject),
            Kind::Arrive => self.arrive(subject, event.argument),
            Kind::Leave => self.leave(subject, event.argument),
            Kind::Response => self.response(subject),
            Kind::Ack => self.ack(subject, event.argument),
            Kind::Acked => self.acked(subject, event.argument),
            Kind::Gap => self.gap(subject, event.argument),
            Kind::Timeout => self.timed_out(subject, event.argument),
            Kind::Lost => self.lost(subject, event.argument),
            Kind::Notify => self.notify(subject),
            Kind::Timer => self.timer(subject, event.argument as usize),
            Kind::Sent => self.sent(subject),
            Kind::Complete => self.complete(subject),
            Kind::Sample => self.sample(subject),
            Kind::Arrival => self.arrival(),
            Kind::Release => self.release(subject),
            Kind::Free => self.free(subject),
            Kind::Pause => self.pause(subject, event.argument != 0),
        }
    }

    #[inline]
    fn schedule(&mut self, time: Time, kind: Kind, subject: u32, argument: u32) {
        self.events.push(Event {
            time,
            what: ((kind as u32) << SUBJECT_BITS) | subject,
            argument,
        });
    }

    /// All of a flow's data has arrived: it may have to send again.
    fn complete(&mut self, flow: usize) {
        let packets = match self.plan.flows.get(flow) {
            Some(planned) => planned.packets.unwrap_or(0),
            None => self.flows[flow].end,
        };
        let alone = self.alone(flow, packets);
        self.meter.completed(flow, self.now, packets, alone);
        if self.open.is_some() {
            self.gone(flow);
        }
        for (flow, at) in self.plan.completed(flow as u32, self.now) {
            self.schedule(at, Kind::Start, flow, 1);
        }
    }

    /// How long a flow's packets take where nothing waits: the first over all links, the others
    /// behind it as the narrowest lets them.
    fn alone(&self, index: usize, packets: u32) -> Time {
        let flow = &self.flows[index];
        let first = flow.path as usize;
        let slowest = self.paths[first..first + usize::from(flow.hops)]
            .iter()
            .map(|port| self.ports[*port as usize].tx)
            .fold(self.hosts[flow.host as usize].tx, Time::max);
        let others = u64::from(packets.saturating_sub(1)) * slowest.ps();
        self.setups[index].base_rtt - flow.back + Time::from_ps(others)
    }

    fn schedule_samples(&mut self) {
        let Some(interval) = self.meter.sample_interval() else {
            return;
        };
        for port in self.meter.sampled_ports().to_vec() {
            // What is known about a port is ahead of the clock by its shift.
            let mut at = interval;
            while at < self.ports[port as usize].shift {
                at += interval;
            }
            let shift = self.ports[port as usize].shift;
            self.schedule(at - shift, Kind::Sample, port, 0);
        }
    }

    fn sample(&mut self, port: usize) {
        let Some(interval) = self.meter.sample_interval() else {
            return;
        };
        let at = self.now + self.ports[port].shift;
        let mut waiting = self.ports[port].busy.saturating_sub(at);
        if let Some(links) = &self.links {
            let line = links.senders[port].line.len() as u64;
            waiting += Time::from_ps(line * self.ports[port].tx.ps());
        }
        let bytes = waiting.ps() * u64::from(self.packet_bytes) / self.ports[port].tx.ps();
        self.meter.sampled(port as u32, at, bytes);
        if at + interval < self.end {
            self.schedule(self.now + interval, Kind::Sample, port as u32, 0);
        }
    }

    fn outcome(mut self) -> Outcome {
        // What is under way is counted, not inferred: nothing may be lost without a trace.
        let mut underway = match &self.links {
            Some(links) => links.senders[..self.ports.len()]
                .iter()
                .map(|sender| sender.line.len() as u64)
                .sum(),
            None => 0,
        };
        while let Some(event) = self.held.take().or_else(|| self.events.pop()) {
            let kind = KINDS[(event.what >> SUBJECT_BITS) as usize];
            underway += u64::from(matches!(kind, Kind::Arrive | Kind::Leave));
        }
        self.meter.underway = underway + self.meter.late;
        let ports: Vec<_> = self
            .ports
            .iter()
            .map(|port| crate::metrics::PortCounts {
                switch: port.switch,
                rate_bps: port.rate_bps,
                left: port.measured,
                dropped: port.dropped,
            })
            .collect();
        let rates: Vec<u64> = self
            .flows
            .iter()
            .map(|flow| u64::from(flow.received - flow.unmeasured))
            .collect();
        self.meter.finish(&self.plan, &rates, &ports, self.handled)
    }
}

/// The flows at rest, and the list of their paths.
fn flows(scenario: &Scenario, wiring: &Wiring, plan: &Plan) -> (Vec<u32>, Vec<Flow>) {
    let mut paths = Vec::new();
    let extra = answer_delay(scenario, wiring);
    let flows = plan
        .flows
        .iter()
        .enumerate()
        .map(|(number, flow)| {
            let path = wiring.path(flow.from, flow.to, number as u64);
            let back = wiring.links(flow.to, flow.from);
            let first = paths.len() as u32;
            let hops = path.len() as u8;
            paths.extend(path);
            Flow::new(
                first,
                hops,
                flow.from,
                flow.packets.unwrap_or(ENDLESS),
                crossing(&back, scenario.network.answer_bytes) + extra,
            )
        })
        .collect();
    (paths, flows)
}

/// What a receiver takes to answer, so that the longest path has the scenario's base RTT.
fn answer_delay(scenario: &Scenario, wiring: &Wiring) -> Time {
    let longest = wiring.longest();
    scenario
        .network
        .base_rtt
        .unwrap_or(Time::ZERO)
        .saturating_sub(
            crossing(&longest, scenario.network.packet_bytes)
                + crossing(&longest, scenario.network.answer_bytes),
        )
}

fn setups(
    scenario: &Scenario,
    wiring: &Wiring,
    plan: &Plan,
    flows: &[Flow],
    paths: &[u32],
    seed: u64,
) -> Vec<Setup> {
    let mut sharing = vec![0u32; wiring.ports.len()];
    let mut sending = vec![0u32; wiring.hosts as usize];
    let way = |flow: &Flow| {
        let first = flow.path as usize;
        first..first + usize::from(flow.hops)
    };
    for flow in flows {
        sending[flow.host as usize] += 1;
        for port in &paths[way(flow)] {
            sharing[*port as usize] += 1;
        }
    }
    let packet_bytes = scenario.network.packet_bytes;
    (0u64..)
        .zip(flows.iter().zip(&plan.flows))
        .map(|(number, (flow, plan))| {
            // The narrowest link is the one with the least rate a flow.
            let own = wiring.ports[plan.from as usize].link.rate_bps;
            let links = std::iter::once((own, sending[flow.host as usize])).chain(
                paths[way(flow)].iter().map(|port| {
                    (
                        wiring.ports[*port as usize].link.rate_bps,
                        sharing[*port as usize],
                    )
                }),
            );
            let expected = links
                .min_by_key(|(rate, flows)| rate / u64::from((*flows).max(1)))
                .map_or(1, |(_, flows)| flows);
            Setup {
                line_rate_bps: own as f64,
                min_rate_bps: scenario.hosts.min_rate_bps as f64,
                packet_bytes,
                base_rtt: crossing(
                    &path_links(wiring, plan.from, &paths[way(flow)]),
                    packet_bytes,
                ) + flow.back,
                hops: flow.hops + 1,
                expected_flows: expected,
                seed: Rng::new(seed, number).next(),
            }
        })
        .collect()
}

fn path_links(wiring: &Wiring, from: u32, path: &[u32]) -> Vec<crate::scenario::Link> {
    std::iter::once(wiring.ports[from as usize].link)
        .chain(path.iter().map(|port| wiring.ports[*port as usize].link))
        .collect()
}

fn hosts(wiring: &Wiring, packet_bytes: u32) -> Vec<Host> {
    (0..wiring.hosts as usize)
        .map(|host| {
            // A host's link is the same in both directions.
            let link = wiring.ports[host].link;
            Host {
                busy: Time::ZERO,
                tx: transmission(packet_bytes, link.rate_bps),
                delay: link.delay,
                rate_bps: link.rate_bps as f64,
                sent_bytes: 0,
            }
        })
        .collect()
}

fn ports(
    scenario: &Scenario,
    wiring: &Wiring,
    hosts: &[Host],
    flows: &[Flow],
    paths: &[u32],
    seed: u64,
) -> Vec<Port> {
    let packet_bytes = scenario.network.packet_bytes;
    let listed = scenario.network.explicit_queues || scenario.network.pause.is_some();
    let shifts = if listed {
        vec![Time::ZERO; wiring.ports.len()]
    } else if matches!(scenario.workload, Workload::Poisson { .. }) {
        network::even_shifts(wiring, hosts)
    } else {
        network::shifts(wiring, hosts, flows, paths)
    };
    (0u64..)
        .zip(wiring.ports.iter().zip(shifts))
        .map(|(number, (plan, shift))| {
            let tx = transmission(packet_bytes, plan.link.rate_bps);
            let waiting = |bytes: u64| {
                let ps = u128::from(bytes) * u128::from(tx.ps()) / u128::from(packet_bytes);
                Time::from_ps(ps as u64)
            };
            let (mark_from, mark_all, mark_slope) = match scenario.network.ecn {
                None => (Time::MAX, Time::MAX, 0.0),
                Some(ecn) => {
                    let (from, all) = (waiting(ecn.min_bytes), waiting(ecn.max_bytes));
                    // Equal thresholds are a step; then the slope is not used.
                    let slope = ecn.max_probability / (all - from).ps().max(1) as f64;
                    (from, all, slope)
                }
            };
            Port {
                busy: Time::ZERO,
                tx,
                delay: plan.link.delay,
                limit: waiting(plan.link.queue_bytes),
                shift,
                rate_bps: plan.link.rate_bps as f64,
                mark_from,
                mark_all,
                mark_slope,
                accepted: 0,
                measured: 0,
                dropped: 0,
                rng: Rng::new(seed, (1 << 40) + number),
                switch: plan.switch,
            }
        })
        .collect()
}

#[cfg(test)]
mod tests;
