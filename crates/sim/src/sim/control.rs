//! Calls of the controllers.
//!
//! Where the scenario has a reaction time, a controller lives that much in the past: it is
//! called so much later than things happen, with the time at which they happened, and its
//! command takes effect at once. That is the same as a command that takes effect later, and
//! needs no list of commands.

use serde::Serialize;

use crate::Time;
use crate::cc::{Ack, Context, Controller, Loss, Needs, Response, Setup, TIMERS};
use crate::engine::EventQueue;
use crate::metrics::Outcome;
use crate::scenario::Scenario;
use crate::topology::transmission;

use super::state::{Flow, Probe};
use super::{KINDS, Kind, SUBJECT_BITS, Simulation};

const NO_TIMERS: [Time; TIMERS] = [Time::MAX; TIMERS];

impl<C: Controller, Q: EventQueue> Simulation<C, Q> {
    /// Calls a flow's controller and obeys it.
    #[inline]
    fn control(&mut self, index: usize, now: Time, call: impl FnOnce(&mut C, &mut Context<'_>)) {
        let mut timers = if self.timed {
            self.timers[index]
        } else {
            NO_TIMERS
        };
        let flow = &mut self.flows[index];
        let before = flow.command.rate_bps;
        call(
            &mut self.controllers[index],
            &mut Context {
                now,
                command: &mut flow.command,
                timers: &mut timers,
            },
        );
        if flow.command.rate_bps != before {
            let line = self.hosts[flow.host as usize].rate_bps;
            // Not a number becomes the least rate.
            flow.command.rate_bps = flow.command.rate_bps.max(self.min_rate_bps).min(line);
            let bits = f64::from(self.packet_bytes) * 8.0;
            flow.gap = Time::from_ps((bits * 1e12 / flow.command.rate_bps + 0.5) as u64);
        }
        if self.timed || timers != NO_TIMERS {
            self.timed = true;
            self.timers[index] = timers;
            for (number, timer) in timers.into_iter().enumerate() {
                if timer != Time::MAX {
                    let due = (timer + self.reaction).max(self.now);
                    if due < self.timer_events[index][number] {
                        self.timer_events[index][number] = due;
                        self.schedule(due, Kind::Timer, index as u32, number as u32);
                    }
                }
            }
        }
        self.reschedule(index);
    }

    /// When that happened which the controller hears of now.
    fn happened(&self) -> Time {
        self.now.saturating_sub(self.reaction)
    }

    pub(super) fn begin(&mut self, index: usize) {
        let setup = self.setups[index].clone();
        let line = setup.line_rate_bps;
        let flow = &mut self.flows[index];
        flow.gap = transmission(self.packet_bytes, line as u64);
        self.control(index, self.now, |controller, context| {
            controller.start(&setup, context);
        });
    }

    pub(super) fn response(&mut self, index: usize) {
        let bytes = u64::from(self.packet_bytes);
        let now = self.happened();
        let flow = &mut self.flows[index];
        let probe_lost = flow.probe == Probe::Lost;
        let [acked, marked, lost] = flow.told();
        flow.probe = Probe::Idle;
        self.meter.decisions += 1;
        let hops = if self.needs.telemetry && !probe_lost {
            self.answer_telemetry[index]
        } else {
            Default::default()
        };
        let response = Response {
            rtt: now - flow.probe_sent,
            sent_at: flow.probe_sent,
            acked_bytes: u64::from(acked) * bytes,
            marked_bytes: u64::from(marked) * bytes,
            lost_bytes: u64::from(lost) * bytes,
            hops: if self.needs.telemetry && !probe_lost {
                &hops[..=usize::from(flow.hops)]
            } else {
                &[]
            },
        };
        self.control(index, now, |controller, context| {
            if probe_lost {
                controller.on_probe_lost(&response, context);
            } else {
                controller.on_response(&response, context);
            }
        });
    }

    pub(super) fn acked(&mut self, index: usize, place: u32) {
        let packet = self.packets.remove(place);
        let bytes = u64::from(self.packet_bytes);
        let hops = if self.needs.telemetry {
            self.telemetry[place as usize]
        } else {
            Default::default()
        };
        let ack = Ack {
            rtt: packet.sent,
            acked_bytes: u64::from(packet.acked) * bytes,
            marked: packet.marked,
            ack_bytes: (u64::from(packet.number) + 1) * bytes,
            sent_bytes: u64::from(packet.ever) * bytes,
            hops: if self.needs.telemetry {
                &hops[..=usize::from(self.flows[index].hops)]
            } else {
                &[]
            },
        };
        let now = self.happened();
        self.control(index, now, |controller, context| {
            controller.on_ack(&ack, context);
        });
    }

    pub(super) fn tell_loss(&mut self, index: usize, loss: Loss) {
        let argument = u32::from(loss == Loss::Timeout);
        if self.reaction == Time::ZERO {
            self.lost(index, argument);
        } else {
            self.schedule(self.now + self.reaction, Kind::Lost, index as u32, argument);
        }
    }

    pub(super) fn lost(&mut self, index: usize, argument: u32) {
        let loss = if argument == 0 {
            Loss::Gap
        } else {
            Loss::Timeout
        };
        let now = self.happened();
        self.control(index, now, |controller, context| {
            controller.on_loss(loss, context);
        });
    }

    pub(super) fn notify(&mut self, index: usize) {
        let now = self.happened();
        self.control(index, now, |controller, context| {
            controller.on_notification(context);
        });
    }

    pub(super) fn sent(&mut self, index: usize) {
        let now = self.happened();
        let bytes = self.packet_bytes;
        self.control(index, now, |controller, context| {
            controller.on_sent(bytes, context);
        });
    }

    pub(super) fn timer(&mut self, index: usize, number: usize) {
        if self.timer_events[index][number] != self.now {
            return;
        }
        self.timer_events[index][number] = Time::MAX;
        let timer = self.timers[index][number];
        if timer == Time::MAX {
            return;
        }
        let due = timer + self.reaction;
        if due > self.now {
            // It was put off.
            self.timer_events[index][number] = due;
            self.schedule(due, Kind::Timer, index as u32, number as u32);
            return;
        }
        self.timers[index][number] = Time::MAX;
        let now = self.happened();
        self.control(index, now, |controller, context| {
            controller.on_timer(number, context);
        });
    }
}

/// A decision that waits to be made outside: a flow's probe was answered, or will be at a time
/// that nothing can change any more, or its loss is known.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Pending {
    /// The flow.
    pub flow: u32,
    /// When the decision takes effect: the time of the answer, or at which the loss was known,
    /// and the reaction time.
    pub at: Time,
    /// Whether the probe was lost.
    pub probe_lost: bool,
    /// Round-trip time that the probe saw; of a lost one, how long after it left its loss was
    /// known.
    pub rtt: Time,
    /// When the probe left.
    pub sent_at: Time,
    /// The flow's rate, bits per second.
    pub rate_bps: f64,
    /// As in [`Response::acked_bytes`].
    pub acked_bytes: u64,
    /// As in [`Response::marked_bytes`].
    pub marked_bytes: u64,
    /// As in [`Response::lost_bytes`].
    pub lost_bytes: u64,
}

