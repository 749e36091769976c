//! Many runs at once.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use crate::cc::{Controller, Spec, SpecError};
use crate::{Outcome, Progress, Scenario, Simulation};

/// Time between two reports of a run.
const INTERVAL: Duration = Duration::from_millis(200);

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
    pub fn check_hosts(&self) -> Result<(), SpecError> {
        let needs = self.controller.build().required_signals();
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

    /// Runs the job; none if `stop` became true before the end. `report` hears several times a
    /// second how far it is.
    pub fn run_job(&self, stop: &AtomicBool, mut report: impl FnMut(Progress)) -> Option<Outcome> {
        let controller = self.controller.clone();
        let mut last = Instant::now();
        Simulation::new(self.scenario, move |_, _| controller.build(), self.seed).run_while(
            |progress| {
                if last.elapsed() >= INTERVAL {
                    last = Instant::now();
                    report(progress);
                }
                !stop.load(Ordering::Relaxed)
            },
        )
    }
}

/// Runs all jobs on up to `threads` threads, in order as threads become free. `report` is called on
/// the calling thread with the index of a job and how far it is: several times a second while it
/// runs, and once with the scenario's duration when it has ended. Outcomes are in the order of the
/// jobs and do not depend on the number of threads. Once `stop` is true the rest is missing.
pub fn run_sweep(
    jobs: &[Job<'_>],
    threads: usize,
    stop: &AtomicBool,
    mut report: impl FnMut(usize, Progress),
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
                    let outcome = job.run_job(stop, |progress| {
                        // Nobody listens only where the caller has panicked.
                        let _ = send.send((place, progress, None));
                    });
                    let Some(outcome) = outcome else { return };
                    let progress = Progress {
                        now: job.scenario.duration,
                        sent_packets: outcome.counts.sent_packets,
                        dropped_packets: outcome.counts.dropped_packets,
                    };
                    if send.send((place, progress, Some(outcome))).is_err() {
                        return;
                    }
                }
            });
        }
        drop(send);
        for (place, progress, outcome) in receive {
            if outcome.is_some() {
                outcomes[place] = outcome;
            }
            report(place, progress);
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
            job.check_hosts().map_err(|error| error.to_string())
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
