//! A rule of choice, run over logged connections.
//!
//! A rule that learns decides by its own past, and the log shows only what another rule chose. So
//! each connection takes part in the rule's past with the probability `min(1, rule / log)` of its
//! arm, and is otherwise passed over (after Dudík, Erhan, Langford and Li 2012). This assumes that
//! a connection's outcome depends on its own arm, not on earlier choices, and that those passed
//! over are like the others. Where the rule wants an arm more often than the log had it, it learns
//! about that arm more slowly than it would.

use std::collections::BTreeMap;

use thalweg_learner::{
    Decision, Host, Mode, ONE_Q16, Params, Reason, Sample, best_arm, cost_q16, decide,
    halve_evidence, propensities_q16, score,
};
use thalweg_units::random::mix;

use super::{ARMS, CLASSES, Decided, Estimate, Estimator, Size, TooSmall};

/// A rule of choice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// The learner, in the mode of its parameters.
    Learner(Params),
    /// The arm of the system, always.
    Default,
    /// Any permitted arm.
    Random,
}

/// A logged connection.
#[derive(Clone, Debug)]
pub struct Connection {
    /// Number of its host.
    pub host: u64,
    /// When its arm was chosen, ns.
    pub start_ns: u64,
    /// The system's arm; `None`: it is no arm of the table.
    pub system: Option<usize>,
    /// The arm it used from then on.
    pub arm: usize,
    /// Mask of permitted arms.
    pub allowed: u16,
    /// Control group: no rule may decide.
    pub control: bool,
    /// Probability of each arm.
    pub propensities: [f64; ARMS],
    /// Number of connections that it stands for.
    pub stands_for: f64,
    /// Stretches of the connection, in order.
    pub stretches: Vec<Stretch>,
}

/// A measured stretch of a connection.
#[derive(Clone, Copy, Debug)]
pub struct Stretch {
    /// When it ended, ns.
    pub end_ns: u64,
    /// Arm of the stretch; `None`: one that the table does not have.
    pub arm: Option<usize>,
    /// The measurement.
    pub sample: Sample,
}

/// The comparison of a rule with the log.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Outcome {
    /// Connections of the control group: the same under each rule.
    pub control: u64,
    /// Connections that delivered nothing, so that there is no rate.
    pub without_data: u64,
    /// The sample.
    pub size: Size,
    /// Cost in bits, by the learner's shipped parameters.
    pub cost: Estimate,
    /// log2 of the busy time per byte, µs.
    pub time: Estimate,
}

/// Update of the rule by a connection of its past.
#[derive(Clone, Debug)]
enum Lesson {
    Measured {
        host: u64,
        system: Option<usize>,
        stretch: Stretch,
    },
    TrialEnds {
        host: u64,
    },
}

/// A rule on its way through a log.
#[derive(Clone, Debug)]
pub struct Replay {
    rule: Rule,
    hosts: BTreeMap<u64, Host>,
    /// Lessons by the time when they are due, ns, and by number.
    lessons: BTreeMap<(u64, u64), Lesson>,
    number: u64,
    cost: Estimator,
    time: Estimator,
    control: u64,
    without_data: u64,
}

impl Replay {
    /// A rule that knows no host yet.
    pub fn new(rule: Rule) -> Self {
        Self {
            rule,
            hosts: BTreeMap::new(),
            lessons: BTreeMap::new(),
            number: 0,
            cost: Estimator::default(),
            time: Estimator::default(),
            control: 0,
            without_data: 0,
        }
    }

    /// Adds the next connection, in order of [`Connection::start_ns`].
    pub fn add_connection(&mut self, connection: &Connection) {
        self.learn_until(connection.start_ns);
        self.number += 1;
        let shares = if connection.control {
            self.control += 1;
            connection.propensities
        } else {
            self.arm_probabilities(connection)
        };
        let overlap = |i: usize| connection.propensities[i].min(shares[i]);
        let pace = match self.rule {
            Rule::Learner(_) => (0..ARMS).map(overlap).sum(),
            Rule::Default | Rule::Random => 1.0,
        };
        if !connection.control {
            self.add_estimates(connection, &shares, pace);
        }
        let chance = overlap(connection.arm) / connection.propensities[connection.arm];
        // Uniform and reproducible.
        let draw = mix(self.number) as f64 / u64::MAX as f64;
        if draw < chance {
            self.take_part(connection);
        }
    }

    /// The comparison, once all connections have been added.
    ///
    /// # Errors
    /// A sample too small.
    pub fn replay_outcome(&self) -> Result<Outcome, TooSmall> {
        Ok(Outcome {
            control: self.control,
            without_data: self.without_data,
            size: self.time.sample_size(),
            cost: self.cost.estimate()?,
            time: self.time.estimate()?,
        })
    }

