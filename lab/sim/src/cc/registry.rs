//! The list of controllers, and their names in scenario files and `--cc`.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;

use serde::{Deserialize, Serialize, Serializer};

use crate::Time;

use super::{
    Ack, Context, Controller, Loss, Needs, ParameterError, Response, Setup, cubic, dcqcn, dctcp,
    fixed, hpcc, learned, proportional, swift, tcp, thalweg_rl, timely,
};

/// Generates the enums over all controllers.
macro_rules! controllers {
    ($($kind:ident, $module:ident :: $controller:ident, $name:literal, $default:expr,
       $description:literal;)*) => {
        /// The controllers with a name.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum Kind {
            $(#[doc = $description] $kind,)*
        }

        impl Kind {
            /// All kinds.
            pub const ALL: &'static [Self] = &[$(Self::$kind,)*];

            /// Name of the kind in scenario files and `--cc`.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$kind => $name,)*
                }
            }

            /// A description in one line.
            pub const fn description(self) -> &'static str {
                match self {
                    $(Self::$kind => $description,)*
                }
            }

            /// The controller with its default parameters.
            pub fn spec(self) -> Spec {
                match self {
                    $(Self::$kind => Spec::$kind($default),)*
                }
            }

            /// A controller from a table with all its parameters.
            fn with_all_parameters(self, table: toml::Table) -> Result<Spec, SpecError> {
                match self {
                    $(Self::$kind => {
                        self.parse_parameters(table, $module::Parameters::validate).map(Spec::$kind)
                    })*
                }
            }
        }

        /// A controller with its parameters; [`Spec::build`] gives each flow one.
        #[derive(Debug, Clone)]
        pub enum Spec {
            $(#[doc = $description] $kind($module::Parameters),)*
            /// A model file's controller; flows share the model.
            Learned(Arc<learned::Model>),
            /// A learned controller with the kernel's rules around it.
            ThalwegRl(Arc<thalweg_rl::Program>),
        }

        impl Spec {
            /// Kind of the controller; none for a model.
            fn kind(&self) -> Option<Kind> {
                match self {
                    $(Self::$kind(_) => Some(Kind::$kind),)*
                    Self::Learned(_) | Self::ThalwegRl(_) => None,
                }
            }

            /// Parameters of the controller, by name; none for a model.
            pub fn parameters(&self) -> toml::Table {
                match self {
                    $(Self::$kind(parameters) => toml::Table::try_from(parameters)
                        .expect("parameters are numbers and switches by name"),)*
                    Self::Learned(_) | Self::ThalwegRl(_) => toml::Table::new(),
                }
            }

            /// A controller for one flow. It takes the flow's [`Setup`] when it starts.
            pub fn build(&self) -> AnyController {
                match self {
                    $(Self::$kind(parameters) => {
                        AnyController::$kind($module::$controller::new(parameters))
                    })*
                    Self::Learned(model) => {
                        AnyController::Learned(learned::Learned::new(Arc::clone(model)))
                    }
                    Self::ThalwegRl(program) => {
                        AnyController::ThalwegRl(thalweg_rl::ThalwegRl::new(Arc::clone(program)))
                    }
                }
            }
        }

        /// Any controller, without a virtual call.
        #[derive(Debug, Clone)]
        pub enum AnyController {
            $(#[doc = $description] $kind($module::$controller),)*
            /// A model file's controller.
            Learned(learned::Learned),
            /// A learned controller with the kernel's rules around it.
            ThalwegRl(thalweg_rl::ThalwegRl),
        }

        /// Evaluates an expression on whichever controller it is.
        macro_rules! each {
            ($any:expr, $one:ident => $call:expr) => {
                match $any {
                    $(AnyController::$kind($one) => $call,)*
                    AnyController::Learned($one) => $call,
                    AnyController::ThalwegRl($one) => $call,
                }
            };
        }
    };
}

