//! Decisions that the caller makes, outside of the simulation.

use serde::Serialize;
use thalweg_rate::Features;

use crate::Time;
use crate::cc::rules::{self, Rules};
use crate::cc::tcp::{Event, Socket};
use crate::cc::{
    Ack, AnyController, Command, Context, Controller, Loss, Needs, Response, Setup, Spec,
};
use crate::metrics::Outcome;
use crate::scenario::Scenario;

use super::state::{Flow, Probe};
use super::{EventKind, KINDS, SUBJECT_BITS, Simulation};

/// A decision that the caller must make. A flow's probe response has arrived, or its arrival is
/// already certain, or the probe's loss is known. With Linux's TCP: a round has ended in which the
/// kernel would ask the model, and measurements are those that the model would see.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Pending {
    /// The flow.
    pub flow: u32,
    /// When the decision takes effect: the reaction time after the response, or after the loss was
    /// known.
    pub at: Time,
    /// Whether the probe was lost.
    pub probe_lost: bool,
    /// Round-trip time of the probe. For a lost probe, the time from its departure until the loss
    /// was known.
    pub rtt: Time,
    /// With Linux's TCP: the shortest round-trip time, as the rules take it. None otherwise: it is
    /// that of the flow's [`Setup`].
    pub base_rtt: Option<Time>,
    /// When the probe left; with Linux's TCP, a round-trip time ago.
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
    pub(super) fn for_flow(
        number: u32,
        flow: &Flow,
        rtt: Time,
        packet_bytes: u32,
        at: Time,
    ) -> Self {
        let bytes = |packets: u32| u64::from(packets) * u64::from(packet_bytes);
        let [acked, marked, lost] = flow.reported_counts();
        Self {
            flow: number,
            at,
            probe_lost: flow.probe == Probe::Lost,
            rtt,
            base_rtt: None,
            sent_at: flow.probe_sent,
            rate_bps: flow.command.rate_bps,
            acked_bytes: bytes(acked),
            marked_bytes: bytes(marked),
            lost_bytes: bytes(lost),
        }
    }
}

/// An answer to a [`Pending`] decision. With Linux's TCP it becomes an action, so that one decision
/// changes the rate by a factor of 1.2 at most, and the rules bound the rate.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Decision {
    /// Leave the rate as it is.
    Keep,
    /// Multiply the flow's rate by this factor.
    Multiply(f64),
    /// Set this rate, bits per second.
    Rate(f64),
}

/// Controller of a flow whose decisions are made outside, or of another beside such flows; see
/// [`Simulation::with_outside_decisions`] and [`Simulation::with_one_outside_flow`].
#[derive(Debug, Clone)]
pub struct External {
    initial_bps: f64,
    pub(super) decision: Option<Decision>,
    /// With Linux's TCP: the rules around the caller's decisions.
    rules: Option<Box<Rules>>,
    /// Decides instead of the caller.
    inside: Option<Box<AnyController>>,
}

impl External {
    fn new(initial_bps: f64) -> Self {
        Self {
            initial_bps,
            decision: None,
            rules: None,
            inside: None,
        }
    }

    fn take_decision(&mut self, command: &mut Command) {
        match self.decision.take() {
            None | Some(Decision::Keep) => {}
            Some(Decision::Multiply(factor)) => command.rate_bps *= factor,
            Some(Decision::Rate(rate)) => command.rate_bps = rate,
        }
    }
}

impl Controller for External {
    fn required_signals(&self) -> Needs {
        match (&self.inside, &self.rules) {
            (Some(inside), _) => inside.required_signals(),
            (None, Some(_)) => Needs::TCP,
            (None, None) => Needs::PROBES,
        }
    }

    fn start_flow(&mut self, setup: &Setup, context: &mut Context<'_>) {
        match &mut self.inside {
            None => context.command.rate_bps = self.initial_bps,
            Some(inside) => inside.start_flow(setup, context),
        }
    }

