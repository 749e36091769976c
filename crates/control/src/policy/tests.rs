//! The kernel program's choice of a rule, against the reference.

#![allow(clippy::unwrap_used, reason = "a test may fail by unwrap")]

use std::net::IpAddr;
use std::path::Path;

use libbpf_rs::{MapCore, MapHandle, Object, ObjectBuilder, ProgramInput};
use serde::Deserialize;
use thalweg_bpf_types::raw;
use thalweg_policy::{Compiled, Flow, FlowKind, Group, Namespace, Policy, VOID_COOKIE};

use super::tables::Tables;

/// Policies and flows from `tests/vectors/policy.py`, with the results of its own evaluator.
#[derive(Deserialize)]
struct Vectors {
    policies: Vec<VectorPolicy>,
}

#[derive(Deserialize)]
struct VectorPolicy {
    name: String,
    toml: String,
    flows: Vec<VectorFlow>,
}

#[derive(Deserialize)]
struct VectorFlow {
    remote: IpAddr,
    local: IpAddr,
    remote_port: u16,
    local_port: u16,
    kind: String,
    cgroup: Option<String>,
    netns: u64,
    draw: u32,
    rule: Option<String>,
}

/// Whether BPF programs can be loaded; reports it if not.
fn privileged() -> bool {
    let missing = crate::privileges::missing_capabilities().unwrap();
    if missing.is_empty() {
        return true;
    }
    crate::privileged::skip(&format!("missing {missing:?}"))
}

/// The program that only finds rules, with the tables of a policy.
fn finder(compiled: &Compiled) -> Object {
    let tables = Tables::new(compiled, false);
    let mut object = ObjectBuilder::default()
        .open_memory(&thalweg_bpf_objects::POLICY.unpack())
        .unwrap();
    for mut program in object.progs_mut() {
        let wanted = program.name() == "policy_find";
        program.set_autoload(wanted);
    }
    for mut map in object.maps_mut() {
        if let Some(entries) = tables.map_entries(&map.name().to_string_lossy()) {
            map.set_max_entries(entries).unwrap();
        }
    }
    let object = object.load().unwrap();
    tables.fill_maps(&object, 1).unwrap();
    object
}

/// A query in the form of policy.bpf.c (struct query).
fn query(flow: &Flow, netns: u64, compiled: &Compiled) -> Vec<u8> {
    let six = |address: IpAddr| match address {
        IpAddr::V4(address) => address.to_ipv6_mapped(),
        IpAddr::V6(address) => address,
    };
    let ipv4 = flow.remote.to_canonical().is_ipv4();
    let needs = match flow.kind {
        FlowKind::Active => raw::THALWEG_RULE_ACTIVE,
        FlowKind::Passive | FlowKind::Listener => raw::THALWEG_RULE_PASSIVE,
    } | if ipv4 {
        raw::THALWEG_RULE_IPV4
    } else {
        raw::THALWEG_RULE_IPV6
    };
    let mut cgroups = 0u32;
    for (bit, group) in compiled.cgroups.iter().enumerate() {
        let Group::Path(path) = group else {
            continue;
        };
        let lies_in = flow
            .cgroup
            .as_ref()
            .is_some_and(|own| Path::new(own).starts_with(path));
        cgroups |= u32::from(lies_in) << bit;
    }
    let mut bytes = Vec::new();
    bytes.extend(six(flow.remote).octets());
    bytes.extend(six(flow.local).octets());
    bytes.extend(netns.to_ne_bytes());
    for word in [
        needs,
        cgroups,
        flow.draw,
        u32::from(flow.kind == FlowKind::Listener),
        u32::from(flow.remote_port),
        u32::from(flow.local_port),
    ] {
        bytes.extend(word.to_ne_bytes());
    }
    bytes
}

