//! Honest agents, copies and liars.

use super::*;
use crate::baseline::Connection;
use crate::cluster::Cluster;
use crate::ledger::{Ledger, Part};
use thalweg_units::random::Random;

/// What agents tell whose treated connections take `factor` of the time.
fn told(group: &Group) -> Vec<SideReport> {
    let sides = [Side::Control, Side::Treated];
    let rows = Row::MEASURES;
    let all = sides
        .into_iter()
        .flat_map(|side| rows.map(|row| (side, row)));
    all.map(|(side, row)| SideReport {
        row,
        side,
        moments: group.side_rows(side)[row.index()],
    })
    .filter(|it| it.moments.clusters > 0)
    .collect()
}

/// Connections of hosts that are no other agent's.
fn connections(agent: u64, hosts: u64, factor: f64, one_in: u64) -> Vec<(Part, Connection)> {
    let mut random = Random::new(agent);
    let mut all = Vec::new();
    for host in 0..hosts {
        let control = random.below(one_in) == 0;
        for _ in 0..1 + random.below(30) {
            let noise = (4.0 * random.fraction() - 2.0).exp2();
            let factor = if control { 1.0 } else { factor };
            let connection = Connection {
                bytes: 500_000,
                busy_us: (1e6 * noise * factor) as u64,
                segs_out: 400,
                retrans: random.below(20) as u32,
                srtt_us: 20_000 + random.below(20_000) as u32,
                min_rtt_us: 20_000,
                handshake_rtt_us: 20_000,
                failed: Some(random.below(50) == 0),
                held: None,
            };
            let part = Part {
                hour: 5,
                tag: agent * 1_000_000 + host,
                side: match control {
                    true => Side::Control,
                    false => Side::Treated,
                },
                port: 443,
            };
            all.push((part, connection));
        }
    }
    all
}

fn group(ledger: &Ledger) -> Group {
    ledger.current_groups()[&(Scope::All, String::new())].clone()
}

fn agent(number: u64, hosts: u64, factor: f64) -> Vec<SideReport> {
    shared(number, hosts, factor, 4)
}

/// With one host in so many in the control group.
fn shared(number: u64, hosts: u64, factor: f64, one_in: u64) -> Vec<SideReport> {
    let mut ledger = Ledger::default();
    for (part, connection) in connections(number, hosts, factor, one_in) {
        ledger.add_connection(part, &connection, String::new);
    }
    told(&group(&ledger))
}

#[test]
fn agents_together_are_one_ledger_with_all_clusters() {
    // The means of strata are those that one ledger had before each connection, so that the same
    // residuals are gathered in both ways.
    let mut whole = Ledger::default();
    let mut pool = Pool::default();
    for number in 0..20 {
        let mut own = Ledger::restore(
            whole.baseline().clone(),
            Default::default(),
            Default::default(),
        );
        for (part, connection) in connections(number, 40, 0.8, 4) {
            own.add_connection(part, &connection, String::new);
            whole.add_connection(part, &connection, String::new);
        }
        pool.add_agent(&format!("agent-{number}"), &told(&group(&own)))
            .unwrap();
    }
    let (one, other) = (group(&whole), pool.pooled_group());
    for row in Row::MEASURES {
        let (one, other) = [&one, &other]
            .map(|it| {
                let index = row.index();
                compare_groups(
                    &it.control()[index],
                    &it.treated()[index],
                    row_alpha(Scope::All),
                )
            })
            .into();
        assert_eq!((one.control, one.treated), (other.control, other.treated));
        assert!((one.effect - other.effect).abs() < 1e-9, "{row:?}");
        match (one.half_width, other.half_width) {
            (Some(one), Some(other)) => assert!((one - other).abs() < 1e-9, "{row:?}"),
            (one, other) => assert_eq!(one, other, "{row:?}"),
        }
    }
    let time = compare_groups(
        &other.control()[0],
        &other.treated()[0],
        row_alpha(Scope::All),
    );
    assert_eq!(Verdict::judge_row(&time, Row::Time), Verdict::Better);
    assert_eq!(pool.agent_count(), 20);
}

