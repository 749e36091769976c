//! What a network sees of a flow.

use thalweg_learner::{ONE_Q16, log2_q16};

use crate::{Fault, MAX_RATE, ONE_Q15, rounded_shift};

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
///
/// Its begin is all that a small model needs, so that it is one cache line's matter: whoever has
/// thousands of flows waits for memory more than for arithmetic.
#[derive(Debug, Clone, PartialEq, Eq)]
#[repr(C)]
pub struct Flow {
    /// Of the last decision, or [`NO_SIGNAL`].
    signal_q24: u64,
    action_q15: i16,
    /// Features of the last decisions, Q15, oldest first.
    inputs: [i16; MAX_INPUTS],
}

/// Before the first decision; signals stay below 2^40.
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

    /// Drops the oldest features of a history of four inputs at most, and appends `newest`, the
    /// first in the lowest 16 bits. All inputs are written at once, as they are read: a processor
    /// waits where it reads together what was just written in parts.
    #[inline]
    fn push_word(&mut self, newest: u64, features: usize, inputs: usize) {
        let first = self.inputs.first_chunk_mut::<4>().expect("there are more");
        let old = (first.iter().rev()).fold(0, |word, lane| word << 16 | u64::from(*lane as u16));
        // A history of one decision of four features drops everything, in two steps.
        let kept = old >> (8 * features) >> (8 * features);
        let word = kept | newest << (16 * (inputs - features));
        *first = std::array::from_fn(|lane| (word >> (16 * lane)) as i16);
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
        let action_q15 = flow.action_q15;
        self.push(flow, |feature| match feature.kind {
            FeatureKind::Action => action_q15,
            FeatureKind::Error => -ONE_Q15,
            FeatureKind::ErrorChange => 0,
            FeatureKind::Queue => ONE_Q15,
            FeatureKind::LogRate => log_rate(rate, line_rate, feature.scale_q16),
        });
        flow.signal_q24 = NO_SIGNAL;
        &flow.inputs[..self.inputs()]
    }

    /// Moves the flow's history on by one decision; returns the network's inputs, Q15.
    pub fn observe<'a>(&self, flow: &'a mut Flow, measurement: &Measurement) -> &'a [i16] {
        let inflation_q16 = inflation_q16(measurement);
        let excess_q16 = inflation_q16.saturating_sub(u64::from(self.offset_q16));
        // Below 2^32 times at most 2^24.
        let signal_q24 = (excess_q16 * root_share_q24(measurement)) >> 16;
        let previous = match flow.signal_q24 {
            NO_SIGNAL => signal_q24,
            previous => previous,
        };
        let action_q15 = flow.action_q15;
        self.push(flow, |feature| {
            let scale_q16 = feature.scale_q16;
            match feature.kind {
                FeatureKind::Action => action_q15,
                FeatureKind::Error => {
                    let error = limited(i64::from(self.target_q24) - signal_q24 as i64);
                    scaled(error, scale_q16, 24 + 16 - 15)
                }
                FeatureKind::ErrorChange => {
                    let change = limited(previous as i64 - signal_q24 as i64);
                    scaled(change, scale_q16, 24 + 16 - 15)
                }
                FeatureKind::Queue => {
                    let queue = inflation_q16 as i64 - i64::from(ONE_Q16);
                    scaled(queue, scale_q16, 16 + 16 - 15)
                }
                FeatureKind::LogRate => {
                    log_rate(measurement.rate, measurement.line_rate, scale_q16)
                }
            }
        });
        flow.signal_q24 = signal_q24;
        &flow.inputs[..self.inputs()]
    }

    /// Moves the flow's history on by the features of one decision.
    #[inline]
    fn push(&self, flow: &mut Flow, one: impl Fn(&Feature) -> i16) {
        let (features, inputs) = (self.list.len(), self.inputs());
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

// Quotients and roots are found in floating point, which processors do faster than division of
// 64-bit integers. Every step is correctly rounded, as IEEE 754 has it, and the results are exact:
// each function says why.

/// Round-trip time by base round-trip time, rounded down, below 2^32.
#[inline]
fn inflation_q16(measurement: &Measurement) -> u64 {
    let rtt_ns = measurement.rtt_ns.clamp(1, MAX_RTT_NS);
    let base_rtt_ns = measurement.base_rtt_ns.clamp(1, MAX_RTT_NS);
    let quotient = float(rtt_ns << 16) / float(base_rtt_ns);
    // The dividend is below 2^50. A quotient below a whole number is so by one part in 2^51 or
    // more, for the divisor times that number is not above the dividend and the divisor together:
    // it is not rounded up to it.
    whole(quotient).min(u64::from(u32::MAX))
}

/// The limited rate, and the line's.
#[inline]
fn limited_rates(rate: u64, line_rate: u64) -> (u64, u64) {
    let line_rate = line_rate.clamp(1, MAX_RATE);
    (rate.clamp(1, line_rate), line_rate)
}

/// Rate by line rate, rounded down: 2^8 to 2^48. The quotient is found 24 bits at a time, for
/// what is shifted has up to 40.
fn share_q48(rate: u64, line_rate: u64) -> u64 {
    let (rate, line_rate) = limited_rates(rate, line_rate);
    let shifted = rate << 24;
    ((shifted / line_rate) << 24) + ((shifted % line_rate) << 24) / line_rate
}

/// Square root of the share in Q48, rounded down: up to 2^24.
#[inline]
fn root_share_q24(measurement: &Measurement) -> u64 {
    let (rate, line_rate) = limited_rates(measurement.rate, measurement.line_rate);
    // Rounding the share down to Q48 first does not change what its root is rounded down to.
    let root = (float(rate) / float(line_rate)).sqrt() * f64::from(1 << 24);
    let down = whole(root);
    // Two roundings of one part in 2^53 each leave it within 2^-28 of the exact one. If it is not
    // that close to a whole number, rounding down is safe.
    let rest = root - float(down);
    const CLOSE: f64 = 1.0 / (1 << 27) as f64;
    if (CLOSE..1.0 - CLOSE).contains(&rest) {
        down
    } else {
        share_q48(measurement.rate, measurement.line_rate).isqrt()
    }
}

/// A number below 2^53, as it is. Signed conversions are what all processors have.
#[inline]
fn float(number: u64) -> f64 {
    number as i64 as f64
}

/// A number of 0 to 2^53, rounded down.
#[inline]
fn whole(number: f64) -> u64 {
    number as i64 as u64
}

fn log_rate(rate: u64, line_rate: u64, scale_q16: u32) -> i16 {
    let log = i64::from(log2_q16(share_q48(rate, line_rate))) - (48 << 16);
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
    use proptest::prelude::*;

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

    /// Numbers below `bits` bits: of all sizes, and next to powers of two.
    fn numbers(bits: u32) -> impl Strategy<Value = u64> {
        let most = (1u64 << bits) - 1;
        prop_oneof![
            (0..=bits, any::<u64>()).prop_map(move |(bits, any)| any & ((1 << bits) - 1)),
            (0..bits, 0..3u64).prop_map(move |(bit, add)| ((1 << bit) - 1 + add).min(most)),
        ]
    }

    /// The quotient and the root of docs/reference/model.md in 128 bits, without floating point.
    fn by_the_formulas(measurement: &Measurement) -> (u64, u64) {
        let of = |value: u64, least, most| u128::from(value).clamp(least, most);
        let longest = u128::from(MAX_RTT_NS);
        let base = of(measurement.base_rtt_ns, 1, longest);
        let inflation = (of(measurement.rtt_ns, 1, longest) << 16) / base;
        let line = of(measurement.line_rate, 1, u128::from(MAX_RATE));
        let share = (of(measurement.rate, 1, line) << 48) / line;
        let root = (0..25).rev().fold(0u128, |root, bit| {
            let next = root | 1 << bit;
            if next * next <= share { next } else { root }
        });
        (inflation.min(0xffff_ffff) as u64, root as u64)
    }

    fn assert_exact(measurement: &Measurement) {
        let found = (inflation_q16(measurement), root_share_q24(measurement));
        assert_eq!(found, by_the_formulas(measurement), "{measurement:?}");
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(20_000))]

        #[test]
        fn floating_point_is_exact(
            rtt_ns in numbers(36),
            base_rtt_ns in numbers(36),
            rate in numbers(42),
            line_rate in numbers(42),
        ) {
            assert_exact(&Measurement { rtt_ns, base_rtt_ns, rate, line_rate });
        }

        /// Quotients and roots that are whole numbers, or miss one by as little as can be.
        #[test]
        fn floating_point_is_exact_next_to_whole_numbers(
            base_rtt_ns in numbers(34),
            inflation_q16 in numbers(34),
            root_q24 in 1..=1u64 << 24,
            line_rate in numbers(40),
            miss in -1..2i64,
        ) {
            let product = u128::from(base_rtt_ns) * u128::from(inflation_q16);
            let rtt_ns = (product >> 16).min(1 << 40) as i64 + miss;
            let line = u128::from(line_rate.max(1));
            let rate = (u128::from(root_q24 * root_q24) * line).div_ceil(1 << 48) as i64 + miss;
            assert_exact(&Measurement {
                rtt_ns: rtt_ns.max(0) as u64,
                base_rtt_ns,
                rate: rate.max(0) as u64,
                line_rate,
            });
        }

        /// Histories of every shape against a list that only grows.
        #[test]
        fn histories_of_all_shapes_are_kept(
            features in 1..=4usize,
            history in 1..=4usize,
            actions in proptest::collection::vec(-32767..=32767i16, 1..12),
        ) {
            let kinds = [
                FeatureKind::Queue,
                FeatureKind::Action,
                FeatureKind::LogRate,
                FeatureKind::Error,
            ];
            let list = kinds[..features].iter().map(|kind| feature(*kind, 1.0)).collect();
            let model = Features::new(list, history, 1 << 22, 1 << 15).unwrap();
            let mut flow = Flow::default();
            let mut seen = vec![0; features * (history - 1)];
            for (step, action) in actions.iter().enumerate() {
                let measurement = Measurement {
                    rtt_ns: 12_000 + 777 * step as u64,
                    base_rtt_ns: 12_000,
                    rate: 1 + 3_000_000_000 * step as u64,
                    line_rate: 100_000_000_000,
                };
                let (inflation, root) = by_the_formulas(&measurement);
                let signal = ((inflation - (1 << 15)) * root) >> 16;
                let log = i64::from(log2_q16(share_q48(measurement.rate, measurement.line_rate))) - (48 << 16);
                let newest = [
                    (inflation as i64 - 65536 + 1).div_euclid(2),
                    i64::from(flow.action_q15),
                    (log + 16).div_euclid(32),
                    ((1 << 22) - signal as i64 + 256).div_euclid(512),
                ];
                let newest = newest.map(|one| one.clamp(-32767, 32767) as i16);
                seen.extend(&newest[..features]);
                let expected = &seen[seen.len() - features * history..];
                prop_assert_eq!(model.observe(&mut flow, &measurement), expected);
                flow.acted(*action);
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
