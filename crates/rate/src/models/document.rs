//! The metadata of a model file.

use serde::{Deserialize, Serialize};

use crate::{Fault, Feature, FeatureKind, Features, MAX_INPUTS, MAX_WIDTH};

/// Kind of model: how it computes the action.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// A multi-layer perceptron.
    Mlp,
    /// A fully connected layer, an LSTM and an output; in floating point only.
    Lstm,
    /// Decision trees.
    Tree,
}

/// A feature, by its name.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FeatureEntry {
    /// Kind of feature.
    pub name: String,
    /// Factor of the feature before it is limited to ±1.
    #[serde(default = "default_scale")]
    pub scale: f64,
}

fn default_scale() -> f64 {
    1.0
}

/// Origin of the model.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Training {
    /// Names of the scenarios that it was trained on.
    pub scenarios: Vec<String>,
    /// Seed of the training.
    pub seed: u64,
    /// Commit of the training's sources.
    pub commit: String,
    /// Round-trip time through empty queues in training, ns. At run time the model uses its flow's.
    pub base_rtt_ns: u64,
    /// Line rate in training, bits per second. At run time the model uses its flow's.
    pub line_rate_bps: u64,
}

/// Results of the model in a scenario of the simulator, an entry of `evaluation.runs`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Run {
    /// Name of the scenario.
    pub scenario: String,
    /// Arithmetic of the run: `float`, `int8` or `tree`.
    pub inference: String,
    /// First rate of its flows, a share of the line rate.
    pub initial_fraction: f64,
    /// Simulated time, seconds.
    pub duration_s: f64,
    /// Simulated time before measuring starts, seconds.
    pub warmup_s: f64,
    /// Number of seeds; the figures are means over them.
    pub seeds: u32,
    /// Switch utilisation (SU), percent.
    pub utilisation_percent: f64,
    /// Min/max fairness (FR), percent.
    pub fairness_percent: f64,
    /// Mean queueing delay (QL), microseconds.
    pub queue_us: f64,
    /// Packets dropped, percent.
    pub dropped_percent: f64,
}

impl Run {
    fn check_run(&self, number: usize) -> Result<(), Fault> {
        let fault = |name: &str, found: String, expected: &str| {
            Err(Fault::new(
                format!("evaluation.runs[{number}].{name}"),
                found,
                expected,
            ))
        };
        if !["float", "int8", "tree"].contains(&self.inference.as_str()) {
            let found = format!("{:?}", self.inference);
            return fault("inference", found, "float, int8 or tree");
        }
        if self.seeds == 0 {
            return fault("seeds", self.seeds.to_string(), "1 at least");
        }
        // NaN is in no range.
        let limits = [
            ("initial_fraction", self.initial_fraction, 0.0, 1.0),
            ("duration_s", self.duration_s, 0.0, 1e6),
            ("warmup_s", self.warmup_s, 0.0, self.duration_s),
            ("utilisation_percent", self.utilisation_percent, 0.0, 100.1),
            ("fairness_percent", self.fairness_percent, 0.0, 100.0),
            ("queue_us", self.queue_us, 0.0, 1e12),
            ("dropped_percent", self.dropped_percent, 0.0, 100.0),
        ];
        for (name, value, low, high) in limits {
            if !(low..=high).contains(&value) {
                return fault(name, value.to_string(), &format!("{low} to {high}"));
            }
        }
        Ok(())
    }
}

/// The document under the metadata key `thalweg`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Document {
    /// The model's name, for people.
    pub name: String,
    /// How it computes the action.
    pub kind: Kind,
    /// Features of each decision.
    pub features: Vec<FeatureEntry>,
    /// Number of decisions whose features it sees.
    pub history: usize,
    /// Target of the signal.
    pub target: f64,
    /// Offset, subtracted from the inflation to make the signal.
    pub offset: f64,
    /// Widths of an MLP's hidden layers; empty for other kinds.
    #[serde(default)]
    pub hidden: Vec<usize>,
    /// Largest magnitude of each layer's inputs, by calibration; absent if the model was not
    /// quantised.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub activation_amax: Option<Vec<f64>>,
    /// Origin of the model.
    pub training: Training,
    /// Results, by name. Their form is free, except for `runs`, which [`Document::evaluation_runs`] reads.
    #[serde(default)]
    pub evaluation: serde_json::Map<String, serde_json::Value>,
}

