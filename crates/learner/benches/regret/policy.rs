//! The exploration rules, in integers, so that they could run in BPF.
//!
//! All but the two of the published tuner share the estimates of `thalweg_learner::score`. So rows
//! of the table differ only by the rule of choice.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use thalweg_learner::{
    CLASSIC_EPSILON, Host, Long, MAX_ARMS, Mode, ONE_Q16, Outcome, Params, Sample,
    WORTH_OF_GROUP_Q16, adopt_wider, can_decide, classic_update, cost_q16, decide, decide_group,
    group_report, halve_evidence, inherit_group, is_due, log2_q16, review_connection, score,
    score_group,
};

use crate::random::Random;

/// The system's own arm.
pub const SYSTEM: usize = 0;
/// The arm that the learner tries first on lossy paths.
const BBR: usize = 1;

/// A learner as the agent would run it for one host.
pub trait Policy {
    /// The arm of a new connection.
    fn choose(&mut self, random: &mut Random, now_ns: u64) -> usize;
    /// The result of a connection on `arm`.
    fn learn(&mut self, arm: usize, sample: &Sample, now_ns: u64);
    /// Whether the stretch of a connection is scored; it may then go on with another arm.
    fn look(&mut self, _: &mut OnItsWay, _: &Sample, _: &mut Random, _: u64) -> bool {
        false
    }
}

/// A long connection on its way.
pub struct OnItsWay {
    /// Its arm.
    pub arm: usize,
    /// Age of its stretch, ns.
    pub age_ns: u64,
    /// Stretches scored on this arm.
    pub count: u32,
    /// When it was last decided anew, ns; 0: never.
    pub decided_ns: u64,
}

/// A place for a learner: a host's.
pub struct Seat {
    /// Number of arms.
    pub arms: usize,
    /// The groups that the host is in, the narrowest first.
    pub groups: Vec<Group>,
    /// What a wider group's knowledge of each arm is worth, Q16 measurements.
    pub worth: Worth,
    /// … and what the fleet told of the same group.
    pub fleet_worth: Worth,
}

/// Shared by all groups.
pub type Worth = Rc<Cell<[u32; MAX_ARMS]>>;

/// A group's record, shared by its hosts.
pub type Group = Rc<RefCell<Host>>;

impl Seat {
    /// A place without groups.
    pub fn alone(arms: usize) -> Self {
        Self {
            arms,
            groups: vec![],
            worth: Worth::default(),
            fleet_worth: Worth::default(),
        }
    }
}

/// A new learner for a host.
pub type Build = fn(&Seat) -> Box<dyn Policy>;

/// A row of the table.
pub struct Entry {
    /// Name in the table.
    pub name: &'static str,
    /// Whether the probability of each choice is known when it is made.
    pub propensity: &'static str,
    /// A new learner for a number of arms; `None` for the oracle, which needs none.
    pub build: Option<Build>,
}

/// Every row of the table.
pub const ENTRIES: &[Entry] = &[
    Entry {
        name: "oracle",
        propensity: "-",
        build: None,
    },
    Entry {
        name: "default only",
        propensity: "-",
        build: Some(|_| Box::new(DefaultOnly)),
    },
    Entry {
        name: "uniform random",
        propensity: "exact",
        build: Some(|seat| Box::new(Uniform { arms: seat.arms })),
    },
    Entry {
        name: "classic",
        propensity: "exact",
        build: Some(|seat| Box::new(Core::new(Mode::Classic, seat))),
    },
    Entry {
        name: "e-greedy, delta rule",
        propensity: "exact",
        build: Some(|seat| {
            Box::new(DeltaRule {
                values: vec![0; seat.arms],
            })
        }),
    },
    Entry {
        name: "e-greedy, discounted",
        propensity: "exact",
        build: Some(|seat| Box::new(EpsilonGreedy(Core::new(Mode::Thalweg, seat)))),
    },
    Entry {
        name: "discounted UCB",
        propensity: "0 or 1",
        build: Some(|seat| Box::new(UpperBound(Core::new(Mode::Thalweg, seat)))),
    },
    Entry {
        name: "Thompson sampling",
        propensity: "integral",
        build: Some(|seat| Box::new(Thompson(Core::new(Mode::Thalweg, seat)))),
    },
    Entry {
        name: "inverse gap, plain",
        propensity: "exact",
        build: Some(|seat| Box::new(InverseGap(Core::new(Mode::Thalweg, seat)))),
    },
    Entry {
        name: "thalweg (core)",
        propensity: "exact",
        build: Some(|seat| Box::new(Core::new(Mode::Thalweg, seat))),
    },
];

