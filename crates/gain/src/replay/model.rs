//! A simple model of outcomes: means by class, host, arm, and host and arm, each shrunk towards the
//! one before.

use std::collections::BTreeMap;

use super::{ARMS, CLASSES, Decided};

/// Outcomes for which the coarser mean stands, of a host and of its arms.
const PRIOR: f64 = 2.0;
/// Outcomes for which the coarser mean stands, of classes and of arms on all hosts.
const PRIOR_ALL: f64 = 20.0;

/// A mean shrunk towards 0.
#[derive(Clone, Copy, Debug, Default)]
struct Mean {
    sum: f64,
    count: f64,
}

impl Mean {
    fn add(&mut self, value: f64) {
        self.sum += value;
        self.count += 1.0;
    }

    fn shrunk_to(&self, prior: f64) -> f64 {
        self.sum / (self.count + prior)
    }
}

/// Residuals of one host.
#[derive(Clone, Debug, Default)]
struct Host {
    all: Mean,
    arms: [Mean; ARMS],
}

/// The means so far.
#[derive(Clone, Debug, Default)]
pub(super) struct Model {
    all: Mean,
    classes: [Mean; CLASSES],
    arms: [Mean; ARMS],
    hosts: BTreeMap<u64, Host>,
}

impl Model {
    /// Whether it knows no outcome.
    pub fn is_empty(&self) -> bool {
        self.all.count == 0.0
    }

    /// Expected outcome of each arm.
    pub fn expected_outcomes(&self, host: u64, class: usize) -> [f64; ARMS] {
        let known = self.hosts.get(&host);
        let base = self.class_mean(class) + known.map_or(0.0, |host| host.all.shrunk_to(PRIOR));
        std::array::from_fn(|arm| {
            let own = known.map_or(0.0, |host| host.arms[arm].shrunk_to(PRIOR));
            base + self.arms[arm].shrunk_to(PRIOR_ALL) + own
        })
    }

    fn class_mean(&self, class: usize) -> f64 {
        // The overall mean alone has no prior: 0 is no more likely than another value.
        self.all.sum / self.all.count.max(1.0) + self.classes[class].shrunk_to(PRIOR_ALL)
    }

    /// Adds an outcome.
    pub fn learn_outcome(&mut self, decided: &Decided<'_>) {
        self.all.add(decided.outcome);
        let over_all = decided.outcome - self.all.sum / self.all.count;
        self.classes[decided.class].add(over_all);
        let over_class = decided.outcome - self.class_mean(decided.class);
        let host = self.hosts.entry(decided.host).or_default();
        host.all.add(over_class);
        // An arm's effect is taken within hosts: a rule that learns takes an arm where it is good.
        let over_host = over_class - host.all.shrunk_to(PRIOR);
        let arm = &mut self.arms[decided.arm];
        arm.add(over_host);
        host.arms[decided.arm].add(over_host - arm.shrunk_to(PRIOR_ALL));
    }
}