impl Pending {
    pub(super) fn of(number: u32, flow: &Flow, rtt: Time, packet_bytes: u32, at: Time) -> Self {
        let bytes = |packets: u32| u64::from(packets) * u64::from(packet_bytes);
        let [acked, marked, lost] = flow.told();
        Self {
            flow: number,
            at,
            probe_lost: flow.probe == Probe::Lost,
            rtt,
            sent_at: flow.probe_sent,
            rate_bps: flow.command.rate_bps,
            acked_bytes: bytes(acked),
            marked_bytes: bytes(marked),
            lost_bytes: bytes(lost),
        }
    }
}

/// An answer to a [`Pending`] decision.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Decision {
    /// Leave the rate as it is.
    Keep,
    /// So many times the flow's rate.
    Multiply(f64),
    /// This rate, bits per second.
    Rate(f64),
}

/// The controller of a flow that is decided for outside; see [`Simulation::outside`].
#[derive(Debug, Clone)]
pub struct External {
    initial_bps: f64,
    decision: Option<Decision>,
}

impl Controller for External {
    fn needs(&self) -> Needs {
        Needs {
            probes: true,
            ..Needs::default()
        }
    }

    fn start(&mut self, _: &Setup, context: &mut Context<'_>) {
        context.command.rate_bps = self.initial_bps;
    }

