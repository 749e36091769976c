//! Lives of host records: connections, measurements, changes and reviews, step by step.

use thalweg_bpf_types::{host_to_raw, raw as abi};
use thalweg_learner::{ArmState, Host, HostKey};
use thalweg_tests::{Request, raw};

use crate::compare::Comparison;
use crate::random_inputs::{
    HOUR_NS, MINUTE_NS, NO_ARM, ONE, Random, SECOND_NS, Samples, bulk, corners, default_params,
    equal, extreme, jumping, limited, members, odd, overflowing, queueing, stalling, stretches,
};

/// A sequence: parameters, and the sources of its steps.
pub struct Plan {
    pub name: &'static str,
    params: abi::thalweg_params,
    samples: Samples,
    /// Masks of allowed arms.
    masks: &'static [u32],
    /// Arms of the system.
    systems: &'static [u32],
    noise: u64,
    /// Draws the time from one measurement to the next, ns.
    elapse: fn(&mut Random) -> u64,
    first_ns: u64,
    steps: usize,
    /// Whether the clock runs back at times.
    back: bool,
    start: Host,
    /// Whether long connections are reviewed, instead of changed by their losses.
    reviews: bool,
}

fn plan(name: &'static str, change: impl FnOnce(&mut Plan)) -> Plan {
    let mut plan = Plan {
        name,
        params: default_params(),
        samples: bulk,
        masks: &[0xf],
        systems: &[0],
        noise: 50,
        elapse: |r| r.below(MINUTE_NS),
        first_ns: 10_000 * SECOND_NS,
        steps: 100,
        back: false,
        start: Host::default(),
        reviews: false,
    };
    change(&mut plan);
    plan
}

fn classic(name: &'static str, change: impl FnOnce(&mut Plan)) -> Plan {
    let mut plan = plan(name, change);
    plan.params.mode = abi::THALWEG_MODE_CLASSIC;
    plan
}

/// A record of which the same is known of all arms.
fn uniform_host(host: Host, arm: ArmState) -> Host {
    Host {
        arms: [arm; abi::THALWEG_MAX_ARMS as usize],
        ..host
    }
}

fn full_counters() -> Host {
    let host = Host {
        connections: u32::MAX - 3,
        scored: u32::MAX - 2,
        switched: u32::MAX,
        ..Host::default()
    };
    let arm = ArmState {
        chosen: u32::MAX - 1,
        greedy: u32::MAX - 2,
        scored: u32::MAX - 1,
        ..ArmState::default()
    };
    uniform_host(host, arm)
}

/// Some arms have been compared with the system's for long, and were slow at times.
fn counted_host() -> Host {
    let mut host = Host::default();
    for (arm, slow) in host.arms.iter_mut().zip([2, 3, 1, 12]) {
        (arm.counted, arm.slow) = (235, slow);
    }
    host
}

/// The system's arm, and one that is better by just its handicap.
fn tied_host() -> Host {
    let mut host = Host {
        scored: 9,
        ..Host::default()
    };
    let arms = [(40 * ONE, 4, 0), (39 * ONE, 5, ONE)];
    for (arm, (value, scored, caution_q16)) in host.arms.iter_mut().zip(arms) {
        *arm = ArmState {
            value: value.into(),
            weight_q16: 4 * ONE,
            scored,
            caution_q16,
            ..ArmState::default()
        };
    }
    host
}

/// Every field as high as it gets. Remembered segments and trials have limits of their own.
fn full_host(harmful: u16) -> Host {
    let host = Host {
        connections: u32::MAX,
        seen_ns: u64::MAX,
        forgot_ns: u64::MAX,
        max_rate: u64::MAX,
        trial_ns: u64::MAX,
        min_rtt_us: u32::MAX,
        scored: u32::MAX,
        switched: u32::MAX,
        harmful,
        unsteady: harmful,
        credit_q16: u32::MAX,
        queue_q16: 64 * ONE - 1,
        base_rtt_us: u32::MAX,
        last_base_rtt_us: u32::MAX,
        trials: 2,
        ..Host::default()
    };
    let arm = ArmState {
        value: u32::MAX.into(),
        max_rate: u64::MAX,
        weight_q16: u32::MAX,
        deviation_q16: u32::MAX,
        log_rate_q16: 64 * ONE - 1,
        srtt_us: u32::MAX,
        min_rtt_us: u32::MAX,
        chosen: u32::MAX,
        greedy: u32::MAX,
        scored: u32::MAX,
        segs: 65_543,
        retrans: 65_543,
        caution_q16: u32::MAX,
        counted: 255,
        slow: 510,
        ..ArmState::default()
    };
    uniform_host(host, arm)
}

