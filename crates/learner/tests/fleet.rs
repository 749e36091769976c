//! What many agents know of one network: the influence of one, of a tenth of them, and of nonsense.

use proptest::prelude::*;
use thalweg_learner::fleet::{
    AROUND_Q16, AgentReport, ArmReport, CLIP_Q16, EVIDENCE_MAX_Q16, FLEET_MAX_Q16, Fleet,
    HALF_LIFE_NS, Prior, VOTE_MAX_Q16, age_record, aggregate_reports, fleet_record, own_report,
    remove_fleet_evidence,
};
use thalweg_learner::{Host, Level, MAX_ARMS, Params, adopt_wider, can_decide, decide_group};

const SYSTEM: usize = 0;
/// The arm in question.
const ARM: usize = 1;
const OFFSET_Q16: u32 = 32 << 16;

/// A report of an agent that has arm 1 at `cost_q16` bits above the system arm.
fn report(agent: u64, cost_q16: i64, evidence_q16: u32) -> AgentReport {
    let mut report = AgentReport {
        agent,
        ..AgentReport::default()
    };
    for (arm, cost) in [(SYSTEM, 0), (ARM, cost_q16)] {
        report.arms[arm] = ArmReport {
            cost_q16: (i64::from(OFFSET_Q16) + cost) as u32,
            evidence_q16,
            log_rate_q16: (i64::from(OFFSET_Q16) - cost) as u32,
            deviation_q16: 1 << 15,
            segs: 5000,
            retrans: 0,
        };
    }
    report
}

/// Mean of arm 1 above the system arm, Q16 bits.
fn cost(prior: &Prior) -> i64 {
    i64::from(prior.arms[ARM].cost_q16) - i64::from(prior.arms[SYSTEM].cost_q16)
}

/// Distance of arm 1 from the system arm, and weight, in one report.
fn told(report: &AgentReport) -> (i64, u64) {
    let [own, system] = [ARM, SYSTEM].map(|arm| report.arms[arm]);
    let weight = |arm: ArmReport| {
        let halvings = report.age_ns / HALF_LIFE_NS;
        u64::from(arm.evidence_q16.min(EVIDENCE_MAX_Q16)) >> halvings.min(63)
    };
    let apart = i64::from(own.cost_q16) - i64::from(system.cost_q16);
    let limit = i64::from(CLIP_Q16);
    let vote = weight(own).min(weight(system)).min(VOTE_MAX_Q16.into());
    (apart.clamp(-limit, limit), vote)
}

/// The stated limit of the influence of agents with the weight `weight` beside `others`: none if that
/// is as much as theirs.
fn most(others: &[AgentReport], weight: u64) -> Option<i64> {
    let mut values: Vec<(i64, u64)> = others.iter().map(told).collect();
    values.sort_unstable();
    let all: u64 = values.iter().map(|&(_, weight)| weight).sum();
    if weight >= all {
        return None;
    }
    let reached = |twice: u64| {
        let mut sum = 0;
        let found = values.iter().find(|&&(_, weight)| {
            sum += weight;
            2 * sum >= twice
        });
        found.expect("the others have this weight").0
    };
    let apart = reached(all + weight) - reached(all - weight);
    let around = 2 * u64::from(AROUND_Q16) * weight / (all + weight);
    // Two divisions are rounded, and so is this.
    Some(apart + around as i64 + 3)
}

fn any_arm() -> impl Strategy<Value = ArmReport> {
    let extreme = prop_oneof![
        Just(0),
        Just(1),
        Just(OFFSET_Q16),
        Just(u32::MAX),
        any::<u32>()
    ];
    [
        extreme.clone(),
        extreme.clone(),
        extreme.clone(),
        extreme.clone(),
        extreme.clone(),
        extreme,
    ]
    .prop_map(
        |[
            cost_q16,
            evidence_q16,
            log_rate_q16,
            deviation_q16,
            segs,
            retrans,
        ]| ArmReport {
            cost_q16,
            evidence_q16,
            log_rate_q16,
            deviation_q16,
            segs,
            retrans,
        },
    )
}

/// Whatever an agent may send.
fn any_report(agent: u64) -> impl Strategy<Value = AgentReport> {
    let age = prop_oneof![Just(0), Just(u64::MAX), 0..100 * HALF_LIFE_NS, any::<u64>()];
    let arms = proptest::collection::vec(any_arm(), 3);
    (age, any::<u32>(), arms).prop_map(move |(age_ns, queue_q16, arms)| {
        let mut report = AgentReport {
            agent,
            age_ns,
            queue_q16,
            ..AgentReport::default()
        };
        report.arms[..arms.len()].copy_from_slice(&arms);
        report
    })
}

