//! A learned controller: a model file decides.
//!
//! Tessler et al., "Reinforcement Learning for Datacenter Congestion Control", 2021, §5.1 and §6:
//! at each answered probe the flow's round-trip time and rate become features, a network (or
//! trees) turns those of the last decisions into an action, and the action multiplies the rate.
//! Features, target and scales are the file's; `docs/reference/model.md` defines them. They are computed in
//! integers as the kernel does it, whatever the network computes in, so there is one definition.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use thalweg_rate::models::{Lstm, LstmState, ModelFile, Policy};
use thalweg_rate::{Decider, Features, Flow, Forest, MAX_INPUTS, MAX_RATE, Measurement, ONE_Q15};

use super::parameter::within;
use super::proportional::multiplier;
use super::{Command, Context, Controller, Needs, ParameterError, Response, Setup};

/// What computes the action.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Inference {
    /// The network in floating point.
    Float,
    /// The quantised network, in integers, as in the kernel.
    Int8,
    /// Trees, in integers, as in the kernel.
    Tree,
}

impl Inference {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Float, Self::Int8, Self::Tree];

    /// As `inference=` has it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Float => "float",
            Self::Int8 => "int8",
            Self::Tree => "tree",
        }
    }

    /// The one of a name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|one| one.name() == name)
    }
}

impl fmt::Display for Inference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// How a model is used.
#[derive(Debug, Clone, PartialEq)]
pub struct Options {
    /// What computes the action; none: floating point if the file has a network, else its trees.
    pub inference: Option<Inference>,
    /// The signal to be held, instead of the file's. The scales of errors change with it, so that
    /// the same share of the target looks the same to the network.
    pub target: Option<f64>,
    /// First rate, as a share of the line rate.
    pub initial_fraction: f64,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            inference: None,
            target: None,
            initial_fraction: 1.0,
        }
    }
}

/// Why a model cannot be used.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum ModelError {
    /// The file is no model, or cannot be read.
    #[error("{0}")]
    File(String),
    /// The file has nothing that computes in the way that was asked for.
    #[error("{file}: `inference` is {asked}; the file has {}", names(.has))]
    Inference {
        /// The file.
        file: String,
        /// What was asked for.
        asked: Inference,
        /// What there is.
        has: Vec<Inference>,
    },
    /// An option out of range.
    #[error(transparent)]
    Option(#[from] ParameterError),
    /// A target with which the file's features cannot be computed.
    #[error("{file}: with a target of {target}: {fault}")]
    Target {
        /// The file.
        file: String,
        /// What was asked for.
        target: f64,
        /// Which feature.
        fault: thalweg_rate::Fault,
    },
}

fn names(list: &[Inference]) -> String {
    let names: Vec<&str> = list.iter().map(|one| one.name()).collect();
    names.join(", ")
}

/// What decides. Integers and floating point see the same features.
#[derive(Debug)]
enum Decides {
    Float(thalweg_rate::models::Network),
    Recurrent(Box<Lstm>),
    Integers(thalweg_rate::Network),
    Trees(Forest),
}

/// A model that is ready to decide. Flows share it.
#[derive(Debug)]
pub struct Model {
    file: PathBuf,
    options: Options,
    inference: Inference,
    features: Features,
    decides: Decides,
}

impl Model {
    /// Reads a model file.
    ///
    /// # Errors
    /// A file that cannot be read or is no model, or options that it does not allow.
    pub fn read(file: &Path, options: Options) -> Result<Self, ModelError> {
        let read = ModelFile::read(file).map_err(|error| ModelError::File(error.to_string()))?;
        Self::new(read, file, options)
    }