/// One to sixteen arms.
const EVERY: &[u32] = &[
    0x1, 0x3, 0x7, 0xf, 0x1f, 0x3f, 0x7f, 0xff, 0x1ff, 0x3ff, 0x7ff, 0xfff, 0x1fff, 0x3fff, 0x7fff,
    0xffff,
];
const MIXED: &[u32] = &[0xf, 0x7, 0x5, 0xa, 0x1, 0x8000, 0xffff, 0];
const ANYONE: &[u32] = &[0, 1, 2, 3, 15, NO_ARM];
const ALL: &[u32] = &[0xffff];

/// Every sequence.
pub fn plans() -> Vec<Plan> {
    [
        classic_plans(),
        choice_plans(),
        path_plans(),
        limit_plans(),
        long_plans(),
    ]
    .into_iter()
    .flatten()
    .collect()
}

fn classic_plans() -> Vec<Plan> {
    vec![
        classic("classic, as published", |_| ()),
        classic("classic, equal arms", |p| p.samples = equal),
        classic("classic, one arm", |p| p.masks = &[1]),
        classic("classic, two arms that are not neighbours", |p| {
            p.masks = &[0x9];
        }),
        classic("classic, sixteen arms", |p| p.masks = ALL),
        classic("classic, changing masks", |p| {
            (p.masks, p.systems) = (MIXED, ANYONE);
        }),
        classic("classic, every number of arms", |p| {
            (p.masks, p.noise) = (EVERY, 5);
        }),
        classic("classic, short, paused and timed out", |p| p.samples = odd),
        classic("classic, one field at its end", |p| p.samples = corners),
        classic("classic, all fields extreme", |p| {
            (p.samples, p.masks) = (extreme, ALL);
        }),
        classic("classic, loss rule at once", |p| p.params.loss_shift = 63),
        classic("classic, loss rule never", |p| p.params.loss_shift = 0),
        classic("classic, counters full", |p| p.start = full_counters()),
    ]
}

/// Arms, masks, the system's arm, and exploration.
fn choice_plans() -> Vec<Plan> {
    vec![
        plan("defaults", |_| ()),
        plan("wide noise", |p| p.noise = 400),
        plan("bbr to the rescue", |p| {
            (p.params.rescue_arm, p.noise) = (1, 200);
        }),
        plan("equal arms", |p| {
            (p.samples, p.params.rescue_arm, p.systems) = (equal, 2, &[0, 3]);
        }),
        plan("two arms, judged alike", |p| {
            (p.start, p.masks, p.steps) = (tied_host(), &[0x3], 20);
        }),
        plan("equal arms, system's own not in the table", |p| {
            (p.samples, p.systems) = (equal, &[NO_ARM]);
        }),
        plan("equal arms, known as well as can be", |p| {
            (p.samples, p.systems) = (equal, &[NO_ARM, 3]);
            (p.params.idle_shift, p.params.half_life_ns) = (31, 0);
            p.params.weight_max_q16 = ONE;
        }),
        plan("dctcp only with ECN", |p| {
            (p.masks, p.params.rescue_arm, p.noise) = (&[0xf, 0x7, 0x7, 0x7], 3, 200);
        }),
        plan("trials one after the other", |p| {
            p.elapse = |r| r.below(11 * SECOND_NS);
        }),
        plan("trials that do not end", |p| {
            p.elapse = |r| r.below(2 * SECOND_NS);
            (p.masks, p.params.rescue_arm) = (&[0xff], 5);
        }),
        plan("one arm", |p| p.masks = &[1]),
        plan("one arm, the last", |p| {
            (p.masks, p.systems) = (&[0x8000], &[15, 0]);
        }),
        plan("two arms", |p| p.masks = &[0x3]),
        plan("three arms", |p| (p.masks, p.systems) = (&[0x7], &[2])),
        plan("sixteen arms", |p| {
            (p.masks, p.systems, p.params.weight_max_q16) = (ALL, &[5], 64 * ONE);
        }),
        plan("every number of arms", |p| {
            (p.masks, p.systems, p.params.idle_shift) = (EVERY, ANYONE, 10);
        }),
        plan("changing masks", |p| {
            (p.masks, p.systems, p.params.rescue_arm) = (MIXED, ANYONE, 3);
        }),
        plan("default outside the mask", |p| p.masks = &[0xe]),
        plan("long warm-up", |p| p.params.warm_up = 20),
        plan("no warm-up", |p| p.params.warm_up = 0),
        plan("endless warm-up", |p| p.params.warm_up = u32::MAX),
        plan("exploration free of gaps", |p| {
            (p.params.gap_scale, p.noise) = (0, 300);
        }),
        plan("exploration falls at once", |p| {
            (p.params.gap_scale, p.noise) = (u32::MAX, 300);
        }),
        plan("loss rule at once", |p| {
            (p.params.loss_shift, p.params.loss_min_segs) = (63, 0);
            (p.params.rescue_arm, p.noise) = (2, 200);
        }),
        plan("loss rule never", |p| {
            (p.params.loss_shift, p.params.loss_min_segs) = (0, u32::MAX);
            p.params.rescue_arm = 1;
        }),
    ]
}

