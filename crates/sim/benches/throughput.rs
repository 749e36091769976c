//! How fast the simulator is: packets a second by number of flows, with a small neural network
//! that decides at each answer to a probe, and what a second thread adds.
//!
//! `cargo bench -p thalweg-sim --bench throughput -- [FLOWS…]`, or no number for all.

use std::time::Instant;

use thalweg_sim::cc::{Context, Controller, Needs, Response, Setup};
use thalweg_sim::scenario::{Hosts, Link, Network, Recovery, Topology, Workload};
use thalweg_sim::{Outcome, Scenario, Simulation, Time};

/// 4-12-12-1, rectified linear units and a hyperbolic tangent: the size of network that ADPG
/// uses. The weights let it follow `infl·√rate = target` so that the load is realistic.
struct Weights {
    first: [[f32; 12]; 4],
    second: [[f32; 12]; 12],
    third: [f32; 12],
}

impl Weights {
    fn new() -> Self {
        // Two units carry the positive and the negative part of the error to the end; the
        // others compute as much and add nothing.
        let mut weights = Self {
            first: [[0.01; 12]; 4],
            second: [[0.01; 12]; 12],
            third: [0.0; 12],
        };
        for unit in 0..2 {
            let sign = if unit == 0 { 1.0 } else { -1.0 };
            weights.first.iter_mut().for_each(|row| row[unit] = 0.0);
            weights.first[1][unit] = sign;
            weights.second.iter_mut().for_each(|row| row[unit] = 0.0);
            weights.second[unit][unit] = 1.0;
            weights.third[unit] = sign;
        }
        weights
    }

    fn decide(&self, inputs: [f32; 4]) -> f32 {
        let mut hidden = [0.0f32; 12];
        for (input, row) in inputs.iter().zip(&self.first) {
            for (sum, weight) in hidden.iter_mut().zip(row) {
                *sum += input * weight;
            }
        }
        let mut second = [0.0f32; 12];
        for (input, row) in hidden.iter().zip(&self.second) {
            let input = input.max(0.0);
            for (sum, weight) in second.iter_mut().zip(row) {
                *sum += input * weight;
            }
        }
        let last: f32 = second
            .iter()
            .zip(&self.third)
            .map(|(input, weight)| input.max(0.0) * weight)
            .sum();
        last.tanh()
    }
}

struct Learned<'a> {
    weights: &'a Weights,
    base_rtt: f32,
    line: f32,
    /// Last multiplier and error, and those before.
    history: [f32; 4],
}

impl Controller for Learned<'_> {
    fn needs(&self) -> Needs {
        Needs {
            probes: true,
            ..Needs::default()
        }
    }

    fn start(&mut self, setup: &Setup, context: &mut Context<'_>) {
        self.base_rtt = setup.base_rtt.secs() as f32;
        self.line = setup.line_rate_bps as f32;
        context.command.rate_bps = setup.line_rate_bps / f64::from(setup.expected_flows);
    }

    fn on_response(&mut self, response: &Response<'_>, context: &mut Context<'_>) {
        let inflation = response.rtt.secs() as f32 / self.base_rtt;
        let rate = context.command.rate_bps as f32 / self.line;
        let error = 0.06 - inflation * rate.sqrt();
        self.history = [self.history[2], self.history[3], self.history[2], error];
        self.history[1] = error;
        let action = self.weights.decide(self.history);
        let factor = if action >= 0.0 {
            1.0 + 0.2 * action
        } else {
            1.0 / (1.0 - 0.2 * action)
        };
        self.history[2] = factor;
        context.command.rate_bps *= f64::from(factor);
    }
}

fn many_to_one(flows: u32, duration: Time) -> Scenario {
    let link = Link {
        rate_bps: 100_000_000_000,
        delay: Time::from_us(1),
        queue_bytes: 10 << 20,
    };
    let senders = flows.min(64);
    Scenario {
        name: format!("{flows}-to-1"),
        description: String::new(),
        duration,
        warmup: Time::from_ps(duration.ps() / 4),
        topology: Topology::Star { hosts: senders + 1 },
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
        },
        workload: Workload::ManyToOne { senders, flows },
        series: None,
        expect: Vec::new(),
    }
}

fn run(scenario: &Scenario, weights: &'static Weights, seed: u64) -> Outcome {
    Simulation::new(
        scenario,
        |_, _| Learned {
            weights,
            base_rtt: 0.0,
            line: 0.0,
            history: [1.0, 0.0, 1.0, 0.0],
        },
        seed,
    )
    .run()
}

fn main() {
    let asked: Vec<u32> = std::env::args()
        .filter_map(|text| text.parse().ok())
        .collect();
    let flows = if asked.is_empty() {
        vec![64, 512, 2048, 8192]
    } else {
        asked.clone()
    };
    // For the rest of the process: every flow has a reference.
    let weights: &Weights = Box::leak(Box::new(Weights::new()));
    println!("2 simulated seconds at 100 Gbit/s, packets of 1 KiB, one decision an answer");
    println!("flows  wall s  Mpackets/s  Mevents/s  decisions  SU %   FR %   QL us  loss %");
    for flows in flows {
        let scenario = many_to_one(flows, Time::from_us(2_000_000));
        let begin = Instant::now();
        let outcome = run(&scenario, weights, 1);
        let wall = begin.elapsed().as_secs_f64();
        let counts = outcome.counts;
        println!(
            "{flows:5} {wall:7.2} {:11.2} {:10.2} {:10} {:6.2} {:6.2} {:7.2} {:7.3}",
            counts.sent_packets as f64 / wall * 1e-6,
            counts.events as f64 / wall * 1e-6,
            counts.decisions,
            outcome.utilisation_percent,
            outcome.fairness_percent,
            outcome.queue_latency.mean_us,
            outcome.dropped_percent,
        );
    }
    if asked.is_empty() {
        let scenario = many_to_one(1024, Time::from_us(400_000));
        let alone = Instant::now();
        run(&scenario, weights, 1);
        run(&scenario, weights, 2);
        let alone = alone.elapsed();
        let together = Instant::now();
        std::thread::scope(|scope| {
            for seed in 1..=2 {
                let (scenario, weights) = (&scenario, &weights);
                scope.spawn(move || run(scenario, weights, seed));
            }
        });
        println!(
            "two runs on two threads: {:.2} times as fast as one after the other",
            alone.as_secs_f64() / together.elapsed().as_secs_f64()
        );
    }
}
