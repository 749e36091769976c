//! Golden vectors of the learner's arithmetic, made by `vectors/generate.py` from the text of the
//! documentation. Every implementation must agree with them bit for bit.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::Command;

use serde::Deserialize;
use serde::de::DeserializeOwned;
use thalweg_bpf_types::raw as abi;
use thalweg_bpf_types::{bytes_of, from_bytes, host_to_raw};
use thalweg_learner::{ArmState, Host, HostKey, Level};
use thalweg_tests::{Core, Implementation, Kernel, LoadError, Native, Request, raw};

mod privileged;
#[path = "vectors/windows.rs"]
mod windows;

/// `unit.json`: single functions.
#[derive(Deserialize)]
struct Units {
    functions: Vec<Function>,
}

#[derive(Deserialize)]
struct Function {
    function: String,
    /// Inputs and expected outputs, in the order of the names in the file.
    cases: Vec<(Vec<u64>, Vec<u64>)>,
}

/// `sequences.json`: the life of host records, step by step.
#[derive(Deserialize)]
struct Sequences {
    sequences: Vec<Sequence>,
}

#[derive(Deserialize)]
struct Sequence {
    name: String,
    params: ParamsRecord,
    start: Option<HostRecord>,
    end: HostRecord,
    steps: Vec<Step>,
}

#[derive(Deserialize)]
struct Step {
    #[serde(flatten)]
    action: Action,
    /// FNV-1a of the record after the step, in hexadecimal.
    host: String,
}

#[derive(Deserialize)]
#[serde(tag = "op", rename_all = "snake_case")]
enum Action {
    Connect {
        system_arm: u32,
        allowed: u32,
        random: [u32; 3],
        now_ns: u64,
        arm: u64,
        reason: u64,
        propensity_q16: u64,
    },
    Score {
        arm: u32,
        system_arm: u32,
        trial: u32,
        now_ns: u64,
        sample: SampleRecord,
        outcome: u64,
        weight_q16: u64,
        cost: u64,
    },
    Change {
        current: u32,
        system_arm: u32,
        segs: u64,
        retrans: u64,
        allowed: u32,
        random: u32,
        arm: u64,
        reason: u64,
        propensity_q16: u64,
    },
    Review {
        current: u32,
        system_arm: u32,
        trial: u32,
        decided_ns: u64,
        allowed: u32,
        random: u32,
        now_ns: u64,
        arm: u64,
        reason: u64,
        propensity_q16: u64,
    },
}

/// `families.json`: a wide group, narrow ones in it one after the other, and hosts in those.
#[derive(Deserialize)]
struct Families {
    families: Vec<Family>,
}

#[derive(Deserialize)]
struct Family {
    name: String,
    params: ParamsRecord,
    worth_q16: [u32; abi::THALWEG_MAX_ARMS as usize],
    /// What the fleet told, as the wide group has it.
    told: u32,
    /// What other agents told of the narrow groups: the record's bytes, in hexadecimal.
    others: Option<String>,
    steps: Vec<Member>,
}

