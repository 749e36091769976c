//! Invariants of every sequence of connections, measurements, losses and silence, for any samples
//! and parameters.

use proptest::prelude::*;
use proptest::test_runner::RngSeed;
use thalweg_learner::{
    ArmState, CLASSIC_MIN_CONNECTIONS, Decision, End, Flow, Host, Long, MAX_ARMS, Mode, ONE_Q16,
    Outcome, Params, Reason, Sample, best_arm, change_due, classic_cost, cost_q16, decide,
    halve_evidence, judged_q16, propensities_q16, review_connection, score,
};

type Shares = [u32; MAX_ARMS];

/// An event in the life of a host's record.
#[derive(Clone, Debug)]
enum Operation {
    /// A connection is established; `allowed` is the mask of arms that its negotiation allows.
    Connect {
        system_arm: Option<usize>,
        allowed: u16,
        random: [u32; 3],
    },
    /// A stretch of a connection on `arm` was measured.
    Score {
        arm: usize,
        system_arm: Option<usize>,
        sample: Sample,
    },
    /// A connection lost segments.
    Change {
        flow: Flow,
        allowed: u16,
        random: u32,
    },
    /// A long connection was scored on its way.
    Review {
        long: Long,
        allowed: u16,
        random: u32,
    },
    /// A trial has ended.
    EndTrial,
    /// Evidence is discounted to the present.
    Forget,
}

/// Integers of every magnitude: all bit lengths equally likely, and the extremes often.
fn any_size() -> impl Strategy<Value = u64> {
    prop_oneof![
        6 => (any::<u64>(), 0..64u32).prop_map(|(bits, shift)| bits >> shift),
        1 => Just(0),
        1 => Just(u64::MAX),
    ]
}

/// The same in 32 bits.
fn any_size_u32() -> impl Strategy<Value = u32> {
    prop_oneof![
        6 => (any::<u32>(), 0..32u32).prop_map(|(bits, shift)| bits >> shift),
        1 => Just(0),
        1 => Just(u32::MAX),
    ]
}

/// Bulk transfers at plausible rates as often as arbitrary samples.
fn samples() -> impl Strategy<Value = Sample> {
    let ends = prop::sample::select(vec![
        End::FinLocal,
        End::FinRemote,
        End::Reset,
        End::Timeout,
        End::Switch,
        End::Stretch,
    ]);
    let plausible = (
        1u64 << 17..1 << 30,
        1_000u64..100_000_000,
        1u64..1 << 24,
        1u64..1 << 20,
    );
    let extreme = (any_size(), any_size(), any_size(), any_size());
    let rtts = prop_oneof![
        (1..500_000u32, 1..500_000u32, 0..500_000u32),
        (any_size_u32(), any_size_u32(), any_size_u32())
    ];
    let segs = (any_size_u32(), any_size_u32());
    (
        prop_oneof![plausible, extreme],
        rtts,
        segs,
        any::<bool>(),
        ends,
    )
        .prop_map(
            |(
                (bytes, duration_us, rate_delivered_bytes, rate_interval_us),
                rtts,
                segs,
                busy_time,
                end,
            )| {
                Sample {
                    bytes,
                    duration_us,
                    rate_delivered_bytes,
                    rate_interval_us,
                    srtt_us: rtts.0,
                    min_rtt_us: rtts.1,
                    segs_out: segs.0,
                    retrans: segs.1,
                    steady_segs: segs.0 >> (segs.1 % 32),
                    steady_retrans: segs.1 >> (segs.0 % 32),
                    loss_srtt_us: rtts.2,
                    limited_us: u64::from(rtts.1) * u64::from(segs.0 % 4),
                    busy_time,
                    end,
                }
            },
        )
}

/// The ranges that the configuration allows.
fn params(mode: Mode) -> impl Strategy<Value = Params> {
    let day_ns = 86_400_000_000_000u64;
    let exploration = (0..=3u32, 0..=20u32, 1 << 16..=64u32 << 16, 1..=31u32);
    let half_lives = prop_oneof![Just(0), 1_000_000_000..=365 * day_ns, Just(60_000_000_000)];
    let latency = (0..=4u32 << 16, prop_oneof![Just(0), 1..=10_000_000u32]);
    let bytes = prop_oneof![
        Just((128 << 10, 1 << 20)),
        (0..=40u32, 0..=40u32).prop_map(|(a, b)| (1u64 << a.min(b), 1 << a.max(b))),
        (0..=40u32).prop_map(|full| (0, 1 << full)),
    ];
    let loss = (1..=16u32, 1..=1_000_000u32, prop::option::of(0..MAX_ARMS));
    (exploration, half_lives, latency, bytes, loss).prop_map(
        move |((warm_up, gap, memory, idle_shift), half_life_ns, latency, bytes, loss)| Params {
            mode,
            warm_up,
            gap_scale: 1 << gap,
            weight_max_q16: memory,
            idle_shift,
            half_life_ns,
            latency_weight_q16: latency.0,
            latency_guard_us: latency.1,
            score_min_bytes: bytes.0,
            score_full_bytes: bytes.1,
            loss_shift: loss.0,
            loss_min_segs: loss.1,
            rescue_arm: loss.2,
            ..Params::default()
        },
    )
}