/// Honest agents, whose numbers differ by a bit or so.
fn honest(count: std::ops::Range<usize>) -> impl Strategy<Value = Vec<AgentReport>> {
    let one = (
        -131_072i64..131_072,
        prop_oneof![1u32..64 << 16, 1u32..4 << 16],
    );
    proptest::collection::vec(one, count).prop_map(|values| {
        let all = values.iter().enumerate();
        all.map(|(agent, &(cost, evidence))| report(agent as u64, cost, evidence))
            .collect()
    })
}

proptest! {
    #[test]
    fn one_agent_moves_a_mean_by_the_stated_amount_at_most(
        others in honest(2..40),
        hostile in any_report(1000),
    ) {
        let alone = aggregate_reports(&others, &Fleet::default(), SYSTEM).unwrap();
        let mut all = others.clone();
        all.push(hostile);
        let with = aggregate_reports(&all, &Fleet::default(), SYSTEM).unwrap();
        if let Some(most) = most(&others, told(&hostile).1) {
            let moved = (cost(&with) - cost(&alone)).abs();
            prop_assert!(moved <= most, "moved by {moved}, stated {most}");
        }
    }

    #[test]
    fn a_tenth_that_lies_together_moves_it_as_one_with_their_weight(
        others in honest(18..60),
        lie in prop_oneof![Just(i64::from(OFFSET_Q16)), Just(-i64::from(OFFSET_Q16)), -500_000i64..500_000],
    ) {
        let alone = aggregate_reports(&others, &Fleet::default(), SYSTEM).unwrap();
        let liars = others.len() / 9;
        let hostile = (0..liars).map(|agent| report(1000 + agent as u64, lie, u32::MAX));
        let all: Vec<AgentReport> = others.iter().copied().chain(hostile).collect();
        let with = aggregate_reports(&all, &Fleet::default(), SYSTEM).unwrap();
        let weight = liars as u64 * u64::from(VOTE_MAX_Q16);
        if let Some(most) = most(&others, weight) {
            let moved = (cost(&with) - cost(&alone)).abs();
            prop_assert!(moved <= most, "moved by {moved}, stated {most}");
        }
    }

    #[test]
    fn one_agent_alone_never_makes_a_network_known(hostile in any_report(1)) {
        // As often as it likes.
        let reports = [hostile; 3];
        if let Some(prior) = aggregate_reports(&reports, &Fleet::default(), SYSTEM) {
            let worth = [u32::MAX; MAX_ARMS];
            let record = fleet_record(Level::FleetPrefix, &prior, SYSTEM, &worth, &Params::default(), 1);
            prop_assert!(!can_decide(&record, Some(SYSTEM)));
            prop_assert!(record.arms.iter().all(|arm| arm.weight_q16 <= EVIDENCE_MAX_Q16));
        }
    }

    #[test]
    fn whatever_is_told_the_numbers_are_those_of_a_record(
        reports in proptest::collection::vec(any_report(0), 0..30),
        system in 0usize..MAX_ARMS + 2,
        same in any::<bool>(),
    ) {
        let reports: Vec<AgentReport> = reports
            .into_iter()
            .zip(0..)
            .map(|(report, agent)| AgentReport { agent: if same { 7 } else { agent }, ..report })
            .collect();
        let Some(prior) = aggregate_reports(&reports, &Fleet::default(), system) else { return Ok(()) };
        for arm in prior.arms.iter().filter(|arm| arm.evidence_q16 > 0) {
            for value in [arm.cost_q16, arm.log_rate_q16] {
                prop_assert!(value.abs_diff(OFFSET_Q16) <= CLIP_Q16);
            }
            prop_assert!(arm.evidence_q16 <= FLEET_MAX_Q16.min(arm.agents * EVIDENCE_MAX_Q16));
            prop_assert!(arm.retrans <= arm.segs && arm.deviation_q16 > 0);
        }
        let system_prior = prior.arms[system];
        prop_assert_eq!(system_prior.cost_q16, OFFSET_Q16);
        let (worth, params) = ([u32::MAX; MAX_ARMS], Params::default());
        let mut record = fleet_record(Level::FleetNamed, &prior, system, &worth, &params, 1);
        // Adopting, and deciding with it, overflow nowhere.
        let mut own = Host { level: Level::Named, ..Host::default() };
        adopt_wider(&mut own, &record, Some(system), &worth);
        decide_group(&mut record, Some(system), u16::MAX, &params, 12345, u64::MAX);
    }

    #[test]
    fn the_order_of_reports_and_their_repetition_say_nothing(
        reports in honest(1..20),
        turn in 0usize..20,
        again in 0usize..20,
    ) {
        let expected = aggregate_reports(&reports, &Fleet::default(), SYSTEM);
        let mut other = reports.clone();
        other.rotate_left(turn % reports.len());
        other.push(reports[again % reports.len()]);
        prop_assert_eq!(aggregate_reports(&other, &Fleet::default(), SYSTEM), expected);
    }
}