/// A step of a family; hashes are FNV-1a of records after it, in hexadecimal.
#[derive(Deserialize)]
#[serde(tag = "op", rename_all = "snake_case")]
enum Member {
    Connect {
        host: usize,
        narrow: usize,
        /// Which record decides: the host's, the narrow group's, the wide one's or that of others.
        record: usize,
        system_arm: u32,
        allowed: u32,
        random: [u32; 3],
        now_ns: u64,
        arm: u64,
        reason: u64,
        propensity_q16: u64,
        after: String,
    },
    Score {
        host: usize,
        narrow: usize,
        arm: u32,
        system_arm: u32,
        now_ns: u64,
        sample: SampleRecord,
        outcome: u64,
        weight_q16: u64,
        cost: u64,
        /// Of the host, the narrow group, the wide one and that of others.
        after: [String; 4],
    },
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ParamsRecord {
    mode: u32,
    warm_up: u32,
    gap_scale: u32,
    weight_max_q16: u32,
    idle_shift: u32,
    half_life_ns: u64,
    latency_weight_q16: u32,
    latency_guard_us: u32,
    score_min_bytes: u64,
    score_full_bytes: u64,
    loss_shift: u32,
    loss_min_segs: u32,
    rescue_arm: u32,
}

impl ParamsRecord {
    fn raw(&self) -> abi::thalweg_params {
        abi::thalweg_params {
            mode: self.mode,
            warm_up: self.warm_up,
            gap_scale: self.gap_scale,
            weight_max_q16: self.weight_max_q16,
            idle_shift: self.idle_shift,
            half_life_ns: self.half_life_ns,
            latency_weight_q16: self.latency_weight_q16,
            latency_guard_us: self.latency_guard_us,
            score_min_bytes: self.score_min_bytes,
            score_full_bytes: self.score_full_bytes,
            loss_shift: self.loss_shift,
            loss_min_segs: self.loss_min_segs,
            rescue_arm: self.rescue_arm,
            ..Default::default()
        }
    }
}

/// A sample as a list, in the order of the header.
#[derive(Deserialize)]
struct SampleRecord(
    u64,
    u64,
    u64,
    u64,
    u32,
    u32,
    u32,
    u32,
    u32,
    u32,
    u32,
    u16,
    u16,
    u32,
    u32,
);

impl SampleRecord {
    fn raw(&self) -> abi::thalweg_sample {
        abi::thalweg_sample {
            bytes: self.0,
            duration_us: self.1,
            rate_delivered_bytes: self.2,
            rate_interval_us: self.3,
            srtt_us: self.4,
            min_rtt_us: self.5,
            segs_out: self.6,
            retrans: self.7,
            steady_segs: self.8,
            steady_retrans: self.9,
            loss_srtt_us: self.10,
            flags: self.11,
            end: self.12,
            receiver_us: self.13,
            buffer_us: self.14,
        }
    }
}

/// An arm as a list, in the order of the header.
#[derive(Deserialize)]
struct ArmRecord(
    u64,
    u64,
    u32,
    u32,
    u32,
    u32,
    u32,
    u32,
    u32,
    u32,
    u32,
    u32,
    u32,
    u16,
    u16,
);

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct HostRecord {
    connections: u32,
    seen_ns: u64,
    forgot_ns: u64,
    max_rate: u64,
    trial_ns: u64,
    min_rtt_us: u32,
    scored: u32,
    switched: u32,
    harmful: u32,
    unsteady: u32,
    credit_q16: u32,
    queue_q16: u32,
    base_rtt_us: u32,
    last_base_rtt_us: u32,
    trials: u32,
    arms: [ArmRecord; abi::THALWEG_MAX_ARMS as usize],
}

impl HostRecord {
    fn raw(&self) -> abi::thalweg_host {
        let host = Host {
            connections: self.connections,
            seen_ns: self.seen_ns,
            forgot_ns: self.forgot_ns,
            max_rate: self.max_rate,
            min_rtt_us: self.min_rtt_us,
            scored: self.scored,
            switched: self.switched,
            harmful: half(self.harmful.into()),
            unsteady: half(self.unsteady.into()),
            credit_q16: self.credit_q16,
            queue_q16: self.queue_q16,
            base_rtt_us: self.base_rtt_us,
            last_base_rtt_us: self.last_base_rtt_us,
            trials: self.trials,
            trial_ns: self.trial_ns,
            level: Level::Host,
            usual_q16: 0,
            usual_log_rate_q16: 0,
            step: 0,
            step_scored: 0,
            arms: std::array::from_fn(|i| {
                let arm = &self.arms[i];
                ArmState {
                    value: arm.0,
                    max_rate: arm.1,
                    weight_q16: arm.2,
                    deviation_q16: arm.3,
                    log_rate_q16: arm.4,
                    srtt_us: arm.5,
                    min_rtt_us: arm.6,
                    chosen: arm.7,
                    greedy: arm.8,
                    scored: arm.9,
                    segs: arm.10,
                    retrans: arm.11,
                    caution_q16: arm.12,
                    counted: arm.13,
                    slow: arm.14,
                    own_q16: 0,
                    own_weight_q16: 0,
                }
            }),
        };
        abi::thalweg_host {
            tag: 0,
            tag_tail: 0,
            ..host_to_raw(&HostKey::from(std::net::Ipv4Addr::UNSPECIFIED), &host)
        }
    }
}

fn vectors() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("vectors")
}