/// Masks of any number of arms, often of few.
fn masks() -> impl Strategy<Value = u16> {
    prop_oneof![
        any::<u16>(),
        Just(0b1111),
        (0..16u32).prop_map(|bit| 1 << bit),
        Just(0)
    ]
}

/// Mostly a few arms, so that each occurs more than once, and sometimes any.
fn arms() -> impl Strategy<Value = usize> {
    prop_oneof![4 => 0..4usize, 1 => 0..MAX_ARMS]
}

fn flows() -> impl Strategy<Value = Flow> {
    let arm = || prop::option::of(arms());
    // Segments and retransmissions are 32-bit counts in the kernel.
    let counts = (any_size_u32(), any_size_u32());
    (arm(), arm(), counts).prop_map(|(arm, system_arm, (segs, retrans))| Flow {
        arm,
        system_arm,
        segs: segs.into(),
        retrans: retrans.into(),
    })
}

fn longs() -> impl Strategy<Value = Long> {
    let arm = || prop::option::of(arms());
    (arm(), arm(), any::<bool>(), any_size()).prop_map(|(arm, system_arm, trial, decided_ns)| {
        Long {
            arm,
            system_arm,
            trial,
            decided_ns,
        }
    })
}

fn operations() -> impl Strategy<Value = Vec<(u64, Operation)>> {
    let operation = prop_oneof![
        3 => (prop::option::of(arms()), masks(), any::<[u32; 3]>()).prop_map(
            |(system_arm, allowed, random)| Operation::Connect { system_arm, allowed, random }),
        4 => (arms(), prop::option::of(arms()), samples()).prop_map(
            |(arm, system_arm, sample)| Operation::Score { arm, system_arm, sample }),
        1 => (flows(), masks(), any::<u32>()).prop_map(
            |(flow, allowed, random)| Operation::Change { flow, allowed, random }),
        2 => (longs(), masks(), any::<u32>()).prop_map(
            |(long, allowed, random)| Operation::Review { long, allowed, random }),
        1 => Just(Operation::EndTrial),
        1 => Just(Operation::Forget),
    ];
    // Time advances by a little or, seldom, by anything.
    let pauses = prop_oneof![8 => 0..10_000_000_000u64, 1 => any_size()];
    prop::collection::vec((pauses, operation), 1..80)
}

/// A new host, or one whose counters are about to overflow.
fn hosts() -> impl Strategy<Value = Host> {
    prop_oneof![3 => Just(0), 1 => Just(u32::MAX - 2)].prop_map(|count| Host {
        connections: count,
        scored: count,
        arms: [ArmState {
            chosen: count,
            greedy: count,
            scored: count,
            ..Default::default()
        }; MAX_ARMS],
        ..Default::default()
    })
}

fn allows(allowed: u16, arm: usize) -> bool {
    allowed & (1 << arm) != 0
}

fn arms_of(allowed: u16) -> impl Iterator<Item = usize> {
    (0..MAX_ARMS).filter(move |&arm| allows(allowed, arm))
}

fn counts(host: &Host) -> Vec<u32> {
    let arms = host
        .arms
        .iter()
        .flat_map(|arm| [arm.chosen, arm.greedy, arm.scored]);
    arms.chain([host.connections, host.scored]).collect()
}

/// Invariants of a decision for a given host.
fn check_decision(
    host: &Host,
    system_arm: Option<usize>,
    allowed: u16,
    params: &Params,
    now_ns: u64,
    decision: &Decision,
) -> Result<(), TestCaseError> {
    let shares = propensities_q16(host, system_arm, allowed, params, now_ns);
    let sum: u32 = shares.iter().sum();
    prop_assert!(
        sum == ONE_Q16 || (sum == 0 && decision.arm.is_none()),
        "sum {sum}"
    );
    match decision.arm {
        None => {
            prop_assert_eq!(decision.reason, Reason::WarmUp);
            prop_assert_eq!(sum, 0);
        }
        Some(arm) if decision.reason == Reason::WarmUp => {
            prop_assert_eq!((params.mode, Some(arm)), (Mode::Thalweg, system_arm));
        }
        Some(arm) => prop_assert!(allows(allowed, arm), "arm {arm} of {allowed:016b}"),
    }
    match params.mode {
        Mode::Classic => check_classic(host, allowed, decision, &shares),
        Mode::Thalweg => check_thalweg(host, system_arm, allowed, params, decision, &shares),
    }
}