impl Document {
    /// Parses the document.
    pub(crate) fn parse(text: &str) -> Result<Self, Fault> {
        let document: Self = serde_json::from_str(text).map_err(|error| {
            let place = format!("metadata `thalweg`:{}:{}", error.line(), error.column());
            // serde_json ends its messages with the position.
            let message = error.to_string();
            let found = message.split(" at line ").next().unwrap_or_default();
            Fault::new(
                place,
                found,
                "a document as docs/reference/model.md describes it",
            )
        })?;
        document.check_document()?;
        Ok(document)
    }

    fn check_document(&self) -> Result<(), Fault> {
        let length = self.name.chars().count();
        if !(1..=64).contains(&length) || self.name.chars().any(char::is_control) {
            let found = format!("{:?}", self.name.chars().take(80).collect::<String>());
            return Err(Fault::new("name", found, "1 to 64 printable characters"));
        }
        self.integer_features()?;
        self.evaluation_runs()?;
        let hidden = |expected: &str| Fault::new("hidden", format!("{:?}", self.hidden), expected);
        match self.kind {
            Kind::Mlp if self.hidden.len() > 2 => {
                return Err(hidden("two hidden layers at most"));
            }
            Kind::Mlp if self.hidden.iter().any(|w| !(1..=MAX_WIDTH).contains(w)) => {
                return Err(hidden("widths of 1 to 32"));
            }
            Kind::Lstm | Kind::Tree if !self.hidden.is_empty() => {
                return Err(hidden("none, for only an mlp has hidden layers"));
            }
            _ => {}
        }
        if let Some(amax) = &self.activation_amax {
            let found = format!("{amax:?}");
            if self.kind != Kind::Mlp {
                let expected = "none, for only an mlp is quantised";
                return Err(Fault::new("activation_amax", found, expected));
            }
            let count = self.hidden.len() + 1;
            if amax.len() != count {
                let expected = format!("{count} numbers, one for what goes into each layer");
                return Err(Fault::new("activation_amax", found, expected));
            }
            if !amax.iter().all(|amax| (1e-6..=1e6).contains(amax)) {
                return Err(Fault::new("activation_amax", found, "1e-6 to 1e6 each"));
            }
        }
        Ok(())
    }

    /// Results of the model in the simulator, in the order of the file; none if it was not
    /// evaluated.
    pub fn evaluation_runs(&self) -> Result<Vec<Run>, Fault> {
        let Some(found) = self.evaluation.get("runs") else {
            return Ok(Vec::new());
        };
        let runs: Vec<Run> = serde_json::from_value(found.clone()).map_err(|error| {
            let expected = "a list of runs as docs/reference/model.md describes them";
            Fault::new("evaluation.runs", error, expected)
        })?;
        for (number, run) in runs.iter().enumerate() {
            run.check_run(number)?;
        }
        Ok(runs)
    }

    /// The features, in integers: each factor is rounded to the nearest step, ties upwards.
    pub fn integer_features(&self) -> Result<Features, Fault> {
        if self.features.len() > MAX_INPUTS {
            let expected = format!("{MAX_INPUTS} at most");
            return Err(Fault::new("features", self.features.len(), expected));
        }
        let mut list = Vec::new();
        for (number, entry) in self.features.iter().enumerate() {
            let kind = FeatureKind::from_name(&entry.name).ok_or_else(|| {
                let names = FeatureKind::ALL.map(FeatureKind::name).join(", ");
                let found: String = entry.name.chars().take(40).collect();
                let field = format!("features[{number}].name");
                Fault::new(field, format!("{found:?}"), format!("one of {names}"))
            })?;
            let field = format!("features[{number}].scale ({})", entry.name);
            let scale_q16 = to_fixed_point(&field, entry.scale, 16, 1.0 / 65536.0, 4096.0)?;
            list.push(Feature { kind, scale_q16 });
        }
        let target_q24 = to_fixed_point("target", self.target, 24, 1e-6, 255.0)?;
        let offset_q16 = to_fixed_point("offset", self.offset, 16, 0.0, 65535.0)?;
        Features::new(list, self.history, target_q24, offset_q16)
    }
}

/// A number within limits (which excludes NaN), with this number of fractional bits.
fn to_fixed_point(field: &str, value: f64, bits: u32, low: f64, high: f64) -> Result<u32, Fault> {
    if !(low..=high).contains(&value) {
        return Err(Fault::new(field, value, format!("{low} to {high}")));
    }
    Ok((value * f64::from(1u32 << bits) + 0.5).floor() as u32)
}
