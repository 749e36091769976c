//! Statuses as a server may have them.

use super::*;
use thalweg_fleet::wire::Status;
use thalweg_fleet::{Kind, Name};

/// Clusters of one connection each, whose residuals alternate around a mean.
fn cell(scope: &str, row: &str, side: &str, clusters: u64, mean: f64) -> Cell {
    let n = clusters as f64;
    // Scores are mean ± 1/2.
    let square = mean * mean + 0.25;
    let third = mean * (mean * mean + 0.75);
    Cell {
        scope: scope.to_owned(),
        row: row.to_owned(),
        side: side.to_owned(),
        clusters,
        connections: clusters,
        sums: [n, n * mean, n, n * mean, n * square, n * third],
    }
}

fn pair(scope: &str, clusters: u64, effect: f64) -> Vec<Cell> {
    let side = |side: &str, mean| cell(scope, "time", side, clusters, mean);
    vec![
        side("control", -effect / 2.0),
        side("treated", effect / 2.0),
    ]
}

fn member(name: &str, age_s: u64, cells: Vec<Cell>) -> Member {
    let agent = Name::new(name).unwrap();
    Member {
        agent: agent.clone(),
        age: Duration::from_secs(age_s),
        status: Ok(Status {
            agent,
            version: "0.1.0".to_owned(),
            instance: None,
            is_shared: false,
            labels: vec![Name::all()],
            policies: Vec::new(),
            faults: Vec::new(),
            cells,
        }),
        left_out: Vec::new(),
    }
}

/// A member whose status has passed through the server.
fn received(member: Member) -> Member {
    let text = serde_json::json!({
        "format": 1, "agent": member.agent, "version": "0.1.0", "labels": ["all"],
        "policies": [], "faults": ["store"], "cells": member.status.unwrap().cells,
    });
    let received = Status::parse(text.to_string().as_bytes()).unwrap();
    Member {
        status: Ok(received.status),
        left_out: received.left_out,
        ..self::member(member.agent.as_str(), 60, Vec::new())
    }
}

fn unreadable(name: &str) -> Member {
    Member {
        status: Err(Fault {
            kind: Kind::Version,
            text: format!("$KV.thalweg-status.{name}: found format 2, expected 1"),
        }),
        ..member(name, 60, Vec::new())
    }
}

#[test]
fn a_table_of_all_agents() {
    let mut refused = member("b", 60, Vec::new());
    let status = refused.status.as_mut().unwrap();
    status.version = "0.2.0".to_owned();
    status.policies = vec![Progress {
        label: Name::new("web").unwrap(),
        number: 3,
        stage: Stage::Refused,
        reason: "line 3: no such key".to_owned(),
    }];
    let mut ill = member("c", 60, Vec::new());
    ill.status.as_mut().unwrap().faults = vec!["store".to_owned()];
    let silent = member("d", 31 * 60, Vec::new());
    let all = [
        member("a", 29 * 60, Vec::new()),
        refused,
        ill,
        silent,
        unreadable("e"),
    ];
    let found = Statuses::new(all.to_vec()).agents();
    assert_eq!((found.silent, found.with_problems), (1, 3));
    let versions = [("0.1.0".to_owned(), 3), ("0.2.0".to_owned(), 1)];
    assert_eq!(found.versions, BTreeMap::from(versions));
    let problems: Vec<_> = found
        .agents
        .iter()
        .map(|it| it.problems.join("; "))
        .collect();
    assert_eq!(
        problems,
        [
            "",
            "policy web 3 refused: line 3: no such key",
            "store",
            "",
            ""
        ]
    );
    assert_eq!(found.agents[1].policies[0].stage, "refused");
    let fault = found.agents[4].unreadable.as_deref().unwrap();
    assert!(fault.contains("found format 2"), "{fault}");
    assert!(found.agents[3].silent && !found.agents[0].silent);
}

