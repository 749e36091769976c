//! Many runs at once.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc;

use crate::cc::{Controller, Spec, SpecError};
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
    /// Checks that the scenario's hosts can run the controller.
    ///
    /// # Errors
    /// It needs Linux's TCP and the hosts have network cards, or it needs these.
    pub fn check(&self) -> Result<(), SpecError> {
        let needs = self.controller.build().needs();
        let is_of_nics =
            needs.probes || needs.telemetry || needs.sent || needs.notifications.is_some();
        let (found, expected) = match self.scenario.hosts.linux {
            None if needs.tcp => (
                "of the sender \"nic\"",
                "`sender = \"linux\"` in [hosts] is expected",
            ),
            Some(_) if is_of_nics => (
                "of the sender \"linux\"",
                "a controller that goes by ACKs alone is expected: cubic, dctcp, swift, fixed or \
                 thalweg-rl",
            ),
            _ => return Ok(()),
        };
        Err(SpecError::Hosts {
            controller: self.controller.name(),
            scenario: self.scenario.name.clone(),
            found,
            expected,
        })
    }

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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenario::Linux;
    use crate::sim::test_support::many_to_one;

    #[test]
    fn controllers_need_their_hosts() {
        let nics = many_to_one(2);
        let mut linux = nics.clone();
        linux.hosts.linux = Some(Linux::default());
        let check = |scenario: &Scenario, name: &str| {
            let job = Job {
                scenario,
                controller: &name.parse().unwrap(),
                seed: 1,
            };
            job.check().map_err(|error| error.to_string())
        };
        for name in ["dctcp", "swift", "fixed"] {
            assert_eq!(check(&nics, name), Ok(()));
            assert_eq!(check(&linux, name), Ok(()));
        }
        assert_eq!(check(&linux, "cubic"), Ok(()));
        assert_eq!(
            check(&nics, "cubic").unwrap_err(),
            "cubic: the hosts of test are of the sender \"nic\"; `sender = \"linux\"` in [hosts] is \
             expected"
        );
        for name in ["hpcc", "dcqcn", "timely", "proportional"] {
            let error = check(&linux, name).unwrap_err();
            assert!(error.contains("goes by ACKs alone is expected"), "{error}");
        }
    }
}
