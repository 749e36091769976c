//! A learned controller: a model file decides.
//!
//! Tessler et al., "Reinforcement Learning for Datacenter Congestion Control", 2021, §5.1 and §6.
//! At each probe response the flow's round-trip time and rate become features. A network (or trees)
//! turns the features of the last decisions into an action, and the action multiplies the rate. The
//! file holds features, target and scales; `docs/reference/model.md` defines them. Features are
//! computed in integers as in the kernel, whatever the arithmetic of the network. So they have one
//! definition.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use thalweg_rate::models::{Lstm, LstmState, ModelFile, Policy};
use thalweg_rate::{Decider, Features, Flow, Forest, MAX_INPUTS, MAX_RATE, Measurement, ONE_Q15};

use super::parameter::check_within;
use super::proportional::action_multiplier;
use super::restart::{Probe, Restart, Verdict};
use super::{Command, Context, Controller, Needs, ParameterError, Response, Setup};

/// Arithmetic of the action.
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
    /// All variants.
    pub const ALL: [Self; 3] = [Self::Float, Self::Int8, Self::Tree];

    /// Value of `inference=` in files and options.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Float => "float",
            Self::Int8 => "int8",
            Self::Tree => "tree",
        }
    }

    /// The variant with this name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|one| one.name() == name)
    }
}

impl fmt::Display for Inference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Reaction of a flow that begins faster than [`INITIAL_FRACTION`] and meets overload.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Overload {
    /// The flow begins again, slower ([`Restart`]).
    #[default]
    Restart,
    /// Each lost probe is a decision of the model, as published.
    Decide,
}

impl Overload {
    /// Value of `overload=` in files and options.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Restart => "restart",
            Self::Decide => "decide",
        }
    }

    /// The variant with this name.
    pub fn from_name(name: &str) -> Option<Self> {
        [Self::Restart, Self::Decide]
            .into_iter()
            .find(|one| one.name() == name)
    }
}

/// Options of a model.
#[derive(Debug, Clone, PartialEq)]
pub struct Options {
    /// Arithmetic of the action. None: floating point if the file has a network, else its trees.
    pub inference: Option<Inference>,
    /// Target of the signal, instead of the file's. The scales of errors change with it: the
    /// network sees errors relative to the target.
    pub target: Option<f64>,
    /// First rate, as a share of the line rate; [`INITIAL_FRACTION`] by default.
    pub initial_fraction: f64,
    /// Reaction of a flow where the initial rate is too fast.
    pub overload: Overload,
}

/// The default of [`Options::initial_fraction`], as in the published tables. A flow alone doubles its
/// rate in four decisions, so it has the line within half a millisecond. Thousands of flows that
/// begin at the line rate lose nearly all probes, and can hardly decide.
pub const INITIAL_FRACTION: f64 = 0.001;

impl Default for Options {
    fn default() -> Self {
        Self {
            inference: None,
            target: None,
            initial_fraction: INITIAL_FRACTION,
            overload: Overload::default(),
        }
    }
}

/// Why a model cannot be used.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum ModelError {
    /// The file is not a model, or cannot be read.
    #[error("{0}")]
    File(String),
    /// The file has no network or trees for the requested arithmetic.
    #[error("{file}: `inference` is {asked}; the file has {}", join_names(.has))]
    Inference {
        /// The file.
        file: String,
        /// Requested arithmetic.
        asked: Inference,
        /// Available arithmetic.
        has: Vec<Inference>,
    },
    /// An option is out of range.
    #[error(transparent)]
    Option(#[from] ParameterError),
    /// A target with which the file's features cannot be computed.
    #[error("{file}: with a target of {target}: {fault}")]
    Target {
        /// The file.
        file: String,
        /// Requested target.
        target: f64,
        /// The fault of the feature.
        fault: thalweg_rate::Fault,
    },
}

fn join_names(list: &[Inference]) -> String {
    let names: Vec<&str> = list.iter().map(|one| one.name()).collect();
    names.join(", ")
}