#[test]
fn agents_that_agree_make_a_network_known() {
    let reports: Vec<AgentReport> = (0..20)
        .map(|agent| report(agent, -65_536, 10 << 16))
        .collect();
    let prior = aggregate_reports(&reports, &Fleet::default(), SYSTEM).unwrap();
    assert_eq!(cost(&prior), -65_536);
    assert_eq!(prior.arms[ARM].evidence_q16, FLEET_MAX_Q16);
    let worth = [FLEET_MAX_Q16; MAX_ARMS];
    let params = Params::default();
    let mut record = fleet_record(Level::FleetPrefix, &prior, SYSTEM, &worth, &params, 1);
    let arms = (0..1u32 << 16).step_by(64).map(|random| {
        let mut asked = record.clone();
        decide_group(&mut asked, Some(SYSTEM), 0b11, &params, random, 1)
            .unwrap()
            .arm
    });
    let right = arms.filter(|&arm| arm == Some(ARM)).count();
    assert!(right >= 1000, "{right} of 1024");
    // Nothing is known of a third arm, and nothing is tried by what others told.
    record.arms[2] = Default::default();
    let decision = decide_group(&mut record, Some(SYSTEM), 0b111, &params, 65_535, 1).unwrap();
    assert_ne!(decision.arm, Some(2));
}

#[test]
fn agents_that_differ_are_worth_less() {
    let spread = |bits: i64| {
        let reports: Vec<AgentReport> = (0..40)
            .map(|agent| report(agent, (agent as i64 % 5 - 2) * bits / 2, 100 << 16))
            .collect();
        aggregate_reports(&reports, &Fleet::default(), SYSTEM)
            .unwrap()
            .arms[ARM]
            .evidence_q16
    };
    assert_eq!(spread(0), FLEET_MAX_Q16);
    assert!(spread(65_536) < 8 << 16, "{}", spread(65_536));
    assert!(spread(16_384) > spread(65_536));
}

#[test]
fn old_reports_fade_and_one_from_the_future_is_new() {
    let of_age = |days: u64| {
        let one = AgentReport {
            age_ns: days * HALF_LIFE_NS,
            ..report(1, 0, 4 << 16)
        };
        aggregate_reports(&[one], &Fleet::default(), SYSTEM)
            .map(|prior| prior.arms[ARM].evidence_q16)
    };
    assert_eq!(of_age(0), Some(4 << 16));
    assert_eq!(of_age(1), Some(2 << 16));
    assert_eq!(of_age(18), Some(1));
    assert_eq!(of_age(19), None);
}

#[test]
fn agents_with_another_default_count_by_their_distance() {
    // Theirs is arm 1: to them arm 0 is a bit worse.
    let theirs = |agent| {
        let mut told = report(agent, 0, 10 << 16);
        told.arms[SYSTEM].cost_q16 = OFFSET_Q16 + 65_536;
        told
    };
    let reports = [theirs(1), theirs(2), theirs(3)];
    assert_eq!(
        cost(&aggregate_reports(&reports, &Fleet::default(), SYSTEM).unwrap()),
        -65_536
    );
    // Who never measured this agent's default says nothing.
    let mut unknown = reports;
    for report in &mut unknown {
        report.arms[SYSTEM] = ArmReport::default();
    }
    assert_eq!(aggregate_reports(&unknown, &Fleet::default(), SYSTEM), None);
    assert_eq!(aggregate_reports(&[], &Fleet::default(), SYSTEM), None);
}