fn read<T: DeserializeOwned>(name: &str) -> T {
    let text = std::fs::read_to_string(vectors().join(name))
        .unwrap_or_else(|error| panic!("{name}: {error}"));
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{name}: {error}"))
}

fn fnv1a(bytes: &[u8]) -> String {
    let hash = bytes.iter().fold(0xcbf2_9ce4_8422_2325u64, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    });
    format!("{hash:016x}")
}

fn word(value: u64) -> u32 {
    u32::try_from(value).expect("the generator checks the width of every field")
}

fn half(value: u64) -> u16 {
    u16::try_from(value).expect("the generator checks the width of every field")
}

fn sample(inputs: &[u64]) -> abi::thalweg_sample {
    abi::thalweg_sample {
        bytes: inputs[0],
        duration_us: inputs[1],
        rate_delivered_bytes: inputs[2],
        rate_interval_us: inputs[3],
        srtt_us: word(inputs[4]),
        min_rtt_us: word(inputs[5]),
        segs_out: word(inputs[6]),
        retrans: word(inputs[7]),
        steady_segs: word(inputs[8]),
        steady_retrans: word(inputs[9]),
        loss_srtt_us: word(inputs[10]),
        flags: half(inputs[11]),
        end: half(inputs[12]),
        receiver_us: word(inputs[13]),
        buffer_us: word(inputs[14]),
    }
}

/// The request for a case of `unit.json`.
fn unit_request(function: &str, inputs: &[u64]) -> Request {
    let mut request = Request::default();
    request.params.mode = abi::THALWEG_MODE_THALWEG;
    let mut plain = |values: &[u64]| request.inputs[..values.len()].copy_from_slice(values);
    request.function = match function {
        "log2" => {
            plain(inputs);
            raw::VECTOR_LOG2
        }
        "rate" => {
            plain(inputs);
            raw::VECTOR_RATE
        }
        "cost" => {
            plain(&inputs[..2]);
            request.params.latency_weight_q16 = word(inputs[2]);
            request.params.latency_guard_us = word(inputs[3]);
            raw::VECTOR_COST
        }
        "classic_cost" => {
            plain(&inputs[2..]);
            request.host.min_rtt_us = word(inputs[0]);
            request.host.max_rate = inputs[1];
            raw::VECTOR_CLASSIC_COST
        }
        "classic_update" => {
            plain(inputs);
            raw::VECTOR_CLASSIC_UPDATE
        }
        "explore" => {
            plain(inputs);
            raw::VECTOR_EXPLORE
        }
        "judged" => {
            // Any two arms: the judged one, and another that may be the system's.
            let (judged, other) = (3, 9);
            plain(&[judged, if inputs[2] == 1 { judged } else { other }]);
            request.host.arms[3].value = word(inputs[0]);
            request.host.arms[3].caution_q16 = word(inputs[1]);
            request.host.harmful = half(inputs[3] << judged);
            request.host.unsteady = half(inputs[4] << judged);
            if inputs[2] == 0 {
                request.host.arms[9].value = word(inputs[5]);
            }
            raw::VECTOR_JUDGED
        }
        "weight" => {
            request.sample = sample(inputs);
            request.params.score_full_bytes = inputs[15];
            raw::VECTOR_WEIGHT
        }
        "assess" => {
            request.sample = sample(inputs);
            request.params.score_min_bytes = inputs[15];
            raw::VECTOR_ASSESS
        }
        "forget" => {
            plain(&inputs[2..3]);
            request.params.half_life_ns = inputs[0];
            request.host.forgot_ns = inputs[1];
            request.host.used = abi::THALWEG_MAX_ARMS as u16;
            for (arm, weight) in request.host.arms.iter_mut().zip(&inputs[3..]) {
                arm.weight_q16 = word(*weight);
            }
            raw::VECTOR_FORGET
        }
        "change" => {
            // The system's arm is arm 0.
            request.allowed = word(inputs[0]);
            request.arm = word(inputs[1]);
            (request.segs, request.retrans) = (inputs[2], inputs[3]);
            request.random[0] = word(inputs[4]);
            let arms = &mut request.host.arms;
            for (arm, known) in arms.iter_mut().zip(inputs[5..9].chunks_exact(2)) {
                (arm.value, arm.weight_q16) = (word(known[0]), word(known[1]));
            }
            let system = &mut request.host.statistics[0];
            (system.segs, system.retrans) = (word(inputs[9]), word(inputs[10]));
            (request.params.loss_shift, request.params.loss_min_segs) = (6, 128);
            raw::VECTOR_CHANGE
        }
        "tag" => {
            plain(inputs);
            raw::VECTOR_TAG
        }
        "control" => {
            plain(&[inputs[0], inputs[2]]);
            request.params.control_salt = inputs[1];
            request.params.control_share_q16 = word(inputs[3]);
            request.params.control_permanent_q16 = word(inputs[4]);
            raw::VECTOR_CONTROL
        }
        "stretch_due" => {
            plain(&inputs[..3]);
            request.params.stretch_ns = inputs[3];
            request.params.score_full_bytes = inputs[4];
            raw::VECTOR_STRETCH
        }
        "drawn" => {
            plain(&[inputs[0], inputs[2], inputs[3]]);
            request.params.control_salt = inputs[1];
            raw::VECTOR_DRAWN
        }
        other => panic!("unit.json: no function {other}"),
    };
    request
}

