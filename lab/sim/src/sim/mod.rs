//! A simulation: its events and their order.

mod control;
mod explicit;
mod fabric;
mod linux;
mod network;
mod open;
mod outside;
mod receiver;
mod sender;
mod state;
#[cfg(test)]
pub(crate) mod test_support;
mod transport;

use crate::Time;
use crate::cc::{Controller, Needs, Setup};
use crate::engine::{Event, EventQueue, Wheel};
use crate::metrics::{Meter, Outcome, PortCounts, SmoothedDelay};
use crate::prefetch::prefetch_lines;
use crate::scenario::{Link, Recovery, Scenario};
use crate::topology::{Wiring, crossing_time};
use crate::workload::{self, Plan};

use control::Control;
use fabric::Fabric;
use state::{ENDLESS, Flow};
use transport::Transport;

pub use outside::{Decision, External, Pending};

/// Kind of an event, in the upper bits of [`Event::what`]. The lower bits name its object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
enum EventKind {
    /// A flow starts, or goes on after a pause.
    Start,
    /// A flow may send.
    Turn,
    /// A flow's next packet starts to leave its host.
    Depart,
    /// A packet (argument) reaches a port.
    Arrive,
    /// A packet (argument) leaves a port; with telemetry only.
    Leave,
    /// A probe response has arrived, or the probe's loss is known.
    Response,
    /// An ACK (argument) reaches the sender.
    Ack,
    /// An ACK (argument) reaches the controller.
    Acked,
    /// A gap report (argument) reaches the sender.
    Gap,
    /// A dropped packet (argument) has timed out.
    Timeout,
    /// A loss reaches the controller (argument: how it was detected).
    Lost,
    /// A CNP reaches the controller.
    Notify,
    /// A controller's timer (argument) expires.
    Timer,
    /// The controller hears of a packet that has left.
    Sent,
    /// All of a flow's data has arrived.
    Complete,
    /// The queue of a port is sampled.
    Sample,
    /// A flow arrives.
    Arrival,
    /// The slot of an ended flow is free again.
    Release,
    /// A host with an explicit queue has sent a packet.
    Free,
    /// A pause frame arrives at the sender of a link (argument: XOFF or XON).
    Pause,
    /// Linux: a flow's pacing timer expires.
    Pace,
    /// Linux: a run of received packets ends, or a delayed ACK is due.
    Settle,
    /// Linux: an ACK reaches the sender.
    TcpAck,
    /// Linux: smoothed round-trip times are read.
    Inspect,
}

const KINDS: [EventKind; 24] = [
    EventKind::Start,
    EventKind::Turn,
    EventKind::Depart,
    EventKind::Arrive,
    EventKind::Leave,
    EventKind::Response,
    EventKind::Ack,
    EventKind::Acked,
    EventKind::Gap,
    EventKind::Timeout,
    EventKind::Lost,
    EventKind::Notify,
    EventKind::Timer,
    EventKind::Sent,
    EventKind::Complete,
    EventKind::Sample,
    EventKind::Arrival,
    EventKind::Release,
    EventKind::Free,
    EventKind::Pause,
    EventKind::Pace,
    EventKind::Settle,
    EventKind::TcpAck,
    EventKind::Inspect,
];

const SUBJECT_BITS: u32 = 27;

/// Settings of a whole run.
struct Settings {
    end: Time,
    warmup: Time,
    reaction: Time,
    timeout: Time,
    packet_bytes: u32,
    burst: u32,
    min_rate_bps: f64,
    recovery: Recovery,
    needs: Needs,
}

impl Settings {
    /// The settings of a scenario, without the controllers' needs.
    fn new(scenario: &Scenario) -> Self {
        Self {
            end: scenario.duration,
            warmup: scenario.warmup,
            reaction: scenario.hosts.reaction,
            timeout: scenario.hosts.timeout,
            packet_bytes: scenario.network.packet_bytes,
            burst: scenario.hosts.burst_packets,
            min_rate_bps: scenario.hosts.min_rate_bps as f64,
            recovery: scenario.hosts.recovery,
            needs: Needs::default(),
        }
    }