/// Paths and samples.
fn path_plans() -> Vec<Plan> {
    vec![
        plan("arms that overflow a queue", |p| {
            (p.samples, p.noise, p.params.rescue_arm) = (overflowing, 200, 1);
        }),
        plan("arms that overflow a queue, and other defaults", |p| {
            (p.samples, p.systems) = (overflowing, &[0, 1, 3, NO_ARM]);
            (p.masks, p.params.rescue_arm) = (&[0xf, 0xe], 2);
            p.params.loss_min_segs = 10;
        }),
        plan("a bottleneck that is full", |p| {
            (p.samples, p.noise) = (queueing, 300);
        }),
        plan("a bottleneck that is full at times", |p| {
            (p.samples, p.noise, p.systems) = (queueing, 300, &[0, 2]);
            p.params.half_life_ns = MINUTE_NS;
        }),
        plan("arms that stall", |p| {
            (p.samples, p.steps) = (stalling, 300);
        }),
        plan("arms that stall, one now and then", |p| {
            (p.samples, p.start, p.steps) = (stalling, counted_host(), 300);
        }),
        plan("short, paused and timed out", |p| p.samples = odd),
        plan("short, paused and timed out, two arms", |p| {
            (p.samples, p.masks) = (odd, &[0x3]);
            (p.params.score_min_bytes, p.params.score_full_bytes) = (100_000, 4 << 20);
        }),
        plan("rates that jump", |p| {
            (p.samples, p.masks) = (jumping, &[0x3]);
        }),
        plan("rates that jump, little memory", |p| {
            (p.samples, p.params.weight_max_q16) = (jumping, ONE / 2 - 1);
        }),
        plan("rates that jump, evidence just enough to clip", |p| {
            (p.samples, p.params.weight_max_q16) = (jumping, ONE / 2);
            (p.params.idle_shift, p.params.half_life_ns) = (31, 0);
        }),
        plan("limited by receivers and buffers", |p| {
            (p.samples, p.noise) = (limited, 200);
        }),
        plan("limited, arms of other defaults", |p| {
            (p.samples, p.systems) = (limited, &[0, 1, NO_ARM]);
            p.elapse = |r| r.below(600 * SECOND_NS);
        }),
    ]
}