fn check_classic(
    host: &Host,
    allowed: u16,
    decision: &Decision,
    shares: &Shares,
) -> Result<(), TestCaseError> {
    let Some(arm) = decision.arm else {
        prop_assert!(host.connections <= CLASSIC_MIN_CONNECTIONS || allowed == 0);
        return Ok(());
    };
    let value = |i: usize| host.arms[i].value;
    let lowest = arms_of(allowed).map(value).min();
    if decision.reason == Reason::Greedy {
        prop_assert_eq!(Some(value(arm)), lowest);
    }
    // Probabilities are rounded down; the remainder goes to the first of the best.
    let first = arms_of(allowed).find(|&i| Some(value(i)) == lowest);
    let (reported, share) = (decision.propensity_q16, shares[arm]);
    if Some(arm) == first {
        prop_assert!((reported..reported + 2 * MAX_ARMS as u32).contains(&share));
    } else {
        prop_assert_eq!(reported, share);
    }
    Ok(())
}

fn check_thalweg(
    host: &Host,
    system_arm: Option<usize>,
    allowed: u16,
    params: &Params,
    decision: &Decision,
    shares: &Shares,
) -> Result<(), TestCaseError> {
    let Some(arm) = decision.arm else {
        return Ok(());
    };
    prop_assert_eq!(decision.propensity_q16, shares[arm]);
    prop_assert!(decision.propensity_q16 > 0);
    let best = best_arm(host, system_arm, allowed, params);
    let measured = host.arms[arm].weight_q16 > 0;
    match decision.reason {
        Reason::WarmUp => {
            let system_unknown =
                system_arm.is_some_and(|i| allows(allowed, i) && host.arms[i].weight_q16 == 0);
            prop_assert!(best.is_none() || host.scored < params.warm_up || system_unknown);
        }
        Reason::Loss | Reason::Withdrawn | Reason::Anew | Reason::Returned => {
            prop_assert!(false, "no reason of a new connection");
        }
        Reason::Untried => prop_assert!(!measured),
        Reason::Explore => prop_assert!(measured && Some(arm) != best),
        Reason::Greedy => {
            prop_assert_eq!(Some(arm), best);
            let judged = judged_q16(host, arm, system_arm);
            for i in arms_of(allowed).filter(|&i| host.arms[i].weight_q16 > 0) {
                prop_assert!(
                    judged <= judged_q16(host, i, system_arm),
                    "arm {i} is better"
                );
            }
        }
    }
    Ok(())
}

/// Invariants of a change mid-flow.
fn check_change(
    host: &Host,
    flow: &Flow,
    allowed: u16,
    params: &Params,
    random: u32,
) -> Result<(), TestCaseError> {
    let Some(decision) = change_due(host, flow, allowed, params, random) else {
        return Ok(());
    };
    prop_assert!(flow.retrans > flow.segs >> params.loss_shift);
    if params.mode == Mode::Classic {
        prop_assert_ne!(decision.arm, flow.arm);
        return Ok(());
    }
    prop_assert!(flow.segs >= u64::from(params.loss_min_segs));
    prop_assert!(flow.arm.is_some());
    let stays = decision.arm == flow.arm;
    match decision.reason {
        // From the system's arm only to an arm that was measured here.
        Reason::Loss => {
            prop_assert_eq!(flow.arm, flow.system_arm);
            if let Some(arm) = decision.arm.filter(|_| !stays) {
                prop_assert!(allows(allowed, arm), "arm {arm} of {allowed:016b}");
                prop_assert!(host.arms[arm].weight_q16 > 0);
            }
            let share = if stays { ONE_Q16 / 4 } else { ONE_Q16 / 4 * 3 };
            prop_assert_eq!(decision.propensity_q16, share);
        }
        // Back to it.
        Reason::Withdrawn => {
            prop_assert_eq!(decision.arm, flow.system_arm);
            prop_assert!(!stays);
        }
        reason => prop_assert!(false, "{reason:?} mid-flow"),
    }
    Ok(())
}