/// The outputs of an answered request, in the order of `unit.json`.
fn unit_answer(request: &Request) -> Vec<u64> {
    let host = &request.host;
    match request.function {
        raw::VECTOR_CLASSIC_COST => {
            vec![request.outputs[0], host.min_rtt_us.into(), host.max_rate]
        }
        raw::VECTOR_FORGET => {
            let weights = host.arms.iter().map(|arm| arm.weight_q16.into());
            std::iter::once(host.forgot_ns).chain(weights).collect()
        }
        raw::VECTOR_CHANGE => request.outputs.to_vec(),
        _ => vec![request.outputs[0]],
    }
}

fn run_units(implementation: &mut dyn Implementation) {
    let name = implementation.name();
    let units: Units = read("unit.json");
    let mut cases = 0;
    for Function {
        function,
        cases: all,
    } in &units.functions
    {
        for (number, (inputs, expected)) in all.iter().enumerate() {
            let place = format!("{name}: unit.json, {function}, case {number} {inputs:?}");
            let mut request = unit_request(function, inputs);
            implementation
                .answer(&mut request)
                .unwrap_or_else(|error| panic!("{place}: {error}"));
            assert_eq!(&unit_answer(&request), expected, "{place}");
            cases += 1;
        }
    }
    // The files are complete, and the loops ran.
    assert!(
        units.functions.len() >= 10 && cases >= 500,
        "unit.json has {cases} cases only"
    );
    eprintln!(
        "{name}: {cases} cases of {} functions agree",
        units.functions.len()
    );
}

