//! What a network sees of a flow.

use super::{Fault, MAX_RATE, ONE_Q15, rounded_shift};
use crate::{ONE_Q16, log2_q16};

/// Inputs of a network: features times history.
pub const MAX_INPUTS: usize = 16;

/// Round-trip times count as this at most: ten seconds.
pub const MAX_RTT_NS: u64 = 10_000_000_000;

/// Differences between target and signal count as this at most, either way: 128.
const MAX_DIFFERENCE_Q24: i64 = 1 << 31;

/// The largest scale of a feature: 4096.
const MAX_SCALE_Q16: u32 = 1 << 28;

/// One number per decision.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
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

    /// What model files call it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Action => "action",
            Self::Error => "error",
            Self::LogRate => "log_rate",
            Self::Queue => "queue",
            Self::ErrorChange => "error_change",
        }
    }

    /// The kind of a name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }
}

/// A feature and what it is multiplied by before it is limited to ±1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Feature {
    /// Which.
    pub kind: FeatureKind,
    /// Its factor, Q16; 1 to 2^28. An action's is one.
    pub scale_q16: u32,
}

/// What one decision goes by. Rates share a unit, whichever.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Measurement {
    /// Round-trip time, ns.
    pub rtt_ns: u64,
    /// Round-trip time through empty queues, ns.
    pub base_rtt_ns: u64,
    /// The flow's rate.
    pub rate: u64,
    /// The rate of its line.
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

/// What is remembered of a flow between its decisions.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Flow {
    /// Features of the last decisions, Q15, oldest first.
    inputs: [i16; MAX_INPUTS],
    action_q15: i16,
    /// Of the last decision, if there was one.
    signal_q24: Option<u64>,
}

impl Flow {
    /// The last features, Q15, oldest first; zero before the first decision and beyond the
    /// model's inputs.
    pub fn inputs(&self) -> &[i16; MAX_INPUTS] {
        &self.inputs
    }

    /// Remembers what was decided.
    pub fn acted(&mut self, action_q15: i16) {
        self.action_q15 = action_q15;
    }
}

impl Features {
    /// Features by decision, over so many decisions.
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
    pub fn inputs(&self) -> usize {
        self.list.len() * self.history
    }

    /// The features of one decision.
    pub fn list(&self) -> &[Feature] {
        &self.list
    }

    /// How many decisions the network sees.
    pub fn history(&self) -> usize {
        self.history
    }

    /// Where the signal should be, Q24.
    pub fn target_q24(&self) -> u32 {
        self.target_q24
    }

    /// What is taken off the inflation before it makes the signal, Q16.
    pub fn offset_q16(&self) -> u32 {
        self.offset_q16
    }

    /// Moves the flow's history on by a decision whose probe was lost: the signal is beyond what
    /// can be measured, so errors and queues are at their limits, and by how much it changed is
    /// not known, here and at the next decision. Rates share a unit, as in [`Measurement`].
    pub fn observe_loss<'a>(&self, flow: &'a mut Flow, rate: u64, line_rate: u64) -> &'a [i16] {
        let inputs = self.inputs();
        let share_q48 = share_q48(rate, line_rate);
        flow.inputs.copy_within(self.list.len()..inputs, 0);
        let newest = &mut flow.inputs[inputs - self.list.len()..inputs];
        for (input, feature) in newest.iter_mut().zip(&self.list) {
            *input = match feature.kind {
                FeatureKind::Action => flow.action_q15,
                FeatureKind::Error => -ONE_Q15,
                FeatureKind::ErrorChange => 0,
                FeatureKind::Queue => ONE_Q15,
                FeatureKind::LogRate => log_rate(share_q48, feature.scale_q16),
            };
        }
        flow.signal_q24 = None;
        &flow.inputs[..inputs]
    }

    /// Moves the flow's history on by one decision; returns the network's inputs, Q15.
    pub fn observe<'a>(&self, flow: &'a mut Flow, measurement: &Measurement) -> &'a [i16] {
        let inflation_q16 = inflation_q16(measurement);
        let share_q48 = share_q48(measurement.rate, measurement.line_rate);
        let excess_q16 = inflation_q16.saturating_sub(u64::from(self.offset_q16));
        // Below 2^32 times at most 2^24.
        let signal_q24 = (excess_q16 * share_q48.isqrt()) >> 16;
        let error = limited(i64::from(self.target_q24) - signal_q24 as i64);
        let previous = flow.signal_q24.unwrap_or(signal_q24);
        let change = limited(previous as i64 - signal_q24 as i64);

        let inputs = self.inputs();
        flow.inputs.copy_within(self.list.len()..inputs, 0);
        let newest = &mut flow.inputs[inputs - self.list.len()..inputs];
        for (input, feature) in newest.iter_mut().zip(&self.list) {
            let scale_q16 = feature.scale_q16;
            *input = match feature.kind {
                FeatureKind::Action => flow.action_q15,
                FeatureKind::Error => scaled(error, scale_q16, 24 + 16 - 15),
                FeatureKind::ErrorChange => scaled(change, scale_q16, 24 + 16 - 15),
                FeatureKind::Queue => {
                    let queue = inflation_q16 as i64 - i64::from(ONE_Q16);
                    scaled(queue, scale_q16, 16 + 16 - 15)
                }
                FeatureKind::LogRate => log_rate(share_q48, scale_q16),
            };
        }
        flow.signal_q24 = Some(signal_q24);
        &flow.inputs[..inputs]
    }
}

