//! A learned controller: ADPG's network, 4-12-12-1.
//!
//! Tessler et al., "Reinforcement Learning for Datacenter Congestion Control", 2021, §5.1 and
//! §6, in the form without recurrence: two layers of rectifiers and a hyperbolic tangent, no
//! bias. At each answered probe it sees its last two actions and how far
//! `(inflation − offset) · √share` was from the target then, and multiplies its rate.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::parameter::within;
use super::proportional::{multiplier, scaled_inflation};
use super::{Command, Context, Controller, Needs, ParameterError, Response, Setup};

/// What the network sees: newest action, newest error, the action and the error before.
pub const INPUTS: usize = 4;
/// Width of each of the two hidden layers.
pub const HIDDEN: usize = 12;

/// Parameters: what the network was trained with.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Parameters {
    /// As [`super::proportional::Parameters::offset`].
    pub offset: f64,
    /// As [`super::proportional::Parameters::target`].
    pub target: f64,
    /// Factor of the error that the network sees.
    pub scale: f64,
    /// First rate, as a share of the line rate.
    pub initial_fraction: f64,
}

impl Default for Parameters {
    fn default() -> Self {
        Self {
            offset: 1.0,
            target: 0.05,
            scale: 1.0,
            initial_fraction: 1.0,
        }
    }
}

impl Parameters {
    /// Refuses what is out of range.
    pub fn validate(&self) -> Result<(), ParameterError> {
        within("offset", self.offset, 0.0..=1e3)?;
        within("target", self.target, 1e-6..=1e3)?;
        within("scale", self.scale, 1e-6..=1e6)?;
        within("initial_fraction", self.initial_fraction, 1e-9..=1.0)
    }
}

/// Largest weight, and largest error that the network is shown; with both no sum overflows.
const LARGEST: f32 = 1e6;

/// A network 4-12-12-1 without biases. Flows share it.
#[derive(Debug, Clone, PartialEq)]
pub struct Network {
    /// From each input to all hidden units: inner loops run over units that lie side by side.
    first: [[f32; HIDDEN]; INPUTS],
    second: [[f32; HIDDEN]; HIDDEN],
    last: [f32; HIDDEN],
}

impl Network {
    /// A network from its weights, a row for each unit that they lead to: `first[unit][input]`,
    /// `second[unit][unit of the first layer]`, `last[unit of the second layer]`.
    ///
    /// # Errors
    /// A weight that is not a number, or larger than a million.
    pub fn new(
        first: &[[f32; INPUTS]; HIDDEN],
        second: &[[f32; HIDDEN]; HIDDEN],
        last: &[f32; HIDDEN],
    ) -> Result<Self, ParameterError> {
        let limit = f64::from(LARGEST);
        for (field, weights) in [
            ("first", first.as_flattened()),
            ("second", second.as_flattened()),
            ("last", last.as_slice()),
        ] {
            for weight in weights {
                within(field, (*weight).into(), -limit..=limit)?;
            }
        }
        Ok(Self {
            first: std::array::from_fn(|input| first.map(|row| row[input])),
            second: std::array::from_fn(|unit| second.map(|row| row[unit])),
            last: *last,
        })
    }

    /// The action, from −1 to 1. Sums run in the order of the inputs, in single precision; the
    /// result is the same on every machine.
    pub fn action(&self, inputs: &[f32; INPUTS]) -> f32 {
        let hidden = layer(&self.first, inputs);
        let hidden = layer(&self.second, &hidden);
        let mut sum = 0.0;
        for (weight, value) in self.last.iter().zip(&hidden) {
            sum += weight * value;
        }
        tanh(sum)
    }
}

/// One layer with its rectifiers.
fn layer<const N: usize>(weights: &[[f32; HIDDEN]; N], inputs: &[f32; N]) -> [f32; HIDDEN] {
    let mut sums = [0.0; HIDDEN];
    for (row, input) in weights.iter().zip(inputs) {
        for (sum, weight) in sums.iter_mut().zip(row) {
            *sum += weight * input;
        }
    }
    sums.map(|sum| sum.max(0.0))
}

/// 1/1! to 1/11!: the series of (e^r − 1)/r.
const INVERSE_FACTORIALS: [f64; 11] = {
    let mut coefficients = [1.0; 11];
    let mut n = 1;
    while n < 11 {
        coefficients[n] = coefficients[n - 1] / (n + 1) as f64;
        n += 1;
    }
    coefficients
};