/// The learners that play in the worlds like servers'. All but the last are bad: the gate must see
/// it.
pub const GATE: &[(&str, Build)] = &[
    ("default only", |_| Box::new(DefaultOnly)),
    ("uniform random", |seat| {
        Box::new(Uniform { arms: seat.arms })
    }),
    ("always bbr", |_| Box::new(SecondAlways)),
    ("classic", |seat| Box::new(Core::new(Mode::Classic, seat))),
    ("ends only", |seat| {
        Box::new(Core::with(
            Params {
                rescue_arm: Some(BBR),
                stretch_ns: 0,
                ..Params::default()
            },
            seat,
        ))
    }),
    ("hosts alone", |seat| {
        Box::new(Core::new(Mode::Thalweg, &Seat::alone(seat.arms)))
    }),
    ("thalweg (core)", |seat| {
        Box::new(Core::new(Mode::Thalweg, seat))
    }),
];

/// The shipped code: `thalweg_learner::decide` and `score`.
pub struct Core {
    host: Host,
    groups: Vec<Group>,
    worth: Worth,
    fleet_worth: Worth,
    params: Params,
    arms: usize,
    /// Arms of the open trials.
    trials: Vec<usize>,
}

impl Core {
    /// A learner with the default parameters of `mode`.
    pub fn new(mode: Mode, seat: &Seat) -> Self {
        Self::with(
            Params {
                mode,
                rescue_arm: Some(BBR),
                ..Params::default()
            },
            seat,
        )
    }

    /// A learner with any parameters.
    pub fn with(params: Params, seat: &Seat) -> Self {
        Self {
            host: Host::default(),
            groups: seat.groups.clone(),
            worth: seat.worth.clone(),
            fleet_worth: seat.fleet_worth.clone(),
            params,
            arms: seat.arms,
            trials: vec![],
        }
    }

    /// The choice of the narrowest group that knows enough.
    fn by_group(&self, random: u32, now_ns: u64) -> Option<usize> {
        let (allowed, params) = (self.allowed(), &self.params);
        self.groups.iter().find_map(|group| {
            let group = &mut group.borrow_mut();
            let decision = decide_group(group, Some(SYSTEM), allowed, params, random, now_ns);
            decision?.arm
        })
    }

    fn allowed(&self) -> u16 {
        ((1u32 << self.arms) - 1) as u16
    }

    /// The arm of least `index`; the system's own before the first measurement. Ties are broken at
    /// random if `random` is given, else the first wins.
    fn least(&self, mut random: Option<&mut Random>, mut index: impl FnMut(usize) -> i64) -> usize {
        if self.host.scored < self.params.warm_up {
            return SYSTEM;
        }
        let (mut pick, mut least, mut ties) = (SYSTEM, i64::MAX, 0);
        for arm in 0..self.arms {
            let value = index(arm);
            if value < least {
                (pick, least, ties) = (arm, value, 1);
            } else if value == least {
                ties += 1;
                if random
                    .as_deref_mut()
                    .is_some_and(|r| r.u32().is_multiple_of(ties))
                {
                    pick = arm;
                }
            }
        }
        pick
    }
}

impl Policy for Core {
    fn choose(&mut self, random: &mut Random, now_ns: u64) -> usize {
        self.host.connections += 1;
        if self.params.mode == Mode::Thalweg {
            halve_evidence(&mut self.host, &self.params, now_ns);
        }
        let allowed = self.allowed();
        let numbers = [random.u32(), random.u32(), random.u32()];
        let system = Some(SYSTEM);
        if self.host.scored == 0
            && let Some(arm) = self.by_group(numbers[0], now_ns)
        {
            return arm;
        }
        let decision = decide(&self.host, system, allowed, &self.params, numbers, now_ns);
        self.host.count_decision(&decision);
        let arm = decision.arm.unwrap_or(SYSTEM);
        if decision.reason.is_trial() {
            self.host.begin_trial(now_ns);
            self.trials.push(arm);
        }
        arm
    }

    fn learn(&mut self, arm: usize, sample: &Sample, now_ns: u64) {
        if let Some(trial) = self.trials.iter().position(|&trial| trial == arm) {
            self.trials.remove(trial);
            self.host.end_trial();
        }
        let (system, params) = (Some(SYSTEM), self.params);
        let before = self.host.clone();
        let verdict = score(&mut self.host, arm, system, sample, &params, now_ns);
        if verdict.outcome != Outcome::Scored || self.groups.is_empty() {
            return;
        }
        let Some(told) = group_report(
            &before,
            &self.host,
            arm,
            system,
            sample,
            verdict.cost,
            verdict.weight_q16,
        ) else {
            return;
        };
        // The narrowest of the wider ones that knows.
        let mut wider: Option<Host> = None;
        for group in self.groups.iter().rev() {
            let group = &mut group.borrow_mut();
            let is_fleet = group.level.is_fleet();
            // No record: nothing was told of it.
            if is_fleet && group.scored == 0 {
                continue;
            }
            if !is_fleet {
                score_group(group, arm, system, &told, sample, &params, now_ns);
            }
            if let Some(wider) = &wider {
                let worth = match group.level.worth_of(wider.level).is_fleet() {
                    true => &self.fleet_worth,
                    false => &self.worth,
                };
                adopt_wider(group, wider, system, &worth.get());
            }
            if can_decide(group, system) {
                wider = Some(group.clone());
            }
        }
        if before.scored == 0 {
            // The narrowest that knows.
            let mut groups = self.groups.iter().map(|group| group.borrow());
            if let Some(group) = groups.find(|group| can_decide(group, system)) {
                inherit_group(&mut self.host, &group, arm, system, &WORTH_OF_GROUP_Q16);
            }
        }
    }