/// Invariants of a decision about a long connection.
fn check_review(
    host: &mut Host,
    long: &Long,
    allowed: u16,
    params: &Params,
    random: u32,
    now_ns: u64,
) -> Result<(), TestCaseError> {
    let Some(found) = review_connection(host, long, allowed, params, random, now_ns) else {
        return Ok(());
    };
    let decision = found.decision;
    prop_assert_eq!(params.mode, Mode::Thalweg);
    let (Some(arm), Some(own)) = (decision.arm, long.arm) else {
        return Err(TestCaseError::fail("a decision without an arm"));
    };
    prop_assert_eq!(decision.propensity_q16, found.shares_q16[arm]);
    prop_assert_eq!(found.shares_q16.iter().sum::<u32>(), ONE_Q16);
    let best = best_arm(host, long.system_arm, allowed, params);
    // On the best arm nothing is tried.
    prop_assert_ne!(Some(own), best);
    match decision.reason {
        Reason::Returned => {
            prop_assert_eq!(Some(arm), best);
            prop_assert!(!found.trial && long.system_arm != Some(own));
        }
        Reason::Anew => {
            let hour_ns = 3_600_000_000_000;
            let since = now_ns.saturating_sub(long.decided_ns);
            prop_assert!(long.decided_ns == 0 || since >= hour_ns);
            let random = [random, 0, 0];
            let plain = decide(host, long.system_arm, allowed, params, random, now_ns);
            prop_assert_eq!(
                (plain.arm, plain.reason.is_trial()),
                (Some(arm), found.trial)
            );
        }
        reason => prop_assert!(false, "{reason:?} of a long connection"),
    }
    host.count_decision(&decision);
    if found.trial {
        host.begin_trial(now_ns);
    }
    Ok(())
}

/// Lowest and highest cost given to each arm.
type Costs = [Option<(u64, u64)>; MAX_ARMS];

fn apply(
    host: &mut Host,
    params: &Params,
    now_ns: u64,
    operation: &Operation,
    costs: &mut Costs,
) -> Result<(), TestCaseError> {
    match *operation {
        Operation::Connect {
            system_arm,
            allowed,
            random,
        } => {
            host.connections = host.connections.saturating_add(1);
            halve_evidence(host, params, now_ns);
            let decision = decide(host, system_arm, allowed, params, random, now_ns);
            check_decision(host, system_arm, allowed, params, now_ns, &decision)?;
            host.count_decision(&decision);
            if decision.reason.is_trial() {
                host.begin_trial(now_ns);
            }
        }
        Operation::EndTrial => host.end_trial(),
        Operation::Score {
            arm,
            system_arm,
            sample,
        } => {
            let before = host.arms;
            let verdict = score(host, arm, system_arm, &sample, params, now_ns);
            if verdict.outcome != Outcome::Scored {
                prop_assert_eq!(host.arms, before);
                prop_assert_eq!((verdict.weight_q16, verdict.cost), (0, 0));
                return Ok(());
            }
            let (low, high) = costs[arm].get_or_insert((verdict.cost, verdict.cost));
            (*low, *high) = ((*low).min(verdict.cost), (*high).max(verdict.cost));
            for i in (0..MAX_ARMS).filter(|&i| i != arm) {
                prop_assert!(host.arms[i].weight_q16 <= before[i].weight_q16);
                prop_assert_eq!(host.arms[i].value, before[i].value);
            }
            if params.mode == Mode::Thalweg {
                prop_assert!(verdict.cost <= u64::from(u32::MAX));
                prop_assert!((1..=ONE_Q16).contains(&verdict.weight_q16));
                prop_assert!(host.arms[arm].weight_q16 > 0, "scored, yet no evidence");
                // A restless arm remembers up to three times as much.
                prop_assert!(host.arms[arm].weight_q16 <= 3 * params.weight_max_q16);
            }
        }
        Operation::Change {
            flow,
            allowed,
            random,
        } => check_change(host, &flow, allowed, params, random)?,
        Operation::Review {
            long,
            allowed,
            random,
        } => check_review(host, &long, allowed, params, random, now_ns)?,
        Operation::Forget => {
            let before = host.clone();
            halve_evidence(host, params, now_ns);
            for (old, new) in before.arms.iter().zip(&host.arms) {
                prop_assert!(new.weight_q16 <= old.weight_q16);
                prop_assert!(new.segs <= old.segs && new.retrans <= old.retrans);
                prop_assert_eq!(
                    ArmState {
                        weight_q16: old.weight_q16,
                        segs: old.segs,
                        retrans: old.retrans,
                        ..*new
                    },
                    *old
                );
            }
            prop_assert!(host.forgot_ns <= now_ns);
        }
    }
    Ok(())
}