/// The hyperbolic tangent. The system's own may differ from machine to machine in its last
/// bit, and with it a whole run.
fn tanh(x: f32) -> f32 {
    // From 10 on it is 1 in single precision.
    let y = 2.0 * f64::from(x).abs().min(10.0);
    // e^y − 1 = 2^k (e^r − 1) + (2^k − 1), |r| ≤ ln 2/2; the series' remainder is below 1e−12.
    let k = (y * std::f64::consts::LOG2_E + 0.5) as u32;
    let r = y - f64::from(k) * std::f64::consts::LN_2;
    // Estrin's scheme: a third of the way from the first product to the last that Horner's has,
    // and every decision waits for it.
    let (c, r2) = (&INVERSE_FACTORIALS, r * r);
    let r4 = r2 * r2;
    let low = (c[0] + c[1] * r) + (c[2] + c[3] * r) * r2;
    let middle = (c[4] + c[5] * r) + (c[6] + c[7] * r) * r2;
    let high = (c[8] + c[9] * r) + c[10] * r2;
    let series = low + (middle + high * r4) * r4;
    let power = (1_u64 << k) as f64;
    let grown = power * (series * r) + (power - 1.0);
    ((grown / (grown + 2.0)) as f32).copysign(x)
}

/// A flow whose rate a network decides.
///
/// Clones share what is the same for all flows; a flow's own state fills one cache line.
#[derive(Debug, Clone)]
#[repr(align(64))]
pub struct Learned {
    network: Arc<Network>,
    parameters: Arc<Parameters>,
    base_rtt_ps: f64,
    min_rate_bps: f64,
    line_rate_bps: f64,
    rate_bps: f64,
    /// Last action.
    action: f32,
    /// Action and error before that.
    before: [f32; 2],
}

impl Learned {
    /// A controller for one flow. For many flows, clone one.
    pub fn new(network: Arc<Network>, parameters: &Parameters) -> Self {
        Self {
            network,
            parameters: Arc::new(parameters.clone()),
            base_rtt_ps: 1.0,
            min_rate_bps: 0.0,
            line_rate_bps: 0.0,
            rate_bps: 0.0,
            action: 0.0,
            before: [0.0; 2],
        }
    }
}

const _: () = assert!(size_of::<Learned>() == 64);

impl Controller for Learned {
    fn needs(&self) -> Needs {
        Needs {
            probes: true,
            ..Needs::default()
        }
    }

    fn start(&mut self, setup: &Setup, context: &mut Context<'_>) {
        self.base_rtt_ps = setup.base_rtt.ps().max(1) as f64;
        self.min_rate_bps = setup.min_rate_bps;
        self.line_rate_bps = setup.line_rate_bps;
        self.rate_bps = setup.limit(self.parameters.initial_fraction * setup.line_rate_bps);
        *context.command = Command {
            rate_bps: self.rate_bps,
            window_bytes: f64::INFINITY,
        };
    }

