//! An implementation beside the Rust reference, request by request.

use thalweg_bpf_types::{bytes_of, raw as abi};
use thalweg_tests::{Core, Implementation, Request, raw};

use crate::random_inputs::{FNV_START, fnv1a};

/// Names of the functions, as `tests/src/request.h` numbers them.
const FUNCTIONS: [(u32, &str); 26] = [
    (raw::VECTOR_LOG2, "log2"),
    (raw::VECTOR_RATE, "rate"),
    (raw::VECTOR_COST, "cost"),
    (raw::VECTOR_CLASSIC_COST, "classic_cost"),
    (raw::VECTOR_CLASSIC_UPDATE, "classic_update"),
    (raw::VECTOR_EXPLORE, "explore"),
    (raw::VECTOR_JUDGED, "judged"),
    (raw::VECTOR_WEIGHT, "weight"),
    (raw::VECTOR_ASSESS, "assess"),
    (raw::VECTOR_FORGET, "forget"),
    (raw::VECTOR_CONNECT, "connect"),
    (raw::VECTOR_SCORE, "score"),
    (raw::VECTOR_CHANGE, "change"),
    (raw::VECTOR_TAG, "tag"),
    (raw::VECTOR_CONTROL, "control"),
    (raw::VECTOR_STRETCH, "stretch"),
    (raw::VECTOR_REVIEW, "review"),
    (raw::VECTOR_DRAWN, "drawn"),
    (raw::VECTOR_SCORE_GROUP, "score_group"),
    (raw::VECTOR_ADOPT, "adopt"),
    (raw::VECTOR_INHERIT, "inherit"),
    (raw::VECTOR_KNOWS, "knows"),
    (raw::VECTOR_WINDOW_REPORT, "window_report"),
    (raw::VECTOR_WINDOW_MASK, "window_mask"),
    (raw::VECTOR_WINDOW_STEP, "window_step"),
    (raw::VECTOR_WINDOW_START, "window_start"),
];

/// The name of a function.
pub fn function_name(function: u32) -> &'static str {
    let named = FUNCTIONS.iter().find(|(number, _)| *number == function);
    named.expect("every function has a name").1
}

/// Asks the reference and another implementation the same.
pub struct Comparison<'a> {
    other: &'a mut dyn Implementation,
    /// Name of the plan that is drawn.
    pub plan: &'static str,
    /// Seed of the draws.
    pub seed: u64,
    /// Number of the drawn step.
    pub step: usize,
    /// FNV-1a of all answers.
    pub sum: u64,
    /// Number of answers.
    pub count: u64,
    /// The requests and their answers, if they are kept.
    pub log: Option<Vec<(Request, Request)>>,
}

impl<'a> Comparison<'a> {
    /// A comparison of draws for `plan` from `seed`.
    pub fn new(other: &'a mut dyn Implementation, plan: &'static str, seed: u64) -> Self {
        Self {
            other,
            plan,
            seed,
            step: 0,
            sum: FNV_START,
            count: 0,
            log: None,
        }
    }

    /// The reference's answer.
    ///
    /// # Panics
    /// If the other implementation answers otherwise.
    pub fn ask(&mut self, mut request: Request) -> Request {
        (request.outputs, request.shares_q16) = Default::default();
        let [mut expected, mut got] = [request; 2];
        let answered = Core.answer(&mut expected);
        answered.unwrap_or_else(|error| panic!("{}: reference: {error}", self.place(&request)));
        let answered = self.other.answer(&mut got);
        answered.unwrap_or_else(|error| panic!("{}: {error}", self.place(&request)));
        if expected.params.mode == abi::THALWEG_MODE_CLASSIC {
            allow_remainder(&expected, &mut got);
        }
        for answer in [&mut expected, &mut got] {
            // A report without weight is none.
            if answer.function == raw::VECTOR_SCORE && answer.report.weight_q16 == 0 {
                answer.report = Default::default();
            }
        }
        assert!(
            bytes_of(&got) == bytes_of(&expected),
            "{}{}",
            self.place(&request),
            differences(&expected, &got)
        );
        self.count += 1;
        for number in expected.outputs {
            self.sum = fnv1a(self.sum, &number.to_le_bytes());
        }
        for share in expected.shares_q16 {
            self.sum = fnv1a(self.sum, &share.to_le_bytes());
        }
        self.sum = fnv1a(self.sum, bytes_of(&expected.host));
        if let Some(log) = &mut self.log {
            log.push((request, expected));
        }
        expected
    }

    /// Place of a request, for messages.
    fn place(&self, request: &Request) -> String {
        let (name, function) = (self.other.name(), function_name(request.function));
        let Self {
            plan, seed, step, ..
        } = self;
        format!("{name}: plan `{plan}`, seed {seed}, step {step}, function {function}")
    }
}

/// Classic's reference gives the remainder of a division to one of the tied arms.
fn allow_remainder(expected: &Request, got: &mut Request) {
    let shares = got.shares_q16.iter().zip(&expected.shares_q16);
    if shares.clone().all(|(a, b)| a.abs_diff(*b) <= 32) {
        got.shares_q16 = expected.shares_q16;
    }
}

/// The fields of two answers that differ, one a line.
fn differences(expected: &Request, got: &Request) -> String {
    let [expected, got] = [expected, got].map(|answer| fields(&format!("{answer:#?}")));
    let differing = expected.iter().zip(&got).filter(|(a, b)| a != b);
    differing
        .map(|((field, expected), (_, got))| format!("\n  {field}: expected {expected}, got {got}"))
        .collect()
}

/// The numbers of a structure's debugging output, each with its path.
fn fields(text: &str) -> Vec<(String, String)> {
    let mut path: Vec<(String, usize)> = Vec::new();
    let mut fields = Vec::new();
    for line in text.lines().map(|line| line.trim().trim_end_matches(',')) {
        if line.starts_with(['}', ']']) {
            path.pop();
            continue;
        }
        let is_open = line.ends_with(['{', '[']);
        let name = match (line.split_once(": "), path.last_mut()) {
            (Some((name, _)), _) => format!(".{name}"),
            (None, None) => String::new(),
            (None, Some((_, index))) => {
                *index += 1;
                format!("[{}]", *index - 1)
            }
        };
        let whole = path.last().map_or("", |(outer, _)| outer).to_owned() + &name;
        if is_open {
            path.push((whole, 0));
        } else {
            let number = line.rsplit(' ').next().unwrap_or_default();
            fields.push((whole.trim_start_matches('.').to_owned(), number.to_owned()));
        }
    }
    fields
}

#[test]
fn differing_fields_are_named_with_path() {
    let expected = Request::default();
    let mut got = expected;
    got.host.arms[3].value = 7;
    got.outputs[1] = 9;
    assert_eq!(
        differences(&expected, &got),
        "\n  outputs[1]: expected 0, got 9\n  host.arms[3].value: expected 0, got 7"
    );
}