fn find(object: &Object, query: &[u8]) -> u32 {
    let mut programs = object.progs_mut();
    let program = programs
        .find(|program| program.name() == "policy_find")
        .unwrap();
    let input = ProgramInput {
        data_in: Some(query),
        ..Default::default()
    };
    program.test_run(input).unwrap().return_value
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn the_kernel_finds_the_rule_that_the_reference_finds() {
    if !privileged() {
        return;
    }
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/vectors/policy.json");
    let vectors: Vectors = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    let mut flows = 0;
    for case in &vectors.policies {
        let policy = Policy::parse(case.toml.as_bytes(), Path::new("vector")).unwrap();
        let compiled = policy.compile().unwrap();
        let object = finder(&compiled);
        for vector in &case.flows {
            let flow = Flow {
                remote: vector.remote,
                local: vector.local,
                remote_port: vector.remote_port,
                local_port: vector.local_port,
                kind: match vector.kind.as_str() {
                    "active" => FlowKind::Active,
                    "passive" => FlowKind::Passive,
                    _ => FlowKind::Listener,
                },
                cgroup: vector.cgroup.clone(),
                container: Vec::new(),
                netns: Some(Namespace::Cookie(vector.netns)),
                draw: vector.draw,
            };
            let id = find(&object, &query(&flow, vector.netns, &compiled));
            let name = compiled
                .about
                .get(id as usize)
                .map(|rule| rule.name.as_str());
            assert_eq!(name, vector.rule.as_deref(), "{}: {flow:?}", case.name);
            flows += 1;
        }
    }
    assert!(flows > 100, "only {flows} flows in the vectors");
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn a_text_keeps_its_place() {
    if !privileged() {
        return;
    }
    let policy = |name: &str| {
        let text =
            format!("name = \"t\"\n[[rule]]\nname = \"r\"\nset = {{ congestion = \"{name}\" }}\n");
        let policy = Policy::parse(text.as_bytes(), Path::new("t")).unwrap();
        policy.compile().unwrap()
    };
    let object = finder(&policy("reno"));
    let map = object.maps().find(|map| map.name() == "texts").unwrap();
    let map = MapHandle::try_from(&map).unwrap();
    let place = |name: &str| super::tables::place_texts(&map, &policy(name).texts).unwrap();
    assert_eq!(place("reno"), [0]);
    assert_eq!(place("cubic"), [1]);
    assert_eq!(place("bbr"), [2]);
    assert_eq!(place("cubic"), [1]);
}

/// An entry as a version before `boot_id` wrote it has none.
#[test]
fn kept_policy_of_another_boot_has_void_cookies() {
    let state = tempfile::tempdir().unwrap();
    let history = super::history::History::at(state.path());
    let directory = state.path().join("policy");
    std::fs::create_dir(&directory).unwrap();
    let rule = |name: &str, netns: &str| {
        format!("[[rule]]\nname = \"{name}\"\nmatch.netns = {netns}\nset = {{ nodelay = true }}\n")
    };
    let text = |rules: &str| format!("name = \"t\"\n{rules}");
    let by_cookie = text(&(rule("a", "7") + &rule("b", "\"blue\"") + &rule("c", "4711")));
    std::fs::write(directory.join("00000001.toml"), by_cookie).unwrap();
    let entry = |boot_id: &str| {
        let about = serde_json::json!({
            "number": 1, "name": "t", "file": "t.toml", "applied_ms": 0, "dry_run": false,
            "previous": null,
        });
        std::fs::write(directory.join("00000001.json"), about.to_string()).unwrap();
        let mut entry = history.read_entry(1).unwrap();
        assert_eq!(entry.boot_id, "");
        entry.boot_id = boot_id.to_owned();
        entry
    };
    let kept = history.read_kept(&entry("this"), "this").unwrap();
    assert_eq!(kept.compiled.netns_cookies(), [7, 4711].into());
    assert!(kept.notes.is_empty());
    for other in ["before", ""] {
        let kept = history.read_kept(&entry(other), "this").unwrap();
        assert_eq!(kept.compiled.netns_cookies(), [VOID_COOKIE].into());
        let note = kept.notes.join("; ");
        assert!(
            note.contains("match.netns = 7, 4711 match nothing"),
            "{note}"
        );
        let named = &kept.compiled.netns[0];
        assert_eq!(kept.compiled.rules[named.rules[0]].netns, named.placeholder);
    }
    // Without a cookie the boot does not matter.
    let by_name = text(&rule("b", "\"blue\""));
    std::fs::write(directory.join("00000001.toml"), by_name).unwrap();
    let kept = history.read_kept(&entry("before"), "this").unwrap();
    assert!(kept.notes.is_empty());
}

#[test]
fn a_policy_is_compiled_once_until_its_text_changes() {
    let state = tempfile::tempdir().unwrap();
    let history = super::history::History::at(state.path());
    std::fs::create_dir(state.path().join("policy")).unwrap();
    let write = |name: &str| {
        let rule = "[[rule]]\nname = \"all\"\nset = { sndbuf = \"1MB\" }\n";
        let text = format!("name = \"{name}\"\n{rule}");
        std::fs::write(state.path().join("policy/00000001.toml"), text).unwrap();
    };
    write("one");
    let first = history.compile_entry(1).unwrap();
    assert!(std::sync::Arc::ptr_eq(
        &first,
        &history.compile_entry(1).unwrap()
    ));
    // An emptied state directory counts from 1 again.
    write("two");
    assert_eq!(history.compile_entry(1).unwrap().name, "two");
    assert!(history.compile_entry(2).is_err());
}
