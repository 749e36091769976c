//! The shared vectors, made by `tests/vectors/policy.py` from the text of
//! `docs/reference/policy.md`.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;
use thalweg_policy::{Flow, FlowKind, Namespace};

use crate::walk::matching_rule_id;
use crate::{compile, parse};

fn vectors() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/vectors")
}

fn port(value: &Value) -> u16 {
    u16::try_from(value.as_u64().unwrap()).unwrap()
}

fn flow(value: &Value) -> Flow {
    Flow {
        remote: value["remote"].as_str().unwrap().parse().unwrap(),
        local: value["local"].as_str().unwrap().parse().unwrap(),
        remote_port: port(&value["remote_port"]),
        local_port: port(&value["local_port"]),
        kind: match value["kind"].as_str().unwrap() {
            "active" => FlowKind::Active,
            "passive" => FlowKind::Passive,
            "listener" => FlowKind::Listener,
            other => panic!("{other}"),
        },
        cgroup: value["cgroup"].as_str().map(str::to_owned),
        container: Vec::new(),
        netns: value["netns"].as_u64().map(Namespace::Cookie),
        draw: u32::try_from(value["draw"].as_u64().unwrap()).unwrap(),
    }
}

#[test]
fn both_forms_agree_with_the_vectors() {
    let text = std::fs::read_to_string(vectors().join("policy.json")).unwrap();
    let document: Value = serde_json::from_str(&text).unwrap();
    let mut flows = 0;
    for entry in document["policies"].as_array().unwrap() {
        let name = &entry["name"];
        let policy = parse(entry["toml"].as_str().unwrap());
        let compiled = compile(&policy);
        for case in entry["flows"].as_array().unwrap() {
            let seen = flow(case);
            let expected = case["rule"].as_str();
            let readable = policy.matching_rule(&seen).map(|rule| &*rule.name);
            assert_eq!(readable, expected, "{name}: {case}");
            let walked = matching_rule_id(&compiled, &seen);
            let walked = walked.map(|id| &*compiled.about[id as usize].name);
            assert_eq!(walked, expected, "{name}: {case}");
            flows += 1;
        }
    }
    assert!(flows > 1_000, "{flows} flows");
}

#[test]
fn the_vectors_are_what_their_program_makes() {
    let output = Command::new("python3")
        .arg(vectors().join("policy.py"))
        .arg("--check")
        .output()
        .expect("running python3");
    let message = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{message}");
}
