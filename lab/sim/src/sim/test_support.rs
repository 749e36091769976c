//! Scenarios and controllers for tests.

use crate::Time;
use crate::cc::{Context, Controller, Needs, Response, Setup};
use crate::scenario::{FlowPlan, Hosts, Link, Network, Recovery, Scenario, Topology, Workload};

/// 100 Gbit/s, 1 µs a link, 1 KiB packets.
pub(crate) fn many_to_one(flows: u32) -> Scenario {
    let link = Link {
        rate_bps: 100_000_000_000,
        delay: Time::from_us(1),
        queue_bytes: 10 << 20,
        bucket_bytes: 0,
    };
    Scenario {
        name: "test".into(),
        description: String::new(),
        duration: Time::from_us(5_000),
        warmup: Time::from_us(2_000),
        topology: Topology::Star { hosts: 9 },
        network: Network {
            link,
            fabric: link,
            packet_bytes: 1024,
            answer_bytes: 64,
            base_rtt: Some(Time::from_us(12)),
            ecn: None,
            pause: None,
            explicit_queues: false,
        },
        hosts: Hosts {
            burst_packets: 1,
            start_spread: Time::from_us(1_000),
            reaction: Time::from_us(1),
            min_rate_bps: 1_000_000,
            recovery: Recovery::SelectiveRepeat,
            timeout: Time::from_us(4_000),
            linux: None,
        },
        workload: Workload::ManyToOne { senders: 8, flows },
        series: None,
        expect: Vec::new(),
        only_bounds_harm: false,
    }
}

/// Listed flows: from, to, packets, start.
pub(crate) fn listed_flows(flows: &[(u32, u32, Option<u64>, Time)]) -> Scenario {
    let mut scenario = many_to_one(1);
    scenario.warmup = Time::ZERO;
    scenario.workload = Workload::Flows(
        flows
            .iter()
            .map(|(from, to, packets, start)| FlowPlan {
                from: *from,
                to: *to,
                bytes: packets.map(|packets| packets * 1024),
                start: Some(*start),
            })
            .collect(),
    );
    scenario
}

/// Sends at one rate, whatever happens.
#[derive(Debug, Clone)]
pub(crate) struct Constant(pub f64);

impl Controller for Constant {
    fn required_signals(&self) -> Needs {
        Needs::default()
    }

    fn start_flow(&mut self, _: &Setup, context: &mut Context<'_>) {
        context.command.rate_bps = self.0;
    }
}

/// Multiplies the rate by at most a fifth up or down, towards `infl·√rate = target`.
#[derive(Debug, Clone)]
pub(crate) struct Proportional {
    pub target: f64,
    pub base_rtt: f64,
    pub line: f64,
}

impl Proportional {
    pub fn new(setup: &Setup) -> Self {
        Self {
            target: 0.5,
            base_rtt: setup.base_rtt.secs(),
            line: setup.line_rate_bps,
        }
    }

    pub fn rate_multiplier(&self, rtt: Time, rate_bps: f64) -> f64 {
        let signal = rtt.secs() / self.base_rtt * (rate_bps / self.line).sqrt();
        1.0 + 0.2 * (self.target - signal).clamp(-1.0, 1.0)
    }
}

impl Proportional {
    /// Factor after a loss: the later the loss was known, the lower.
    pub fn after_loss(known_after: Time) -> f64 {
        1.0 / (1.1 + known_after.secs() * 1e2)
    }
}

impl Controller for Proportional {
    fn required_signals(&self) -> Needs {
        Needs::PROBES
    }

    fn start_flow(&mut self, setup: &Setup, context: &mut Context<'_>) {
        context.command.rate_bps = setup.line_rate_bps / 20.0;
    }

    fn on_response(&mut self, response: &Response<'_>, context: &mut Context<'_>) {
        let rate = &mut context.command.rate_bps;
        *rate *= self.rate_multiplier(response.rtt, *rate);
    }

    fn on_probe_lost(&mut self, response: &Response<'_>, context: &mut Context<'_>) {
        context.command.rate_bps *= Self::after_loss(response.rtt);
    }
}
