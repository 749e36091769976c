//! The learner's arithmetic in C, native and in the kernel, against the Rust reference: the same
//! drawn inputs, the same answers, bit for bit. `vectors/learner.txt` keeps the answers themselves.

use thalweg_bpf_types::raw as abi;
use thalweg_tests::{Core, Covered, Implementation, Kernel, LoadError, Native, Request, raw};

use compare::Comparison;

mod compare;
mod families;
mod frozen;
#[path = "../privileged.rs"]
mod privileged;
mod random_inputs;
mod sequences;
mod units;
mod windows;

/// The programs in the kernel; `None` if it refuses for lack of privilege, with a message. A test
/// that must not be skipped (THALWEG_REQUIRE_PRIVILEGED=1) fails instead. So does one that is
/// refused for another reason.
fn kernel() -> Option<Kernel> {
    match Kernel::load() {
        Ok(kernel) => Some(kernel),
        Err(LoadError::Refused(why)) => panic!("{why}"),
        Err(LoadError::Privilege(why)) => {
            privileged::skip(&why);
            None
        }
    }
}

/// Compares the draws of every plan from every seed.
fn compare_all<P>(
    implementation: &mut dyn Implementation,
    seeds: u64,
    plans: &[P],
    name: fn(&P) -> &'static str,
    run: fn(&P, &mut Comparison),
) {
    let mut count = 0;
    for seed in 0..seeds {
        for plan in plans {
            let mut comparison = Comparison::new(implementation, name(plan), seed);
            run(plan, &mut comparison);
            count += comparison.count;
        }
    }
    let (implementation, plans) = (implementation.name(), plans.len());
    eprintln!("{implementation}: {count} answers of {plans} plans agree");
}

fn compare_units(implementation: &mut dyn Implementation, seeds: u64) {
    compare_all(
        implementation,
        seeds,
        &units::units(),
        |it| it.name,
        units::run,
    );
}

fn compare_sequences(implementation: &mut dyn Implementation, seeds: u64) {
    let plans = sequences::plans();
    compare_all(implementation, seeds, &plans, |it| it.name, sequences::run);
}

fn compare_families(implementation: &mut dyn Implementation, seeds: u64) {
    let plans = families::plans();
    compare_all(implementation, seeds, &plans, |it| it.name, families::run);
}

fn compare_windows(implementation: &mut dyn Implementation, seeds: u64) {
    let plans = windows::plans();
    compare_all(implementation, seeds, &plans, |it| it.name, windows::run);
}

#[test]
fn hand_derived_values_in_rust_agree() {
    units::check_by_hand(&mut Core);
}

#[test]
fn hand_derived_values_in_c_agree() {
    units::check_by_hand(&mut Native);
}

#[test]
fn drawn_units_in_c_agree() {
    compare_units(&mut Native, 20);
}

#[test]
fn drawn_sequences_in_c_agree() {
    compare_sequences(&mut Native, 20);
}

#[test]
fn drawn_families_in_c_agree() {
    compare_families(&mut Native, 20);
}

#[test]
fn drawn_windows_in_c_agree() {
    compare_windows(&mut Native, 6);
}

/// Loading the programs takes longer than running them, so they are loaded once.
#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn answers_in_bpf_agree() {
    let Some(mut kernel) = kernel() else { return };
    units::check_by_hand(&mut kernel);
    compare_units(&mut kernel, 4);
    compare_sequences(&mut kernel, 3);
    compare_families(&mut kernel, 3);
    compare_windows(&mut kernel, 1);
}

/// The functions at addresses in this program's file.
fn functions_at(addresses: &[u64]) -> Vec<String> {
    let output = std::process::Command::new("addr2line")
        .args(["--functions", "--exe"])
        .arg(std::env::current_exe().expect("a program"))
        .args(addresses.iter().map(|address| format!("{address:#x}")))
        .output()
        .expect("addr2line runs");
    // A function and a line of code each.
    let lines = String::from_utf8_lossy(&output.stdout);
    lines.lines().step_by(2).map(str::to_owned).collect()
}

/// Functions with edges that no request can take.
const NEVER_TAKEN: [&str; 2] = [
    // Loops over arms that always end at one of them.
    "thalweg_classic_decide",
    // A function that is none of windows.
    "vector_window",
];

/// Asks for what the reference does not have: slots of connections, an unknown function, and a
/// decision without trials, where the untried arm 1 would have half of the connections.
fn ask_beside_reference() {
    for (function, probe) in [(raw::VECTOR_SLOT, 0), (raw::VECTOR_SLOT, 1), (u32::MAX, 0)] {
        let mut request = Request {
            function,
            inputs: [1, probe, 0, 0],
            ..Request::default()
        };
        let is_known = function == raw::VECTOR_SLOT;
        assert_eq!(Covered.answer(&mut request).is_ok(), is_known);
    }
    let mut request = Request {
        function: raw::VECTOR_CONNECT,
        allowed: 0x3,
        random: [0xffff, 0, 0],
        params: random_inputs::default_params(),
        ..Request::default()
    };
    (request.host.scored, request.host.credit_q16) = (1, random_inputs::ONE);
    request.host.arms[0].weight_q16 = random_inputs::ONE;
    for (order, arm, reason) in [
        (0, 1, abi::THALWEG_REASON_UNTRIED),
        (abi::THALWEG_NO_TRIALS, 0, abi::THALWEG_REASON_GREEDY),
    ] {
        let mut asked = request;
        asked.allowed |= order;
        Covered.answer(&mut asked).expect("an answer");
        assert_eq!(asked.outputs[..2], [arm, u64::from(reason)]);
    }
}

#[test]
fn drawn_inputs_take_every_edge() {
    compare_units(&mut Covered, 8);
    compare_sequences(&mut Covered, 8);
    compare_families(&mut Covered, 8);
    compare_windows(&mut Covered, 2);
    ask_beside_reference();
    let (edges, missed) = Covered.missed();
    let mut functions = functions_at(&missed);
    functions.sort();
    functions.dedup();
    assert_eq!(
        functions, NEVER_TAKEN,
        "not taken of {edges} edges: {missed:x?}"
    );
}
