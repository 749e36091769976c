//! Features: a network's inputs.

use strum::{EnumString, IntoStaticStr};
use thalweg_learner::{ONE_Q16, log2_q16};

use crate::{Fault, MAX_RATE, ONE_Q15, rounded_shift};

/// Inputs of a network: features times history.
pub const MAX_INPUTS: usize = 16;

/// Round-trip times are limited to this: ten seconds.
pub const MAX_RTT_NS: u64 = 10_000_000_000;

/// Differences between target and signal are limited to this, either way: 128.
const MAX_DIFFERENCE_Q24: i64 = 1 << 31;

/// The largest scale of a feature: 4096.
const MAX_SCALE_Q16: u32 = 1 << 28;

/// One number per decision.
#[derive(Debug, Clone, Copy, PartialEq, Eq, EnumString, IntoStaticStr)]
#[strum(serialize_all = "snake_case")]
pub enum FeatureKind {
    /// The action of the previous decision; 0 at the first.
    Action,
    /// Target minus signal.
    Error,
    /// log2 of the rate's share of the line, divided by 16.
    LogRate,
    /// Inflation of the round-trip time, minus one.
    Queue,
    /// How much the signal fell since the previous decision; 0 at the first.
    ErrorChange,
}

impl FeatureKind {
    /// Every kind, in the order of the kernel's numbers.
    pub const ALL: [Self; 5] = [
        Self::Action,
        Self::Error,
        Self::LogRate,
        Self::Queue,
        Self::ErrorChange,
    ];

    /// Name of the feature in model files.
    pub fn name(self) -> &'static str {
        self.into()
    }

    /// The kind with that name.
    pub fn from_name(name: &str) -> Option<Self> {
        name.parse().ok()
    }
}

/// A feature and its factor before it is limited to ±1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Feature {
    /// Kind of feature.
    pub kind: FeatureKind,
    /// Factor of the feature, Q16; 1 to 2^28. An action's factor is one.
    pub scale_q16: u32,
}

/// Inputs of one decision. Both rates have the same unit, whichever it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Measurement {
    /// Round-trip time, ns.
    pub rtt_ns: u64,
    /// Round-trip time through empty queues, ns.
    pub base_rtt_ns: u64,
    /// The flow's rate.
    pub rate: u64,
    /// The line rate.
    pub line_rate: u64,
}

/// The features of a model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Features {
    list: Vec<Feature>,
    history: usize,
    target_q24: u32,
    offset_q16: u32,
}

/// State of a flow between its decisions.
///
/// A small model needs only its first cache line. With thousands of flows, memory takes longer than
/// arithmetic.
#[derive(Debug, Clone, PartialEq, Eq)]
#[repr(C)]
pub struct Flow {
    /// Signal of the last decision, or [`NO_SIGNAL`].
    signal_q24: u64,
    action_q15: i16,
    /// Features of the last decisions, Q15, oldest first.
    inputs: [i16; MAX_INPUTS],
}

/// Signal before the first decision; real signals stay below 2^40.
const NO_SIGNAL: u64 = u64::MAX;

impl Default for Flow {
    fn default() -> Self {
        Self {
            signal_q24: NO_SIGNAL,
            action_q15: 0,
            inputs: [0; MAX_INPUTS],
        }
    }
}

impl Flow {
    /// The last features, Q15, oldest first; zero before the first decision and beyond the
    /// model's inputs.
    pub fn inputs(&self) -> &[i16; MAX_INPUTS] {
        &self.inputs
    }

    /// Drops the oldest features of a history of at most four inputs. Appends `newest`, with the
    /// first in the lowest 16 bits. All inputs are written at once, as they are read. A processor
    /// stalls where it reads at once what was just written in parts.
    #[inline]
    fn push_word(&mut self, newest: u64, features: usize, inputs: usize) {
        let first = self.inputs.first_chunk_mut::<4>().expect("there are more");
        let old = (first.iter().rev()).fold(0, |word, lane| word << 16 | u64::from(*lane as u16));
        // A history of one decision with four features drops everything, in two steps.
        let kept = old >> (8 * features) >> (8 * features);
        let word = kept | newest << (16 * (inputs - features));
        *first = std::array::from_fn(|lane| (word >> (16 * lane)) as i16);
    }

    /// Stores the action of the decision.
    pub fn store_action(&mut self, action_q15: i16) {
        self.action_q15 = action_q15;
    }
}