#[test]
fn what_agents_really_have_is_possible_even_rounded() {
    for number in 0..50 {
        for mut it in agent(number, 1 + number * 3, 0.5 + number as f64 / 50.0) {
            assert_eq!(it.check_possible(), Ok(()), "{it:?}");
            for sum in [
                &mut it.moments.score,
                &mut it.moments.score2,
                &mut it.moments.score3,
            ] {
                *sum = format!("{sum:.9e}").parse().unwrap();
            }
            assert_eq!(it.check_possible(), Ok(()), "{it:?}");
        }
    }
    // Residuals at their bounds, all in one direction, are as far as one can go.
    for row in Row::MEASURES {
        let mut cluster = Cluster::default();
        let mut residuals = [None; ROWS];
        residuals[row.index()] = Some(row.residual_clip());
        (0..40).for_each(|_| cluster.add(&residuals));
        let mut moments = Moments::NONE;
        (0..100).for_each(|_| moments.add(&cluster, row.index()));
        let side = Side::Treated;
        assert_eq!(SideReport { row, side, moments }.check_possible(), Ok(()));
        moments.score *= 1.001;
        assert!(SideReport { row, side, moments }.check_possible().is_err());
    }
}

#[test]
fn sums_that_no_clusters_have_are_refused_with_all_else() {
    let honest = agent(1, 200, 0.9);
    let lie = |change: &dyn Fn(&mut Moments)| {
        let mut told = honest.clone();
        change(&mut told[0].moments);
        let mut pool = Pool::default();
        let refused = pool.add_agent("liar", &told).unwrap_err();
        assert_eq!(pool.agent_count(), 0);
        assert_eq!(pool.pooled_group(), Group::default());
        assert!(
            refused.to_string().starts_with("time of control: "),
            "{refused}"
        );
        match refused {
            Refused::Impossible(it) => it.what,
            Refused::Copy { of } => panic!("a copy of {of}"),
        }
    };
    let starts = |change: &dyn Fn(&mut Moments), with: &str| {
        let what = lie(change);
        assert!(what.starts_with(with), "{what}, expected {with}");
    };
    starts(&|it| it.clusters = 0, "clusters");
    starts(&|it| it.clusters = u64::MAX, "clusters");
    starts(&|it| it.connections = it.clusters - 1, "connections");
    starts(&|it| it.connections = u64::MAX, "connections");
    starts(&|it| it.weight = it.clusters as f64 / 2.0, "weight");
    starts(&|it| it.weight = 17.0 * it.clusters as f64, "weight");
    starts(&|it| it.weight = f64::NAN, "weight");
    starts(&|it| it.connections = it.clusters, "weight");
    starts(&|it| it.weight2 = it.weight / 2.0, "squares of weights");
    starts(&|it| it.weight2 = 20.0 * it.weight, "squares of weights");
    starts(&|it| it.score = -5.0 * it.weight, "score");
    starts(&|it| it.score = f64::NEG_INFINITY, "score");
    starts(&|it| it.cross = 5.0 * it.weight2, "products");
    starts(
        &|it| it.score2 = 17.0 * it.weight2,
        "squares of scores: beyond",
    );
    starts(&|it| it.score2 = -1.0, "squares of scores: beyond");
    // A variance of 0, which would make an interval of a great lie narrow.
    starts(&|it| it.score2 = 0.0, "squares of scores do not fit");
    starts(
        &|it| (it.score, it.score2) = (-3.9 * it.weight, it.score2 / 9.0),
        "squares of scores do not fit",
    );
    starts(&|it| it.score3 = 65.0 * it.score2, "third powers");

    let mut twice = honest.clone();
    twice.push(honest[0]);
    let refused = Pool::default().add_agent("liar", &twice).unwrap_err();
    assert!(
        matches!(&refused, Refused::Impossible(it) if it.what == "it is told twice"),
        "{refused}"
    );
    let mut other = honest[0];
    other.side = Side::Itself(crate::side::Arm::UNKNOWN);
    assert!(other.check_possible().is_err());
    other = SideReport {
        row: Row::TimeOf(2),
        ..honest[0]
    };
    assert!(other.check_possible().is_err());
}

#[test]
fn shares_that_differ_make_an_effect_smaller_and_no_more() {
    let mut pool = Pool::default();
    pool.add_agent("half", &shared(1, 8000, 0.5, 2)).unwrap();
    pool.add_agent("twentieth", &shared(2, 8000, 0.5, 20))
        .unwrap();
    let group = pool.pooled_group();
    let time = compare_groups(&group.control()[0], &group.treated()[0], 0.05);
    // (p q + P Q) (1 / (q + Q) + 1 / (p + P)), with p = 1/2 and P = 1/20, of one bit.
    assert!((time.effect + 0.746).abs() < 0.03, "{time:?}");
}