    fn look(
        &mut self,
        connection: &mut OnItsWay,
        sample: &Sample,
        random: &mut Random,
        now_ns: u64,
    ) -> bool {
        if self.params.mode == Mode::Classic
            || !is_due(
                connection.age_ns,
                sample.bytes,
                connection.count,
                &self.params,
            )
        {
            return false;
        }
        let long = Long {
            arm: Some(connection.arm),
            system_arm: Some(SYSTEM),
            trial: self.trials.contains(&connection.arm),
            decided_ns: connection.decided_ns,
        };
        self.learn(connection.arm, sample, now_ns);
        connection.count += 1;
        let allowed = self.allowed();
        let review = review_connection(
            &self.host,
            &long,
            allowed,
            &self.params,
            random.u32(),
            now_ns,
        );
        if let Some(review) = review {
            self.host.count_decision(&review.decision);
            let arm = review.decision.arm.unwrap_or(SYSTEM);
            if arm != connection.arm {
                (connection.arm, connection.count) = (arm, 0);
            }
            connection.decided_ns = now_ns;
            if review.trial {
                self.host.begin_trial(now_ns);
                self.trials.push(connection.arm);
            }
        }
        true
    }
}

/// The published tuner's favourite, whatever is measured: bbr, which is arm 1.
struct SecondAlways;

impl Policy for SecondAlways {
    fn choose(&mut self, _: &mut Random, _: u64) -> usize {
        BBR
    }

    fn learn(&mut self, _: usize, _: &Sample, _: u64) {}
}

/// The system without an agent.
struct DefaultOnly;

impl Policy for DefaultOnly {
    fn choose(&mut self, _: &mut Random, _: u64) -> usize {
        SYSTEM
    }

    fn learn(&mut self, _: usize, _: &Sample, _: u64) {}
}

/// Any arm, uniformly at random.
struct Uniform {
    arms: usize,
}

impl Policy for Uniform {
    fn choose(&mut self, random: &mut Random, _: u64) -> usize {
        random.u32() as usize % self.arms
    }

    fn learn(&mut self, _: usize, _: &Sample, _: u64) {}
}

/// The published choice and delta rule (a quarter of the way), on Thalweg's cost. An arm without a
/// result has 0, the lowest value, so each is tried first.
struct DeltaRule {
    values: Vec<u64>,
}

impl Policy for DeltaRule {
    fn choose(&mut self, random: &mut Random, _: u64) -> usize {
        if random.u32().is_multiple_of(CLASSIC_EPSILON) {
            return random.u32() as usize % self.values.len();
        }
        if self.values.iter().all(|&value| value == 0) {
            return SYSTEM;
        }
        let lowest = self.values.iter().min();
        let ties: Vec<usize> = (0..self.values.len())
            .filter(|&arm| Some(&self.values[arm]) == lowest)
            .collect();
        ties[random.u32() as usize % ties.len()]
    }

    fn learn(&mut self, arm: usize, sample: &Sample, _: u64) {
        let cost = cost_q16(sample.mean_rate(), sample.srtt_us, &Params::default());
        self.values[arm] = classic_update(self.values[arm], cost);
    }
}

/// One choice in 20 at random, else the lowest discounted mean; arms without a result come first.
struct EpsilonGreedy(Core);

impl Policy for EpsilonGreedy {
    fn choose(&mut self, random: &mut Random, _: u64) -> usize {
        if self.0.host.scored >= self.0.params.warm_up
            && random.u32().is_multiple_of(CLASSIC_EPSILON)
        {
            return random.u32() as usize % self.0.arms;
        }
        let arms = self.0.host.arms;
        self.0
            .least(Some(random), |arm| match arms[arm].weight_q16 {
                0 => -1,
                _ => arms[arm].value as i64,
            })
    }

    fn learn(&mut self, arm: usize, sample: &Sample, now_ns: u64) {
        self.0.learn(arm, sample, now_ns);
    }
}

/// Discounted UCB (Garivier and Moulines, 2011): lowest mean less `width · sqrt(log2(all evidence)
/// / evidence)`. Arms without a result come first.
struct UpperBound(Core);