    fn on_probe_lost(&mut self, response: &Response<'_>, context: &mut Context<'_>) {
        self.on_response(response, context);
    }

    fn on_response(&mut self, _: &Response<'_>, context: &mut Context<'_>) {
        match self.decision.take() {
            None | Some(Decision::Keep) => {}
            Some(Decision::Multiply(factor)) => context.command.rate_bps *= factor,
            Some(Decision::Rate(rate)) => context.command.rate_bps = rate,
        }
    }
}

impl Simulation<External> {
    /// A simulation whose flows are decided for by the caller: [`Simulation::advance`] hands
    /// out decisions, [`Simulation::decide`] takes them. `initial_bps` is a flow's first rate;
    /// where flows come and go it is the line rate.
    pub fn outside(
        scenario: &Scenario,
        mut initial_bps: impl FnMut(u32, &Setup) -> f64,
        seed: u64,
    ) -> Self {
        let external = |initial_bps| External {
            initial_bps,
            decision: None,
        };
        let mut first = |flow, setup: &Setup| external(initial_bps(flow, setup));
        let mut simulation = Self::assemble(scenario, &mut first, seed);
        simulation.renew(move |_, setup| external(setup.line_rate_bps));
        simulation.pending = Some(Vec::new());
        simulation
    }

    /// Runs until nothing more can happen without a decision, and replaces `decisions` by those
    /// that can be made: all whose answer is certain by then, each flow at most once. What was
    /// not decided since the last call keeps its rate. False at the end of the scenario, with
    /// no decisions.
    ///
    /// No decision takes effect before the answer has travelled back and the reaction time has
    /// passed, so those that are handed out together do not depend on each other, and the run
    /// is the same as with a [`Controller`] that decides alike.
    pub fn advance(&mut self, decisions: &mut Vec<Pending>) -> bool {
        decisions.clear();
        let mut next = self.held.take();
        if let Some(event) = next
            && let Some(flow) = self.undecided(event.what)
        {
            // Left alone by the caller.
            self.controllers[flow].decision = Some(Decision::Keep);
            next = Some(event);
        }
        loop {
            let event = match next.take().or_else(|| self.next()) {
                Some(event) if event.time < self.end => event,
                other => {
                    self.held = other;
                    if let Some(pending) = &mut self.pending {
                        pending.clear();
                    }
                    return false;
                }
            };
            if let Some(flow) = self.undecided(event.what) {
                let fresh = match &mut self.pending {
                    Some(pending) => std::mem::take(pending),
                    None => Vec::new(),
                };
                if fresh.is_empty() {
                    // It was handed out before and left alone.
                    self.controllers[flow].decision = Some(Decision::Keep);
                } else {
                    let mut empty = std::mem::replace(decisions, fresh);
                    empty.clear();
                    self.pending = Some(empty);
                    self.held = Some(event);
                    return true;
                }
            }
            self.handle(event);
        }
    }

    /// Makes a decision that [`Simulation::advance`] handed out.
    ///
    /// # Panics
    /// If there is no such flow.
    pub fn decide(&mut self, flow: u32, decision: Decision) {
        self.controllers[flow as usize].decision = Some(decision);
    }

    /// What was measured, up to now.
    pub fn finish(self) -> Outcome {
        self.outcome()
    }

    /// The flow of a probe's answer or loss that has no decision yet.
    fn undecided(&self, what: u32) -> Option<usize> {
        let flow = (what & ((1 << SUBJECT_BITS) - 1)) as usize;
        (KINDS[(what >> SUBJECT_BITS) as usize] == Kind::Response
            && self.controllers[flow].decision.is_none())
        .then_some(flow)
    }
}