#[test]
fn agents_that_differ_are_told_apart_and_so_is_the_one_that_decides() {
    let mut pool = Pool::default();
    for number in 0..6 {
        pool.add_agent(&format!("good-{number}"), &agent(number, 900, 0.5))
            .unwrap();
    }
    pool.add_agent("few", &agent(90, 30, 0.5)).unwrap();
    let alike = pool.agent_spread(Row::Time);
    assert_eq!(
        alike,
        Spread {
            known: 6,
            better: 6,
            worse: 0
        }
    );
    assert!(pool.hinges_on(Row::Time).is_empty());
    assert!(
        pool.hinges_on(Row::Retransmitted).is_empty(),
        "there is no difference"
    );
    // One that has most clusters, and is worse.
    pool.add_agent("great", &agent(91, 40_000, 1.3)).unwrap();
    assert_eq!(
        pool.agent_spread(Row::Time),
        Spread {
            known: 7,
            better: 6,
            worse: 1
        }
    );
    assert_eq!(pool.hinges_on(Row::Time), ["great"]);
}

/// Single connections whose residuals alternate around a mean by half a bit.
fn alternating(side: Side, row: Row, clusters: u64, mean: f64) -> SideReport {
    let n = clusters as f64;
    let moments = Moments {
        clusters,
        connections: clusters,
        weight: n,
        score: n * mean,
        weight2: n,
        cross: n * mean,
        score2: n * (mean * mean + 0.25),
        score3: n * mean * (mean * mean + 0.75),
    };
    SideReport { row, side, moments }
}

fn even(row: Row, clusters: u64, effect: f64) -> Vec<SideReport> {
    let sides = [(Side::Control, -0.5), (Side::Treated, 0.5)].into_iter();
    let told = sides.map(|(side, part)| alternating(side, row, clusters, part * effect));
    told.collect()
}

/// Eleven agents that agree.
fn eleven(clusters: u64, effect: f64) -> Pool {
    let mut pool = Pool::default();
    for number in 0..11u64 {
        let told = even(Row::Time, clusters + number * clusters / 50, effect);
        pool.add_agent(&format!("good-{number}"), &told).unwrap();
    }
    pool
}

fn verdict(group: &Group) -> &'static str {
    let [control, treated] = [group.control()[0], group.treated()[0]];
    Verdict::judge_row(&judge_agents(&[control, treated]), Row::Time).one_word()
}

#[test]
fn third_powers_without_scores_and_squares_that_fit_are_refused() {
    // 26 host-hours around 0, with the largest third power that their squares alone allow.
    for score2 in [100.0, 1e4, 26.0 * 4096.0] {
        for sign in [1.0, -1.0] {
            let moments = Moments {
                clusters: 26,
                connections: 26 * 16,
                weight: 26.0 * 16.0,
                score: 0.0,
                weight2: 26.0 * 256.0,
                cross: 0.0,
                score2,
                score3: sign * 64.0 * score2,
            };
            let (row, side) = (Row::Time, Side::Treated);
            let refused = SideReport { row, side, moments }
                .check_possible()
                .unwrap_err();
            assert!(refused.what.starts_with("third powers"), "{refused}");
            // What two values have is possible: one of 64, and as many of little as make 0.
            let score3 = sign * (64.0 * score2 - score2 * score2 / (26.0 * 64.0));
            let moments = Moments { score3, ..moments };
            assert_eq!(
                SideReport { row, side, moments }.check_possible(),
                Ok(()),
                "{score2}"
            );
        }
    }
}

#[test]
fn liar_within_the_bounds_turns_no_verdict_off() {
    // The widest scatter and skewness that 26 host-hours may have, beside 11 × 6,000 on a side.
    for effect in [-0.8, 1.0] {
        let mut pool = eleven(6_000, effect);
        let found = verdict(&pool.pooled_group());
        for (score, score2) in [
            (0.0, 26.0 * 4096.0 / 2.0),
            (0.0, 26.0 * 4096.0),
            (-1600.0, 1e5),
        ] {
            let told = [Side::Control, Side::Treated].map(|side| SideReport {
                row: Row::Time,
                side,
                moments: Moments {
                    clusters: 26,
                    connections: 26 * 16,
                    weight: 26.0 * 16.0,
                    score,
                    weight2: 26.0 * 256.0,
                    cross: 16.0 * score,
                    score2,
                    score3: score * score2 / 26.0,
                },
            });
            let told: Vec<_> = told.into_iter().collect();
            pool.add_agent(&format!("liar {score} {score2}"), &told)
                .unwrap();
            assert_eq!(verdict(&pool.pooled_group()), found);
        }
        assert!(pool.hinges_on(Row::Time).is_empty());
    }
}