fn run(
    mut host: Host,
    params: &Params,
    operations: &[(u64, Operation)],
) -> Result<Host, TestCaseError> {
    let mut now_ns = 1u64;
    let mut costs: Costs = [None; MAX_ARMS];
    for (pause_ns, operation) in operations {
        now_ns = now_ns.saturating_add(*pause_ns);
        let before = counts(&host);
        apply(&mut host, params, now_ns, operation, &mut costs)?;
        for (old, new) in before.iter().zip(counts(&host)) {
            prop_assert!(*old <= new, "a count fell from {old} to {new}");
        }
        for (arm, range) in host.arms.iter().zip(&costs) {
            let (low, high) = range.unwrap_or((0, 0));
            prop_assert!(
                (low..=high).contains(&arm.value),
                "{} in {low}..={high}",
                arm.value
            );
        }
    }
    Ok(host)
}

/// The same cases in every run.
fn config(cases: u32) -> ProptestConfig {
    ProptestConfig {
        cases,
        rng_seed: RngSeed::Fixed(1),
        failure_persistence: None,
        ..Default::default()
    }
}

proptest! {
    #![proptest_config(config(400))]

    #[test]
    fn every_sequence_in_mode_thalweg(
        host in hosts(), params in params(Mode::Thalweg), operations in operations(),
    ) {
        run(host, &params, &operations)?;
    }

    #[test]
    fn every_sequence_in_mode_classic(
        host in hosts(), params in params(Mode::Classic), operations in operations(),
    ) {
        run(host, &params, &operations)?;
    }

    #[test]
    fn more_rate_never_costs_more(
        a in any_size(), b in any_size(), srtt_us in any_size_u32(), params in params(Mode::Thalweg),
    ) {
        let [low, high] = [a.min(b), a.max(b)].map(|rate| cost_q16(rate, srtt_us, &params));
        prop_assert!(low >= high, "{low} < {high}");
        prop_assert!(low <= u64::from(u32::MAX));
    }

    #[test]
    fn more_rtt_never_costs_less(
        a in any_size_u32(), b in any_size_u32(), rate in any_size(), params in params(Mode::Thalweg),
    ) {
        let [low, high] = [a.min(b), a.max(b)].map(|srtt_us| cost_q16(rate, srtt_us, &params));
        prop_assert!(low <= high, "{low} > {high}");
    }

    /// Also for parameters that no configuration allows.
    #[test]
    fn costs_and_weights_stay_in_range(
        sample in samples(), latency_weight_q16 in any_size_u32(), score_full_bytes in any_size(),
    ) {
        let params = Params { latency_weight_q16, score_full_bytes, ..Params::default() };
        let cost = cost_q16(sample.mean_rate(), sample.srtt_us, &params);
        prop_assert!((1..1 << 32).contains(&cost), "cost {cost}");
        let weight = sample.weight_q16(&params);
        prop_assert!((1..=ONE_Q16).contains(&weight), "weight {weight}");
    }

    #[test]
    fn the_published_cost_is_0_at_the_optimum_alone(
        rtt_us in 1..10_000_000u32, above_us in 0..10_000_000u32,
        rate in 1..1u64 << 20, below in 0..1u64 << 20,
    ) {
        let below = below.min(rate);
        let mut host = Host { min_rtt_us: rtt_us, max_rate: rate, ..Default::default() };
        prop_assert_eq!(classic_cost(&mut host, rtt_us, rate), 0);
        let cost = classic_cost(&mut host, rtt_us + above_us, rate - below);
        // One unit of the scale is a millionth of the host's extreme.
        let seen = u64::from(above_us) * 1_000_000 >= u64::from(rtt_us)
            || below * 1_000_000 >= rate;
        prop_assert_eq!(cost > 0, seen);
    }
}

proptest! {
    #![proptest_config(config(40))]

    /// All 65,536 tickets are drawn: frequency and probability are exactly equal.
    #[test]
    fn each_arm_gets_exactly_its_share(
        params in params(Mode::Thalweg),
        operations in operations(),
        system_arm in prop::option::of(arms()),
        allowed in masks(),
        high_bits in any::<u16>(),
        now_ns in any_size(),
    ) {
        let params = Params { warm_up: 0, ..params };
        let host = run(Host::default(), &params, &operations)?;
        let mut drawn = [0; MAX_ARMS];
        for ticket in 0..ONE_Q16 {
            let random = [u32::from(high_bits) << 16 | ticket, 0, 0];
            if let Some(arm) = decide(&host, system_arm, allowed, &params, random, now_ns).arm {
                drawn[arm] += 1;
            }
        }
        let shares = propensities_q16(&host, system_arm, allowed, &params, now_ns);
        prop_assert_eq!(drawn, shares);
    }
}
