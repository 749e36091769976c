//! Decisions a second with the cheapest of controllers, which keeps its rate.
//!
//! `python/benchmarks/batch.py` measures Python's batches against this figure.
//!
//! `cargo bench -p thalweg-sim --bench decisions -- SCENARIO SHARE ENVS DURATION_US` runs ENVS
//! simulations one by one. Every flow sends at SHARE of its line rate. It prints the decisions and
//! the processor time in seconds.

use std::path::Path;

use thalweg_sim::cc::{Context, Controller, Needs, Response, Setup};
use thalweg_sim::{Scenario, Simulation, Time};

struct Keep {
    share: f64,
}

impl Controller for Keep {
    fn required_signals(&self) -> Needs {
        Needs::PROBES
    }

    fn start_flow(&mut self, setup: &Setup, context: &mut Context<'_>) {
        context.command.rate_bps = setup.limit(self.share * setup.line_rate_bps);
    }

    fn on_response(&mut self, _: &Response<'_>, context: &mut Context<'_>) {
        context.command.rate_bps *= 1.0;
    }
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [file, share, envs, duration_us, ..] = arguments.as_slice() else {
        println!("expected SCENARIO SHARE ENVS DURATION_US");
        return;
    };
    let mut scenario = Scenario::load(Path::new(file)).expect("a scenario's file");
    scenario.duration = Time::from_us(duration_us.parse().expect("microseconds"));
    scenario.warmup = Time::ZERO;
    let share = share.parse().expect("a share of the line rate");
    let begin = processor_seconds();
    let decisions: u64 = (0..envs.parse().expect("a number of simulations"))
        .map(|seed| {
            let outcome = Simulation::new(&scenario, move |_, _| Keep { share }, seed).run();
            outcome.counts.decisions
        })
        .sum();
    println!("{decisions} {}", processor_seconds() - begin);
}

/// Processor time of this process, seconds.
fn processor_seconds() -> f64 {
    let text = std::fs::read_to_string("/proc/self/schedstat").expect("Linux");
    let nanoseconds: f64 = text
        .split(' ')
        .next()
        .and_then(|field| field.parse().ok())
        .expect("nanoseconds");
    nanoseconds * 1e-9
}
