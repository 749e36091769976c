//! Groups: what hosts tell them decides about hosts of which nothing is known.

use thalweg_learner::{
    End, Host, Level, MAX_ARMS, Params, Reason, Sample, WORTH_OF_GROUP_Q16, WORTH_Q16, adopt_wider,
    can_decide, decide_group, group_report, inherit_group, score, score_group, worth_q16,
};

const SYSTEM: Option<usize> = Some(0);

fn sample(bytes_per_second: u64) -> Sample {
    let bytes = 4 << 20;
    Sample {
        bytes,
        duration_us: bytes * 1_000_000 / bytes_per_second,
        rate_delivered_bytes: 0,
        rate_interval_us: 0,
        srtt_us: 20_000,
        min_rtt_us: 19_000,
        segs_out: 3000,
        retrans: 0,
        steady_segs: 3000,
        steady_retrans: 0,
        loss_srtt_us: 0,
        limited_us: 0,
        busy_time: true,
        end: End::FinLocal,
    }
}

fn group(level: Level) -> Host {
    Host {
        level,
        ..Host::default()
    }
}

/// A new host's measurements by arm and rate, all told to `group`.
fn tell(group: &mut Host, measured: &[(usize, u64)]) {
    let (mut host, params) = (Host::default(), Params::default());
    for &(arm, rate) in measured {
        let (before, sample) = (host.clone(), sample(rate));
        let verdict = score(&mut host, arm, SYSTEM, &sample, &params, 1);
        let (cost, weight) = (verdict.cost, verdict.weight_q16);
        let told = group_report(&before, &host, arm, SYSTEM, &sample, cost, weight);
        if let Some(told) = told {
            score_group(group, arm, SYSTEM, &told, &sample, &params, 1);
        }
    }
}

/// A group of hosts whose rates differ by a factor of four, on each of which arm 1 carries twice as
/// much.
fn twice_as_fast(level: Level) -> Host {
    let mut group = group(level);
    for host in 0..40 {
        let rate = 1_000_000 << (host % 3);
        tell(&mut group, &[(0, rate), (1, 2 * rate)]);
    }
    group
}

#[test]
fn costs_are_relative_to_each_hosts_own() {
    let group = twice_as_fast(Level::Prefix);
    let apart = group.arms[0].value as i64 - group.arms[1].value as i64;
    // One bit, but for the spread of hosts that were compared with the usual one.
    assert!((apart - (1 << 16)).abs() < 1 << 15, "{apart}");
}

#[test]
fn a_group_that_knows_decides_about_a_new_host() {
    let params = Params::default();
    let mut group = twice_as_fast(Level::Prefix);
    let decision = decide_group(&mut group, SYSTEM, 0b11, &params, 0, 1).unwrap();
    assert_eq!((decision.arm, decision.reason), (Some(1), Reason::Greedy));
    assert_eq!(group.arms[1].chosen, 1);
}

#[test]
fn a_group_that_knows_too_little_does_not() {
    let params = Params::default();
    let mut group = group(Level::Prefix);
    for _ in 0..10 {
        tell(&mut group, &[(0, 1_000_000)]);
    }
    assert!(!can_decide(&group, SYSTEM));
    assert_eq!(decide_group(&mut group, SYSTEM, 0b11, &params, 0, 1), None);
    // A namespace whose default is another arm.
    assert!(!can_decide(&twice_as_fast(Level::Prefix), Some(3)));
}

#[test]
fn a_trial_is_paid_in_advance() {
    let params = Params::default();
    let mut group = twice_as_fast(Level::Prefix);
    let credit = group.credit_q16;
    // The last ticket is that of the untried arm.
    let decision = decide_group(&mut group, SYSTEM, 0b111, &params, 0xffff - 0x2000, 1).unwrap();
    assert_eq!(decision.reason, Reason::Untried);
    assert!(group.credit_q16 < credit);
}

#[test]
fn a_busy_host_is_one_host() {
    let mut group = group(Level::Prefix);
    tell(&mut group, &[(0, 1_000_000); 160]);
    assert_eq!(group.scored, 10);
}

#[test]
fn a_new_record_starts_from_the_group() {
    let (mut host, params) = (Host::default(), Params::default());
    let group = twice_as_fast(Level::Namespace);
    score(&mut host, 1, SYSTEM, &sample(4_000_000), &params, 1);
    inherit_group(&mut host, &group, 1, SYSTEM, &WORTH_OF_GROUP_Q16);
    let apart = |record: &Host| record.arms[0].value as i64 - record.arms[1].value as i64;
    assert_eq!(apart(&host), apart(&group));
    assert_eq!(host.arms[0].weight_q16, 8 << 16);
    assert_eq!(host.arms[1].weight_q16, 9 << 16);
    // An arm that was not measured keeps its distance.
    score(&mut host, 1, SYSTEM, &sample(1_000_000), &params, 2);
    assert_eq!(apart(&host), apart(&group));
    assert_eq!(host.arms[0].scored, 0);
    // Its first measurement ends that.
    score(&mut host, 0, SYSTEM, &sample(4_000_000), &params, 3);
    assert!(apart(&host) < apart(&group));
}

#[test]
fn a_narrow_group_starts_from_a_wide_one() {
    let wide = twice_as_fast(Level::Namespace);
    let mut narrow = group(Level::Prefix);
    tell(&mut narrow, &[(0, 1_000_000)]);
    adopt_wider(&mut narrow, &wide, SYSTEM, &WORTH_Q16);
    assert!(can_decide(&narrow, SYSTEM));
    assert_eq!(narrow.arms[1].value, wide.arms[1].value);
    // Its own measurements stay apart, and outweigh the rest by their number.
    for _ in 0..400 {
        tell(&mut narrow, &[(0, 1_000_000), (1, 500_000)]);
    }
    adopt_wider(&mut narrow, &wide, SYSTEM, &WORTH_Q16);
    assert!(narrow.arms[1].value > narrow.arms[0].value);
}

#[test]
fn the_worth_of_wide_groups_falls_with_the_spread_of_narrow_ones() {
    let mut wide = group(Level::Namespace);
    for (arm, bits) in wide.arms.iter_mut().zip([32, 31]) {
        arm.value = bits << 16;
        arm.deviation_q16 = 1 << 15;
    }
    let narrow = |rate_of_other: fn(u64) -> u64| {
        let groups = (0..40u64).map(|index| {
            let mut group = group(Level::Prefix);
            for _ in 0..10 {
                tell(&mut group, &[(0, 1_000_000), (1, rate_of_other(index))]);
            }
            group
        });
        groups.collect::<Vec<_>>()
    };
    let alike = narrow(|_| 2_000_000);
    let apart = narrow(|index| 500_000 << (index % 5));
    let worth = |groups: &[Host]| worth_q16(groups.iter(), &wide, 0)[1] >> 16;
    assert!(worth(&alike) > 100, "{}", worth(&alike));
    assert!(worth(&apart) < 10, "{}", worth(&apart));
    // One odd group of forty, 8 bits away, turns off what is known of the others no more.
    let odd = narrow(|index| {
        if index == 7 {
            2_000_000 >> 8
        } else {
            2_000_000
        }
    });
    assert!(worth(&odd) > 50, "{}", worth(&odd));
    assert_eq!(WORTH_Q16.len(), MAX_ARMS);
}