#[test]
fn agents_that_each_know_too_little_know_enough_together() {
    let alone = Statuses::new(vec![member("a", 60, pair("all", 40, -0.8))]).gain();
    assert!(
        alone
            .summary
            .starts_with("1 agent: Not known yet: the control group has 40 host-hours")
    );
    assert_eq!(alone.all.rows[0].verdict, "unknown");
    let names = ["a", "b", "c", "d", "e", "f", "g", "h", "i", "j"];
    let mut all: Vec<_> = names
        .iter()
        .map(|name| member(name, 60, pair("all", 40, -0.8)))
        .collect();
    // Those that are not counted, and one that is named.
    all.push(unreadable("other"));
    all.push(member("dry", 60, Vec::new()));
    all.push(member("silent", 3601, pair("all", 40, -0.8)));
    let found = Statuses::new(all).gain();
    assert_eq!((found.all.agents, found.without), (11, 1));
    let said = "11 agents: Transfers take 43 % less time [";
    assert!(found.summary.starts_with(said), "{}", found.summary);
    assert!(
        found
            .summary
            .ends_with("the control group of 440 host-hours."),
        "{}",
        found.summary
    );
    let row = &found.all.rows[0];
    assert_eq!(
        (&*row.verdict, row.control, row.treated),
        ("better", 440, 440)
    );
    assert_eq!(row.known_in_s, None);
    assert_eq!(found.all.spread[0].known, 0);
    assert_eq!(found.left_out.len(), 1);
    assert_eq!(found.left_out[0].agent, "other");
    assert_eq!(found.silent[0].agent, "silent");
    assert!(found.all.hinges_on.is_empty());
}

#[test]
fn liars_are_left_out_and_named_and_the_spread_is_told() {
    let mut all: Vec<_> = [("a", 4000), ("b", 4100), ("c", 4200)]
        .iter()
        .map(|(name, clusters)| member(name, 60, pair("all", *clusters, -0.8)))
        .collect();
    all.push(member("worse", 60, pair("all", 4000, 0.8)));
    let honest = Statuses::new(all.clone()).gain();
    let spread = &honest.all.spread[0];
    assert_eq!((spread.known, spread.better, spread.worse), (4, 3, 1));
    assert_eq!(spread.worse_share, Some(0.25));
    // More clusters than there were hours, a mean beyond the clip, no variance, and half a pair of
    // measures that are none.
    let mut hours = pair("all", 4000, 0.8);
    hours[0].clusters = 1 << 50;
    hours[0].connections = 1 << 50;
    let mut far = pair("all", 4000, 0.8);
    far[1].sums[1] = 1e9;
    let mut narrow = pair("all", 4000, 0.8);
    narrow[1].sums[4] = 0.0;
    let mut row = pair("all", 4000, 0.8);
    row[1].row = "speed".to_owned();
    for (name, cells) in [
        ("hours", hours),
        ("far", far),
        ("narrow", narrow),
        ("row", row),
    ] {
        all.push(member(name, 60, cells));
    }
    all.push(member("scope", 60, pair("port", 4000, 0.8)));
    let found = Statuses::new(all).gain();
    assert_eq!(found.all, honest.all);
    let names: Vec<_> = found.left_out.iter().map(|it| &*it.agent).collect();
    assert_eq!(names, ["scope", "scope", "hours", "far", "narrow", "row"]);
    assert_eq!(found.refused, 10);
    assert!(
        found.left_out[2]
            .why
            .starts_with("time of control: clusters"),
        "{found:?}"
    );
}

/// Eleven agents that agree, each with 100 clusters more than the one before: no copies.
fn eleven(clusters: u64, effect: f64) -> Vec<Member> {
    let names = "abcdefghijk".chars().zip((clusters..).step_by(100));
    let agree = |(name, clusters)| member(&format!("{name}1"), 60, pair("all", clusters, effect));
    names.map(agree).collect()
}

#[test]
fn liar_of_the_largest_third_power_is_left_out_and_named() {
    let all = eleven(6_000, -0.8);
    let honest = Statuses::new(all.clone()).gain();
    assert_eq!(honest.all.rows[0].verdict, "better");
    let mut liar = pair("all", 26, 0.0);
    for cell in &mut liar {
        cell.connections = 26 * 16;
        let square = 1_000.0;
        cell.sums = [416.0, 0.0, 6656.0, 0.0, square, 64.0 * square];
    }
    let with = Statuses::new([all, vec![member("liar", 60, liar)]].concat()).gain();
    assert_eq!(with.all, honest.all);
    assert_eq!(with.left_out[0].agent, "liar");
    let why = &with.left_out[0].why;
    assert!(why.starts_with("time of control: third powers"), "{why}");
}

