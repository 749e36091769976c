//! Many runs at once.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc;

use crate::cc::Spec;
use crate::{Outcome, Scenario, Simulation};

/// One run.
#[derive(Debug, Clone, Copy)]
pub struct Job<'a> {
    /// The scenario.
    pub scenario: &'a Scenario,
    /// The controller of its flows.
    pub controller: &'a Spec,
    /// Seed.
    pub seed: u64,
}

impl Job<'_> {
    /// Runs the job; none if `stop` became true before the end.
    pub fn run(&self, stop: &AtomicBool) -> Option<Outcome> {
        let controller = self.controller.clone();
        Simulation::new(self.scenario, move |_, _| controller.build(), self.seed)
            .run_while(|_| !stop.load(Ordering::Relaxed))
    }
}

/// Runs all jobs on up to `threads` threads, in order as threads become free. `done` is called on
/// the calling thread with the index of each finished job. Outcomes are in the order of the jobs
/// and do not depend on the number of threads. Once `stop` is true the rest is missing.
pub fn sweep(
    jobs: &[Job<'_>],
    threads: usize,
    stop: &AtomicBool,
    mut done: impl FnMut(usize),
) -> Vec<Option<Outcome>> {
    let mut outcomes: Vec<Option<Outcome>> = Vec::new();
    outcomes.resize_with(jobs.len(), || None);
    let next = AtomicUsize::new(0);
    let (send, receive) = mpsc::channel();
    std::thread::scope(|scope| {
        for _ in 0..threads.clamp(1, jobs.len().max(1)) {
            let (send, next) = (send.clone(), &next);
            scope.spawn(move || {
                loop {
                    let place = next.fetch_add(1, Ordering::Relaxed);
                    let Some(job) = jobs.get(place) else { return };
                    let outcome = job.run(stop);
                    if outcome.is_none() || send.send((place, outcome)).is_err() {
                        return;
                    }
                }
            });
        }
        drop(send);
        for (place, outcome) in receive {
            outcomes[place] = outcome;
            done(place);
        }
    });
    outcomes
}
