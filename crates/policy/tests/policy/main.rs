//! Policies: which are accepted, what they mean, and how they compile.
#![allow(clippy::unwrap_used, reason = "a test may fail by unwrap")]

mod compiled;
mod difference;
mod documentation;
mod faults;
mod fuzz;
mod generate;
mod keys;
mod ready;
mod semantics;
mod vectors;
mod walk;
mod warnings;

use std::path::Path;

use thalweg_policy::{Compiled, Faults, Flow, FlowKind, Policy};

use walk::matching_rule_id;

fn try_parse(text: &str) -> Result<Policy, Faults> {
    Policy::parse(text.as_bytes(), Path::new("t.toml"))
}

fn parse(text: &str) -> Policy {
    match try_parse(text) {
        Ok(policy) => policy,
        Err(faults) => panic!("{faults}\n{text}"),
    }
}

/// A policy with a default name.
fn rules(text: &str) -> Policy {
    parse(&format!("name = \"t\"\n{text}"))
}

fn compile(policy: &Policy) -> Compiled {
    match policy.compile() {
        Ok(compiled) => compiled,
        Err(faults) => panic!("{faults}"),
    }
}

/// A flow that this machine opened, from `local` to `remote`, each `ADDRESS` or
/// `ADDRESS port`.
fn flow(local: &str, remote: &str) -> Flow {
    let part = |text: &str| {
        let (address, port) = text.split_once(' ').unwrap_or((text, "40000"));
        (address.parse().unwrap(), port.parse().unwrap())
    };
    let (local, local_port) = part(local);
    let (remote, remote_port) = part(remote);
    Flow {
        remote,
        local,
        remote_port,
        local_port,
        kind: FlowKind::Active,
        cgroup: None,
        container: Vec::new(),
        netns: None,
        draw: 0,
    }
}

/// The name of the rule that a flow gets; both evaluators must agree.
fn decide(policy: &Policy, flow: &Flow) -> Option<String> {
    let readable = policy.matching_rule(flow).map(|rule| rule.name.clone());
    let compiled = compile(policy);
    let walked = matching_rule_id(&compiled, flow);
    let walked = walked.map(|id| compiled.about[id as usize].name.clone());
    assert_eq!(readable, walked, "readable and compiled form disagree");
    readable
}