    /// A model of a file's content; `file` is what it is called.
    ///
    /// # Errors
    /// Options that the file does not allow.
    pub fn new(content: ModelFile, file: &Path, options: Options) -> Result<Self, ModelError> {
        within("initial_fraction", options.initial_fraction, 1e-9..=1.0)?;
        let features = match options.target {
            None => content.features.clone(),
            Some(target) => retarget(&content, file, target)?,
        };
        let has = match &content.policy {
            Policy::Mlp { integer: None, .. } | Policy::Lstm(_) => vec![Inference::Float],
            Policy::Mlp { .. } => vec![Inference::Float, Inference::Int8],
            Policy::Tree(_) => vec![Inference::Tree],
        };
        let inference = options.inference.unwrap_or(has[0]);
        let decides = match (content.policy, inference) {
            (Policy::Mlp { float, .. }, Inference::Float) => Some(Decides::Float(float)),
            (Policy::Lstm(lstm), Inference::Float) => Some(Decides::Recurrent(lstm)),
            (Policy::Mlp { integer, .. }, Inference::Int8) => {
                integer.and_then(|model| match model.decider() {
                    Decider::Network(network) => Some(Decides::Integers(network.clone())),
                    Decider::Forest(_) => None,
                })
            }
            (Policy::Tree(model), Inference::Tree) => match model.decider() {
                Decider::Forest(forest) => Some(Decides::Trees(forest.clone())),
                Decider::Network(_) => None,
            },
            _ => None,
        };
        let Some(decides) = decides else {
            return Err(ModelError::Inference {
                file: file.display().to_string(),
                asked: inference,
                has,
            });
        };
        Ok(Self {
            file: file.to_owned(),
            options,
            inference,
            features,
            decides,
        })
    }

    /// The file.
    pub fn file(&self) -> &Path {
        &self.file
    }

    /// How it is used, as it was asked for.
    pub fn options(&self) -> &Options {
        &self.options
    }

    /// What computes the action.
    pub fn inference(&self) -> Inference {
        self.inference
    }

    /// What it sees, in integers.
    pub fn features(&self) -> &Features {
        &self.features
    }

    fn recurrent(&self) -> bool {
        matches!(self.decides, Decides::Recurrent(_))
    }

    /// The action, from −1 to 1, and what the flow remembers of it. `memory` is that of a
    /// recurrent network.
    #[inline]
    fn decide(&self, flow: &mut Flow, memory: &mut Option<Box<LstmState>>, seen: &Seen) -> Action {
        let inputs = match seen {
            Seen::Answer(seen) => self.features.observe(flow, seen),
            Seen::Loss(rate, line_rate) => self.features.observe_loss(flow, *rate, *line_rate),
        };
        let action = match &self.decides {
            Decides::Float(network) => Action::Float(network.infer_q15(inputs)),
            Decides::Recurrent(lstm) => {
                let memory = memory
                    .as_mut()
                    .expect("flows of a recurrent network have a memory");
                Action::Float(lstm.infer(&floats(inputs)[..inputs.len()], memory))
            }
            Decides::Integers(network) => Action::Q15(network.infer(inputs)),
            Decides::Trees(forest) => Action::Q15(forest.infer(inputs)),
        };
        flow.acted(action.q15());
        action
    }
}

/// Features in floating point.
#[inline]
fn floats(inputs: &[i16]) -> [f32; MAX_INPUTS] {
    let mut floats = [0.0; MAX_INPUTS];
    for (float, input) in floats.iter_mut().zip(inputs) {
        *float = f32::from(*input) / 32768.0;
    }
    floats
}

/// The file's features for another target.
fn retarget(content: &ModelFile, file: &Path, target: f64) -> Result<Features, ModelError> {
    within("target", target, 1e-6..=255.0)?;
    let mut document = content.document.clone();
    let factor = document.target / target;
    document.target = target;
    for feature in &mut document.features {
        if matches!(feature.name.as_str(), "error" | "error_change") {
            feature.scale *= factor;
        }
    }
    document.features().map_err(|fault| ModelError::Target {
        file: file.display().to_string(),
        target,
        fault,
    })
}

/// `--cc` and scenario files have it so: the file, and what is not the default.
impl fmt::Display for Model {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "model={}", self.file.display())?;
        if let Some(inference) = self.options.inference {
            write!(f, ",inference={inference}")?;
        }
        if let Some(target) = self.options.target {
            write!(f, ",target={target}")?;
        }
        if self.options.initial_fraction != Options::default().initial_fraction {
            write!(f, ",initial_fraction={}", self.options.initial_fraction)?;
        }
        Ok(())
    }
}

/// What a decision goes by.
enum Seen {
    Answer(Measurement),
    /// The probe was lost: the flow's rate and that of its line.
    Loss(u64, u64),
}

/// What was decided.
#[derive(Clone, Copy)]
enum Action {
    Float(f32),
    Q15(i16),
}

