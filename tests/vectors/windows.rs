//! `windows.json`: initial windows, decided and measured.

use std::collections::BTreeMap;

use serde::Deserialize;
use thalweg_bpf_types::{bytes_of, raw as abi};
use thalweg_learner::Level;
use thalweg_tests::{Core, Implementation, Native, Request, raw};

use super::{ParamsRecord, SampleRecord, fnv1a, kernel, read, record, word};

/// A wide record of initial windows, and narrow ones in it, one after the other.
#[derive(Deserialize)]
struct WindowFamilies {
    families: Vec<WindowFamily>,
}

#[derive(Deserialize)]
struct WindowFamily {
    name: String,
    params: ParamsRecord,
    worth_q16: [u32; abi::THALWEG_MAX_ARMS as usize],
    /// Step, measurements, and those at the last step, of the narrow records and of the wide one.
    begun: [[u32; 3]; 2],
    steps: Vec<Window>,
}

/// A connection: its window is decided, and measured at the end.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Window {
    narrow: usize,
    /// Mask of the windows that the operator permits.
    windows: u32,
    random: u32,
    now_ns: u64,
    /// Which record decides: the narrow or the wide one; 0: none.
    record: usize,
    /// Mask of the windows that it permits.
    allowed: u64,
    arm: u64,
    reason: u64,
    propensity_q16: u64,
    scored_arm: u32,
    ended_ns: u64,
    sample: SampleRecord,
    /// What is reported, or 0.
    cost_q16: u32,
    system_q16: u32,
    /// FNV-1a of the narrow record and the wide one, in hexadecimal.
    after: [String; 2],
}

/// A record of initial windows.
fn window_record(level: Level, [step, scored, step_scored]: [u32; 3]) -> abi::thalweg_host {
    abi::thalweg_host {
        step,
        scored,
        step_scored,
        ..record(level)
    }
}

/// A connection of a family of windows, told to both of its records.
fn window_step(
    implementation: &mut dyn Implementation,
    family: &WindowFamily,
    step: &Window,
    records: &mut [abi::thalweg_host; 2],
    place: &str,
) {
    let common = Request {
        params: family.params.raw(),
        worth: abi::thalweg_worth {
            arms_q16: family.worth_q16,
        },
        system_arm: 0,
        allowed: step.windows,
        random: [step.random, 0, 0],
        now_ns: step.now_ns,
        ..Default::default()
    };
    let mut answer = |function, host: &mut abi::thalweg_host, request: Request| {
        let mut request = Request {
            function,
            host: *host,
            ..request
        };
        let answered = implementation.answer(&mut request);
        answered.unwrap_or_else(|error| panic!("{place}: {error}"));
        *host = request.host;
        request
    };
    let knows = [0, 1].map(|i| answer(raw::VECTOR_KNOWS, &mut records[i], common).outputs[0]);
    let decider = knows.iter().position(|&known| known == 1);
    assert_eq!(
        decider.map_or(0, |i| i + 1),
        step.record,
        "{place}: who decides"
    );
    if let Some(decider) = decider {
        let host = &mut records[decider];
        let allowed = answer(raw::VECTOR_WINDOW_MASK, host, common).outputs[0];
        assert_eq!(allowed, step.allowed, "{place}: windows");
        let request = Request {
            allowed: word(allowed),
            ..common
        };
        let decided = answer(raw::VECTOR_CONNECT, host, request).outputs;
        let expected = [step.arm, step.reason, step.propensity_q16];
        assert_eq!(decided, expected, "{place}: decision");
    }
    let ended = Request {
        arm: step.scored_arm,
        now_ns: step.ended_ns,
        sample: step.sample.raw(),
        ..common
    };
    let ended = answer(raw::VECTOR_WINDOW_REPORT, &mut records[0], ended);
    let told = [ended.report.cost_q16, ended.report.system_q16];
    assert_eq!(told, [step.cost_q16, step.system_q16], "{place}: report");
    assert_eq!(
        ended.outputs[0] == 1,
        step.cost_q16 > 0,
        "{place}: whether it tells"
    );
    if ended.outputs[0] == 1 {
        for record in records.iter_mut() {
            answer(raw::VECTOR_SCORE_GROUP, record, ended);
            answer(raw::VECTOR_WINDOW_STEP, record, ended);
        }
        let [narrow, wide] = records;
        let wider = Request {
            wider: *wide,
            ..ended
        };
        answer(raw::VECTOR_ADOPT, narrow, wider);
        answer(raw::VECTOR_WINDOW_START, narrow, wider);
    }
    for (i, which) in ["narrow", "wide"].into_iter().enumerate() {
        let hash = fnv1a(bytes_of(&records[i]));
        assert_eq!(hash, step.after[i], "{place}: {which} record");
    }
}

fn run_windows(implementation: &mut dyn Implementation) {
    let name = implementation.name();
    let WindowFamilies { families } = read("windows.json");
    let mut steps = 0;
    for family in &families {
        let narrow = window_record(Level::WindowPrefix, family.begun[0]);
        let mut wide = window_record(Level::WindowNamespace, family.begun[1]);
        let mut narrows = BTreeMap::new();
        for (number, step) in family.steps.iter().enumerate() {
            let place = format!("{name}: windows.json, `{}`, step {number}", family.name);
            let present = *narrows.get(&step.narrow).unwrap_or(&narrow);
            let mut records = [present, wide];
            window_step(implementation, family, step, &mut records, &place);
            narrows.insert(step.narrow, records[0]);
            wide = records[1];
            steps += 1;
        }
    }
    assert!(
        families.len() >= 10 && steps >= 2_000,
        "windows.json has {steps} steps only"
    );
    eprintln!(
        "{name}: {steps} steps of {} families of windows agree",
        families.len()
    );
}

#[test]
fn on_core() {
    run_windows(&mut Core);
}

#[test]
fn on_native_c() {
    run_windows(&mut Native);
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn on_bpf() {
    if let Some(mut kernel) = kernel() {
        run_windows(&mut kernel);
    }
}