// One controller a line: its kind and type, its name in files, its default parameters, and its
// description.
controllers! {
    Dcqcn, dcqcn::Dcqcn, "dcqcn", dcqcn::Parameters::default(),
        "rates that follow congestion notifications, as network cards do it";
    DcqcnPaper, dcqcn::Dcqcn, "dcqcn-paper", dcqcn::Parameters::published_values(),
        "rates that follow congestion notifications, as first published";
    Hpcc, hpcc::Hpcc, "hpcc", hpcc::Parameters::default(),
        "windows from the telemetry of every link on the way";
    Swift, swift::Swift, "swift", swift::Parameters::default(),
        "windows that hold the round-trip time at a target";
    Timely, timely::Timely, "timely", timely::Parameters::default(),
        "rates that follow the gradient of the round-trip time";
    Dctcp, dctcp::Dctcp, "dctcp", dctcp::Parameters::default(),
        "TCP that backs off by the share of marked bytes";
    Cubic, cubic::Cubic, "cubic", cubic::Parameters::default(),
        "TCP's default: windows cubic in the time since the last loss; for hosts with Linux's TCP";
    Fixed, fixed::Fixed, "fixed", fixed::Parameters::default(),
        "a fixed share of the line rate";
    Proportional, proportional::Proportional, "proportional", proportional::Parameters::default(),
        "ADPG's fixed point by a proportional rule";
}

impl Controller for AnyController {
    #[inline]
    fn required_signals(&self) -> Needs {
        each!(self, one => one.required_signals())
    }

    #[inline]
    fn start_flow(&mut self, setup: &Setup, context: &mut Context<'_>) {
        each!(self, one => one.start_flow(setup, context));
    }

    #[inline]
    fn on_response(&mut self, response: &Response<'_>, context: &mut Context<'_>) {
        each!(self, one => one.on_response(response, context));
    }

    #[inline]
    fn on_probe_lost(&mut self, response: &Response<'_>, context: &mut Context<'_>) {
        each!(self, one => one.on_probe_lost(response, context));
    }

    #[inline]
    fn on_ack(&mut self, ack: &Ack<'_>, context: &mut Context<'_>) {
        each!(self, one => one.on_ack(ack, context));
    }

    #[inline]
    fn on_notification(&mut self, context: &mut Context<'_>) {
        each!(self, one => one.on_notification(context));
    }

    #[inline]
    fn on_loss(&mut self, loss: Loss, context: &mut Context<'_>) {
        each!(self, one => one.on_loss(loss, context));
    }

    #[inline]
    fn on_timer(&mut self, timer: usize, context: &mut Context<'_>) {
        each!(self, one => one.on_timer(timer, context));
    }

    #[inline]
    fn on_tcp(&mut self, event: &tcp::Event, socket: &mut tcp::Socket) {
        each!(self, one => one.on_tcp(event, socket));
    }

    #[inline]
    fn on_sent(&mut self, bytes: u32, context: &mut Context<'_>) {
        each!(self, one => one.on_sent(bytes, context));
    }
}

/// Name of [`Spec::Learned`], the controller of a model file.
pub const LEARNED: &str = "learned";
/// Parameters of the controller `learned`.
const LEARNED_PARAMETERS: [&str; 5] = [
    "inference",
    "initial_fraction",
    "model",
    "overload",
    "target",
];
/// Name of [`Spec::ThalwegRl`], as in the kernel.
pub const THALWEG_RL: &str = "thalweg-rl";
/// Parameters of the controller `thalweg-rl`.
const THALWEG_RL_PARAMETERS: [&str; 4] = ["ecn", "model", "reference_rate", "reference_rtt"];