impl Action {
    /// As features have it, ties to even.
    fn q15(self) -> i16 {
        // 1.5 * 2^23: numbers of this size are whole, so adding it rounds, without a call.
        const ROUNDER: f32 = 12_582_912.0;
        let one = f32::from(ONE_Q15);
        match self {
            Self::Float(action) => ((action * 32768.0 + ROUNDER) - ROUNDER).clamp(-one, one) as i16,
            Self::Q15(action) => action,
        }
    }
}

/// A flow whose rate a model decides.
///
/// What a decision with up to seven inputs needs is in one cache line; the flow's rate is that of
/// its command.
#[derive(Debug, Clone)]
#[repr(C, align(64))]
pub struct Learned {
    model: Arc<Model>,
    base_rtt_ns: u64,
    min_rate_bps: f64,
    line_rate_bps: f64,
    /// Of a recurrent network.
    memory: Option<Box<LstmState>>,
    flow: Flow,
}

impl Learned {
    /// A controller for one flow.
    pub fn new(model: Arc<Model>) -> Self {
        let memory = model.recurrent().then(Box::default);
        Self {
            model,
            flow: Flow::default(),
            memory,
            base_rtt_ns: 1,
            min_rate_bps: 0.0,
            line_rate_bps: 1.0,
        }
    }

    /// What rates are counted in, bits per second: 1 unless the line is faster than a terabit.
    #[inline]
    fn unit_bps(&self) -> f64 {
        if self.line_rate_bps <= MAX_RATE as f64 {
            1.0
        } else {
            (self.line_rate_bps / MAX_RATE as f64).ceil()
        }
    }

    /// Rates are not negative.
    #[inline]
    fn units(&self, rate_bps: f64) -> u64 {
        (rate_bps / self.unit_bps()) as i64 as u64
    }

    #[inline]
    fn act(&mut self, seen: &Seen, context: &mut Context<'_>) {
        let rate_bps = context.command.rate_bps;
        let next = match (self.model).decide(&mut self.flow, &mut self.memory, seen) {
            Action::Float(action) => rate_bps * multiplier(action.into()),
            Action::Q15(action) => {
                let next = thalweg_rate::next_rate(self.units(rate_bps), action, 0, u64::MAX);
                next as f64 * self.unit_bps()
            }
        };
        context.command.rate_bps = next.max(self.min_rate_bps).min(self.line_rate_bps);
    }
}

/// To the nearest nanosecond.
fn nanoseconds(time: crate::Time) -> u64 {
    time.ps().saturating_add(500) / 1000
}

impl Controller for Learned {
    fn needs(&self) -> Needs {
        Needs {
            probes: true,
            ..Needs::default()
        }
    }

    fn start(&mut self, setup: &Setup, context: &mut Context<'_>) {
        self.base_rtt_ns = nanoseconds(setup.base_rtt);
        self.min_rate_bps = setup.min_rate_bps;
        self.line_rate_bps = setup.line_rate_bps;
        *context.command = Command {
            rate_bps: setup.limit(self.model.options.initial_fraction * setup.line_rate_bps),
            window_bytes: f64::INFINITY,
        };
    }

    fn on_response(&mut self, response: &Response<'_>, context: &mut Context<'_>) {
        let seen = Seen::Answer(Measurement {
            rtt_ns: nanoseconds(response.rtt),
            base_rtt_ns: self.base_rtt_ns,
            rate: self.units(context.command.rate_bps),
            line_rate: self.units(self.line_rate_bps),
        });
        self.act(&seen, context);
    }

