//! Long connections: when a stretch is scored, and when they are decided anew. Expectations are
//! those of docs/reference/learner.md, by hand.

use thalweg_learner::{
    End, Host, Long, Mode, ONE_Q16, Params, Reason, Review, Sample, is_due, propensities_q16,
    review_connection, score,
};

const SYSTEM: usize = 0;
const OTHER: usize = 1;
const THIRD: usize = 2;
const ALL: u16 = 0b111;
const SECOND_NS: u64 = 1_000_000_000;
const HOUR_NS: u64 = 3600 * SECOND_NS;
const MIB: u64 = 1 << 20;

/// A host whose arms were measured eight times, with these costs in eighths of a bit.
fn host(eighths: [i64; 3]) -> Host {
    let mut host = Host {
        scored: 24,
        ..Host::default()
    };
    for (arm, cost) in host.arms.iter_mut().zip(eighths) {
        arm.value = ((40 << 16) + cost * (1 << 13)) as u64;
        arm.weight_q16 = 8 * ONE_Q16;
        arm.caution_q16 = ONE_Q16 / 20;
    }
    host
}

fn long(arm: usize) -> Long {
    Long {
        arm: Some(arm),
        system_arm: Some(SYSTEM),
        trial: false,
        decided_ns: 0,
    }
}

fn look(host: &Host, long: &Long) -> Option<Review> {
    review_connection(host, long, ALL, &Params::default(), 0, 10 * HOUR_NS)
}

fn reason(host: &Host, long: &Long) -> Option<(Reason, Option<usize>)> {
    look(host, long).map(|found| (found.decision.reason, found.decision.arm))
}

#[test]
fn stretches_are_due_by_age_and_bytes_and_the_later_ones_are_longer() {
    let params = Params::default();
    let due = |seconds: u64, bytes: u64, count| is_due(seconds * SECOND_NS, bytes, count, &params);
    assert!(due(15, MIB, 0) && !due(14, MIB, 0) && !due(3600, MIB - 1, 0));
    for (count, seconds) in [(1, 30), (2, 60), (3, 120), (4, 240), (5, 240), (1000, 240)] {
        assert!(due(seconds, MIB, count), "{count}");
        assert!(!due(seconds - 1, MIB, count), "{count}");
    }
    let never = Params {
        stretch_ns: 0,
        ..params
    };
    assert!(!is_due(u64::MAX, u64::MAX, 0, &never));
}

#[test]
fn on_the_best_arm_a_connection_stays() {
    assert_eq!(look(&host([0, 8, 8]), &long(SYSTEM)), None);
    assert_eq!(look(&host([8, 0, 8]), &long(OTHER)), None);
}

#[test]
fn from_a_bad_arm_it_goes_back_at_once() {
    // The handicap is 1/20 bit: four eighths are half a bit and more, three are not.
    let just_decided = Long {
        decided_ns: 10 * HOUR_NS - SECOND_NS,
        ..long(OTHER)
    };
    let back = Some((Reason::Returned, Some(SYSTEM)));
    assert_eq!(reason(&host([0, 4, 8]), &just_decided), back);
    assert_eq!(reason(&host([0, 3, 8]), &just_decided), None);
    let found = look(&host([0, 4, 8]), &just_decided).unwrap();
    assert_eq!(found.decision.propensity_q16, ONE_Q16);
    assert_eq!(found.shares_q16[..3], [ONE_Q16, 0, 0]);
    // To the best one, where that is another.
    let best = Some((Reason::Returned, Some(THIRD)));
    assert_eq!(reason(&host([0, 4, -8]), &just_decided), best);
    // A harmful arm, however fast.
    let mut harmful = host([0, -8, 8]);
    assert_eq!(reason(&harmful, &just_decided), None);
    harmful.harmful = 1 << OTHER;
    assert_eq!(reason(&harmful, &just_decided), back);
}

#[test]
fn an_arm_that_was_taken_away_is_left_at_once() {
    let fast = host([0, -8, 8]);
    let params = Params::default();
    let found = review_connection(&fast, &long(OTHER), 0b101, &params, 0, HOUR_NS).unwrap();
    assert_eq!(
        (found.decision.reason, found.decision.arm),
        (Reason::Returned, Some(SYSTEM))
    );
    // Nobody goes to a system's arm that is not allowed.
    assert_eq!(
        review_connection(&fast, &long(OTHER), 0b010, &params, 0, HOUR_NS),
        None
    );
}