/// Why a name or its parameters give no controller.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum SpecError {
    /// No such controller.
    #[error(
        "no controller is called `{name}`; there are {}{}",
        join_names(all_names()),
        suggest_name(name, all_names())
    )]
    UnknownName {
        /// The requested name.
        name: String,
    },
    /// A table without a name.
    #[error("a controller is expected: a name, or a table with `name` and its parameters")]
    NoName,
    /// Not of the form NAME or NAME:parameter=value,….
    #[error("`{text}` is not of the form parameter=value, with a number, true or false")]
    Syntax {
        /// The faulty part.
        text: String,
    },
    /// A parameter was given twice.
    #[error("`{field}` is given twice")]
    Twice {
        /// The parameter.
        field: String,
    },
    /// Unknown parameter.
    #[error("{controller} has no parameter `{field}`; there are {}{}", join_names(known.iter().map(String::as_str)),
        suggest_name(field, known.iter().map(String::as_str)))]
    UnknownParameter {
        /// Name of the controller.
        controller: &'static str,
        /// The given name.
        field: String,
        /// The known names.
        known: Vec<String>,
    },
    /// A value of the wrong type, such as a word for a number.
    #[error("{controller}: `{field}` is {found}; {expected} is expected, such as {default}")]
    Type {
        /// Name of the controller.
        controller: &'static str,
        /// The parameter.
        field: String,
        /// The given value.
        found: String,
        /// The expected type of value.
        expected: &'static str,
        /// The default.
        default: String,
    },
    /// A whole number out of range.
    #[error("{controller}: {message}")]
    Value {
        /// Name of the controller.
        controller: &'static str,
        /// The fault.
        message: String,
    },
    /// A value out of range.
    #[error("{controller}: {source}")]
    Parameter {
        /// Name of the controller.
        controller: &'static str,
        /// The parameter, and its range.
        source: ParameterError,
    },
    /// A model without its file.
    #[error("{controller}: `model` is missing; the path of a model file is expected")]
    NoModel {
        /// Name of the controller.
        controller: &'static str,
    },
    /// An unusable model.
    #[error("{LEARNED}: {0}")]
    Model(learned::ModelError),
    /// An unusable model for the kernel's rules.
    #[error("{THALWEG_RL}: {0}")]
    Program(thalweg_rl::ModelError),
    /// A controller that the scenario's hosts cannot run.
    #[error("{controller}: the hosts of {scenario} are {found}; {expected}")]
    Hosts {
        /// Name of the controller.
        controller: &'static str,
        /// Name of the scenario.
        scenario: String,
        /// The sender of its hosts.
        found: &'static str,
        /// Description of valid values.
        expected: &'static str,
    },
}

/// The message includes the model's message, so `source` would repeat it.
impl From<learned::ModelError> for SpecError {
    fn from(error: learned::ModelError) -> Self {
        Self::Model(error)
    }
}

fn all_names() -> impl Iterator<Item = &'static str> {
    (Kind::ALL.iter().map(|kind| kind.name())).chain([LEARNED, THALWEG_RL])
}

fn join_names<'a>(names: impl Iterator<Item = &'a str>) -> String {
    names.collect::<Vec<_>>().join(", ")
}

/// Suggests the word that was probably meant.
fn suggest_name<'a>(word: &str, known: impl Iterator<Item = &'a str>) -> String {
    thalweg_units::nearest_word(word, known)
        .map_or_else(String::new, |near| format!("; perhaps `{near}`"))
}

impl Kind {
    /// The kind with that name.
    ///
    /// # Errors
    /// The name is unknown; the error lists the known ones.
    pub fn from_name(name: &str) -> Result<Self, SpecError> {
        (Self::ALL.iter().copied())
            .find(|kind| kind.name() == name)
            .ok_or_else(|| SpecError::UnknownName {
                name: name.to_owned(),
            })
    }

    /// This controller with some parameters; the others are as published.
    ///
    /// # Errors
    /// A parameter is unknown, or its value is out of range.
    pub fn with_parameters(self, given: toml::Table) -> Result<Spec, SpecError> {
        let mut parameters = self.spec().parameters();
        for (field, value) in given {
            let Some(default) = parameters.get(&field) else {
                return Err(SpecError::UnknownParameter {
                    controller: self.name(),
                    field,
                    known: parameters.keys().cloned().collect(),
                });
            };
            let (fits, expected) = match default {
                toml::Value::Float(_) => (value.is_float() || value.is_integer(), "a number"),
                toml::Value::Integer(_) => (value.is_integer(), "a whole number"),
                _ => (value.same_type(default), "true or false"),
            };
            if !fits {
                return Err(SpecError::Type {
                    controller: self.name(),
                    field,
                    found: value.to_string(),
                    expected,
                    default: default.to_string(),
                });
            }
            parameters.insert(field, value);
        }
        self.with_all_parameters(parameters)
    }