    /// Whether the sender need not know which packets were dropped. An endless flow never runs out
    /// of data, so it does not matter to anybody whether it sends a packet again or the next one.
    /// Then a drop costs neither a time-out nor a report: with an overload of 64 to 1 they are
    /// nearly all events. Probes are still reported.
    fn forgets_drops(&self, flow: &Flow) -> bool {
        flow.end == ENDLESS
            && self.recovery == Recovery::SelectiveRepeat
            && !self.needs.acks
            && !self.needs.losses
    }

    /// The setup of a flow's controller, over these links; responses take `back`.
    fn flow_setup(&self, links: &[Link], back: Time, expected_flows: u32, seed: u64) -> Setup {
        Setup {
            line_rate_bps: links[0].rate_bps as f64,
            min_rate_bps: self.min_rate_bps,
            packet_bytes: self.packet_bytes,
            base_rtt: crossing_time(links, self.packet_bytes) + back,
            hops: links.len() as u8,
            expected_flows,
            seed,
        }
    }
}

/// The base RTT of a scenario's longest path, and the number of its links.
pub fn longest_round_trip(scenario: &Scenario) -> (Time, u8) {
    let wiring = Wiring::new(scenario);
    let longest = wiring.longest_path();
    let network = &scenario.network;
    let base_rtt = crossing_time(&longest, network.packet_bytes)
        + crossing_time(&longest, network.answer_bytes)
        + transport::answer_delay(scenario, &wiring);
    (base_rtt, longest.len() as u8)
}

/// How far a run is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Progress {
    /// The simulated time.
    pub now: Time,
    /// Packets sent so far, retransmissions included.
    pub sent_packets: u64,
    /// Packets that full queues have dropped so far.
    pub dropped_packets: u64,
}

/// A simulation of one scenario with one kind of controller.
///
/// It is monomorphic in both, so calls per packet are direct. An [`AnyController`] is any of those
/// with a name.
///
/// [`AnyController`]: crate::cc::AnyController
pub struct Simulation<C, Q = Wheel> {
    now: Time,
    set: Settings,
    events: Q,
    transport: Transport,
    fabric: Fabric,
    control: Control<C>,
    plan: Plan,
    /// Only where hosts have Linux's TCP.
    linux: Option<linux::Hosts>,
    /// Only where flows come and go.
    open: Option<open::Open<C>>,
    meter: Meter,
    /// An event that waits for a decision.
    held: Option<Event>,
    handled: u64,
}