    fn on_probe_lost(&mut self, response: &Response<'_>, context: &mut Context<'_>) {
        match &mut self.inside {
            None => self.take_decision(context.command),
            Some(inside) => inside.on_probe_lost(response, context),
        }
    }

    fn on_response(&mut self, response: &Response<'_>, context: &mut Context<'_>) {
        match &mut self.inside {
            None => self.take_decision(context.command),
            Some(inside) => inside.on_response(response, context),
        }
    }

    fn on_ack(&mut self, ack: &Ack<'_>, context: &mut Context<'_>) {
        if let Some(inside) = &mut self.inside {
            inside.on_ack(ack, context);
        }
    }

    fn on_tcp(&mut self, event: &Event, socket: &mut Socket) {
        if let Some(inside) = &mut self.inside {
            inside.on_tcp(event, socket);
        } else if let Some(kernel) = &mut self.rules {
            let rate = socket.asks.map_or(0, |asked| asked.rate) as f64;
            let given = self.decision.take().map(|decision| match decision {
                Decision::Keep => 0,
                Decision::Multiply(factor) => rules::action_for_factor(factor),
                Decision::Rate(rate_bps) => rules::action_for_factor(rate_bps / 8.0 / rate),
            });
            kernel.on_tcp(given, event, socket);
        }
    }

    fn on_notification(&mut self, context: &mut Context<'_>) {
        if let Some(inside) = &mut self.inside {
            inside.on_notification(context);
        }
    }

    fn on_loss(&mut self, loss: Loss, context: &mut Context<'_>) {
        if let Some(inside) = &mut self.inside {
            inside.on_loss(loss, context);
        }
    }

    fn on_timer(&mut self, timer: usize, context: &mut Context<'_>) {
        if let Some(inside) = &mut self.inside {
            inside.on_timer(timer, context);
        }
    }

    fn on_sent(&mut self, bytes: u32, context: &mut Context<'_>) {
        if let Some(inside) = &mut self.inside {
            inside.on_sent(bytes, context);
        }
    }
}

impl Simulation<External> {
    /// A simulation with decisions by the caller: [`Simulation::advance`] returns pending
    /// decisions, [`Simulation::decide`] takes them. `initial_bps` is a flow's first rate; where
    /// flows come and go it is the line rate.
    pub fn with_outside_decisions(
        scenario: &Scenario,
        mut initial_bps: impl FnMut(u32, &Setup) -> f64,
        seed: u64,
    ) -> Self {
        let mut first = |flow, setup: &Setup| External::new(initial_bps(flow, setup));
        let mut simulation = Self::assemble(scenario, &mut first, seed);
        simulation.replace_factory(move |_, setup| External::new(setup.line_rate_bps));
        simulation.control.pending = Some(Vec::new());
        simulation
    }

    /// As [`Simulation::with_outside_decisions`], but the caller decides for flow 0 alone. All others, those that
    /// come later too, have a controller of `others`.
    pub fn with_one_outside_flow(
        scenario: &Scenario,
        initial_bps: impl FnOnce(&Setup) -> f64,
        others: &Spec,
        seed: u64,
    ) -> Self {
        let other = |others: &Spec| External {
            inside: Some(Box::new(others.build())),
            ..External::new(0.0)
        };
        let mut initial_bps = Some(initial_bps);
        let mut first = |_, setup: &Setup| match initial_bps.take() {
            Some(initial_bps) => External::new(initial_bps(setup)),
            None => other(others),
        };
        let mut simulation = Self::assemble(scenario, &mut first, seed);
        let others = others.clone();
        simulation.replace_factory(move |_, _| other(&others));
        simulation.control.pending = Some(Vec::new());
        simulation.control.mixed = true;
        simulation
    }

