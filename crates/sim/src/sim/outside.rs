//! Decisions that the caller makes, outside of the simulation.

use serde::Serialize;

use crate::Time;
use crate::cc::{Context, Controller, Needs, Response, Setup};
use crate::metrics::Outcome;
use crate::scenario::Scenario;

use super::state::{Flow, Probe};
use super::{KINDS, Kind, SUBJECT_BITS, Simulation};

/// A decision that the caller must make. A flow's probe response has arrived, or its arrival is
/// already certain, or the probe's loss is known.
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
    /// Multiply the flow's rate by this factor.
    Multiply(f64),
    /// Set this rate, bits per second.
    Rate(f64),
}

/// Controller of a flow whose decisions are made outside; see [`Simulation::outside`].
#[derive(Debug, Clone)]
pub struct External {
    initial_bps: f64,
    decision: Option<Decision>,
}

impl Controller for External {
    fn needs(&self) -> Needs {
        Needs::PROBES
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
    /// A simulation with decisions by the caller: [`Simulation::advance`] returns pending
    /// decisions, [`Simulation::decide`] takes them. `initial_bps` is a flow's first rate; where
    /// flows come and go it is the line rate.
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
        let mut next = self.held.take();
        if let Some(event) = next
            && let Some(flow) = self.undecided(event.what)
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
            if let Some(flow) = self.undecided(event.what) {
                let fresh = match &mut self.control.pending {
                    Some(pending) => std::mem::take(pending),
                    None => Vec::new(),
                };
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
            self.handle(event);
        }
    }

    /// Makes a decision that [`Simulation::advance`] returned.
    ///
    /// # Panics
    /// There is no such flow.
    pub fn decide(&mut self, flow: u32, decision: Decision) {
        self.control.controllers[flow as usize].decision = Some(decision);
    }

    /// The measurements up to now.
    pub fn finish(self) -> Outcome {
        self.outcome()
    }

    /// The flow of a probe response or loss that has no decision yet.
    fn undecided(&self, what: u32) -> Option<usize> {
        let flow = (what & ((1 << SUBJECT_BITS) - 1)) as usize;
        (KINDS[(what >> SUBJECT_BITS) as usize] == Kind::Response
            && self.control.controllers[flow].decision.is_none())
        .then_some(flow)
    }
}
