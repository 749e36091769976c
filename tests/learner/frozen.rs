//! The reference's answers as `vectors/learner.txt` keeps them: a change made in every implementation
//! at once shows there.

use std::fmt::Write;
use std::path::Path;

use thalweg_tests::{Core, Request, raw};

use crate::compare::{Comparison, function_name};
use crate::{families, sequences, units, windows};

const HEAD: &str = "\
# Answers of the learner's arithmetic to the draws of tests/learner from seed 0. First every plan: FNV-1a
# of its answers (outputs, shares, host record), their number, kind and name. Then a short sequence in full.
# THALWEG_GENERATE=1 cargo test -p thalweg-tests --test learner frozen
";
/// The plan that is written in full, and how much of it.
const SHOWN: (&str, usize) = ("defaults", 40);

/// The line of a plan.
fn line<P>(
    text: &mut String,
    kind: &str,
    name: &'static str,
    plan: &P,
    run: fn(&P, &mut Comparison),
) {
    let mut core = Core;
    let mut comparison = Comparison::new(&mut core, name, 0);
    run(plan, &mut comparison);
    let Comparison { sum, count, .. } = comparison;
    writeln!(text, "{sum:016x} {count:5} {kind}: {name}").expect("a string");
}

/// Names of reasons, as `thalweg_abi.h` numbers them.
const REASONS: [&str; 12] = [
    "none or warm-up",
    "greedy",
    "explore",
    "untried",
    "application",
    "foreign",
    "loss",
    "withdrawn",
    "control",
    "anew",
    "returned",
    "drawn",
];

/// A request and its answer, in full.
fn shown(step: usize, request: &Request, answer: &Request) -> String {
    let [first, second, third] = answer.outputs;
    let (now_ms, system) = (request.now_ns / 1_000_000, request.system_arm);
    let mut text = format!("{step:2} {}: ", function_name(request.function));
    let arm = request.arm as usize;
    let written = match request.function {
        raw::VECTOR_CONNECT => write!(
            text,
            "at {now_ms} ms, system arm {system}, allowed {:#x}, ticket {} -> \
             arm {first}, {}, propensity_q16 {third}",
            request.allowed,
            request.random[0] & 0xffff,
            REASONS[second as usize]
        ),
        raw::VECTOR_SCORE => write!(
            text,
            "at {now_ms} ms, arm {arm}, {} bytes in {} us, srtt {} us, {} of {} retransmitted -> \
             outcome {first}, weight_q16 {second}, cost_q16 {third}; value_q16 {}, evidence_q16 {}, \
             credit_q16 {}",
            request.sample.bytes,
            request.sample.duration_us,
            request.sample.srtt_us,
            request.sample.retrans,
            request.sample.segs_out,
            answer.host.arms[arm].value,
            answer.host.arms[arm].weight_q16,
            answer.host.credit_q16,
        ),
        _ => write!(
            text,
            "arm {arm}, {} of {} retransmitted -> arm {first}, {}, propensity_q16 {third}",
            request.retrans, request.segs, REASONS[second as usize]
        ),
    };
    written.expect("a string");
    text
}

/// The whole file.
fn answers() -> String {
    let mut text = HEAD.to_owned();
    for unit in units::units() {
        line(&mut text, "function", unit.name, &unit, units::run);
    }
    for plan in sequences::plans() {
        line(&mut text, "sequence", plan.name, &plan, sequences::run);
    }
    for plan in families::plans() {
        line(&mut text, "family", plan.name, &plan, families::run);
    }
    for plan in windows::plans() {
        line(&mut text, "windows", plan.name, &plan, windows::run);
    }
    let (name, steps) = SHOWN;
    let plans = sequences::plans();
    let plan = plans.iter().find(|plan| plan.name == name);
    let mut core = Core;
    let mut comparison = Comparison::new(&mut core, name, 0);
    comparison.log = Some(Vec::new());
    sequences::run(plan.expect("a sequence of that name"), &mut comparison);
    writeln!(text, "\n{name}:").expect("a string");
    let log = comparison.log.unwrap_or_default();
    for (step, (request, answer)) in log.iter().take(steps).enumerate() {
        writeln!(text, "{}", shown(step, request, answer)).expect("a string");
    }
    text
}

#[test]
fn frozen_answers_equal_those_of_reference() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("vectors/learner.txt");
    let text = answers();
    if std::env::var_os("THALWEG_GENERATE").is_some() {
        std::fs::write(&path, &text).expect("the file can be written");
    }
    let frozen = std::fs::read_to_string(&path).expect("the file is there");
    let changed: Vec<_> = text
        .lines()
        .zip(frozen.lines())
        .filter(|(now, then)| now != then)
        .map(|(now, then)| format!("\n  frozen {then}\n  now    {now}"))
        .collect();
    assert!(
        text == frozen,
        "{} lines of vectors/learner.txt differ; THALWEG_GENERATE=1 writes it anew, and the commit \
         explains why:{}",
        changed.len(),
        changed
            .iter()
            .take(8)
            .map(String::as_str)
            .collect::<String>()
    );
}