/// The network or trees. Integers and floating point see the same features.
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
    /// The file cannot be read or is not a model, or it does not allow the options.
    pub fn read(file: &Path, options: Options) -> Result<Self, ModelError> {
        let read = ModelFile::read(file).map_err(|error| ModelError::File(error.to_string()))?;
        Self::new(read, file, options)
    }

    /// A model from a file's content; `file` is its name.
    ///
    /// # Errors
    /// The file does not allow the options.
    pub fn new(content: ModelFile, file: &Path, options: Options) -> Result<Self, ModelError> {
        check_within("initial_fraction", options.initial_fraction, 1e-9..=1.0)?;
        let features = match options.target {
            None => content.features.clone(),
            Some(target) => features_for_target(&content, file, target)?,
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
    pub fn file_path(&self) -> &Path {
        &self.file
    }

    /// The options, as given.
    pub fn options(&self) -> &Options {
        &self.options
    }

    /// Arithmetic of the action.
    pub fn inference(&self) -> Inference {
        self.inference
    }

    /// Features of the model, in integers.
    pub fn features(&self) -> &Features {
        &self.features
    }

    fn is_recurrent(&self) -> bool {
        matches!(self.decides, Decides::Recurrent(_))
    }

    fn restarts_flows(&self) -> bool {
        self.options.overload == Overload::Restart
            && self.options.initial_fraction > INITIAL_FRACTION
    }

    /// The action, from −1 to 1, and the state of the flow after it.
    #[inline]
    fn choose_action(
        &self,
        flow: &mut Flow,
        memory: &mut Option<Box<Memory>>,
        seen: &Seen,
    ) -> Action {
        let inputs = match seen {
            Seen::Answer(seen) => self.features.observe(flow, seen),
            Seen::Loss(rate, line_rate) => self.features.observe_loss(flow, *rate, *line_rate),
        };
        let action = match &self.decides {
            Decides::Float(network) => Action::Float(network.infer_q15(inputs)),
            Decides::Recurrent(lstm) => {
                let state = (memory.as_mut())
                    .and_then(|memory| memory.lstm.as_mut())
                    .expect("flows of a recurrent network have a state");
                Action::Float(lstm.infer(&inputs_as_floats(inputs)[..inputs.len()], state))
            }
            Decides::Integers(network) => Action::Q15(network.infer(inputs)),
            Decides::Trees(forest) => Action::Q15(forest.infer(inputs)),
        };
        flow.store_action(action.to_q15());
        action
    }
}

/// Features in floating point.
#[inline]
fn inputs_as_floats(inputs: &[i16]) -> [f32; MAX_INPUTS] {
    let mut floats = [0.0; MAX_INPUTS];
    for (float, input) in floats.iter_mut().zip(inputs) {
        *float = f32::from(*input) / 32768.0;
    }
    floats
}

/// The file's features for another target.
fn features_for_target(
    content: &ModelFile,
    file: &Path,
    target: f64,
) -> Result<Features, ModelError> {
    check_within("target", target, 1e-6..=255.0)?;
    let fault = |fault| ModelError::Target {
        file: file.display().to_string(),
        target,
        fault,
    };
    let mut document = content.document.clone();
    document.target = target;
    // Of the targets in integers, so that models of equal targets are equal.
    let own = f64::from(content.features.target_q24());
    let factor = own / f64::from(document.integer_features().map_err(fault)?.target_q24());
    for feature in &mut document.features {
        if matches!(feature.name.as_str(), "error" | "error_change") {
            feature.scale *= factor;
        }
    }
    document.integer_features().map_err(fault)
}

/// The form of `--cc` and scenario files: the file, and the options that are not the default.
impl fmt::Display for Model {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "model={}", self.file.display())?;
        if let Some(inference) = self.options.inference {
            write!(f, ",inference={inference}")?;
        }
        if let Some(target) = self.options.target {
            write!(f, ",target={target}")?;
        }
        if self.options.initial_fraction != INITIAL_FRACTION {
            write!(f, ",initial_fraction={}", self.options.initial_fraction)?;
        }
        if self.options.overload != Overload::default() {
            write!(f, ",overload={}", self.options.overload.name())?;
        }
        Ok(())
    }
}

/// Input of a decision.
enum Seen {
    Answer(Measurement),
    /// The probe was lost: the flow's rate and its line's rate.
    Loss(u64, u64),
}

/// Output of a decision.
#[derive(Clone, Copy)]
enum Action {
    Float(f32),
    Q15(i16),
}

impl Action {
    /// Q15 as in features, ties to even.
    fn to_q15(self) -> i16 {
        // 1.5 * 2^23: floats of this size are whole, so adding it rounds without a call.
        const ROUNDER: f32 = 12_582_912.0;
        let one = f32::from(ONE_Q15);
        match self {
            Self::Float(action) => ((action * 32768.0 + ROUNDER) - ROUNDER).clamp(-one, one) as i16,
            Self::Q15(action) => action,
        }
    }
}

/// State that few flows have, outside of their cache line.
#[derive(Debug, Clone, Default)]
struct Memory {
    /// State of a recurrent network.
    lstm: Option<LstmState>,
    /// Until the start is over.
    restart: Option<Restart>,
}