impl<C: Controller> Simulation<C> {
    /// A simulation at its start. `factory` makes a flow's controller from its number. The same
    /// scenario, factory and seed give the same run. Where flows come and go, numbers are reused,
    /// and the factory is called for each new flow.
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
        simulation.replace_factory(factory);
        simulation
    }

    /// A simulation without controllers for flows that arrive later.
    fn assemble(scenario: &Scenario, factory: &mut dyn FnMut(u32, &Setup) -> C, seed: u64) -> Self {
        let mut set = Settings::new(scenario);
        let wiring = Wiring::new(scenario);
        let plan = workload::plan_flows(scenario, seed);
        let (mut transport, paths) = Transport::new(scenario, &wiring, &plan);
        let fabric = Fabric::new(scenario, &wiring, &transport, paths, seed);
        let setups = control::controller_setups(&set, &wiring, &transport.flows, &fabric, seed);
        let control = Control::new(setups, factory);
        let needs = control.controllers.iter().map(Controller::required_signals);
        set.needs = match needs.reduce(Needs::and) {
            Some(needs) => needs,
            None => {
                let (links, expected) = (wiring.longest_path(), open::EXPECTED_FLOWS);
                factory(0, &set.flow_setup(&links, Time::ZERO, expected, seed)).required_signals()
            }
        };
        // Linux's TCP itself repairs losses.
        set.needs.losses |= scenario.hosts.linux.is_some();
        for (flow, setup) in transport.flows.iter_mut().zip(&control.setups) {
            flow.command.rate_bps = setup.line_rate_bps;
        }
        let count = transport.flows.len();
        if set.needs.telemetry {
            transport.answer_telemetry = vec![Default::default(); count];
        }
        let mut simulation = Self {
            now: Time::ZERO,
            set,
            events: Q::new(),
            meter: Meter::new(scenario, &plan, seed),
            linux: linux::Hosts::new(scenario, seed),
            open: (plan.arrivals.is_some()).then(|| open::Open::new(scenario, wiring, seed)),
            plan,
            transport,
            fabric,
            control,
            held: None,
            handled: 0,
        };
        for flow in 0..count {
            let start = simulation.plan.flows[flow].start;
            simulation.schedule_event(start, EventKind::Start, flow as u32, 0);
        }
        simulation.schedule_arrival();
        simulation.schedule_samples();
        simulation.schedule_inspection();
        simulation
    }

    /// Runs to the end.
    pub fn run(mut self) -> Outcome {
        while self.handle_next() {}
        self.into_outcome()
    }

    /// Runs to the end while `go_on` returns true; none otherwise. `go_on` hears how far the run is,
    /// and is called often enough for an interactive stop.
    pub fn run_while(mut self, mut go_on: impl FnMut(Progress) -> bool) -> Option<Outcome> {
        // A few milliseconds.
        const EVENTS: u32 = 1 << 16;
        loop {
            for _ in 0..EVENTS {
                if !self.handle_next() {
                    return Some(self.into_outcome());
                }
            }
            let progress = Progress {
                now: self.now,
                sent_packets: self.meter.sent,
                dropped_packets: self.meter.dropped,
            };
            if !go_on(progress) {
                return None;
            }
        }
    }

    /// Time of the last event.
    pub fn now(&self) -> Time {
        self.now
    }

    /// Handles the next event. False if there was none before the end.
    fn handle_next(&mut self) -> bool {
        match self.next() {
            Some(event) if event.time < self.set.end => {
                self.handle_event(event);
                true
            }
            other => {
                self.held = other;
                false
            }
        }
    }

    /// Takes the next event, and prefetches the data of those that follow shortly.
    #[inline]
    fn next(&mut self) -> Option<Event> {
        let (flows, controllers) = (&self.transport.flows, &self.control.controllers);
        self.events.pop_hinting(|event| {
            let subject = (event.what & ((1 << SUBJECT_BITS) - 1)) as usize;
            let kind = event.what >> SUBJECT_BITS;
            if kind <= EventKind::Depart as u32 || kind == EventKind::Response as u32 {
                prefetch_lines::<_, 2>(&flows[subject]);
                if kind == EventKind::Response as u32 {
                    // A controller of several kinds has its kind before it, in another line.
                    if size_of::<C>() > 64 {
                        prefetch_lines::<_, 2>(&controllers[subject]);
                    } else {
                        prefetch_lines::<_, 1>(&controllers[subject]);
                    }
                }
            }
        })
    }

    fn handle_event(&mut self, event: Event) {
        self.now = event.time;
        self.handled += 1;
        let subject = (event.what & ((1 << SUBJECT_BITS) - 1)) as usize;
        match KINDS[(event.what >> SUBJECT_BITS) as usize] {
            EventKind::Start => self.start_sending(subject),
            EventKind::Turn => self.take_turn(subject),
            EventKind::Depart => self.packet_departs(subject),
            EventKind::Arrive => self.packet_arrives(subject, event.argument),
            EventKind::Leave => self.packet_leaves(subject, event.argument),
            EventKind::Response => self.deliver_response(subject),
            EventKind::Ack => self.receive_ack(subject, event.argument),
            EventKind::Acked => self.deliver_ack(subject, event.argument),
            EventKind::Gap => self.receive_gap_report(subject, event.argument),
            EventKind::Timeout => self.timed_out(subject, event.argument),
            EventKind::Lost => self.deliver_loss(subject, event.argument),
            EventKind::Notify => self.deliver_notification(subject),
            EventKind::Timer => self.expire_timer(subject, event.argument as usize),
            EventKind::Sent => self.report_sent(subject),
            EventKind::Complete => self.complete_flow(subject),
            EventKind::Sample => self.sample_queue(subject),
            EventKind::Arrival => self.admit_arrival(),
            EventKind::Release => self.release_slot(subject),
            EventKind::Free => self.host_sent(subject),
            EventKind::Pause => self.receive_pause_frame(subject, event.argument != 0),
            EventKind::Pace => self.tcp_paced(subject),
            EventKind::Settle => self.tcp_settle(subject, self.now),
            EventKind::TcpAck => self.tcp_ack(subject),
            EventKind::Inspect => self.inspect(),
        }
    }

    #[inline]
    fn schedule_event(&mut self, time: Time, kind: EventKind, subject: u32, argument: u32) {
        self.events.push(Event {
            time,
            what: ((kind as u32) << SUBJECT_BITS) | subject,
            argument,
        });
    }

    /// All data of a flow has arrived: it may have to send again.
    fn complete_flow(&mut self, flow: usize) {
        let packets = match self.plan.flows.get(flow) {
            Some(planned) => planned.packets.unwrap_or(0),
            None => self.transport.flows[flow].end,
        };
        let alone = self.unloaded_time(flow, packets);
        self.meter.flow_completed(flow, self.now, packets, alone);
        if self.open.is_some() {
            self.end_flow(flow);
        }
        for (flow, at) in self.plan.flow_completed(flow as u32, self.now) {
            self.schedule_event(at, EventKind::Start, flow, 1);
        }
    }

    /// Time of a flow's packets through an empty network. The first packet crosses all links; the
    /// others follow at the rate of the narrowest.
    fn unloaded_time(&self, index: usize, packets: u32) -> Time {
        let flow = &self.transport.flows[index];
        let slowest = (self.fabric.flow_path(flow).iter())
            .map(|port| self.fabric.ports[*port as usize].tx)
            .fold(self.transport.hosts[flow.host as usize].tx, Time::max);
        let others = u64::from(packets.saturating_sub(1)) * slowest.ps();
        self.control.setups[index].base_rtt - flow.back + Time::from_ps(others)
    }

    fn schedule_samples(&mut self) {
        let Some(interval) = self.meter.sample_interval() else {
            return;
        };
        for port in self.meter.sampled_ports().to_vec() {
            // A port's known state is ahead of the clock by its shift.
            let mut at = interval;
            while at < self.fabric.ports[port as usize].shift {
                at += interval;
            }
            let shift = self.fabric.ports[port as usize].shift;
            self.schedule_event(at - shift, EventKind::Sample, port, 0);
        }
    }

    fn sample_queue(&mut self, port: usize) {
        let Some(interval) = self.meter.sample_interval() else {
            return;
        };
        let at = self.now + self.fabric.ports[port].shift;
        let mut waiting = self.fabric.ports[port].queueing_delay(at);
        if let Some(links) = &self.fabric.links {
            let line = links.senders[port].line.len() as u64;
            waiting += Time::from_ps(line * self.fabric.ports[port].tx.ps());
        }
        let bytes =
            waiting.ps() * u64::from(self.set.packet_bytes) / self.fabric.ports[port].tx.ps();
        self.meter.queue_sampled(port as u32, at, bytes);
        if at + interval < self.set.end {
            self.schedule_event(self.now + interval, EventKind::Sample, port as u32, 0);
        }
    }

    fn into_outcome(mut self) -> Outcome {
        // Packets in flight are counted, not inferred: none may disappear without a trace.
        let mut underway = match &self.fabric.links {
            Some(links) => links.senders[..self.fabric.ports.len()]
                .iter()
                .map(|sender| sender.line.len() as u64)
                .sum(),
            None => 0,
        };
        while let Some(event) = self.held.take().or_else(|| self.events.pop()) {
            let kind = KINDS[(event.what >> SUBJECT_BITS) as usize];
            underway += u64::from(matches!(kind, EventKind::Arrive | EventKind::Leave));
        }
        self.meter.underway = underway + self.meter.late;
        let ports: Vec<_> = self
            .fabric
            .ports
            .iter()
            .map(|port| PortCounts {
                switch: port.switch,
                rate_bps: port.rate_bps,
                left: port.measured,
                dropped: port.dropped,
            })
            .collect();
        let rates: Vec<u64> = self
            .transport
            .flows
            .iter()
            .map(|flow| u64::from(flow.received - flow.unmeasured))
            .collect();
        let smoothed_delay = (self.linux.take())
            .and_then(|hosts| SmoothedDelay::from_samples(hosts.smoothed_us, hosts.shortest_us));
        Outcome {
            smoothed_delay,
            ..self
                .meter
                .into_outcome(&self.plan, &rates, &ports, self.handled)
        }
    }
}

#[cfg(test)]
mod tests;