    /// The rule's probability of each arm.
    fn arm_probabilities(&mut self, connection: &Connection) -> [f64; ARMS] {
        let Connection {
            system, allowed, ..
        } = *connection;
        let mut shares = [0.0; ARMS];
        match self.rule {
            Rule::Default => {}
            Rule::Random => {
                for (i, share) in shares.iter_mut().enumerate() {
                    let permitted = allowed >> i & 1 == 1;
                    *share = f64::from(u8::from(permitted)) / f64::from(allowed.count_ones());
                }
            }
            Rule::Learner(params) => {
                let now_ns = connection.start_ns;
                let host = self.hosts.entry(connection.host).or_default();
                // Classic counts a connection before it decides about it.
                host.connections += 1;
                if params.mode == Mode::Thalweg {
                    halve_evidence(host, &params, now_ns);
                }
                let known = propensities_q16(host, system, allowed, &params, now_ns);
                host.connections -= 1;
                shares = known.map(|share| f64::from(share) / f64::from(ONE_Q16));
            }
        }
        if shares.iter().all(|&share| share <= 0.0)
            && let Some(system) = system
        {
            shares[system] = 1.0;
        }
        shares
    }

    fn add_estimates(&mut self, connection: &Connection, shares: &[f64; ARMS], pace: f64) {
        let samples = || connection.stretches.iter().map(|stretch| &stretch.sample);
        let bytes: u64 = samples().map(|sample| sample.bytes).sum();
        let duration_us: u64 = samples().map(|sample| sample.duration_us).sum();
        let last = samples().next_back();
        let Some(srtt_us) = last.map(|sample| sample.srtt_us).filter(|_| bytes > 0) else {
            self.without_data += 1;
            return;
        };
        let duration_us = duration_us.max(1);
        let rate = thalweg_learner::rate_bytes_per_second(bytes, duration_us);
        let cost_q16 = cost_q16(rate, srtt_us, &Params::default());
        let decided = Decided {
            host: connection.host,
            class: size_class(bytes),
            arm: connection.arm,
            logged: &connection.propensities,
            rule: shares,
            stands_for: connection.stands_for,
            pace,
            outcome: (duration_us as f64 / bytes as f64).log2(),
        };
        self.time.add_decision(&decided);
        self.cost.add_decision(&Decided {
            outcome: cost_q16 as f64 / f64::from(ONE_Q16),
            ..decided
        });
    }

    /// Makes the connection part of the rule's past.
    fn take_part(&mut self, connection: &Connection) {
        let Rule::Learner(params) = self.rule else {
            return;
        };
        let &Connection {
            system,
            allowed,
            start_ns,
            ..
        } = connection;
        let host = self.hosts.entry(connection.host).or_default();
        host.connections = host.connections.saturating_add(1);
        host.seen_ns = start_ns;
        if connection.control {
            return self.schedule_update(connection, false);
        }
        let best = best_arm(host, system, allowed, &params);
        let reason = match best {
            None => Reason::WarmUp,
            Some(best) if best == connection.arm => Reason::Greedy,
            Some(_) if host.arms[connection.arm].weight_q16 == 0 => Reason::Untried,
            Some(_) => Reason::Explore,
        };
        // The same word as the rule's own: while it warms up, nothing is a trial.
        let warm = decide(host, system, allowed, &params, [0; 3], start_ns).reason;
        let reason = if warm == Reason::WarmUp { warm } else { reason };
        host.count_decision(&Decision {
            arm: Some(connection.arm),
            reason,
            propensity_q16: ONE_Q16,
        });
        if reason.is_trial() {
            host.begin_trial(start_ns);
        }
        self.schedule_update(connection, reason.is_trial());
    }

    fn schedule_update(&mut self, connection: &Connection, is_trial: bool) {
        let host = connection.host;
        let system = connection.system;
        // Its first measurement ends a trial.
        let first = connection.stretches.first();
        let trial_ns = first.map_or(connection.start_ns, |stretch| stretch.end_ns);
        if is_trial {
            self.push_update(trial_ns, Lesson::TrialEnds { host });
        }
        for &stretch in &connection.stretches {
            let lesson = Lesson::Measured {
                host,
                system,
                stretch,
            };
            self.push_update(stretch.end_ns, lesson);
        }
    }

    fn push_update(&mut self, at_ns: u64, lesson: Lesson) {
        self.number += 1;
        self.lessons.insert((at_ns, self.number), lesson);
    }

    fn learn_until(&mut self, now_ns: u64) {
        let Rule::Learner(params) = self.rule else {
            return;
        };
        while let Some(next) = self.lessons.first_entry()
            && next.key().0 <= now_ns
        {
            let ((at_ns, _), lesson) = next.remove_entry();
            match lesson {
                Lesson::TrialEnds { host } => self.hosts.entry(host).or_default().end_trial(),
                Lesson::Measured {
                    host,
                    system,
                    stretch,
                } => {
                    let host = self.hosts.entry(host).or_default();
                    if let Some(arm) = stretch.arm {
                        score(host, arm, system, &stretch.sample, &params, at_ns);
                    }
                }
            }
        }
    }
}

/// Class of a size: powers of four from 4 KiB.
pub(super) fn size_class(bytes: u64) -> usize {
    let log2 = bytes.max(1).ilog2() as usize;
    (log2.saturating_sub(10) / 2).min(CLASSES - 1)
}