/// Ends of parameters, clocks, fields and counters.
fn limit_plans() -> Vec<Plan> {
    vec![
        plan("memory of one measurement", |p| {
            (p.params.weight_max_q16, p.noise) = (ONE, 100);
        }),
        plan("no memory", |p| p.params.weight_max_q16 = 0),
        plan("unbounded memory", |p| {
            (p.params.weight_max_q16, p.params.idle_shift) = (u32::MAX, 31);
            p.params.half_life_ns = 0;
        }),
        plan("idle arms lose all", |p| p.params.idle_shift = 0),
        plan("idle arms lose half", |p| p.params.idle_shift = 1),
        plan("idle arms hardly lose", |p| p.params.idle_shift = 31),
        plan("half-life of a minute", |p| {
            p.elapse = |r| r.below(100 * SECOND_NS);
            p.params.half_life_ns = MINUTE_NS;
        }),
        plan("half-lives of silence", |p| {
            p.elapse = |r| {
                let minutes = [0, 1, 31, 32];
                let hours = [HOUR_NS, 40 * HOUR_NS];
                r.pick(&[minutes.map(|count| count * MINUTE_NS).as_slice(), &hours].concat())
            };
            p.params.half_life_ns = MINUTE_NS;
        }),
        plan("half-life of a nanosecond", |p| {
            p.elapse = |r| r.below(40);
            p.params.half_life_ns = 1;
        }),
        plan("half-life longer than any clock", |p| {
            p.params.half_life_ns = u64::MAX;
        }),
        plan("a clock that runs back", |p| {
            (p.back, p.params.half_life_ns) = (true, MINUTE_NS);
        }),
        plan("a clock that starts at 0", |p| {
            (p.first_ns, p.params.half_life_ns) = (0, MINUTE_NS);
            p.elapse = |r| r.below(3) * MINUTE_NS;
        }),
        plan("a clock near its end", |p| {
            (p.first_ns, p.params.half_life_ns) = (u64::MAX - 1_000 * SECOND_NS, SECOND_NS);
            p.elapse = |r| r.below(10 * SECOND_NS);
        }),
        plan("latency above all", |p| {
            (p.params.latency_weight_q16, p.params.latency_guard_us) = (u32::MAX, u32::MAX);
        }),
        plan("latency ignored", |p| {
            (p.params.latency_weight_q16, p.params.latency_guard_us) = (0, 0);
            p.noise = 200;
        }),
        plan("latency without guard", |p| {
            (p.params.latency_weight_q16, p.params.latency_guard_us) = (ONE, 0);
            p.samples = corners;
        }),
        plan("everything is scored", |p| {
            (p.params.score_min_bytes, p.params.score_full_bytes) = (0, 0);
            p.samples = odd;
        }),
        plan("nothing is scored", |p| {
            (p.params.score_min_bytes, p.params.score_full_bytes) = (u64::MAX, u64::MAX);
            p.samples = odd;
        }),
        plan("full weight out of reach", |p| {
            (p.params.score_full_bytes, p.samples) = (u64::MAX, corners);
        }),
        plan("one field at its end", |p| {
            (p.samples, p.params.rescue_arm, p.systems) = (corners, 0, ANYONE);
        }),
        plan("all fields extreme", |p| {
            (p.samples, p.masks, p.systems) = (extreme, ALL, ANYONE);
            (p.params.score_min_bytes, p.params.rescue_arm) = (0, 15);
        }),
        plan("all fields extreme, four arms", |p| {
            (p.samples, p.systems) = (extreme, ANYONE);
            (p.params.score_min_bytes, p.params.half_life_ns) = (1, 1);
            p.params.latency_weight_q16 = 100 * ONE;
        }),
        plan("counters full", |p| p.start = full_counters()),
        plan("every field full", |p| {
            (p.start, p.samples, p.masks) = (full_host(u16::MAX), corners, ALL);
            (p.systems, p.params.rescue_arm) = (ANYONE, 7);
        }),
        plan("every field full, no arm harmful", |p| {
            (p.start, p.samples, p.masks) = (full_host(0), corners, ALL);
            (p.systems, p.params.rescue_arm, p.steps) = (ANYONE, 7, 40);
        }),
    ]
}

/// Long connections.
fn long_plans() -> Vec<Plan> {
    let mut plans = vec![
        plan("long connections", |p| {
            (p.samples, p.noise) = (stretches, 100);
        }),
        plan("long connections, masks that change", |p| {
            (p.samples, p.masks) = (stretches, MIXED);
            (p.systems, p.params.rescue_arm) = (ANYONE, 3);
        }),
        plan("long connections, arms that overflow a queue", |p| {
            (p.samples, p.noise) = (overflowing, 200);
            p.elapse = |r| r.below(600 * SECOND_NS);
        }),
        plan("long connections, every field full", |p| {
            (p.start, p.samples) = (full_host(0), stretches);
            (p.masks, p.systems) = (&[0xffff, 0xff], ANYONE);
        }),
        plan("long connections, equal arms", |p| {
            (p.samples, p.params.idle_shift) = (equal, 31);
        }),
        classic("long connections, classic", |p| {
            (p.samples, p.steps) = (stretches, 20);
        }),
        plan("long connections, long warm-up", |p| {
            (p.samples, p.params.warm_up) = (stretches, 20);
        }),
    ];
    plans.iter_mut().for_each(|plan| plan.reviews = true);
    plans
}