    /// Parsed parameters, if they are in range.
    fn parse_parameters<P: serde::de::DeserializeOwned>(
        self,
        table: toml::Table,
        validate: fn(&P) -> Result<(), ParameterError>,
    ) -> Result<P, SpecError> {
        let controller = self.name();
        let parameters: P = table.try_into().map_err(|error| SpecError::Value {
            controller,
            message: toml::de::Error::message(&error).to_owned(),
        })?;
        match validate(&parameters) {
            Ok(()) => Ok(parameters),
            Err(source) => Err(SpecError::Parameter { controller, source }),
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl Spec {
    /// Name of the controller.
    pub fn name(&self) -> &'static str {
        match self {
            Self::ThalwegRl(_) => THALWEG_RL,
            _ => self.kind().map_or(LEARNED, Kind::name),
        }
    }

    /// The controller with that name and some parameters; the others are as published. For a model,
    /// this reads its file.
    ///
    /// # Errors
    /// A name or a parameter is unknown, a value is out of range, or a file is not a model.
    pub fn from_name(name: &str, given: toml::Table) -> Result<Self, SpecError> {
        if name == LEARNED {
            let (file, options) = model_of(&given)?;
            let model = learned::Model::read(&file, options)?;
            return Ok(Self::Learned(Arc::new(model)));
        }
        if name == THALWEG_RL {
            let (file, options) = program_of(&given)?;
            let program = thalweg_rl::Program::read(&file, options).map_err(SpecError::Program)?;
            return Ok(Self::ThalwegRl(Arc::new(program)));
        }
        Kind::from_name(name)?.with_parameters(given)
    }

    /// Why this controller cannot work as meant where a path has this base RTT and so many links, if
    /// that is known. A run is possible nevertheless.
    pub fn path_warning(&self, base_rtt: Time, hops: u8) -> Option<String> {
        match self {
            Self::Swift(parameters) => parameters.path_warning(base_rtt, hops),
            _ => None,
        }
    }

    /// The model file and its options, from a text in the form of [`FromStr`]. The file is not
    /// read. None where the text names another controller.
    ///
    /// # Errors
    /// The text has another form, or a parameter is unknown.
    pub fn model_file(text: &str) -> Result<Option<(PathBuf, learned::Options)>, SpecError> {
        let (name, given) = name_and_parameters(text)?;
        (name == LEARNED).then(|| model_of(&given)).transpose()
    }
}

/// A parameter of a controller with a model.
struct GivenParameter<'a> {
    controller: &'static str,
    field: &'a str,
    value: &'a toml::Value,
}

impl GivenParameter<'_> {
    fn value_error(&self, expected: &'static str, example: &str) -> SpecError {
        SpecError::Type {
            controller: self.controller,
            field: self.field.to_owned(),
            found: self.value.to_string(),
            expected,
            default: example.to_owned(),
        }
    }

    fn unknown_parameter(&self, known: &[&str]) -> SpecError {
        SpecError::UnknownParameter {
            controller: self.controller,
            field: self.field.to_owned(),
            known: known.iter().copied().map(str::to_owned).collect(),
        }
    }

    fn as_number(&self, example: &str) -> Result<f64, SpecError> {
        let whole = self.value.as_integer().map(|whole| whole as f64);
        (self.value.as_float().or(whole)).ok_or_else(|| self.value_error("a number", example))
    }

    fn as_path(&self) -> Result<PathBuf, SpecError> {
        let path = self.value.as_str();
        path.map(PathBuf::from)
            .ok_or_else(|| self.value_error("a path", "\"a.safetensors\""))
    }
}

/// The parameters of a controller with a model.
fn given_parameters<'a>(
    controller: &'static str,
    given: &'a toml::Table,
) -> impl Iterator<Item = GivenParameter<'a>> {
    given.iter().map(move |(field, value)| GivenParameter {
        controller,
        field,
        value,
    })
}

/// A model file and its options.
fn model_of(given: &toml::Table) -> Result<(PathBuf, learned::Options), SpecError> {
    let controller = LEARNED;
    let mut file = None;
    let mut options = learned::Options::default();
    for one in given_parameters(controller, given) {
        match one.field {
            "model" => file = Some(one.as_path()?),
            "inference" => {
                let inference = one.value.as_str().and_then(learned::Inference::from_name);
                let fault = || one.value_error("float, int8 or tree", "\"int8\"");
                options.inference = Some(inference.ok_or_else(fault)?);
            }
            "initial_fraction" => options.initial_fraction = one.as_number("0.001")?,
            "overload" => {
                let overload = one.value.as_str().and_then(learned::Overload::from_name);
                let fault = || one.value_error("restart or decide", "\"decide\"");
                options.overload = overload.ok_or_else(fault)?;
            }
            "target" => options.target = Some(one.as_number("0.05")?),
            _ => return Err(one.unknown_parameter(&LEARNED_PARAMETERS)),
        }
    }
    Ok((file.ok_or(SpecError::NoModel { controller })?, options))
}