/// Round-trip time by base round-trip time, rounded down, below 2^32.
fn inflation_q16(measurement: &Measurement) -> u64 {
    let rtt_ns = measurement.rtt_ns.clamp(1, MAX_RTT_NS);
    let base_rtt_ns = measurement.base_rtt_ns.clamp(1, MAX_RTT_NS);
    ((rtt_ns << 16) / base_rtt_ns).min(u64::from(u32::MAX))
}

/// Rate by line rate, rounded down: 2^8 to 2^48. The quotient is found 24 bits at a time, for
/// what is shifted has up to 40.
fn share_q48(rate: u64, line_rate: u64) -> u64 {
    let line_rate = line_rate.clamp(1, MAX_RATE);
    let shifted = rate.clamp(1, line_rate) << 24;
    ((shifted / line_rate) << 24) + ((shifted % line_rate) << 24) / line_rate
}

fn log_rate(share_q48: u64, scale_q16: u32) -> i16 {
    let log = i64::from(log2_q16(share_q48)) - (48 << 16);
    scaled(log, scale_q16, 16 + 16 - 15 + 4)
}

fn limited(difference_q24: i64) -> i64 {
    difference_q24.clamp(-MAX_DIFFERENCE_Q24, MAX_DIFFERENCE_Q24)
}

/// `value * scale` in Q15: the product, at most 2^60 either way, is rounded, then limited.
fn scaled(value: i64, scale_q16: u32, shift: u32) -> i16 {
    let one = i64::from(ONE_Q15);
    rounded_shift(value * i64::from(scale_q16), shift).clamp(-one, one) as i16
}

#[cfg(test)]
mod tests {
    use super::*;

    fn feature(kind: FeatureKind, scale: f64) -> Feature {
        Feature {
            kind,
            scale_q16: (scale * 65536.0) as u32,
        }
    }

    /// Each feature against its formula in floating point, at rates and times of all sizes.
    #[test]
    fn features_are_those_of_the_formulas() {
        let kinds = FeatureKind::ALL.map(|kind| feature(kind, 1.0));
        let features = Features::new(kinds.to_vec(), 1, 1 << 23, 1 << 15).unwrap();
        for (rtt_ns, base_rtt_ns) in [(1_000, 1_000), (13_000, 12_000), (9_000, 12_000)] {
            for stretch in [1, 1000, 100_000] {
                for share in [1.0f64, 0.3, 1e-3, 1e-6] {
                    let measurement = Measurement {
                        rtt_ns: rtt_ns * stretch,
                        base_rtt_ns: base_rtt_ns * stretch,
                        rate: (8e11 * share) as u64,
                        line_rate: 800_000_000_000,
                    };
                    let mut flow = Flow::default();
                    flow.acted(-1234);
                    let found = features.observe(&mut flow, &measurement);
                    let inflation = rtt_ns as f64 / base_rtt_ns as f64;
                    let signal = (inflation - 0.5).max(0.0) * share.sqrt();
                    let expected = [
                        -1234.0 / 32768.0,
                        0.5 - signal,
                        share.log2() / 16.0,
                        inflation - 1.0,
                        0.0,
                    ];
                    for (found, expected) in found.iter().zip(expected) {
                        let found = f64::from(*found) / 32768.0;
                        let expected = expected.clamp(-1.0, 1.0);
                        assert!((found - expected).abs() < 7e-4, "{found} {expected}");
                    }
                }
            }
        }
    }