    /// A simulation of hosts with Linux's TCP, with the rules of the kernel's controller
    /// ([`thalweg_rl`]) and decisions by the caller where the rules would ask a model. The rules
    /// take target and offset of the signal from `features`. With `others` only flow 0 is under
    /// these rules, and all others have such a controller.
    ///
    /// A run is that of [`thalweg_rl`] with a model that acts alike. There is one decision at a
    /// time.
    ///
    /// [`thalweg_rl`]: crate::cc::thalweg_rl
    pub fn by_rules(
        scenario: &Scenario,
        features: &Features,
        others: Option<&Spec>,
        seed: u64,
    ) -> Self {
        let (features, others) = (features.clone(), others.cloned());
        let factory = move |flow: u32, setup: &Setup| match &others {
            Some(others) if flow > 0 => External {
                inside: Some(Box::new(others.build())),
                ..External::new(0.0)
            },
            _ => External {
                rules: Some(Box::new(Rules::new(features.clone()))),
                ..External::new(setup.line_rate_bps)
            },
        };
        let mut simulation = Self::with_queue(scenario, factory, seed);
        simulation.control.pending = Some(Vec::new());
        simulation
    }

    /// Runs until nothing more can happen without a decision, and replaces `decisions` by the
    /// pending ones. These are all whose response is certain by then, each flow at most once. A
    /// flow without a decision since the last call keeps its rate. Returns false at the end of the
    /// scenario, with no decisions.
    ///
    /// No decision takes effect before the response has travelled back and the reaction time has
    /// passed. So the decisions of one call are independent, and the run equals that of a
    /// [`Controller`] with the same decisions.
    pub fn advance(&mut self, decisions: &mut Vec<Pending>) -> bool {
        decisions.clear();
        self.tcp_go_on();
        let mut next = self.held.take();
        if let Some(event) = next
            && let Some(flow) = self.undecided_flow(event.what)
        {
            // The caller made no decision.
            self.control.controllers[flow].decision = Some(Decision::Keep);
            next = Some(event);
        }
        loop {
            let event = match next.take().or_else(|| self.next()) {
                Some(event) if event.time < self.set.end => event,
                other => {
                    self.held = other;
                    if let Some(pending) = &mut self.control.pending {
                        pending.clear();
                    }
                    return false;
                }
            };
            if let Some(flow) = self.undecided_flow(event.what) {
                let mut fresh = match &mut self.control.pending {
                    Some(pending) => std::mem::take(pending),
                    None => Vec::new(),
                };
                if self.control.mixed {
                    let outside = |flow: u32| &self.control.controllers[flow as usize].inside;
                    fresh.retain(|pending| outside(pending.flow).is_none());
                }
                if fresh.is_empty() {
                    // It was returned before and got no decision.
                    self.control.controllers[flow].decision = Some(Decision::Keep);
                } else {
                    let mut empty = std::mem::replace(decisions, fresh);
                    empty.clear();
                    self.control.pending = Some(empty);
                    self.held = Some(event);
                    return true;
                }
            }
            self.handle_event(event);
            if let Some(pending) = self.tcp_pending() {
                decisions.push(pending);
                return true;
            }
        }
    }

    /// Makes a decision that [`Simulation::advance`] returned. For a flow with a controller of its
    /// own it changes nothing.
    ///
    /// # Panics
    /// There is no such flow.
    pub fn decide(&mut self, flow: u32, decision: Decision) {
        self.control.controllers[flow as usize].decision = Some(decision);
    }

    /// The measurements up to now.
    pub fn outcome_so_far(self) -> Outcome {
        self.into_outcome()
    }

    /// The flow of a probe response or loss that has no decision yet.
    fn undecided_flow(&self, what: u32) -> Option<usize> {
        if KINDS[(what >> SUBJECT_BITS) as usize] != EventKind::Response {
            return None;
        }
        let flow = (what & ((1 << SUBJECT_BITS) - 1)) as usize;
        let controller = &self.control.controllers[flow];
        (controller.decision.is_none() && controller.inside.is_none()).then_some(flow)
    }
}
