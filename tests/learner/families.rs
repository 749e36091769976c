//! Groups: a wide one, narrow ones in it one after the other, and hosts in those.

use std::collections::BTreeMap;

use thalweg_bpf_types::{host_from_raw, host_to_raw, raw as abi};
use thalweg_learner::{ArmState, Host, HostKey, Level, OFFSET_Q16, can_decide, note_cautions};
use thalweg_tests::{Request, raw};

use crate::compare::Comparison;
use crate::random_inputs::{
    NO_ARM, ONE, Random, SECOND_NS, Samples, bulk, corners, default_params, extreme, limited,
    members, overflowing, queueing, stalling, stretches,
};

/// Narrow groups of a family.
const NARROW: usize = 3;

/// A family: parameters, and the sources of its steps.
pub struct Plan {
    pub name: &'static str,
    params: abi::thalweg_params,
    samples: Samples,
    masks: &'static [u32],
    systems: &'static [u32],
    noise: u64,
    /// Worth of a wider group's knowledge, measurements.
    worth: u32,
    /// Longest time between two connections, seconds.
    elapse: u64,
    hosts: usize,
    /// Connections of a host, about.
    revisits: usize,
    steps: usize,
    /// The level of the narrow groups.
    level: Level,
    /// Whether other agents told of the narrow groups.
    is_told: bool,
}

fn plan(name: &'static str, change: impl FnOnce(&mut Plan)) -> Plan {
    let mut plan = Plan {
        name,
        params: default_params(),
        samples: bulk,
        masks: &[0xf],
        systems: &[0],
        noise: 50,
        worth: 8,
        elapse: 60,
        hosts: 50,
        revisits: 3,
        steps: 120,
        level: Level::Prefix,
        is_told: false,
    };
    change(&mut plan);
    plan
}

/// Every family.
pub fn plans() -> Vec<Plan> {
    vec![
        plan("a network", |_| ()),
        plan("a network, knowledge of little worth", |p| {
            (p.noise, p.worth) = (400, 1);
        }),
        plan("a network, knowledge of much worth", |p| {
            (p.noise, p.worth) = (200, 500);
        }),
        plan("hosts whose arms overflow a queue", |p| {
            (p.samples, p.noise) = (overflowing, 200);
        }),
        plan("hosts behind a full bottleneck", |p| {
            (p.samples, p.noise) = (queueing, 300);
        }),
        plan("hosts whose arms stall", |p| {
            (p.samples, p.noise) = (stalling, 100);
        }),
        plan("hosts limited by receivers and buffers", |p| {
            p.samples = limited;
        }),
        plan("parts of long connections", |p| {
            (p.samples, p.hosts, p.revisits) = (stretches, 10, 30);
        }),
        plan("defaults that differ", |p| {
            (p.systems, p.masks) = (&[0, 0, 0, 1, NO_ARM], &[0xf, 0xe]);
        }),
        plan("one host", |p| (p.hosts, p.revisits) = (1, 300)),
        plan("a network, sixteen arms", |p| {
            (p.masks, p.systems, p.steps) = (&[0xffff], &[5], 200);
        }),
        plan("a network, hours of silence", |p| p.elapse = 40_000),
        plan("a half-life beyond any clock", |p| {
            p.params.half_life_ns = 1 << 63;
        }),
        plan("much evidence", |p| {
            (p.params.weight_max_q16, p.params.idle_shift) = (1 << 28, 31);
            (p.worth, p.steps) = (1 << 15, 100);
        }),
        plan("a network, one field at its end", |p| {
            (p.samples, p.params.score_min_bytes) = (corners, 0);
        }),
        plan("a network, all fields extreme", |p| {
            (p.samples, p.masks) = (extreme, &[0xffff]);
            p.params.score_min_bytes = 0;
            (p.params.latency_weight_q16, p.params.latency_guard_us) = (u32::MAX, 0);
        }),
        plan("a prefix of which others told", |p| {
            (p.is_told, p.steps) = (true, 200);
        }),
        plan("a named network of which others told", |p| {
            (p.is_told, p.level) = (true, Level::Named);
            (p.noise, p.elapse) = (300, 20_000);
        }),
    ]
}

/// An empty record.
pub fn empty_record(level: Level) -> abi::thalweg_host {
    abi::thalweg_host {
        level: level as u32,
        ..Default::default()
    }
}

/// A record of the fleet about the narrow groups, as the agent writes it: never scored.
fn told_record(level: Level, now_ns: u64) -> abi::thalweg_host {
    let mut told = Host {
        level: level.fleet_level().expect("a level that is shared"),
        scored: 1,
        step: 96,
        step_scored: 24,
        seen_ns: now_ns,
        forgot_ns: now_ns,
        ..Host::default()
    };
    for (arm, index) in told.arms.iter_mut().zip(0..3) {
        let (cost_q16, weight_q16) = (OFFSET_Q16 - index * ONE / 2, (12 + 4 * index) * ONE);
        *arm = ArmState {
            value: cost_q16.into(),
            own_q16: cost_q16,
            weight_q16,
            own_weight_q16: weight_q16,
            log_rate_q16: OFFSET_Q16 + index * ONE / 2,
            deviation_q16: ONE / 3,
            segs: 20_000,
            retrans: 10 * index,
            ..ArmState::default()
        };
    }
    note_cautions(&mut told, Some(0));
    abi::thalweg_host {
        tag: 0,
        tag_tail: 0,
        ..host_to_raw(&HostKey::from(std::net::Ipv4Addr::UNSPECIFIED), &told)
    }
}