#[test]
fn what_others_told_is_never_told_again() {
    let reports: Vec<AgentReport> = (0..20)
        .map(|agent| report(agent, -65_536, 10 << 16))
        .collect();
    let prior = aggregate_reports(&reports, &Fleet::default(), SYSTEM).unwrap();
    let worth = [FLEET_MAX_Q16; MAX_ARMS];
    let fleet = fleet_record(
        Level::FleetPrefix,
        &prior,
        SYSTEM,
        &worth,
        &Params::default(),
        1,
    );
    assert_eq!(own_report(&fleet), None);
    let mut own = Host {
        level: Level::Prefix,
        ..Host::default()
    };
    adopt_wider(&mut own, &fleet, Some(SYSTEM), &worth);
    assert!(can_decide(&own, Some(SYSTEM)));
    assert_eq!(own_report(&own), None);
    own.arms[SYSTEM].own_q16 = OFFSET_Q16;
    own.arms[SYSTEM].own_weight_q16 = 3 << 16;
    let told = own_report(&own).unwrap();
    assert_eq!(told[SYSTEM].evidence_q16, 3 << 16);
    assert_eq!(told[ARM], ArmReport::default());
}

#[test]
fn an_arm_that_fills_a_queue_is_harmful_to_whom_it_is_told() {
    let reports: Vec<AgentReport> = (0..20)
        .map(|agent| AgentReport {
            queue_q16: 1 << 16,
            ..report(agent, -65_536, 10 << 16)
        })
        .collect();
    let prior = aggregate_reports(&reports, &Fleet::default(), SYSTEM).unwrap();
    let worth = [FLEET_MAX_Q16; MAX_ARMS];
    let fleet = fleet_record(
        Level::FleetPrefix,
        &prior,
        SYSTEM,
        &worth,
        &Params::default(),
        1,
    );
    assert_eq!(fleet.harmful, 1 << ARM);
}

/// A record of the fleet, of a network that many agents know.
fn known(level: Level) -> Host {
    let all: Vec<AgentReport> = (0..24).map(|it| report(it, -1 << 15, 4 << 16)).collect();
    let reports = [all.as_slice()];
    let fleet = Fleet::judge_networks(reports.into_iter(), SYSTEM);
    let prior = aggregate_reports(reports[0], &fleet, SYSTEM).expect("many told of it");
    fleet_record(level, &prior, SYSTEM, &WORTH, &Params::default(), 1)
}

const WORTH: [u32; MAX_ARMS] = [32 << 16; MAX_ARMS];

#[test]
fn a_record_that_nobody_tells_anew_fades() {
    let mut record = known(Level::FleetPrefix);
    assert_eq!((record.step_scored, record.step), (24, 64 * 8));
    // By its own half-life, whatever the agent's.
    let params = Params {
        half_life_ns: 0,
        ..Params::default()
    };
    let mut days = 0;
    while age_record(&mut record, SYSTEM, &params, 1 + days * HALF_LIFE_NS) {
        let evidence = (32 << 16) >> days;
        assert_eq!(record.arms[SYSTEM].own_weight_q16, evidence, "{days}");
        assert_eq!(record.step, (evidence >> 16) * 8);
        assert_eq!(can_decide(&record, Some(SYSTEM)), days < 3);
        days += 1;
    }
    assert_eq!(days, 22);
}

#[test]
fn an_agent_that_leaves_keeps_what_it_measured_alone() {
    let told = known(Level::FleetPrefix);
    let params = Params::default();
    let mut own = Host {
        level: Level::Prefix,
        ..Host::default()
    };
    own.arms[SYSTEM].own_q16 = OFFSET_Q16;
    own.arms[SYSTEM].own_weight_q16 = 2 << 16;
    own.arms[SYSTEM].value = OFFSET_Q16.into();
    own.arms[SYSTEM].weight_q16 = 2 << 16;
    let before = own.clone();
    adopt_wider(&mut own, &told, Some(SYSTEM), &WORTH);
    assert!(can_decide(&own, Some(SYSTEM)) && own.arms[ARM].weight_q16 > 0);
    assert!(remove_fleet_evidence(&mut own, Some(SYSTEM), &params));
    assert_eq!(
        own.arms.map(|arm| arm.value),
        before.arms.map(|arm| arm.value)
    );
    assert_eq!(
        own.arms.map(|arm| arm.weight_q16),
        before.arms.map(|arm| arm.weight_q16)
    );
    assert!(!can_decide(&own, Some(SYSTEM)) && own.step == 0);
    // There is nothing more of it, and nothing of it in records of the fleet themselves.
    assert!(!remove_fleet_evidence(&mut own, Some(SYSTEM), &params));
    assert!(!remove_fleet_evidence(
        &mut told.clone(),
        Some(SYSTEM),
        &params
    ));
    // A host keeps what it began with.
    let mut host = Host {
        step: 96,
        ..Host::default()
    };
    host.arms[ARM].weight_q16 = 1 << 16;
    assert!(remove_fleet_evidence(&mut host, Some(SYSTEM), &params));
    assert_eq!((host.step, host.arms[ARM].weight_q16), (0, 1 << 16));
}
