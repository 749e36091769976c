//! The metadata of a model file.

use serde::{Deserialize, Serialize};

use crate::{Fault, Feature, FeatureKind, Features, MAX_INPUTS, MAX_WIDTH};

/// Kind of model: how the action is computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// A multi-layer perceptron.
    Mlp,
    /// A fully connected layer, an LSTM, an output; in floating point only.
    Lstm,
    /// Decision trees.
    Tree,
}

/// A feature, by its name.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FeatureEntry {
    /// Which.
    pub name: String,
    /// Its factor before it is limited to ±1.
    #[serde(default = "one")]
    pub scale: f64,
}

fn one() -> f64 {
    1.0
}

/// Where the model comes from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Training {
    /// Names of the scenarios that it was trained on.
    pub scenarios: Vec<String>,
    /// Seed of the training.
    pub seed: u64,
    /// Commit of the training's sources.
    pub commit: String,
    /// Round-trip time through empty queues in training, ns. A model takes that of its flow.
    pub base_rtt_ns: u64,
    /// Line rate in training, bits per second. A model takes that of its flow.
    pub line_rate_bps: u64,
}

/// How the model did in a scenario of the simulator, an entry of `evaluation.runs`.
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
    /// Of that, not measured, seconds.
    pub warmup_s: f64,
    /// Seeds, over which the figures are means.
    pub seeds: u32,
    /// Switch utilisation (SU), percent.
    pub utilisation_percent: f64,
    /// Least rate of a flow over the greatest (FR), percent.
    pub fairness_percent: f64,
    /// Mean waiting time (QL), microseconds.
    pub queue_us: f64,
    /// Packets dropped, percent.
    pub dropped_percent: f64,
}

impl Run {
    fn check(&self, number: usize) -> Result<(), Fault> {
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
        // NaN lies in no range.
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
    /// How the action is computed.
    pub kind: Kind,
    /// Features of each decision.
    pub features: Vec<FeatureEntry>,
    /// Of how many decisions it sees that.
    pub history: usize,
    /// Where the signal should be.
    pub target: f64,
    /// Subtracted from the inflation before it makes the signal.
    pub offset: f64,
    /// Widths of an MLP's hidden layers; empty for other kinds.
    #[serde(default)]
    pub hidden: Vec<usize>,
    /// The largest magnitude of what goes into each layer, by calibration; absent where the
    /// model has not been quantised.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub activation_amax: Option<Vec<f64>>,
    /// Where it comes from.
    pub training: Training,
    /// Results, by name; free in form but for `runs`, which [`Document::runs`] reads.
    #[serde(default)]
    pub evaluation: serde_json::Map<String, serde_json::Value>,
}

impl Document {
    /// The document of a JSON text.
    pub(crate) fn parse(text: &str) -> Result<Self, Fault> {
        let document: Self = serde_json::from_str(text).map_err(|error| {
            let place = format!("metadata `thalweg`:{}:{}", error.line(), error.column());
            // serde_json ends its messages with the place.
            let message = error.to_string();
            let found = message.split(" at line ").next().unwrap_or_default();
            Fault::new(
                place,
                found,
                "a document as docs/reference/model.md describes it",
            )
        })?;
        document.check()?;
        Ok(document)
    }

    fn check(&self) -> Result<(), Fault> {
        let length = self.name.chars().count();
        if !(1..=64).contains(&length) || self.name.chars().any(char::is_control) {
            let found = format!("{:?}", self.name.chars().take(80).collect::<String>());
            return Err(Fault::new("name", found, "1 to 64 printable characters"));
        }
        self.features()?;
        self.runs()?;
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

    /// How it did in the simulator, in the order of the file; none where nobody looked.
    pub fn runs(&self) -> Result<Vec<Run>, Fault> {
        let Some(found) = self.evaluation.get("runs") else {
            return Ok(Vec::new());
        };
        let runs: Vec<Run> = serde_json::from_value(found.clone()).map_err(|error| {
            let expected = "a list of runs as docs/reference/model.md describes them";
            Fault::new("evaluation.runs", error, expected)
        })?;
        for (number, run) in runs.iter().enumerate() {
            run.check(number)?;
        }
        Ok(runs)
    }

    /// The features, in integers: each factor to the nearest step of its fixed point, halves
    /// upwards.
    pub fn features(&self) -> Result<Features, Fault> {
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
            let scale_q16 = fixed(&field, entry.scale, 16, 1.0 / 65536.0, 4096.0)?;
            list.push(Feature { kind, scale_q16 });
        }
        let target_q24 = fixed("target", self.target, 24, 1e-6, 255.0)?;
        let offset_q16 = fixed("offset", self.offset, 16, 0.0, 65535.0)?;
        Features::new(list, self.history, target_q24, offset_q16)
    }
}

/// A number within limits (which NaN is not), with so many fractional bits.
fn fixed(field: &str, value: f64, bits: u32, low: f64, high: f64) -> Result<u32, Fault> {
    if !(low..=high).contains(&value) {
        return Err(Fault::new(field, value, format!("{low} to {high}")));
    }
    Ok((value * f64::from(1u32 << bits) + 0.5).floor() as u32)
}