#[test]
fn cell_out_of_bounds_costs_the_comparison_alone_and_is_named() {
    let mut all = eleven(6_000, -0.8);
    all.push(member("z1", 60, pair("rule:pace", 7_000, 0.5)));
    let honest = Statuses::new(all.clone()).gain();
    all.pop();
    // The worse side, without which the agent would seem to be as fast as the others.
    let mut cells = [pair("all", 9_000, 0.8), pair("rule:pace", 7_000, 0.5)].concat();
    cells[1].sums[4] = 1e19;
    all.push(received(member("z1", 60, cells)));
    let statuses = Statuses::new(all);
    let found = statuses.gain();
    assert_eq!((&found.all, &found.rules), (&honest.all, &honest.rules));
    // It tells of connections.
    assert_eq!((found.without, honest.without), (0, 1));
    assert_eq!(found.refused, 2);
    let why = "time of treated: sums: found 1e19, expected -1e18 to 1e18";
    let [left_out] = &found.left_out[..] else {
        panic!("{found:?}");
    };
    assert_eq!((&*left_out.agent, &*left_out.why), ("z1", why));
    // All else of its status is read.
    let agents = statuses.agents();
    let last = agents.agents.last().unwrap();
    assert_eq!((&*last.agent, &last.unreadable), ("z1", &None));
    assert_eq!(last.version.as_deref(), Some("0.1.0"));
    let uncounted = format!("gain is not counted: {why}");
    assert_eq!(last.problems, ["store".to_owned(), uncounted]);
    // A rule's, and a scope that is none.
    let mut cells = [pair("rule:pace", 7_000, 0.5), pair("\n", 10, 0.0)].concat();
    cells[0].clusters = u64::MAX;
    let found = Statuses::new(vec![received(member("z1", 60, cells))]).gain();
    let [scope, rule] = &found.left_out[..] else {
        panic!("{found:?}");
    };
    assert!(
        scope.why.starts_with("scope \" \": scope: found"),
        "{scope:?}"
    );
    let said = "rule pace: time of control: clusters, connections: found 1844674";
    assert!(rule.why.starts_with(said), "{rule:?}");
    assert_eq!((found.refused, found.without), (4, 1));
}

#[test]
fn agent_that_hides_the_verdict_is_named_with_what_the_others_say() {
    let all = eleven(6_000, -0.8);
    // As many host-hours, and as much slower, as make the mean 0.
    let hidden = member("liar", 60, pair("all", 4_000_000, 0.8 * 71_500.0 / 4e6));
    let found = Statuses::new([all, vec![hidden]].concat()).gain();
    assert_eq!(found.all.rows[0].verdict, "same");
    assert_eq!(found.all.hinges_on, ["liar"]);
    let said = "Without liar: Transfers take 43 % less time [";
    assert!(found.summary.contains(said), "{}", found.summary);
}

#[test]
fn copy_of_a_status_counts_once_and_is_named() {
    let mut all = eleven(6_000, -0.8);
    let honest = Statuses::new(all.clone()).gain();
    all.push(member("z1", 60, pair("all", 6_000, -0.8)));
    let found = Statuses::new(all).gain();
    assert_eq!(found.all, honest.all);
    assert_eq!((found.left_out.len(), &*found.left_out[0].agent), (1, "z1"));
    assert!(found.left_out[0].why.contains("those of a1"), "{found:?}");
}

#[test]
fn rules_are_compared_by_name() {
    let both = |clusters| {
        [
            pair("all", clusters, 0.0),
            pair("rule:pace", 2 * clusters, 0.5),
        ]
        .concat()
    };
    let mut all = vec![member("a", 60, both(200)), member("b", 60, both(250))];
    all.push(member("c", 60, pair("rule:other", 10, 0.1)));
    let mut bad = pair("rule:pace", 400, 0.5);
    bad.push(bad[0].clone());
    all.push(member("twice", 60, bad));
    let found = Statuses::new(all).gain();
    let rules: Vec<_> = found
        .rules
        .iter()
        .map(|it| (it.rule.as_deref().unwrap(), it.agents))
        .collect();
    assert_eq!(rules, [("pace", 2), ("other", 1)]);
    assert_eq!(found.rules[0].rows[0].verdict, "worse");
    let said = &found.rules[0].summary;
    assert!(
        said.contains("more time") && said.ends_with("left alone in 900 host-hours."),
        "{said}"
    );
    assert_eq!(
        found.left_out[0].why,
        "rule pace: time of control: it is told twice"
    );
    assert_eq!(found.without, 2);
    let none = Statuses::new(Vec::new()).gain();
    assert_eq!(
        none.summary,
        "No agent tells of connections that can be compared yet."
    );
}

#[test]
fn agents_of_one_name_are_a_problem_and_not_counted() {
    let mut clone = member("clone", 60, pair("all", 4000, 0.8));
    clone.status.as_mut().unwrap().is_shared = true;
    let all = Statuses::new(vec![member("a", 60, pair("all", 40, -0.8)), clone]);
    let agents = all.agents();
    assert_eq!((agents.with_problems, agents.agents.len()), (1, 2));
    assert_eq!(agents.agents[1].problems, [SHARED]);
    let gain = all.gain();
    assert_eq!(gain.all.agents, 1);
    assert_eq!(
        (&*gain.left_out[0].agent, &*gain.left_out[0].why),
        ("clone", SHARED)
    );
}