/// A record in a host's place, without a key.
fn keyless(host: &Host) -> abi::thalweg_host {
    abi::thalweg_host {
        tag: 0,
        tag_tail: 0,
        ..host_to_raw(&HostKey::from(std::net::Ipv4Addr::UNSPECIFIED), host)
    }
}

/// Draws the steps of a sequence.
pub fn run(plan: &Plan, comparison: &mut Comparison) {
    let mut r = Random::new(plan.name, comparison.seed);
    let mut host = keyless(&plan.start);
    let mut now_ns = plan.first_ns;
    let mut last = 0;
    for step in 0..plan.steps {
        let kind = if step == 0 { 0 } else { r.below(20) };
        let common = Request {
            params: plan.params,
            host,
            system_arm: r.pick(plan.systems),
            allowed: r.pick(plan.masks),
            ..Request::default()
        };
        let request = match kind {
            0..8 => connection(&mut r, common, now_ns),
            8..17 => {
                now_ns = now_ns.saturating_add((plan.elapse)(&mut r));
                if plan.back && r.one_in(3) {
                    now_ns = now_ns.saturating_sub(90 * SECOND_NS);
                }
                measurement(&mut r, common, plan, last, now_ns)
            }
            _ if plan.reviews => review(&mut r, common, plan, last, now_ns),
            _ => change(&mut r, common, plan, last),
        };
        comparison.step = step;
        let answer = comparison.ask(request);
        host = answer.host;
        if request.function == raw::VECTOR_CONNECT && answer.outputs[0] != u64::from(NO_ARM) {
            last = answer.outputs[0] as u32;
        }
    }
}

/// A new connection. Half of the tickets are near the top: exploration has the highest ones.
fn connection(r: &mut Random, common: Request, now_ns: u64) -> Request {
    let mut random = [r.u32(), r.u32(), r.u32()];
    if r.one_in(2) {
        let bits = r.below(15);
        random[0] = (random[0] | 0xffff) - r.below(1 << bits) as u32;
    }
    // Classic explores on a twentieth of the draws.
    if r.one_in(4) {
        random[1] -= random[1] % 20;
    }
    Request {
        function: raw::VECTOR_CONNECT,
        random,
        now_ns,
        ..common
    }
}

/// A measurement, on the last arm as often as on any.
fn measurement(r: &mut Random, common: Request, plan: &Plan, last: u32, now_ns: u64) -> Request {
    let arm = match r.one_in(2) {
        true => last,
        false => r.pick(&members(plan.masks[0])),
    };
    Request {
        function: raw::VECTOR_SCORE,
        arm,
        now_ns,
        sample: (plan.samples)(r, arm, plan.noise),
        trial: r.below(2) as u32,
        ..common
    }
}

/// The arm of a connection mid-flow.
fn current_arm(r: &mut Random, common: &Request, plan: &Plan, last: u32) -> u32 {
    let any = r.pick(&members(plan.masks[0]));
    r.pick(&[last, any, common.system_arm])
}

fn review(r: &mut Random, common: Request, plan: &Plan, last: u32, now_ns: u64) -> Request {
    let ago = r.below(2 * 3600) * SECOND_NS;
    let (before, after) = (now_ns.saturating_sub(ago), now_ns.saturating_add(ago));
    let decided_ns = r.pick(&[0, 0, 0, before, before, after]);
    Request {
        function: raw::VECTOR_REVIEW,
        arm: current_arm(r, &common, plan, last),
        trial: r.below(2) as u32,
        inputs: [decided_ns, 0, 0, 0],
        random: [r.u32() | r.pick(&[0, 0xff00]), 0, 0],
        now_ns,
        ..common
    }
}

/// A connection that may have lost too much, with losses around the rule's limit.
fn change(r: &mut Random, common: Request, plan: &Plan, last: u32) -> Request {
    let segs = match r.one_in(4) {
        true => r.wide(32),
        false => r.between(0, 1_000),
    };
    let limit = segs >> common.params.loss_shift;
    let retrans = limit + r.pick(&[0, 1, 5, 20, segs / 8]);
    Request {
        function: raw::VECTOR_CHANGE,
        arm: current_arm(r, &common, plan, last),
        segs,
        retrans: retrans.min(u32::MAX.into()),
        random: [r.u32(), 0, 0],
        ..common
    }
}