#[test]
fn agent_that_hides_a_difference_is_named() {
    for (effect, row) in [(-0.8, Row::Time), (0.5, Row::Time)] {
        let mut pool = eleven(6_000, effect);
        let found = verdict(&pool.pooled_group());
        // As many host-hours as make the mean 0, or nothing known.
        let mut told = even(row, 1 << 22, -effect / 60.0);
        for it in &mut told {
            it.moments.score2 = 15.0 * it.moments.weight2;
            it.moments.score3 = 0.0;
        }
        pool.add_agent("liar", &told).unwrap();
        assert_ne!(verdict(&pool.pooled_group()), found);
        assert_eq!(pool.hinges_on(row), ["liar"]);
        assert_eq!(verdict(&pool.group_without("liar")), found);
    }
}

/// Sides of this many clusters that take the time of their strata, almost exactly.
fn without_scatter(clusters: u64) -> Vec<SideReport> {
    let mut told = even(Row::Time, clusters, 0.0);
    for it in &mut told {
        it.moments.score2 = 1e-3;
    }
    told
}

#[test]
fn agent_that_alone_makes_a_verdict_same_is_named() {
    for clusters in [1 << 25, 1 << 12, 400] {
        let mut pool = eleven(60, 0.0);
        assert_eq!(verdict(&pool.pooled_group()), "unknown");
        pool.add_agent("liar", &without_scatter(clusters)).unwrap();
        assert_eq!(verdict(&pool.pooled_group()), "same", "{clusters}");
        assert_eq!(pool.hinges_on(Row::Time), ["liar"], "{clusters}");
    }
}

#[test]
fn agents_that_only_add_clusters_to_the_same_are_not_named() {
    let fleet = |clusters: u64| {
        let mut pool = Pool::default();
        for number in 0..4 {
            let told = even(Row::Time, clusters + 50 * number, 0.0);
            pool.add_agent(&format!("good-{number}"), &told).unwrap();
        }
        pool
    };
    let enough = (100..).find(|clusters| verdict(&fleet(*clusters).pooled_group()) == "same");
    let mut pool = fleet(enough.unwrap());
    for number in 0..4 {
        let without = pool.group_without(&format!("good-{number}"));
        assert_eq!(verdict(&without), "unknown");
    }
    assert!(pool.hinges_on(Row::Time).is_empty());
    // One that has more than all others.
    let mut pool_of_few = fleet(100);
    let told = even(Row::Time, 4 * enough.unwrap(), 0.0);
    pool_of_few.add_agent("great", &told).unwrap();
    assert_eq!(verdict(&pool_of_few.pooled_group()), "same");
    assert_eq!(pool_of_few.hinges_on(Row::Time), ["great"]);
    // Enough without any one of them.
    pool.add_agent("great", &told).unwrap();
    pool.add_agent("other", &even(Row::Time, 3 * enough.unwrap(), 0.0))
        .unwrap();
    assert!(pool.hinges_on(Row::Time).is_empty());
}

#[test]
fn copy_of_an_agent_counts_once() {
    let mut pool = Pool::default();
    let original = agent(1, 900, 0.8);
    pool.add_agent("web-1", &original).unwrap();
    let before = pool.pooled_group();
    let refused = pool.add_agent("web-2", &original).unwrap_err();
    let of = "web-1".to_owned();
    assert_eq!(refused, Refused::Copy { of });
    assert!(refused.to_string().contains("those of web-1"), "{refused}");
    assert_eq!((pool.agent_count(), pool.pooled_group()), (1, before));
    // A few host-hours may be alike by chance.
    for name in ["few-1", "few-2"] {
        pool.add_agent(name, &even(Row::Time, 40, -0.5)).unwrap();
    }
    assert_eq!(pool.agent_count(), 3);
}