    #[test]
    fn the_history_is_oldest_first() {
        let list = vec![
            feature(FeatureKind::Action, 1.0),
            feature(FeatureKind::ErrorChange, 1.0),
        ];
        let features = Features::new(list, 2, 1 << 24, 0).unwrap();
        let mut flow = Flow::default();
        let mut measurement = Measurement {
            rtt_ns: 2_000,
            base_rtt_ns: 1_000,
            rate: 100,
            line_rate: 400,
        };
        assert_eq!(features.observe(&mut flow, &measurement), [0, 0, 0, 0]);
        flow.acted(7);
        // The signal falls from 2 * 0.5 to 1.5 * 0.5.
        measurement.rtt_ns = 1_500;
        assert_eq!(features.observe(&mut flow, &measurement), [0, 0, 7, 8192]);
        flow.acted(8);
        assert_eq!(features.observe(&mut flow, &measurement), [7, 8192, 8, 0]);
    }

    /// Action, error, log_rate, queue and error_change: after an answer, a loss, and an answer.
    #[test]
    fn a_loss_is_at_the_limits_and_leaves_no_signal() {
        let kinds = FeatureKind::ALL.map(|kind| feature(kind, 1.0));
        let features = Features::new(kinds.to_vec(), 3, 1 << 24, 1 << 16).unwrap();
        let mut flow = Flow::default();
        // A sixteenth of the line: log2 is -4, over 16 -0.25. Inflation 1.5: queue 0.5, signal
        // 0.5 * 0.25 = 0.125, error 0.875.
        let mut measurement = Measurement {
            rtt_ns: 1_500,
            base_rtt_ns: 1_000,
            rate: 100,
            line_rate: 1_600,
        };
        features.observe(&mut flow, &measurement);
        flow.acted(5);
        features.observe_loss(&mut flow, 100, 1_600);
        flow.acted(-6);
        // Inflation 2: signal 0.25. Against which it fell or rose is not known.
        measurement.rtt_ns = 2_000;
        let expected = [
            [0, 28_672, -8_192, 16_384, 0],
            [5, -32_767, -8_192, 32_767, 0],
            [-6, 24_576, -8_192, 32_767, 0],
        ];
        assert_eq!(
            features.observe(&mut flow, &measurement),
            expected.as_flattened()
        );
    }

    #[test]
    fn absurd_measurements_give_features_all_the_same() {
        let list = FeatureKind::ALL.map(|kind| {
            feature(
                kind,
                if kind == FeatureKind::Action {
                    1.0
                } else {
                    4096.0
                },
            )
        });
        let features = Features::new(list.to_vec(), 3, u32::MAX, 0).unwrap();
        let extremes = [0, 1, MAX_RATE, u64::MAX];
        let mut flow = Flow::default();
        for rtt_ns in extremes {
            for base_rtt_ns in extremes {
                for rate in extremes {
                    for line_rate in extremes {
                        let inputs = features.observe(
                            &mut flow,
                            &Measurement {
                                rtt_ns,
                                base_rtt_ns,
                                rate,
                                line_rate,
                            },
                        );
                        assert!(inputs.iter().all(|input| *input != i16::MIN));
                    }
                }
            }
        }
    }

    #[test]
    fn what_cannot_be_is_refused() {
        let action = feature(FeatureKind::Action, 1.0);
        let error = feature(FeatureKind::Error, 2.0);
        let refused = |list: &[Feature], history, target| {
            Features::new(list.to_vec(), history, target, 0)
                .unwrap_err()
                .to_string()
        };
        assert!(refused(&[], 2, 1).starts_with("features: found 0 over 2"));
        assert!(refused(&[action, error], 9, 1).contains("1 to 16 inputs"));
        assert!(refused(&[action], usize::MAX, 1).contains("1 to 16 inputs"));
        assert!(refused(&[error], 1, 0).starts_with("target"));
        let action = feature(FeatureKind::Action, 2.0);
        assert!(refused(&[action], 1, 1).contains("features[0].scale (action): found 2"));
        let error = feature(FeatureKind::Error, 4097.0);
        assert!(refused(&[error], 1, 1).contains("2^-16 to 4096"));
    }
}