impl Features {
    /// A history of `history` decisions with these features each.
    pub fn new(
        list: Vec<Feature>,
        history: usize,
        target_q24: u32,
        offset_q16: u32,
    ) -> Result<Self, Fault> {
        let inputs = list.len().saturating_mul(history);
        if inputs == 0 || inputs > MAX_INPUTS {
            return Err(Fault::new(
                "features",
                format!("{} over {history} decisions", list.len()),
                format!("1 to {MAX_INPUTS} inputs in all"),
            ));
        }
        for (number, feature) in list.iter().enumerate() {
            let field = format!("features[{number}].scale ({})", feature.kind.name());
            let found = f64::from(feature.scale_q16) / f64::from(ONE_Q16);
            if feature.kind == FeatureKind::Action && feature.scale_q16 != ONE_Q16 {
                return Err(Fault::new(field, found, "1 for an action"));
            }
            if !(1..=MAX_SCALE_Q16).contains(&feature.scale_q16) {
                return Err(Fault::new(field, found, "2^-16 to 4096"));
            }
        }
        if target_q24 == 0 {
            return Err(Fault::new("target", 0, "2^-24 or more"));
        }
        Ok(Self {
            list,
            history,
            target_q24,
            offset_q16,
        })
    }

    /// Inputs of the network: features times history.
    pub fn input_count(&self) -> usize {
        self.list.len() * self.history
    }

    /// The features of one decision.
    pub fn feature_list(&self) -> &[Feature] {
        &self.list
    }

    /// Number of decisions that the network sees.
    pub fn history_length(&self) -> usize {
        self.history
    }

    /// Target of the signal, Q24.
    pub fn target_q24(&self) -> u32 {
        self.target_q24
    }

    /// Offset, subtracted from the inflation to make the signal, Q16.
    pub fn offset_q16(&self) -> u32 {
        self.offset_q16
    }

    /// Moves the flow's history on by a decision whose probe was lost. The signal cannot be
    /// measured: errors and queues are at their limits. The change is unknown, here and at the next
    /// decision. Both rates have the same unit, as in [`Measurement`].
    pub fn observe_loss<'a>(&self, flow: &'a mut Flow, rate: u64, line_rate: u64) -> &'a [i16] {
        let action_q15 = flow.action_q15;
        self.push_features(flow, |feature| match feature.kind {
            FeatureKind::Action => action_q15,
            FeatureKind::Error => -ONE_Q15,
            FeatureKind::ErrorChange => 0,
            FeatureKind::Queue => ONE_Q15,
            FeatureKind::LogRate => log_rate(rate, line_rate, feature.scale_q16),
        });
        flow.signal_q24 = NO_SIGNAL;
        &flow.inputs[..self.input_count()]
    }

    /// The signal that is compared with the target, Q24: below 2^40.
    #[inline]
    pub fn signal_q24(&self, measurement: &Measurement) -> u64 {
        let excess_q16 = inflation_q16(measurement).saturating_sub(u64::from(self.offset_q16));
        // Below 2^32 times at most 2^24.
        (excess_q16 * root_share_q24(measurement)) >> 16
    }

    /// Moves the flow's history on by one decision; returns the network's inputs, Q15.
    pub fn observe<'a>(&self, flow: &'a mut Flow, measurement: &Measurement) -> &'a [i16] {
        let inflation_q16 = inflation_q16(measurement);
        let signal_q24 = self.signal_q24(measurement);
        let previous = match flow.signal_q24 {
            NO_SIGNAL => signal_q24,
            previous => previous,
        };
        let action_q15 = flow.action_q15;
        self.push_features(flow, |feature| {
            let scale_q16 = feature.scale_q16;
            match feature.kind {
                FeatureKind::Action => action_q15,
                FeatureKind::Error => {
                    let error = limit_to_i16(i64::from(self.target_q24) - signal_q24 as i64);
                    scale_to_q15(error, scale_q16, 24 + 16 - 15)
                }
                FeatureKind::ErrorChange => {
                    let change = limit_to_i16(previous as i64 - signal_q24 as i64);
                    scale_to_q15(change, scale_q16, 24 + 16 - 15)
                }
                FeatureKind::Queue => {
                    let queue = inflation_q16 as i64 - i64::from(ONE_Q16);
                    scale_to_q15(queue, scale_q16, 16 + 16 - 15)
                }
                FeatureKind::LogRate => {
                    log_rate(measurement.rate, measurement.line_rate, scale_q16)
                }
            }
        });
        flow.signal_q24 = signal_q24;
        &flow.inputs[..self.input_count()]
    }

    /// Moves the flow's history on by the features of one decision.
    #[inline]
    fn push_features(&self, flow: &mut Flow, one: impl Fn(&Feature) -> i16) {
        let (features, inputs) = (self.list.len(), self.input_count());
        if inputs <= 4 {
            let newest = (self.list.iter().rev()).fold(0, |word, feature| {
                word << 16 | u64::from(one(feature) as u16)
            });
            flow.push_word(newest, features, inputs);
        } else {
            let mut newest = [0; MAX_INPUTS];
            for (input, feature) in newest.iter_mut().zip(&self.list) {
                *input = one(feature);
            }
            flow.inputs.copy_within(features..inputs, 0);
            flow.inputs[inputs - features..inputs].copy_from_slice(&newest[..features]);
        }
    }
}