fn run_sequences(implementation: &mut dyn Implementation) {
    let name = implementation.name();
    let Sequences { sequences } = read("sequences.json");
    let mut steps = 0;
    for sequence in &sequences {
        let mut host = sequence
            .start
            .as_ref()
            .map(HostRecord::raw)
            .unwrap_or_default();
        for (number, step) in sequence.steps.iter().enumerate() {
            let place = format!("{name}: sequences.json, `{}`, step {number}", sequence.name);
            let (mut request, expected) = step_request(&step.action);
            request.params = sequence.params.raw();
            request.host = host;
            let mut reference = request;
            Core.answer(&mut reference)
                .unwrap_or_else(|error| panic!("{place}: reference: {error}"));
            implementation
                .answer(&mut request)
                .unwrap_or_else(|error| panic!("{place}: {error}"));
            assert_eq!(request.outputs, expected, "{place}: answer");
            // Classic's reference gives the remainder of a division to one of the tied arms.
            let classic = request.params.mode == abi::THALWEG_MODE_CLASSIC;
            let shares = request.shares_q16.iter().zip(&reference.shares_q16);
            assert!(
                shares
                    .clone()
                    .all(|(a, b)| a.abs_diff(*b) <= 32 * u16::from(classic)),
                "{place}: probabilities {:?}, not {:?}",
                request.shares_q16,
                reference.shares_q16
            );
            assert_eq!(
                fnv1a(bytes_of(&request.host)),
                step.host,
                "{place}: host record"
            );
            host = request.host;
            steps += 1;
        }
        assert!(
            bytes_of(&host) == bytes_of(&sequence.end.raw()),
            "{name}: sequences.json, `{}`: record at the end",
            sequence.name
        );
    }
    assert!(
        sequences.len() >= 40 && steps >= 4_000,
        "sequences.json has {steps} steps only"
    );
    eprintln!(
        "{name}: {steps} steps of {} sequences agree",
        sequences.len()
    );
}

/// The records of a family.
struct Records {
    params: abi::thalweg_params,
    worth: abi::thalweg_worth,
    hosts: BTreeMap<usize, abi::thalweg_host>,
    narrow: BTreeMap<usize, abi::thalweg_host>,
    wide: abi::thalweg_host,
    /// What other agents told of the narrow groups, which have its level without the fleet.
    others: Option<abi::thalweg_host>,
}

/// An empty record.
fn record(level: Level) -> abi::thalweg_host {
    abi::thalweg_host {
        level: level as u32,
        ..Default::default()
    }
}

impl Records {
    fn new(family: &Family) -> Self {
        Self {
            params: family.params.raw(),
            worth: abi::thalweg_worth {
                arms_q16: family.worth_q16,
            },
            hosts: BTreeMap::new(),
            narrow: BTreeMap::new(),
            wide: abi::thalweg_host {
                step: family.told,
                ..record(Level::Namespace)
            },
            others: family.others.as_deref().map(|hexadecimal| {
                let digits = hexadecimal.as_bytes().chunks(2);
                let byte = |two| {
                    let two = std::str::from_utf8(two).expect("digits");
                    u8::from_str_radix(two, 16).expect("digits")
                };
                from_bytes(&digits.map(byte).collect::<Vec<u8>>()).expect("a record")
            }),
        }
    }

    fn narrow_level(&self) -> Level {
        let level = self.others.map(|others| {
            Level::from_number(others.level)
                .expect("a level")
                .own_level()
        });
        level.unwrap_or(Level::Prefix)
    }

    /// The answer of an implementation to a request about `host`.
    fn answer(
        &self,
        implementation: &mut dyn Implementation,
        function: u32,
        host: &abi::thalweg_host,
        request: Request,
    ) -> Request {
        let mut request = Request {
            function,
            params: self.params,
            worth: self.worth,
            host: *host,
            ..request
        };
        let answered = implementation.answer(&mut request);
        answered.unwrap_or_else(|error| panic!("{}: {error}", implementation.name()));
        request
    }