#[test]
fn where_another_arm_is_better_the_rule_decides_anew_once_an_hour() {
    // Two eighths less the handicap are more than one eighth; one is not.
    let better = host([2, 0, 8]);
    let found = look(&better, &long(SYSTEM)).unwrap();
    let expected = propensities_q16(&better, Some(SYSTEM), ALL, &Params::default(), 10 * HOUR_NS);
    assert_eq!(found.decision.reason, Reason::Anew);
    assert_eq!(found.shares_q16, expected);
    assert!(expected[OTHER] > ONE_Q16 / 2, "{expected:?}");
    assert_eq!(look(&host([1, 0, 8]), &long(SYSTEM)), None);
    let at = |decided_ns| Long {
        decided_ns,
        ..long(SYSTEM)
    };
    assert_eq!(look(&better, &at(9 * HOUR_NS + 1)), None);
    assert!(look(&better, &at(9 * HOUR_NS)).is_some());
}

#[test]
fn a_trial_that_is_not_the_best_ends_with_its_stretch() {
    // Only the handicap behind: too little for others.
    let near = host([0, 0, 8]);
    assert_eq!(look(&near, &long(OTHER)), None);
    let trial = Long {
        trial: true,
        ..long(OTHER)
    };
    assert_eq!(look(&near, &trial).unwrap().decision.reason, Reason::Anew);
    assert_eq!(look(&host([1, 0, 8]), &Long { ..trial }), None);
}

#[test]
fn trials_of_long_connections_are_paid_and_two_at_a_time() {
    let mut rich = host([8, 0, 0]);
    rich.arms[THIRD].weight_q16 = 0;
    rich.credit_q16 = 5 << 16;
    let params = Params::default();
    let drawn = |host: &Host| {
        let any = |ticket| review_connection(host, &long(SYSTEM), ALL, &params, ticket, HOUR_NS);
        let all: Vec<Review> = (0..ONE_Q16).filter_map(any).collect();
        let trials = all.iter().filter(|found| found.trial).count();
        (all.len(), trials)
    };
    let (all, trials) = drawn(&rich);
    assert_eq!(all, ONE_Q16 as usize);
    // A first trial has half of the connections.
    assert!(trials >= ONE_Q16 as usize / 2, "{trials}");
    rich.trials = 2;
    rich.trial_ns = HOUR_NS;
    assert_eq!(drawn(&rich), (ONE_Q16 as usize, 0));
}

#[test]
fn nothing_is_decided_before_the_systems_arm_is_known_nor_in_classic() {
    let mut unknown = host([0, 8, 8]);
    unknown.arms[SYSTEM].weight_q16 = 0;
    assert_eq!(look(&unknown, &long(OTHER)), None);
    let classic = Params {
        mode: Mode::Classic,
        ..Params::default()
    };
    let bad = host([0, 8, 8]);
    assert_eq!(
        review_connection(&bad, &long(OTHER), ALL, &classic, 0, HOUR_NS),
        None
    );
}

#[test]
fn a_stretch_earns_no_credit_and_is_charged_like_an_end() {
    let sample = |end, mbit: u64| Sample {
        bytes: MIB,
        duration_us: MIB * 8 / mbit,
        rate_delivered_bytes: 0,
        rate_interval_us: 0,
        srtt_us: 20_000,
        min_rtt_us: 20_000,
        segs_out: 1000,
        retrans: 0,
        steady_segs: 1000,
        steady_retrans: 0,
        loss_srtt_us: 0,
        limited_us: 0,
        busy_time: true,
        end,
    };
    let params = Params::default();
    let credit = |ends: &[(usize, End, u64)]| {
        let mut host = Host::default();
        for &(arm, end, mbit) in ends {
            score(&mut host, arm, Some(SYSTEM), &sample(end, mbit), &params, 1);
        }
        host.credit_q16
    };
    let earned = 2621;
    assert_eq!(credit(&[(SYSTEM, End::Stretch, 100); 50]), 0);
    assert_eq!(credit(&[(SYSTEM, End::FinLocal, 100); 50]), 50 * earned);
    let mut then = [(SYSTEM, End::FinLocal, 100); 51];
    then[50] = (OTHER, End::Stretch, 50);
    // Half the rate is one bit, and a quarter is charged on top.
    assert_eq!(credit(&then), 50 * earned - ONE_Q16 * 5 / 4);
}
