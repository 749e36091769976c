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
mod tests;