    /// Takes a step, and checks it.
    fn step(&mut self, implementation: &mut dyn Implementation, step: &Member, place: &str) {
        let (Member::Connect { host, narrow, .. } | Member::Score { host, narrow, .. }) = step;
        let present =
            |records: &BTreeMap<_, _>, index, level| *records.get(index).unwrap_or(&record(level));
        let mut own = present(&self.hosts, host, Level::Host);
        let mut group = present(&self.narrow, narrow, self.narrow_level());
        match step {
            Member::Connect {
                record,
                system_arm,
                allowed,
                random,
                now_ns,
                arm,
                reason,
                propensity_q16,
                after,
                ..
            } => {
                let request = Request {
                    system_arm: *system_arm,
                    allowed: *allowed,
                    random: *random,
                    now_ns: *now_ns,
                    ..Default::default()
                };
                let (mut wide, mut others) = (self.wide, self.others.unwrap_or_default());
                if own.scored == 0 {
                    // Evidence is lost with time before a group is asked.
                    let asked = self.answer(implementation, raw::VECTOR_KNOWS, &group, request);
                    group = asked.host;
                    let asks = self.answer(implementation, raw::VECTOR_KNOWS, &wide, request);
                    wide = asks.host;
                    let told = self.answer(implementation, raw::VECTOR_KNOWS, &others, request);
                    let has_told = u64::from(self.others.is_some()) & told.outputs[0];
                    others = told.host;
                    let decides = match (asked.outputs[0], has_told, asks.outputs[0]) {
                        (1, ..) => 1,
                        (_, 1, _) => 3,
                        (.., 1) => 2,
                        _ => 0,
                    };
                    assert_eq!(decides, *record, "{place}: who decides");
                }
                let decider = match record {
                    0 => &mut own,
                    1 => &mut group,
                    2 => &mut wide,
                    _ => &mut others,
                };
                let answer = self.answer(implementation, raw::VECTOR_CONNECT, decider, request);
                assert_eq!(answer.outputs, [*arm, *reason, *propensity_q16], "{place}");
                *decider = answer.host;
                assert_eq!(&fnv1a(bytes_of(&answer.host)), after, "{place}: record");
                self.wide = wide;
                self.others = self.others.map(|_| others);
            }
            Member::Score {
                arm,
                system_arm,
                now_ns,
                sample,
                outcome,
                weight_q16,
                cost,
                after,
                ..
            } => {
                let request = Request {
                    arm: *arm,
                    system_arm: *system_arm,
                    trial: 1,
                    now_ns: *now_ns,
                    sample: sample.raw(),
                    ..Default::default()
                };
                let is_new = own.scored == 0;
                let scored = self.answer(implementation, raw::VECTOR_SCORE, &own, request);
                assert_eq!(scored.outputs, [*outcome, *weight_q16, *cost], "{place}");
                own = scored.host;
                let told = Request {
                    report: scored.report,
                    ..request
                };
                if scored.report.weight_q16 != 0 {
                    let function = raw::VECTOR_SCORE_GROUP;
                    self.wide = self.answer(implementation, function, &self.wide, told).host;
                    group = self.answer(implementation, function, &group, told).host;
                    let mut wider = self.wide;
                    if let Some(others) = self.others {
                        let adopts = Request { wider, ..request };
                        let adopted =
                            self.answer(implementation, raw::VECTOR_ADOPT, &others, adopts);
                        let others = adopted.host;
                        let system = others.arms.get(*system_arm as usize);
                        if system.is_some_and(|arm| arm.weight_q16 >= 8 << 16) {
                            wider = others;
                        }
                        self.others = Some(others);
                    }
                    let adopts = Request { wider, ..request };
                    group = self
                        .answer(implementation, raw::VECTOR_ADOPT, &group, adopts)
                        .host;
                }
                if is_new && *outcome == u64::from(abi::THALWEG_SCORED) {
                    let inherits = Request {
                        wider: group,
                        ..request
                    };
                    own = self
                        .answer(implementation, raw::VECTOR_INHERIT, &own, inherits)
                        .host;
                }
                for (what, record, expected) in [
                    ("host", &own, &after[0]),
                    ("narrow group", &group, &after[1]),
                    ("wide group", &self.wide, &after[2]),
                ] {
                    assert_eq!(&fnv1a(bytes_of(record)), expected, "{place}: {what}");
                }
                let others = self.others.as_ref().map(|it| fnv1a(bytes_of(it)));
                assert_eq!(others.unwrap_or_default(), after[3], "{place}: others");
            }
        }
        self.hosts.insert(*host, own);
        self.narrow.insert(*narrow, group);
    }
}