/// A flow whose rate a model decides.
///
/// One cache line holds the data of a decision with up to seven inputs. The flow's rate is that of
/// its command.
#[derive(Debug, Clone)]
#[repr(C, align(64))]
pub struct Learned {
    model: Arc<Model>,
    base_rtt_ns: u64,
    min_rate_bps: f64,
    line_rate_bps: f64,
    memory: Option<Box<Memory>>,
    flow: Flow,
}

impl Learned {
    /// A controller for one flow.
    pub fn new(model: Arc<Model>) -> Self {
        let lstm = model.is_recurrent().then(LstmState::default);
        let restart = model.restarts_flows().then(Restart::default);
        let memory =
            (lstm.is_some() || restart.is_some()).then(|| Box::new(Memory { lstm, restart }));
        Self {
            model,
            flow: Flow::default(),
            memory,
            base_rtt_ns: 1,
            min_rate_bps: 0.0,
            line_rate_bps: 1.0,
        }
    }

    /// Unit of rates, bits per second: 1 unless the line is faster than a terabit.
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
    fn rate_units(&self, rate_bps: f64) -> u64 {
        (rate_bps / self.unit_bps()) as i64 as u64
    }

    /// Whether the model decides about a response; else all is done.
    #[inline]
    fn needs_decision(
        &mut self,
        response: &Response<'_>,
        lost: bool,
        context: &mut Context<'_>,
    ) -> bool {
        self.memory.is_none() || self.decides_in_start(response, lost, context)
    }

    fn decides_in_start(
        &mut self,
        response: &Response<'_>,
        lost: bool,
        context: &mut Context<'_>,
    ) -> bool {
        let memory = self.memory.as_mut();
        let Some(restart) = memory.and_then(|memory| memory.restart.as_mut()) else {
            return true;
        };
        let probe = Probe {
            sent_at: response.sent_at,
            now: context.now,
            lost,
            base_rtt: crate::Time::from_ns(self.base_rtt_ns),
        };
        let rate_bps = &mut context.command.rate_bps;
        match restart.take_probe(&probe, *rate_bps, INITIAL_FRACTION * self.line_rate_bps) {
            Verdict::Fit => true,
            Verdict::Over => {
                self.memory.take_if(|memory| {
                    memory.restart = None;
                    memory.lstm.is_none()
                });
                true
            }
            Verdict::Late => false,
            Verdict::Again(slower_bps) => {
                *rate_bps = slower_bps.max(self.min_rate_bps);
                false
            }
        }
    }

    #[inline]
    fn apply_decision(&mut self, seen: &Seen, context: &mut Context<'_>) {
        let rate_bps = context.command.rate_bps;
        let next = match (self.model).choose_action(&mut self.flow, &mut self.memory, seen) {
            Action::Float(action) => rate_bps * action_multiplier(action.into()),
            Action::Q15(action) => {
                let next = thalweg_rate::next_rate(self.rate_units(rate_bps), action, 0, u64::MAX);
                next as f64 * self.unit_bps()
            }
        };
        context.command.rate_bps = next.max(self.min_rate_bps).min(self.line_rate_bps);
    }
}

/// To the nearest nanosecond.
fn to_nanoseconds(time: crate::Time) -> u64 {
    time.ps().saturating_add(500) / 1000
}

impl Controller for Learned {
    fn required_signals(&self) -> Needs {
        Needs::ROUND_TRIPS
    }

    fn start_flow(&mut self, setup: &Setup, context: &mut Context<'_>) {
        self.base_rtt_ns = to_nanoseconds(setup.base_rtt);
        self.min_rate_bps = setup.min_rate_bps;
        self.line_rate_bps = setup.line_rate_bps;
        *context.command = Command {
            rate_bps: setup.limit(self.model.options.initial_fraction * setup.line_rate_bps),
            window_bytes: f64::INFINITY,
        };
    }

    fn on_response(&mut self, response: &Response<'_>, context: &mut Context<'_>) {
        if !self.needs_decision(response, false, context) {
            return;
        }
        let seen = Seen::Answer(Measurement {
            rtt_ns: to_nanoseconds(response.rtt),
            base_rtt_ns: self.base_rtt_ns,
            rate: self.rate_units(context.command.rate_bps),
            line_rate: self.rate_units(self.line_rate_bps),
        });
        self.apply_decision(&seen, context);
    }

    fn on_probe_lost(&mut self, response: &Response<'_>, context: &mut Context<'_>) {
        if !self.needs_decision(response, true, context) {
            return;
        }
        let rate = self.rate_units(context.command.rate_bps);
        let seen = Seen::Loss(rate, self.rate_units(self.line_rate_bps));
        self.apply_decision(&seen, context);
    }
}

#[cfg(test)]
mod tests;