/// A model file and the options of the kernel's rules.
fn program_of(given: &toml::Table) -> Result<(PathBuf, thalweg_rl::Options), SpecError> {
    let controller = THALWEG_RL;
    let mut file = None;
    let mut options = thalweg_rl::Options::default();
    for one in given_parameters(controller, given) {
        match one.field {
            "model" => file = Some(one.as_path()?),
            "reference_rate" => {
                options.reference_rate_bps = one.as_number("10e9, in bits per second")?;
            }
            "reference_rtt" => options.reference_rtt_us = one.as_number("2000, in microseconds")?,
            "ecn" => {
                let switch = one.value.as_bool();
                options.ecn = switch.ok_or_else(|| one.value_error("true or false", "false"))?;
            }
            _ => return Err(one.unknown_parameter(&THALWEG_RL_PARAMETERS)),
        }
    }
    Ok((file.ok_or(SpecError::NoModel { controller })?, options))
}

/// Whether the controller of that name needs a model file.
fn has_model(name: &str) -> bool {
    [LEARNED, THALWEG_RL].contains(&name)
}

/// `NAME` or `NAME:parameter=value,parameter=value`, as on a command line.
impl FromStr for Spec {
    type Err = SpecError;

    fn from_str(text: &str) -> Result<Self, SpecError> {
        let (name, parameters) = name_and_parameters(text)?;
        Self::from_name(name, parameters)
    }
}

fn name_and_parameters(text: &str) -> Result<(&str, toml::Table), SpecError> {
    let (name, parameters) = text.split_once(':').unwrap_or((text, ""));
    let name = name.trim();
    if !has_model(name) {
        // An unknown name is reported before faults of its parameters.
        Kind::from_name(name)?;
    }
    let mut table = toml::Table::new();
    for parameter in parameters
        .split(',')
        .filter(|_| !parameters.trim().is_empty())
    {
        let syntax = || SpecError::Syntax {
            text: parameter.trim().to_owned(),
        };
        let (field, value) = parameter.split_once('=').ok_or_else(syntax)?;
        let field = field.trim();
        if field.is_empty() {
            return Err(syntax());
        }
        if table.contains_key(field) {
            return Err(SpecError::Twice {
                field: field.to_owned(),
            });
        }
        let value = match parse_scalar(value.trim()) {
            Some(value) => value,
            None if has_model(name) && !value.trim().is_empty() => value.trim().into(),
            None => return Err(syntax()),
        };
        table.insert(field.to_owned(), value);
    }
    Ok((name, table))
}

/// A number or a switch.
fn parse_scalar(text: &str) -> Option<toml::Value> {
    if let Ok(switch) = text.parse() {
        Some(toml::Value::Boolean(switch))
    } else if let Ok(whole) = text.parse() {
        Some(toml::Value::Integer(whole))
    } else {
        text.parse().ok().map(toml::Value::Float)
    }
}

/// A name as in [`FromStr`], or a table of `name` and parameters.
impl TryFrom<toml::Value> for Spec {
    type Error = SpecError;

    fn try_from(value: toml::Value) -> Result<Self, SpecError> {
        match value {
            toml::Value::String(text) => text.parse(),
            toml::Value::Table(mut table) => match table.remove("name") {
                Some(toml::Value::String(name)) => Self::from_name(&name, table),
                _ => Err(SpecError::NoName),
            },
            _ => Err(SpecError::NoName),
        }
    }
}

impl<'de> Deserialize<'de> for Spec {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let value = toml::Value::deserialize(deserializer)?;
        Self::try_from(value).map_err(serde::de::Error::custom)
    }
}

/// The name and the changed parameters, in the form of [`FromStr`].
impl fmt::Display for Spec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())?;
        if let Self::Learned(model) = self {
            return write!(f, ":{model}");
        }
        if let Self::ThalwegRl(program) = self {
            return write!(f, ":{program}");
        }
        let Some(kind) = self.kind() else {
            return Ok(());
        };
        let published = kind.spec().parameters();
        let mut separator = ':';
        for (field, value) in self.parameters() {
            if published.get(&field) != Some(&value) {
                write!(f, "{separator}{field}={value}")?;
                separator = ',';
            }
        }
        Ok(())
    }
}

impl Serialize for Spec {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

#[cfg(test)]
mod tests;
