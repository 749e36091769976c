//! The parser accepts or refuses any input, with positions inside the text. An accepted policy
//! means the same in both forms.

use std::path::Path;

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use thalweg_policy::{Flow, Policy, WarningKind};

use crate::walk::matching_rule_id;
use crate::{compile, generate, parse};

/// All that can be written, so that mutations reach every part.
const FULL: &str = include_str!("full.toml");

/// Pieces that break the syntax.
const PIECES: &[&str] = &[
    "\"",
    "[",
    "]",
    "{",
    "}",
    "=",
    "\n",
    ".",
    ",",
    "#",
    "-",
    "/",
    "%",
    "[[rule]]\n",
    "\u{fc}",
    "\0",
    "'''",
    "\"\"\"",
    "99999999999999999999",
    "-1",
    "0x",
    "1e400",
    "nan",
    "true",
    "::",
    "::ffff:0.0.0.0/96",
    "/129",
    "0-0",
    "65536",
    "set",
    "on",
    "rtt",
    "match",
    "never = true\n",
    "name",
    "\u{1f980}",
    "\\u0000",
    "1979-05-27",
    "{}",
    "[]",
    "\r",
];

#[derive(Clone, Debug)]
enum Mutation {
    Cut(u16, u8),
    Put(u16, &'static str),
    Flip(u16, u8),
    Copy(u16, u8, u16),
}

fn mutation() -> impl Strategy<Value = Mutation> {
    prop_oneof![
        (any::<u16>(), 1..40_u8).prop_map(|(at, length)| Mutation::Cut(at, length)),
        (any::<u16>(), prop::sample::select(PIECES))
            .prop_map(|(at, piece)| Mutation::Put(at, piece)),
        (any::<u16>(), any::<u8>()).prop_map(|(at, bits)| Mutation::Flip(at, bits)),
        (any::<u16>(), 1..60_u8, any::<u16>())
            .prop_map(|(from, length, to)| Mutation::Copy(from, length, to)),
    ]
}

fn mutate(text: &str, mutations: &[Mutation]) -> Vec<u8> {
    let mut bytes = text.as_bytes().to_vec();
    for mutation in mutations {
        let length = bytes.len();
        let place = |at: u16| usize::from(at) % (length + 1);
        let end = |at: u16, count: u8| (place(at) + usize::from(count)).min(length);
        match *mutation {
            Mutation::Cut(at, count) => drop(bytes.drain(place(at)..end(at, count))),
            Mutation::Put(at, piece) => {
                let at = place(at);
                drop(bytes.splice(at..at, piece.bytes()));
            }
            Mutation::Flip(at, bits) => {
                if let Some(byte) = bytes.get_mut(place(at)) {
                    *byte ^= bits;
                }
            }
            Mutation::Copy(from, count, to) => {
                let piece = bytes[place(from)..end(from, count)].to_vec();
                let to = place(to);
                drop(bytes.splice(to..to, piece));
            }
        }
    }
    bytes
}

fn input() -> impl Strategy<Value = Vec<u8>> {
    let mutations = || prop::collection::vec(mutation(), 0..4);
    prop_oneof![
        1 => prop::collection::vec(any::<u8>(), 0..200),
        1 => prop::collection::vec(prop::sample::select(PIECES), 0..30).prop_map(|pieces| pieces.concat().into_bytes()),
        4 => mutations().prop_map(|mutations| mutate(FULL, &mutations)),
        4 => (generate::policy(), mutations()).prop_map(|(text, mutations)| mutate(&text, &mutations)),
    ]
}

/// Parses, and uses the policy if it is accepted. Returns whether it was.
fn survives(bytes: &[u8]) -> bool {
    let text = String::from_utf8_lossy(bytes);
    let lines: Vec<&str> = text.split('\n').collect();
    let inside = |line: usize, column: usize| {
        let width = lines
            .get(line.wrapping_sub(1))
            .map(|line| line.chars().count());
        width.is_some_and(|width| (1..=width + 1).contains(&column))
    };
    let policy = match Policy::parse(bytes, Path::new("t.toml")) {
        Ok(policy) => policy,
        Err(faults) => {
            assert!(!faults.0.is_empty());
            for fault in &faults.0 {
                assert!(inside(fault.at.line, fault.at.column), "{fault}\n{text}");
                assert!(
                    !fault.found.is_empty() && !fault.expected.is_empty(),
                    "{fault}"
                );
                assert!(!fault.to_string().contains('\n'), "{fault}");
            }
            return false;
        }
    };
    for warning in policy.warnings() {
        assert!(
            inside(warning.at.line, warning.at.column),
            "{warning:?}\n{text}"
        );
    }
    if let Err(faults) = policy.compile() {
        for fault in &faults.0 {
            assert!(inside(fault.at.line, fault.at.column), "{fault}\n{text}");
        }
    }
    true
}

fn fuzz(cases: u32) {
    let config = Config {
        cases,
        failure_persistence: None,
        ..Config::default()
    };
    let accepted = std::cell::Cell::new(0_u32);
    let run = TestRunner::new(config).run(&input(), |bytes| {
        accepted.set(accepted.get() + u32::from(survives(&bytes)));
        Ok(())
    });
    if let Err(error) = run {
        panic!("{error}");
    }
    // Most inputs are refused, but not all: both paths are tested.
    let accepted = accepted.get();
    assert!(
        accepted > cases / 100 && accepted < cases / 2,
        "{accepted} of {cases} accepted"
    );
    println!("{cases} cases, {accepted} accepted");
}

#[test]
fn any_input_gets_an_answer() {
    fuzz(5_000);
}

#[test]
#[ignore = "a million cases: minutes"]
fn a_million_inputs_get_an_answer() {
    fuzz(1_000_000);
}

#[test]
fn the_whole_language_is_accepted() {
    assert!(survives(FULL.as_bytes()));
    let policy = parse(FULL);
    for key in thalweg_policy::catalogue::KEYS {
        let uses =
            |rule: &thalweg_policy::Rule| rule.actions.iter().any(|action| action.key == key);
        assert!(policy.rules.iter().any(uses), "{} is missing", key.name);
    }
}

/// Both forms of the policy agree for each flow, and shadowed rules never win.
fn agree(text: &str, flows: &[Flow]) -> Result<(), TestCaseError> {
    let policy = parse(text);
    let compiled = compile(&policy);
    let warnings = policy.warnings();
    let never_wins = warnings.iter().filter(|warning| {
        matches!(warning.kind, WarningKind::Shadowed | WarningKind::Conflict)
            || warning.message.starts_with("no flow gets this rule")
    });
    let never_wins: Vec<&str> = never_wins.map(|warning| &*warning.rule).collect();
    for flow in flows {
        let readable = policy.matching_rule(flow).map(|rule| &*rule.name);
        let walked = matching_rule_id(&compiled, flow);
        let walked = walked.map(|id| &*compiled.about[id as usize].name);
        prop_assert_eq!(readable, walked, "{:?}\n{}", flow, text);
        if let Some(rule) = readable {
            prop_assert!(
                !never_wins.contains(&rule),
                "{} wins\n{:?}\n{}",
                rule,
                flow,
                text
            );
        }
    }
    Ok(())
}

fn agreement(cases: u32) {
    let config = Config {
        cases,
        failure_persistence: None,
        ..Config::default()
    };
    let strategy = (
        generate::policy(),
        prop::collection::vec(generate::flow(), 20),
    );
    let run = TestRunner::new(config).run(&strategy, |(text, flows)| agree(&text, &flows));
    if let Err(error) = run {
        panic!("{error}");
    }
}

#[test]
fn readable_and_compiled_form_agree() {
    agreement(1_000);
}

#[test]
#[ignore = "a hundred thousand policies, twenty flows each: minutes"]
fn readable_and_compiled_form_agree_at_length() {
    agreement(100_000);
}