fn run_families(implementation: &mut dyn Implementation) {
    let name = implementation.name();
    let Families { families } = read("families.json");
    let mut steps = 0;
    for family in &families {
        let mut records = Records::new(family);
        for (number, step) in family.steps.iter().enumerate() {
            let place = format!("{name}: families.json, `{}`, step {number}", family.name);
            records.step(implementation, step, &place);
            steps += 1;
        }
    }
    assert!(
        families.len() >= 10 && steps >= 2_000,
        "families.json has {steps} steps only"
    );
    eprintln!("{name}: {steps} steps of {} families agree", families.len());
}

/// The request of a step, and the expected outputs.
fn step_request(action: &Action) -> (Request, [u64; 3]) {
    let empty = Request::default();
    match action {
        Action::Connect {
            system_arm,
            allowed,
            random,
            now_ns,
            arm,
            reason,
            propensity_q16,
        } => {
            let request = Request {
                function: raw::VECTOR_CONNECT,
                system_arm: *system_arm,
                allowed: *allowed,
                random: *random,
                now_ns: *now_ns,
                ..empty
            };
            (request, [*arm, *reason, *propensity_q16])
        }
        Action::Score {
            arm,
            system_arm,
            trial,
            now_ns,
            sample,
            outcome,
            weight_q16,
            cost,
        } => {
            let request = Request {
                function: raw::VECTOR_SCORE,
                arm: *arm,
                system_arm: *system_arm,
                trial: *trial,
                now_ns: *now_ns,
                sample: sample.raw(),
                ..empty
            };
            (request, [*outcome, *weight_q16, *cost])
        }
        Action::Change {
            current,
            system_arm,
            segs,
            retrans,
            allowed,
            random,
            arm,
            reason,
            propensity_q16,
        } => {
            let request = Request {
                function: raw::VECTOR_CHANGE,
                arm: *current,
                system_arm: *system_arm,
                segs: *segs,
                retrans: *retrans,
                allowed: *allowed,
                random: [*random, 0, 0],
                ..empty
            };
            (request, [*arm, *reason, *propensity_q16])
        }
        Action::Review {
            current,
            system_arm,
            trial,
            decided_ns,
            allowed,
            random,
            now_ns,
            arm,
            reason,
            propensity_q16,
        } => {
            let request = Request {
                function: raw::VECTOR_REVIEW,
                arm: *current,
                system_arm: *system_arm,
                trial: *trial,
                inputs: [*decided_ns, 0, 0, 0],
                allowed: *allowed,
                random: [*random, 0, 0],
                now_ns: *now_ns,
                ..empty
            };
            (request, [*arm, *reason, *propensity_q16])
        }
    }
}

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

#[test]
fn the_committed_vectors_are_those_of_the_generator() {
    let output = Command::new("python3")
        .arg(vectors().join("generate.py"))
        .arg("--check")
        .output()
        .expect("python3 runs");
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
}

#[test]
fn units_on_core() {
    run_units(&mut Core);
}

#[test]
fn units_on_native_c() {
    run_units(&mut Native);
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn units_on_bpf() {
    if let Some(mut kernel) = kernel() {
        run_units(&mut kernel);
    }
}

#[test]
fn sequences_on_core() {
    run_sequences(&mut Core);
}

#[test]
fn sequences_on_native_c() {
    run_sequences(&mut Native);
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn sequences_on_bpf() {
    if let Some(mut kernel) = kernel() {
        run_sequences(&mut kernel);
    }
}

#[test]
fn families_on_core() {
    run_families(&mut Core);
}

#[test]
fn families_on_native_c() {
    run_families(&mut Native);
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn families_on_bpf() {
    if let Some(mut kernel) = kernel() {
        run_families(&mut kernel);
    }
}