/// Prior weights of a wider group's knowledge, which differ by arm.
pub fn worth(measurements: u32) -> abi::thalweg_worth {
    let worth = u64::from(measurements) * u64::from(ONE);
    abi::thalweg_worth {
        arms_q16: std::array::from_fn(|arm| (worth >> (arm % 3)) as u32),
    }
}

/// The records of a family.
struct Records {
    hosts: BTreeMap<usize, abi::thalweg_host>,
    narrow: [abi::thalweg_host; NARROW],
    wide: abi::thalweg_host,
    told: Option<abi::thalweg_host>,
}

/// Whether a record can_decide enough of the system's arm.
fn is_known(record: &abi::thalweg_host, system_arm: u32) -> bool {
    let system = (system_arm != NO_ARM).then_some(system_arm as usize);
    can_decide(&host_from_raw(record), system)
}

/// Draws the steps of a family.
pub fn run(plan: &Plan, comparison: &mut Comparison) {
    let mut r = Random::new(plan.name, comparison.seed);
    let mut now_ns = 1_000 * SECOND_NS;
    let mut records = Records {
        hosts: BTreeMap::new(),
        narrow: [empty_record(plan.level); NARROW],
        wide: abi::thalweg_host {
            // Measurements of the system's arm that the fleet told of.
            step: match plan.is_told {
                true => 0,
                false => r.pick(&[0, 20, 40]),
            },
            ..empty_record(Level::Namespace)
        },
        told: plan.is_told.then(|| told_record(plan.level, now_ns)),
    };
    for step in 0..plan.steps {
        comparison.step = step;
        // Each host comes a number of times, then others do.
        let host = (step / plan.revisits + r.below(3) as usize).min(plan.hosts - 1);
        let narrow = step * NARROW / plan.steps;
        let common = Request {
            params: plan.params,
            worth: worth(plan.worth),
            allowed: r.pick(plan.masks),
            system_arm: r.pick(plan.systems),
            ..Request::default()
        };
        now_ns += r.below(plan.elapse * SECOND_NS);
        let connects = Request {
            random: [r.u32() | r.pick(&[0, 0, 0xf000]), 0, 0],
            now_ns,
            ..common
        };
        let arm = records.connect(comparison, host, narrow, connects);
        let arm = match r.one_in(6) || arm == NO_ARM {
            true => r.pick(&members(plan.masks[0])),
            false => arm,
        };
        now_ns += r.below(SECOND_NS);
        let ends = Request {
            arm,
            now_ns,
            trial: 1,
            sample: (plan.samples)(&mut r, arm, plan.noise),
            ..common
        };
        records.score(comparison, host, narrow, ends);
    }
}

/// Asks about a record; returns the answer, whose record replaces it.
pub fn ask(
    comparison: &mut Comparison,
    function: u32,
    record: &mut abi::thalweg_host,
    request: Request,
) -> Request {
    let answer = comparison.ask(Request {
        function,
        host: *record,
        ..request
    });
    *record = answer.host;
    answer
}

impl Records {
    /// A connection; returns its arm. The host decides, or the narrowest group that can_decide.
    fn connect(
        &mut self,
        comparison: &mut Comparison,
        host: usize,
        narrow: usize,
        request: Request,
    ) -> u32 {
        let own = self.hosts.entry(host).or_default();
        let mut decider = None;
        if own.scored == 0 {
            let groups = [
                Some(&mut self.narrow[narrow]),
                self.told.as_mut(),
                Some(&mut self.wide),
            ];
            for group in groups.into_iter().flatten() {
                // Evidence is lost with time before a group is asked.
                let asked = ask(comparison, raw::VECTOR_KNOWS, group, request);
                if asked.outputs[0] == 1 && decider.is_none() {
                    decider = Some(group);
                }
            }
        }
        let decider = decider.unwrap_or(own);
        ask(comparison, raw::VECTOR_CONNECT, decider, request).outputs[0] as u32
    }

    /// A measurement, told to both groups, from wide to narrow, each from the last one that can_decide.
    fn score(&mut self, comparison: &mut Comparison, host: usize, narrow: usize, request: Request) {
        let own = self.hosts.entry(host).or_default();
        let group = &mut self.narrow[narrow];
        let is_new = own.scored == 0;
        let scored = ask(comparison, raw::VECTOR_SCORE, own, request);
        if scored.report.weight_q16 > 0 {
            let reports = Request {
                report: scored.report,
                ..request
            };
            ask(comparison, raw::VECTOR_SCORE_GROUP, &mut self.wide, reports);
            ask(comparison, raw::VECTOR_SCORE_GROUP, group, reports);
            let mut wider = self.wide;
            if let Some(told) = &mut self.told {
                ask(
                    comparison,
                    raw::VECTOR_ADOPT,
                    told,
                    Request { wider, ..request },
                );
                if is_known(told, request.system_arm) {
                    wider = *told;
                }
            }
            ask(
                comparison,
                raw::VECTOR_ADOPT,
                group,
                Request { wider, ..request },
            );
        }
        if is_new && scored.outputs[0] == u64::from(abi::THALWEG_SCORED) {
            let wider = *group;
            ask(
                comparison,
                raw::VECTOR_INHERIT,
                own,
                Request { wider, ..request },
            );
        }
    }
}