    fn on_probe_lost(&mut self, _: &Response<'_>, context: &mut Context<'_>) {
        let rate = self.units(context.command.rate_bps);
        let seen = Seen::Loss(rate, self.units(self.line_rate_bps));
        self.act(&seen, context);
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{Flow, assert_near, setup};
    use super::*;
    use crate::Time;
    use thalweg_rate::models::{Document, FeatureEntry, FloatLayer, Kind, Training};
    use thalweg_rate::{Feature, FeatureKind, Node};

    /// The content of a file: error and action, over two decisions; signal 0.05 beyond 1.
    fn content(policy: Policy, kind: Kind) -> ModelFile {
        let document = Document {
            name: "test".into(),
            kind,
            features: vec![entry("action", 1.0), entry("error", 1.0)],
            history: 2,
            target: 0.05,
            offset: 1.0,
            hidden: vec![],
            activation_amax: None,
            training: Training {
                scenarios: vec![],
                seed: 0,
                commit: String::new(),
                base_rtt_ns: 12_000,
                line_rate_bps: 100_000_000_000,
            },
            evaluation: serde_json::Map::new(),
        };
        ModelFile {
            features: document.features().unwrap(),
            document,
            policy,
        }
    }

    fn entry(name: &str, scale: f64) -> FeatureEntry {
        FeatureEntry {
            name: name.into(),
            scale,
        }
    }

    /// One layer: the action is tanh of the inputs' weighted sum. Inputs are the older action
    /// and error, then the newer ones.
    fn linear(weights: [f32; 4]) -> Arc<Model> {
        let layer = FloatLayer::new("layers.0", 4, &weights, &[0.0]).unwrap();
        let float = thalweg_rate::models::Network::new(vec![layer]).unwrap();
        let policy = Policy::Mlp {
            float,
            integer: None,
        };
        let content = content(policy, Kind::Mlp);
        Arc::new(Model::new(content, Path::new("test"), Options::default()).unwrap())
    }

    fn flow(model: &Arc<Model>) -> Flow<Learned> {
        Flow::start(Learned::new(Arc::clone(model)), &setup())
    }

    /// Features are Q15 and the signal is found with a root of 24 bits: relative to a rate that
    /// is 0.2 · 2^-15 or so.
    #[track_caller]
    fn assert_close(found: f64, expected: f64) {
        assert!(
            (found / expected - 1.0).abs() < 2e-5,
            "{found} is not {expected}"
        );
    }

    #[test]
    fn it_sees_two_steps_of_errors() {
        // 24 µs: (2 − 1) · √1, so the error is 0.05 − 1; then 36 µs: 2 · √share.
        let mut newest = flow(&linear([0.0, 0.0, 0.0, 1.0]));
        newest.respond(Time::from_us(24));
        let first = 100.0 / (1.0 + 0.2 * 0.95_f64.tanh());
        assert_close(newest.gbps(), first);
        newest.respond(Time::from_us(36));
        // 0.05 − 2 · √0.87 is below −1, the least that a feature can be.
        assert_close(newest.gbps(), first / (1.0 + 0.2 * 1.0_f64.tanh()));

        let mut older = flow(&linear([0.0, 1.0, 0.0, 0.0]));
        older.respond(Time::from_us(24));
        assert_close(older.gbps(), 100.0);
        older.respond(Time::from_us(12));
        assert_close(older.gbps(), first);
    }

    #[test]
    fn it_sees_two_steps_of_its_own_actions() {
        // The action is the error, then half of the newer action and a quarter of the older.
        let mut flow = flow(&linear([0.25, 0.0, 0.5, 1.0]));
        flow.respond(Time::from_us(24));
        let one = -0.95_f64.tanh();
        let mut rate = 100.0 * multiplier(one);
        assert_close(flow.gbps(), rate);
        // 12 µs: no signal, the error is the target.
        flow.respond(Time::from_us(12));
        let two = (0.5 * one + 0.05).tanh();
        rate *= multiplier(two);
        assert_close(flow.gbps(), rate);
        flow.respond(Time::from_us(12));
        let three = (0.25 * one + 0.5 * two + 0.05).tanh();
        rate *= multiplier(three);
        assert_close(flow.gbps(), rate);
    }

    #[test]
    fn a_lost_probe_is_an_error_at_its_limit() {
        // The action is the error: −1 to 2^-15.
        let mut flow = flow(&linear([0.0, 0.0, 0.0, 1.0]));
        flow.lose_probe();
        let step = 1.0 + 0.2 * 1.0_f64.tanh();
        assert_close(flow.gbps(), 100.0 / step);
        // It is the older error then. 12 µs: the newer one is the target.
        let mut both = self::flow(&linear([0.0, 1.0, 0.0, 1.0]));
        both.lose_probe();
        both.respond(Time::from_us(12));
        assert_close(both.gbps(), 100.0 / step / (1.0 + 0.2 * 0.95_f64.tanh()));
    }

    #[test]
    fn not_below_the_lowest_rate() {
        let mut flow = flow(&linear([0.0, 0.0, 0.0, 1e6]));
        for _ in 0..64 {
            flow.respond(Time::from_us(1_000_000));
        }
        assert_near(flow.command.rate_bps, 1e6);
    }

    #[test]
    fn a_faster_line_is_no_trouble() {
        // 3.2 Tbit/s is beyond the integers' 40 bits; at 24 µs all must be as at 100 Gbit/s.
        let setup = Setup {
            line_rate_bps: 3.2e12,
            ..setup()
        };
        let mut flow = Flow::start(Learned::new(linear([0.0, 0.0, 0.0, 1.0])), &setup);
        flow.respond(Time::from_us(24));
        assert_close(flow.gbps(), 3200.0 / (1.0 + 0.2 * 0.95_f64.tanh()));
    }

    /// Left (+0.5) where the newest error is positive, right (−0.5) where it is not.
    fn stump() -> ModelFile {
        let node = |left, right, value_q15| Node {
            input: 3,
            threshold_q15: 0,
            left,
            right,
            value_q15,
        };
        let nodes = vec![node(1, 2, 0), node(1, 1, -16384), node(2, 2, 16384)];
        let forest = Forest::new(nodes, vec![0], 4).unwrap();
        let kinds = [FeatureKind::Action, FeatureKind::Error];
        let list = kinds.map(|kind| Feature {
            kind,
            scale_q16: 1 << 16,
        });
        let features = Features::new(list.to_vec(), 2, 838_861, 1 << 16).unwrap();
        let model = thalweg_rate::Model::new(features, Decider::Forest(forest)).unwrap();
        content(Policy::Tree(model), Kind::Tree)
    }

    #[test]
    fn trees_decide_in_integers() {
        let model = Model::new(stump(), Path::new("stump"), Options::default()).unwrap();
        assert_eq!(model.inference(), Inference::Tree);
        let mut flow = flow(&Arc::new(model));
        // 1 / 1.1 in Q16 is 65536² / 72090 (0.1 in Q16: 6554 rounded), to the nearest: 59578.
        let mut rate = 1e11_f64;
        for (rtt_us, multiplier_q16) in [(24, 59578.0), (24, 59578.0), (12, 72090.0)] {
            flow.respond(Time::from_us(rtt_us));
            rate = (rate * multiplier_q16 / 65536.0).round();
            assert_eq!(flow.command.rate_bps, rate);
        }
    }

    #[test]
    fn another_target_moves_the_fixed_point() {
        // With √share = 1 and a target of 0.5 the fixed point is an inflation of 1.5.
        let options = Options {
            target: Some(0.5),
            ..Options::default()
        };
        let model = Model::new(stump(), Path::new("stump"), options).unwrap();
        assert_eq!(model.features().target_q24(), 1 << 23);
        // The error's scale: a tenth, as the target is ten times the file's.
        assert_eq!(model.features().list()[1].scale_q16, 6554);
        let model = Arc::new(model);
        let mut below = flow(&model);
        below.respond(Time::from_ns(17_900));
        assert_eq!(below.gbps(), 100.0);
        let mut above = flow(&model);
        above.respond(Time::from_ns(18_100));
        assert!(above.gbps() < 95.0);
    }

    #[test]
    fn what_a_file_cannot_do_is_refused() {
        let asked = |inference, target, initial_fraction| {
            let options = Options {
                inference,
                target,
                initial_fraction,
            };
            let error = Model::new(stump(), Path::new("stump"), options);
            error.map(|_| ()).unwrap_err().to_string()
        };
        assert_eq!(
            asked(Some(Inference::Int8), None, 1.0),
            "stump: `inference` is int8; the file has tree"
        );
        assert_eq!(
            asked(None, Some(0.0), 1.0),
            "`target` is 0; a number from 0.000001 to 255 is expected"
        );
        // The error's scale would be 50,000, give or take a rounding.
        let fault = asked(None, Some(1e-6), 1.0);
        let begin = "stump: with a target of 0.000001: features[1].scale (error): found 50000";
        assert!(fault.starts_with(begin), "{fault}");
        assert!(
            fault.ends_with("expected 0.0000152587890625 to 4096"),
            "{fault}"
        );
        assert!(asked(None, None, 0.0).starts_with("`initial_fraction` is 0"));
    }
}
