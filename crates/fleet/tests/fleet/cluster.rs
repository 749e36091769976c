//! Three servers, of which any may be gone.

use std::time::Instant;

use thalweg_fleet::setup::Validity;
use thalweg_fleet::wire::policy::ALL_PPM;
use thalweg_fleet::{Fleet, Incoming, Limits, Operator, Outgoing};

use super::exchange::{arrive, arrives};
use super::support::{Bed, SMALL, name, priors, wait_for};

const AGENTS: [&str; 3] = ["a", "b", "c"];

/// Three servers with buckets, and agents.
fn cluster() -> Option<(Bed, [Fleet; 3])> {
    let bed = Bed::bare(&AGENTS, 3, Validity::default())?;
    let limits = Limits {
        replicas: 3,
        ..SMALL
    };
    // The servers must have found each other.
    wait_for("buckets of three", || {
        let mut operator = Operator::connect(&bed.settings("operator")).ok()?;
        operator.make_all(&limits).ok()
    });
    let agents = AGENTS.map(|agent| bed.agent(agent));
    Some((bed, agents))
}

/// Each agent says something that the next one hears.
fn exchange(agents: &[Fleet; 3], cost: i32) {
    for (agent, fleet) in AGENTS.iter().zip(agents) {
        let priors = priors(agent, 1, cost);
        fleet
            .offer_message(&Outgoing::Priors(priors))
            .expect("it works");
    }
    for (number, agent) in AGENTS.iter().enumerate() {
        arrives(&agents[(number + 1) % 3], &priors(agent, 1, cost));
    }
}

/// A policy reaches every agent.
fn command(bed: &Bed, agents: &[Fleet; 3], text: &str) {
    // The first try may meet a leader that is gone.
    wait_for("a policy", || {
        let mut operator = Operator::connect(&bed.settings("operator")).ok()?;
        let key = bed.signing();
        operator
            .publish_policy(&name("all"), text, ALL_PPM, &key, &[])
            .ok()
    });
    for fleet in agents {
        arrive(fleet, "the policy", |all| {
            all.iter()
                .any(|it| matches!(it, Incoming::Policy(policy) if policy.text == text))
        });
    }
}

/// A server is killed, the others go on, and it comes back.
fn lose(bed: &mut Bed, agents: &[Fleet; 3], server: usize, cost: i32) {
    let begun = Instant::now();
    bed.servers[server].kill();
    exchange(agents, cost);
    eprintln!("heard without server {server} after {:?}", begun.elapsed());
    command(bed, agents, &format!("{cost}"));
    bed.servers[server].restart();
}

#[test]
fn one_of_three_is_killed() {
    let Some((mut bed, agents)) = cluster() else {
        return;
    };
    exchange(&agents, 1);
    lose(&mut bed, &agents, 0, 2);
    exchange(&agents, 3);
}

#[test]
#[ignore = "slow: elections take ten seconds and more"]
fn each_of_three_is_killed() {
    let Some((mut bed, agents)) = cluster() else {
        return;
    };
    for cost in 0..6 {
        lose(&mut bed, &agents, cost as usize % 3, cost);
        // It has all again before another one goes.
        wait_for("three again", || bed.raw_of(0).is_current().then_some(()));
    }
}