    fn on_response(&mut self, response: &Response<'_>, context: &mut Context<'_>) {
        let p = &self.parameters;
        let share = self.rate_bps / self.line_rate_bps;
        let inflation = scaled_inflation(response.rtt, self.base_rtt_ps, p.offset, share);
        let error = ((p.scale * (inflation - p.target)) as f32).clamp(-LARGEST, LARGEST);
        let [action_before, error_before] = self.before;
        self.before = [self.action, error];
        self.action = (self.network).action(&[self.action, error, action_before, error_before]);
        self.rate_bps = (self.rate_bps * multiplier(self.action.into()))
            .max(self.min_rate_bps)
            .min(self.line_rate_bps);
        context.command.rate_bps = self.rate_bps;
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{Flow, assert_near, setup};
    use super::*;
    use crate::Time;

    #[test]
    fn tanh_is_the_systems_within_a_bit() {
        for step in -24_000..=24_000_i32 {
            let x = step as f32 / 2_000.0;
            let expected = f64::from(x).tanh() as f32;
            let distance = (tanh(x).to_bits() as i64 - expected.to_bits() as i64).abs();
            assert!(distance <= 1, "{x}: {} instead of {expected}", tanh(x));
        }
        for (x, expected) in [(1e-20, 1e-20), (f32::MAX, 1.0), (-1e6, -1.0), (0.0, 0.0)] {
            assert_eq!(tanh(x), expected);
        }
    }

    /// The same network, written out once more: a row a unit, in double precision.
    fn reference(
        first: &[[f32; INPUTS]; HIDDEN],
        second: &[[f32; HIDDEN]; HIDDEN],
        last: &[f32; HIDDEN],
        inputs: &[f32; INPUTS],
    ) -> f64 {
        let dot = |row: &[f32], values: &[f64]| -> f64 {
            (row.iter().zip(values))
                .map(|(w, v)| f64::from(*w) * v)
                .sum()
        };
        let inputs = inputs.map(f64::from);
        let one: Vec<f64> = first.iter().map(|row| dot(row, &inputs).max(0.0)).collect();
        let two: Vec<f64> = second.iter().map(|row| dot(row, &one).max(0.0)).collect();
        dot(last, &two).tanh()
    }

    #[test]
    fn layers_connect_as_the_rows_say() {
        // Weights without any symmetry that a transposed matrix could hide behind.
        let weight = |i: usize, j: usize, salt: usize| {
            ((i * 31 + j * 17 + salt * 7) % 23) as f32 / 23.0 - 0.4
        };
        let first = std::array::from_fn(|i| std::array::from_fn(|j| weight(i, j, 1)));
        let second = std::array::from_fn(|i| std::array::from_fn(|j| weight(i, j, 2) / 3.0));
        let last = std::array::from_fn(|i| weight(i, 0, 3));
        let network = Network::new(&first, &second, &last).unwrap();
        let mut actions = Vec::new();
        for step in 0..50 {
            let step = step as f32 / 10.0;
            let inputs = [0.5 - step / 5.0, step - 2.0, step / 7.0, 1.0 - step];
            let action = network.action(&inputs);
            let expected = reference(&first, &second, &last, &inputs);
            assert!(
                (f64::from(action) - expected).abs() < 1e-5,
                "{action} {expected}"
            );
            actions.push(action);
        }
        // It does depend on its inputs.
        assert!(
            actions
                .iter()
                .any(|action| (action - actions[0]).abs() > 0.1)
        );
    }

    #[test]
    fn it_sees_two_steps_of_actions_and_errors() {
        // One path: input → unit 0 → unit 0 → action = tanh(input), for inputs above zero.
        for (input, expected) in [
            // Errors: 24 µs: (2 − 1) √1 − 0.05 = 0.95; 36 µs: … of the rate then.
            (1, [Some(0.95), None]),
            (3, [Some(0.0), Some(0.95)]),
        ] {
            let mut first = [[0.0; INPUTS]; HIDDEN];
            first[0][input] = 1.0;
            let mut second = [[0.0; HIDDEN]; HIDDEN];
            second[0][0] = 1.0;
            let mut last = [0.0; HIDDEN];
            last[0] = -1.0;
            let network = Arc::new(Network::new(&first, &second, &last).unwrap());
            let mut flow = Flow::start(Learned::new(network, &Parameters::default()), &setup());
            for (rtt_us, seen) in [24, 36].into_iter().zip(expected) {
                let before = flow.gbps();
                flow.respond(Time::from_us(rtt_us));
                let error: f64 = match seen {
                    Some(error) => error,
                    None => 2.0 * (before / 100.0).sqrt() - 0.05,
                };
                let found = flow.gbps() / before;
                // −tanh(error) < 0: / (1 + 0.2 tanh(error)).
                let wanted = 1.0 / (1.0 + 0.2 * error.tanh());
                assert!((found - wanted).abs() < 1e-6, "{found} is not {wanted}");
            }
        }
    }

    #[test]
    fn it_sees_its_own_actions() {
        // Newest error raises unit 0, newest action unit 1, the one before unit 2.
        let mut first = [[0.0; INPUTS]; HIDDEN];
        (first[0][1], first[1][0], first[2][2]) = (1.0, -1.0, -1.0);
        let mut second = [[0.0; HIDDEN]; HIDDEN];
        (second[0][0], second[1][1], second[2][2]) = (1.0, 1.0, 1.0);
        let mut last = [0.0; HIDDEN];
        (last[0], last[1], last[2]) = (-1.0, 0.5, 0.25);
        let network = Arc::new(Network::new(&first, &second, &last).unwrap());
        let mut flow = Flow::start(Learned::new(network, &Parameters::default()), &setup());
        // Sums: −0.95; then, in an empty network (error −0.05, so unit 0 is silent), half of
        // 0.7398; then half of zero (the action was positive) and a quarter of 0.7398.
        let action = 0.95_f64.tanh();
        flow.respond(Time::from_us(24));
        let first_rate = 100.0 / (1.0 + 0.2 * action);
        assert!((flow.gbps() - first_rate).abs() < 1e-4);
        flow.respond(Time::from_us(12));
        let second_rate = first_rate * (1.0 + 0.2 * (0.5 * action).tanh());
        assert!((flow.gbps() - second_rate).abs() < 1e-4);
        // At the line rate by then? 87.1 · 1.0708 = 93.3: not yet.
        flow.respond(Time::from_us(12));
        let third_rate = second_rate * (1.0 + 0.2 * (0.25 * action).tanh());
        assert!((flow.gbps() - third_rate).abs() < 1e-4);
    }

    #[test]
    fn refuses_weights_that_are_no_numbers() {
        let mut second = [[0.0; HIDDEN]; HIDDEN];
        second[3][4] = f32::NAN;
        let error = Network::new(&[[0.0; INPUTS]; HIDDEN], &second, &[0.0; HIDDEN]);
        assert_eq!(error.unwrap_err().field, "second");
    }

    #[test]
    fn not_below_the_lowest_rate() {
        let mut first = [[0.0; INPUTS]; HIDDEN];
        first[0][1] = 1e6;
        let mut second = [[0.0; HIDDEN]; HIDDEN];
        second[0][0] = 1e6;
        let network = Network::new(&first, &second, &[-1e6; HIDDEN]).unwrap();
        let parameters = Parameters::default();
        let mut flow = Flow::start(Learned::new(Arc::new(network), &parameters), &setup());
        for _ in 0..64 {
            flow.respond(Time::from_us(1_000_000));
        }
        assert_near(flow.command.rate_bps, 1e6);
    }
}