/// Adds a copy of an agent's sums that were changed; they are refused.
fn assert_copy(original: &[SideReport], what: &str, change: impl FnOnce(&mut Vec<SideReport>)) {
    let mut told = original.to_vec();
    change(&mut told);
    assert!(told.iter().all(|it| it.check_possible().is_ok()), "{what}");
    let mut pool = Pool::default();
    pool.add_agent("web-1", original).unwrap();
    let of = "web-1".to_owned();
    assert_eq!(
        pool.add_agent("web-2", &told),
        Err(Refused::Copy { of }),
        "{what}"
    );
}

#[test]
fn copy_of_some_measures_counts_once() {
    let original = agent(1, 900, 0.8);
    assert_copy(&original, "without rtt", |told| {
        told.retain(|it| it.row != Row::Inflation);
    });
    for row in Row::MEASURES {
        assert_copy(&original, row.measure_name(), |told| {
            told.retain(|it| it.row == row);
            told.iter_mut()
                .for_each(|it| it.moments.score *= 1.0 + 1e-9);
        });
        assert_copy(&original, row.measure_name(), |told| {
            for it in told.iter_mut().filter(|it| it.row != row) {
                it.moments.score /= 2.0;
            }
        });
    }
}

#[test]
fn copy_with_a_few_more_clusters_counts_once() {
    // Measures with few different values, too.
    for (row, residual) in Row::MEASURES.map(|row| (row, row.residual_clip())) {
        for (weight, residual) in [(1, 0.0), (1, residual), (4, -residual), (2, residual / 3.0)] {
            assert_copy(&agent(1, 900, 0.8), row.measure_name(), |told| {
                told.retain(|it| it.row == row);
                for it in told {
                    it.moments.push_mean(f64::from(weight), residual, 7);
                }
            });
        }
    }
    // A machine that was copied and went on.
    let mut ledger = Ledger::default();
    for (part, connection) in connections(1, 20_000, 0.8, 2) {
        ledger.add_connection(part, &connection, String::new);
    }
    let original = told(&group(&ledger));
    for (part, connection) in connections(2, 8, 0.8, 2) {
        ledger.add_connection(part, &connection, String::new);
    }
    assert_copy(&original, "copied", |all| *all = told(&group(&ledger)));
}

#[test]
fn honest_agents_of_equal_size_are_no_copies() {
    // As many clusters of one connection on each side; of a random side; of up to six connections.
    for kind in 0..3 {
        let mut pool = Pool::default();
        for number in 0..500 {
            let mut random = Random::new(1_000 + number);
            let mut ledger = Ledger::default();
            for host in 0..220 {
                let control = match kind {
                    0 => host % 4 == 0,
                    _ => random.below(4) == 0,
                };
                let connections = match kind {
                    2 => 1 + random.below(6),
                    _ => 1,
                };
                for _ in 0..connections {
                    let noise = (4.0 * random.fraction() - 2.0).exp2();
                    let is_lossy = random.below(10) == 0;
                    let connection = Connection {
                        bytes: 500_000,
                        busy_us: (1e6 * noise) as u64,
                        segs_out: 400,
                        retrans: u32::from(is_lossy) * random.below(20) as u32,
                        srtt_us: 20_000 + random.below(20_000) as u32,
                        min_rtt_us: 20_000,
                        handshake_rtt_us: 20_000,
                        failed: Some(random.below(50) == 0),
                        held: None,
                    };
                    let part = Part {
                        hour: 5,
                        tag: host,
                        side: match control {
                            true => Side::Control,
                            false => Side::Treated,
                        },
                        port: 443,
                    };
                    ledger.add_connection(part, &connection, String::new);
                }
            }
            let told = told(&group(&ledger));
            assert_eq!(
                pool.add_agent(&number.to_string(), &told),
                Ok(()),
                "{kind} {number}"
            );
        }
    }
}

#[test]
fn agents_without_failures_are_no_copies() {
    let mut pool = Pool::default();
    for number in 0..2 {
        let mut all = agent(number, 900, 0.8);
        // Each as many clusters, of which none or one failed at all.
        for side in [Side::Control, Side::Treated] {
            let mut moments = Moments::NONE;
            (0..200).for_each(|_| moments.push_mean(1.0, 0.0, 1));
            if side == Side::Treated {
                moments.push_mean(1.0, 1.0, 1);
            }
            all.retain(|it| (it.row, it.side) != (Row::Failed, side));
            let row = Row::Failed;
            all.push(SideReport { row, side, moments });
        }
        assert_eq!(pool.add_agent(&number.to_string(), &all), Ok(()));
    }
}