// Quotients and roots are computed in floating point, which is faster than division of 64-bit
// integers. Every step is correctly rounded (IEEE 754), and the results are exact: each function
// says why.

/// Round-trip time by base round-trip time, rounded down, below 2^32.
#[inline]
fn inflation_q16(measurement: &Measurement) -> u64 {
    let rtt_ns = measurement.rtt_ns.clamp(1, MAX_RTT_NS);
    let base_rtt_ns = measurement.base_rtt_ns.clamp(1, MAX_RTT_NS);
    let quotient = as_float(rtt_ns << 16) / as_float(base_rtt_ns);
    // The dividend is below 2^50. So a quotient below a whole number n is below it by one part in
    // 2^51 or more (divisor * n is at most dividend + divisor). It is not rounded up to n.
    as_whole(quotient).min(u64::from(u32::MAX))
}

/// The flow's rate and the line rate, limited.
#[inline]
fn limited_rates(rate: u64, line_rate: u64) -> (u64, u64) {
    let line_rate = line_rate.clamp(1, MAX_RATE);
    (rate.clamp(1, line_rate), line_rate)
}

/// Rate by line rate, rounded down: 2^8 to 2^48. The shifted number has up to 40 bits, so the
/// quotient is computed 24 bits at a time.
fn share_q48(rate: u64, line_rate: u64) -> u64 {
    let (rate, line_rate) = limited_rates(rate, line_rate);
    let shifted = rate << 24;
    ((shifted / line_rate) << 24) + ((shifted % line_rate) << 24) / line_rate
}

/// Square root of the share in Q48, rounded down: up to 2^24.
#[inline]
fn root_share_q24(measurement: &Measurement) -> u64 {
    let (rate, line_rate) = limited_rates(measurement.rate, measurement.line_rate);
    // Rounding the share down to Q48 first does not change its root, rounded down.
    let root = (as_float(rate) / as_float(line_rate)).sqrt() * f64::from(1 << 24);
    let down = as_whole(root);
    // Two roundings of one part in 2^53 each leave it within 2^-28 of the exact root. If it is not
    // that close to a whole number, rounding down is safe.
    let rest = root - as_float(down);
    const CLOSE: f64 = 1.0 / (1 << 27) as f64;
    if (CLOSE..1.0 - CLOSE).contains(&rest) {
        down
    } else {
        share_q48(measurement.rate, measurement.line_rate).isqrt()
    }
}

/// A number below 2^53, unchanged. All processors have signed conversions.
#[inline]
fn as_float(number: u64) -> f64 {
    number as i64 as f64
}

/// A number of 0 to 2^53, rounded down.
#[inline]
fn as_whole(number: f64) -> u64 {
    number as i64 as u64
}

fn log_rate(rate: u64, line_rate: u64, scale_q16: u32) -> i16 {
    let log = i64::from(log2_q16(share_q48(rate, line_rate))) - (48 << 16);
    scale_to_q15(log, scale_q16, 16 + 16 - 15 + 4)
}

fn limit_to_i16(difference_q24: i64) -> i64 {
    difference_q24.clamp(-MAX_DIFFERENCE_Q24, MAX_DIFFERENCE_Q24)
}

/// `value * scale` in Q15: the product, at most 2^60 either way, is rounded, then limited.
fn scale_to_q15(value: i64, scale_q16: u32, shift: u32) -> i16 {
    let one = i64::from(ONE_Q15);
    rounded_shift(value * i64::from(scale_q16), shift).clamp(-one, one) as i16
}

#[cfg(test)]
mod tests;