/// A quarter of a bit. Over these scenarios 1/2 and 1 lose more. 1/8 loses as much on average, and
/// nearly twice as much in its worst run.
const UCB_WIDTH_SHIFT: u32 = 2;

impl Policy for UpperBound {
    fn choose(&mut self, _: &mut Random, _: u64) -> usize {
        let arms = &self.0.host.arms;
        let all_q16: u64 = arms.iter().map(|arm| u64::from(arm.weight_q16)).sum();
        // Subtracts the 16 bits of the scale.
        let log_q16 = u64::from(log2_q16(all_q16).saturating_sub(16 << 16));
        self.0.least(None, |arm| match arms[arm].weight_q16 {
            0 => -1,
            weight => {
                let radius_q16 = ((log_q16 << 32) / u64::from(weight)).isqrt();
                arms[arm].value as i64 - (radius_q16 >> UCB_WIDTH_SHIFT) as i64
            }
        })
    }

    fn learn(&mut self, arm: usize, sample: &Sample, now_ns: u64) {
        self.0.learn(arm, sample, now_ns);
    }
}

/// Thompson sampling: lowest draw from a Gaussian of the discounted mean and its error.
/// An arm without a result is drawn around the lowest mean with a wide prior.
struct Thompson(Core);

/// Prior standard deviation of an arm without a result: 2 bits.
const PRIOR_Q16: i64 = 2 << 16;
/// Least standard deviation of one measurement, an eighth of a bit: a new arm's deviation is 0.
const NOISE_MIN_Q16: u64 = 1 << 13;

/// Standard normal in Q16: the sum of twelve uniform numbers.
fn normal_q16(random: &mut Random) -> i64 {
    let sum: i64 = (0..6)
        .map(|_| random.u32())
        .map(|pair| i64::from(pair >> 16) + i64::from(pair & 0xffff))
        .sum();
    sum - 6 * i64::from(ONE_Q16)
}

impl Policy for Thompson {
    fn choose(&mut self, random: &mut Random, _: u64) -> usize {
        let arms = &self.0.host.arms;
        let lowest = arms
            .iter()
            .filter(|arm| arm.weight_q16 > 0)
            .map(|arm| arm.value)
            .min();
        self.0.least(None, |index| {
            let arm = &arms[index];
            let draw_q16 = normal_q16(random);
            if arm.weight_q16 == 0 {
                return lowest.unwrap_or(0) as i64 + ((PRIOR_Q16 * draw_q16) >> 16);
            }
            // A Gaussian's standard deviation is 5/4 of its mean absolute one.
            let noise_q16 = NOISE_MIN_Q16 + u64::from(arm.deviation_q16) * 5 / 4;
            let root_q16 = (u64::from(arm.weight_q16) << 16).isqrt();
            let error_q16 = ((noise_q16 << 16) / root_q16.max(1)) as i64;
            arm.value as i64 + ((error_q16 * draw_q16) >> 16)
        })
    }

    fn learn(&mut self, arm: usize, sample: &Sample, now_ns: u64) {
        self.0.learn(arm, sample, now_ns);
    }
}

/// Inverse gap weighting without preference for the system's arm. An arm behind the lowest mean has
/// probability `1 / (2 · arms + gap_scale · gap · evidence)`; first trials share a half. All else
/// in `thalweg_learner` is its own.
struct InverseGap(Core);

impl Policy for InverseGap {
    fn choose(&mut self, random: &mut Random, _: u64) -> usize {
        let Core {
            host, params, arms, ..
        } = &self.0;
        let arms = &host.arms[..*arms];
        if host.scored < params.warm_up {
            return SYSTEM;
        }
        let measured = (0..arms.len()).filter(|&arm| arms[arm].weight_q16 > 0);
        let best = measured
            .min_by_key(|&arm| arms[arm].value)
            .unwrap_or(SYSTEM);
        let untried = arms.iter().filter(|arm| arm.weight_q16 == 0).count() as u64;
        let mut ticket = u64::from(random.u32() % ONE_Q16);
        for (index, arm) in arms.iter().enumerate().filter(|&(index, _)| index != best) {
            let share_q16 = if arm.weight_q16 == 0 {
                u64::from(ONE_Q16 / 2) / untried
            } else {
                let gap_q16 = arm.value - arms[best].value;
                let known_q16 = (gap_q16 * u64::from(arm.weight_q16)) >> 16;
                let base_q16 = 2 * arms.len() as u64 * u64::from(ONE_Q16);
                (1 << 32) / (base_q16 + u64::from(params.gap_scale) * known_q16)
            };
            if ticket < share_q16 {
                return index;
            }
            ticket -= share_q16;
        }
        best
    }

    fn learn(&mut self, arm: usize, sample: &Sample, now_ns: u64) {
        self.0.learn(arm, sample, now_ns);
    }
}
