//! Multi-layer perceptrons with 8-bit weights and activations.

// Vectors are named: compilers for generic x86-64 do not multiply and add 16-bit pairs.
use wide::{i16x8, i32x4, i32x8, u32x4, u64x4};

use crate::{Fault, MAX_INPUTS, ONE_Q15, rounded_shift};

/// Outputs of a hidden layer.
pub const MAX_WIDTH: usize = 32;
/// Layers: two hidden ones, and the output.
pub const MAX_LAYERS: usize = 3;
/// The largest bias, either way.
pub const MAX_BIAS: i32 = 1 << 24;
/// Range of a scale's shift.
pub const SHIFTS: std::ops::RangeInclusive<u32> = 8..=56;

/// The largest activation and weight.
const MAX_I8: i64 = 127;
/// The largest multiplier of a scale.
const MAX_MULTIPLIER: u32 = i32::MAX as u32;
/// Groups of four rows.
const GROUPS: usize = MAX_WIDTH / 4;
/// Limit of tanh's input: just below 8 in Q12.
const MAX_TANH_INPUT_Q12: i64 = 32767;

/// A factor: `multiplier / 2^shift`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Scale {
    /// Below 2^31.
    pub multiplier: u32,
    /// In [`SHIFTS`].
    pub shift: u32,
}

/// One layer: weights, biases, and the factors that scale its sums to the next layer's range.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layer {
    rows: usize,
    columns: usize,
    /// By pair of columns, then by group of four rows, each with its two weights. Processors are
    /// fastest with all rows of one pair of columns at once: one instruction computes four rows'
    /// pairs of products and their sums.
    weights: [[i16x8; GROUPS]; MAX_WIDTH / 2],
    bias: [[i32; 4]; GROUPS],
    multipliers: [[u32; 4]; GROUPS],
    /// By row, the least sum that scales to the largest activation or beyond.
    enough: [i32x4; GROUPS],
    /// The first row's weights: an output layer has only this row.
    first: [i16x8; MAX_WIDTH / 8],
    shift: u32,
    /// Whether all scaled sums fit 32 bits; only for narrow layers.
    plain: bool,
}

/// A network that computes in integers only.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Network {
    input: Scale,
    /// The least magnitude of a feature that scales to the largest activation or beyond.
    enough: i32x4,
    layers: Vec<Layer>,
    /// Input scaling of a small network; see [`Network::infer_narrow`].
    narrow: Option<NarrowInput>,
}

/// Activations of a layer; zero beyond its width.
type Activations = [i16x8; MAX_WIDTH / 8];

/// Largest width of a narrow layer.
const NARROW: usize = 16;
/// Activations of a narrow layer.
type NarrowActivations = [i16x8; NARROW / 8];

/// Scales features without a case for negative ones: an offset makes all of them positive.
///
/// `(x * m + half) >> s` is `((x + 2^15) * m + add) >> s` less `subtract`, where
/// `add = half - 2^15 * m + subtract * 2^s`. `subtract` is the least number that keeps it above 0.
#[derive(Debug, Clone, PartialEq, Eq)]
struct NarrowInput {
    add: u64,
    subtract: i32,
}

impl NarrowInput {
    /// None if a scaled feature may leave 32 bits.
    fn new(input: Scale) -> Option<Self> {
        let Scale { multiplier, shift } = input;
        // Below 2^46.
        let moved = u64::from(multiplier) << 15;
        let half = 1 << (shift - 1);
        let subtract = moved.div_ceil(1 << shift);
        let add = half + (subtract << shift) - moved;
        // The largest product is as far above `moved` as the least is below it.
        (subtract < 1 << 30).then_some(Self {
            add,
            subtract: subtract as i32,
        })
    }
}

impl Layer {
    /// A layer from `rows * columns` weights, row by row, and a bias and a multiplier per row.
    ///
    /// A sum is multiplied by its row's multiplier and divided by `2^shift`. `name` is for
    /// messages.
    pub fn new(
        name: &str,
        columns: usize,
        weights: &[i8],
        bias: &[i32],
        multipliers: &[u32],
        shift: u32,
    ) -> Result<Self, Fault> {
        let rows = multipliers.len();
        let size = |what: &str, found: usize, expected: String| {
            Fault::new(format!("{name}.{what}"), found, expected)
        };
        if columns == 0 || columns > MAX_WIDTH {
            return Err(size("columns", columns, format!("1 to {MAX_WIDTH}")));
        }
        if rows == 0 || rows > MAX_WIDTH {
            return Err(size("rows", rows, format!("1 to {MAX_WIDTH}")));
        }
        if weights.len() != rows * columns {
            let expected = format!("{rows} rows of {columns}");
            return Err(size("weight_q", weights.len(), expected));
        }
        if bias.len() != rows {
            return Err(size("bias_q", bias.len(), rows.to_string()));
        }
        if let Some(at) = weights.iter().position(|weight| *weight == i8::MIN) {
            let field = format!("{name}.weight_q[{}, {}]", at / columns, at % columns);
            return Err(Fault::new(field, i8::MIN, "-127 to 127"));
        }
        if let Some(at) = bias
            .iter()
            .position(|bias| bias.unsigned_abs() > MAX_BIAS as u32)
        {
            let expected = format!("-{MAX_BIAS} to {MAX_BIAS}");
            return Err(Fault::new(
                format!("{name}.bias_q[{at}]"),
                bias[at],
                expected,
            ));
        }
        if let Some(at) = multipliers
            .iter()
            .position(|factor| *factor > MAX_MULTIPLIER)
        {
            let field = format!("{name}.multiplier[{at}]");
            return Err(Fault::new(field, multipliers[at], "0 to 2^31 - 1"));
        }
        check_shift(name, shift)?;
        let mut layer = Self {
            rows,
            columns,
            weights: [[i16x8::ZERO; GROUPS]; MAX_WIDTH / 2],
            bias: [[0; 4]; GROUPS],
            multipliers: [[0; 4]; GROUPS],
            enough: [i32x4::ZERO; GROUPS],
            first: [i16x8::ZERO; MAX_WIDTH / 8],
            shift,
            plain: columns <= NARROW && rows <= NARROW,
        };
        for (row, weights) in weights.chunks_exact(columns).enumerate() {
            for (column, weight) in weights.iter().enumerate() {
                let group = &mut layer.weights[column / 2][row / 4];
                group.as_mut_array()[2 * (row % 4) + column % 2] = i16::from(*weight);
            }
        }
        for (row, (bias, multiplier)) in bias.iter().zip(multipliers).enumerate() {
            let (group, lane) = (row / 4, row % 4);
            layer.bias[group][lane] = *bias;
            layer.multipliers[group][lane] = *multiplier;
            layer.enough[group].as_mut_array()[lane] = least_sum(*multiplier, shift);
            // Upper bound of a row's sum: weights and activations are 127 at most.
            let sum = bias.max(&0).unsigned_abs() + (MAX_I8 * MAX_I8) as u32 * columns as u32;
            let scaled = (u64::from(sum) * u64::from(*multiplier) + (1 << (shift - 1))) >> shift;
            layer.plain &= scaled <= i32::MAX as u64;
        }
        for (column, weight) in weights[..columns].iter().enumerate() {
            layer.first[column / 8].as_mut_array()[column % 8] = i16::from(*weight);
        }
        Ok(layer)
    }

    /// Outputs.
    pub fn row_count(&self) -> usize {
        self.rows
    }

    /// Inputs.
    pub fn column_count(&self) -> usize {
        self.columns
    }

    /// The weight of a column in a row.
    pub fn weight(&self, row: usize, column: usize) -> i8 {
        self.weights[column / 2][row / 4].as_array()[2 * (row % 4) + column % 2] as i8
    }

    /// Biases, one per row.
    pub fn bias(&self) -> &[i32] {
        &self.bias.as_flattened()[..self.rows]
    }

    /// Factor of each row's sum, before the shift.
    pub fn multipliers(&self) -> &[u32] {
        &self.multipliers.as_flattened()[..self.rows]
    }

    /// Shift of each row's sum.
    pub fn shift(&self) -> u32 {
        self.shift
    }

    /// A hidden layer: the scaled sums, limited to 0 … 127. Outputs beyond the last row do not
    /// matter: the next layer has no weights for them.
    #[inline]
    fn hidden_layer(&self, inputs: &Activations, outputs: &mut Activations) {
        // The number of rows is known at compile time, so that sums stay in registers.
        match self.rows.div_ceil(4) {
            1 => self.hidden_of::<1>(inputs, outputs),
            2 => self.hidden_of::<2>(inputs, outputs),
            3 => self.hidden_of::<3>(inputs, outputs),
            4 => self.hidden_of::<4>(inputs, outputs),
            5 | 6 => self.hidden_of::<6>(inputs, outputs),
            _ => self.hidden_of::<GROUPS>(inputs, outputs),
        }
    }

    #[inline]
    fn hidden_of<const USED: usize>(&self, inputs: &Activations, outputs: &mut Activations) {
        let mut sums: [i32x4; USED] = std::array::from_fn(|group| i32x4::new(self.bias[group]));
        let columns = self.columns.div_ceil(8);
        let eights = self.weights.as_chunks::<4>().0;
        for (weights, inputs) in eights[..columns].iter().zip(inputs) {
            for (weights, [a, b]) in weights.iter().zip(inputs.to_array().as_chunks().0) {
                let input = i16x8::new([*a, *b, *a, *b, *a, *b, *a, *b]);
                for (sum, weights) in sums.iter_mut().zip(weights) {
                    *sum += weights.dot(input);
                }
            }
        }
        let half = u64x4::splat(1 << (self.shift - 1));
        let mut scaled = [i32x4::ZERO; GROUPS];
        for (group, scaled) in scaled[..USED].iter_mut().enumerate() {
            let sum = sums[group].max(i32x4::ZERO).min(self.enough[group]);
            let multipliers = u32x4::new(self.multipliers[group]);
            *scaled = scale_sums(sum, multipliers, half, self.shift);
        }
        for (output, two) in outputs.iter_mut().zip(scaled.as_chunks().0) {
            *output = limit_activations(*two);
        }
    }

    /// As [`Self::hidden_layer`], for a narrow layer.
    #[inline(always)]
    fn hidden_narrow(&self, inputs: NarrowActivations) -> NarrowActivations {
        match self.rows.div_ceil(4) {
            1 => self.hidden_narrow_of::<1>(inputs),
            2 => self.hidden_narrow_of::<2>(inputs),
            3 => self.hidden_narrow_of::<3>(inputs),
            _ => self.hidden_narrow_of::<4>(inputs),
        }
    }

    #[inline(always)]
    fn hidden_narrow_of<const USED: usize>(&self, inputs: NarrowActivations) -> NarrowActivations {
        let mut sums: [i32x4; USED] = std::array::from_fn(|group| i32x4::new(self.bias[group]));
        let mut add = |pair: usize, [a, b]: [i16; 2]| {
            let input = i16x8::new([a, b, a, b, a, b, a, b]);
            for (sum, weights) in sums.iter_mut().zip(&self.weights[pair]) {
                *sum += weights.dot(input);
            }
        };
        // No loop, so that activations stay in registers.
        let [[a, b, c, d, e, f, g, h], [i, j, k, l, m, n, o, p]] = inputs.map(i16x8::to_array);
        add(0, [a, b]);
        add(1, [c, d]);
        if self.columns > 4 {
            add(2, [e, f]);
            add(3, [g, h]);
        }
        if self.columns > 8 {
            add(4, [i, j]);
            add(5, [k, l]);
        }
        if self.columns > 12 {
            add(6, [m, n]);
            add(7, [o, p]);
        }
        let half = u64x4::splat(1 << (self.shift - 1));
        let mut scaled = [i32x4::ZERO; NARROW / 4];
        for (group, scaled) in scaled[..USED].iter_mut().enumerate() {
            let positive: i32x4 = sums[group] & !(sums[group] >> 31_i32);
            let multipliers = u32x4::new(self.multipliers[group]);
            *scaled = scale_sums(positive, multipliers, half, self.shift);
        }
        let [a, b, c, d] = scaled;
        [limit_activations([a, b]), limit_activations([c, d])]
    }

    /// The output layer: the only row's scaled sum, Q12, limited to tanh's input range.
    #[inline]
    fn output_layer(&self, inputs: &[i16x8]) -> i64 {
        // The full width, where absent columns have weights of 0: no loop.
        let products = self.first.iter().zip(inputs);
        let sums = products.fold(i32x4::ZERO, |sums, (weights, inputs)| {
            sums + weights.dot(*inputs)
        });
        let sum = self.bias[0][0] + sums.reduce_add();
        // Below 2^25 times below 2^31.
        let product = i64::from(sum) * i64::from(self.multipliers[0][0]);
        rounded_shift(product, self.shift).clamp(-MAX_TANH_INPUT_Q12, MAX_TANH_INPUT_Q12)
    }
}

/// `(number * multiplier + half) >> shift` for numbers of at least 0 that [`least_sum`] limits.
/// Scaling keeps the order and 0, so the limit may come before it. The result fits 32 bits. Vectors
/// compare 32-bit numbers, but not 64-bit ones.
#[inline]
fn scale_sums(numbers: i32x4, multipliers: u32x4, half: u64x4, shift: u32) -> i32x4 {
    let numbers = u32x4::new(numbers.to_array().map(|number| number as u32));
    let products = numbers.widening_mul(multipliers);
    let lanes = ((products + half) >> shift).to_array();
    i32x4::new(lanes.map(|lane| lane as i32))
}

/// Scaled numbers, limited to the range of activations.
#[inline]
fn limit_activations([low, high]: [i32x4; 2]) -> i16x8 {
    let [[a, b, c, d], [e, f, g, h]] = [low.to_array(), high.to_array()];
    let all = i32x8::new([a, b, c, d, e, f, g, h]);
    i16x8::from_i32x8_saturate(all).min(i16x8::splat(MAX_I8 as i16))
}

/// The least sum that a multiplier and a shift scale to 127 or beyond; the largest number if no sum
/// reaches it. Scaled, it is below 127 + 2^23: a sum less by one is below 127, and a step is at
/// most 2^31 / 2^8.
fn least_sum(multiplier: u32, shift: u32) -> i32 {
    let wanted = (127u64 << shift) - (1 << (shift - 1));
    match multiplier {
        0 => i32::MAX,
        _ => i32::try_from(wanted.div_ceil(u64::from(multiplier))).unwrap_or(i32::MAX),
    }
}

impl Network {
    /// A network of one to three layers. Each layer has as many rows as the next has columns; the
    /// last has one row. `input` turns a feature in Q15 into an activation.
    pub fn new(input: Scale, layers: Vec<Layer>) -> Result<Self, Fault> {
        if layers.is_empty() || layers.len() > MAX_LAYERS {
            let expected = format!("1 to {MAX_LAYERS}");
            return Err(Fault::new("layers", layers.len(), expected));
        }
        if layers[0].columns > MAX_INPUTS {
            let expected = format!("1 to {MAX_INPUTS} inputs");
            return Err(Fault::new("layer 0", layers[0].columns, expected));
        }
        for (number, pair) in layers.windows(2).enumerate() {
            if pair[0].rows != pair[1].columns {
                return Err(Fault::new(
                    format!("layer {}", number + 1),
                    format!("{} columns", pair[1].columns),
                    format!("{}, as many as layer {number} has rows", pair[0].rows),
                ));
            }
        }
        let last = &layers[layers.len() - 1];
        if last.rows != 1 {
            let field = format!("layer {}", layers.len() - 1);
            return Err(Fault::new(field, format!("{} rows", last.rows), "1"));
        }
        if input.multiplier > MAX_MULTIPLIER {
            return Err(Fault::new(
                "input.multiplier",
                input.multiplier,
                "0 to 2^31 - 1",
            ));
        }
        check_shift("input", input.shift)?;
        // One more, because a tie below 0 rounds towards 0: -126.5 is -126.
        let enough = least_sum(input.multiplier, input.shift).saturating_add(1);
        let enough = i32x4::splat(enough);
        let (_, hidden) = layers.split_last().expect("there is one at least");
        // Each layer but the first has as many columns as another has rows.
        let plain = hidden.iter().all(|layer| layer.plain);
        let narrow = plain.then(|| NarrowInput::new(input)).flatten();
        Ok(Self {
            input,
            enough,
            layers,
            narrow,
        })
    }

    /// Scale from features to activations.
    pub fn input_scale(&self) -> Scale {
        self.input
    }

    /// The layers, the output last.
    pub fn layers(&self) -> &[Layer] {
        &self.layers
    }

    /// Number of the network's inputs.
    pub fn input_count(&self) -> usize {
        self.layers[0].columns
    }

    /// The action, Q15, for features in Q15.
    ///
    /// Panics on fewer inputs than [`Self::input_count`]; more are ignored.
    pub fn infer(&self, inputs: &[i16]) -> i16 {
        let inputs = &inputs[..self.input_count()];
        match &self.narrow {
            Some(narrow) => self.infer_narrow(narrow, inputs),
            None => self.infer_wide(inputs),
        }
    }

    /// As [`Self::infer`], for narrow layers whose scaled numbers fit 32 bits. So none has to be
    /// limited before it is scaled.
    fn infer_narrow(&self, narrow: &NarrowInput, inputs: &[i16]) -> i16 {
        let scale_four = |features: [i16; 4]| {
            let moved = i32x4::new(features.map(|feature| i32::from(feature) + (1 << 15)));
            let multiplier = u32x4::splat(self.input.multiplier);
            let add = u64x4::splat(narrow.add);
            scale_sums(moved, multiplier, add, self.input.shift) - i32x4::splat(narrow.subtract)
        };
        let mut scaled = [i32x4::ZERO; NARROW / 4];
        if let Ok(four) = <[i16; 4]>::try_from(inputs) {
            scaled[0] = scale_four(four);
        } else {
            for (scaled, some) in scaled.iter_mut().zip(inputs.chunks(4)) {
                let mut four = [0; 4];
                four[..some.len()].copy_from_slice(some);
                *scaled = scale_four(four);
            }
        }
        let [a, b, c, d] = scaled;
        let least = i16x8::splat(-MAX_I8 as i16);
        let mut values = [
            limit_activations([a, b]).max(least),
            limit_activations([c, d]).max(least),
        ];
        let (last, hidden) = self.layers.split_last().expect("a network has a layer");
        for layer in hidden {
            values = layer.hidden_narrow(values);
        }
        tanh_q15(last.output_layer(&values))
    }

    fn infer_wide(&self, inputs: &[i16]) -> i16 {
        let (fours, rest) = inputs.as_chunks::<4>();
        let mut scaled = [i32x4::ZERO; MAX_INPUTS / 4];
        for (scaled, four) in scaled.iter_mut().zip(fours) {
            *scaled = self.scale_input(*four);
        }
        if !rest.is_empty() {
            let mut four = [0; 4];
            four[..rest.len()].copy_from_slice(rest);
            scaled[fours.len()] = self.scale_input(four);
        }
        let (last, hidden) = self.layers.split_last().expect("a network has a layer");
        let mut values = [i16x8::ZERO; MAX_WIDTH / 8];
        for (values, two) in values.iter_mut().zip(scaled.as_chunks::<2>().0) {
            let [low, high] = *two;
            let [[a, b, c, d], [e, f, g, h]] = [low.to_array(), high.to_array()];
            *values = i16x8::from_i32x8_saturate(i32x8::new([a, b, c, d, e, f, g, h]));
        }
        let mut next = [i16x8::ZERO; MAX_WIDTH / 8];
        for layer in hidden {
            layer.hidden_layer(&values, &mut next);
            std::mem::swap(&mut values, &mut next);
        }
        tanh_q15(last.output_layer(&values))
    }

    /// Features as activations.
    #[inline]
    fn scale_input(&self, features: [i16; 4]) -> i32x4 {
        let features = i32x4::new(features.map(i32::from));
        // All bits are ones below 0.
        let negative: i32x4 = features >> 31_i32;
        let size = features.abs().min(self.enough);
        // Ties go upwards: below 0, towards 0.
        let half = (1u64 << (self.input.shift - 1)) - 1;
        let half = u64x4::new(
            (!negative)
                .to_array()
                .map(|positive: i32| half + (positive & 1) as u64),
        );
        let multiplier = u32x4::splat(self.input.multiplier);
        let scaled =
            scale_sums(size, multiplier, half, self.input.shift).min(i32x4::splat(MAX_I8 as i32));
        (scaled ^ negative) - negative
    }
}

fn check_shift(name: &str, shift: u32) -> Result<(), Fault> {
    if SHIFTS.contains(&shift) {
        return Ok(());
    }
    let expected = format!("{} to {}", SHIFTS.start(), SHIFTS.end());
    Err(Fault::new(format!("{name}.shift"), shift, expected))
}

/// tanh of a number in Q12 within [`MAX_TANH_INPUT_Q12`], by linear interpolation in [`TANH_Q15`];
/// the error is at most 4 / 32768.
fn tanh_q15(z_q12: i64) -> i16 {
    let size = z_q12.unsigned_abs() as usize;
    let (entry, rest) = (size >> 7, (size & 127) as i32);
    let (low, high) = (i32::from(TANH_Q15[entry]), i32::from(TANH_Q15[entry + 1]));
    let value = (low + (((high - low) * rest + 64) >> 7)) as i16;
    if z_q12 < 0 { -value } else { value }
}

/// `tanh(i / 32)` in Q15, rounded to nearest, at most [`ONE_Q15`].
#[rustfmt::skip]
pub const TANH_Q15: [i16; 257] = [
    0, 1024, 2045, 3063, 4075, 5079, 6073, 7056, 8025, 8980, 9919, 10840,
    11743, 12625, 13486, 14326, 15143, 15936, 16706, 17452, 18173, 18870, 19542, 20189,
    20813, 21411, 21986, 22538, 23066, 23571, 24054, 24516, 24956, 25376, 25776, 26157,
    26519, 26864, 27191, 27502, 27797, 28076, 28341, 28592, 28830, 29055, 29268, 29470,
    29660, 29840, 30010, 30170, 30322, 30465, 30600, 30727, 30847, 30960, 31067, 31167,
    31262, 31351, 31435, 31515, 31589, 31659, 31726, 31788, 31846, 31901, 31953, 32002,
    32048, 32091, 32132, 32170, 32206, 32240, 32271, 32301, 32329, 32356, 32381, 32404,
    32426, 32447, 32466, 32484, 32501, 32517, 32532, 32547, 32560, 32573, 32584, 32596,
    32606, 32616, 32625, 32634, 32642, 32649, 32657, 32663, 32670, 32676, 32681, 32686,
    32691, 32696, 32700, 32704, 32708, 32712, 32715, 32718, 32721, 32724, 32727, 32729,
    32732, 32734, 32736, 32738, 32740, 32741, 32743, 32745, 32746, 32747, 32749, 32750,
    32751, 32752, 32753, 32754, 32755, 32755, 32756, 32757, 32758, 32758, 32759, 32759,
    32760, 32760, 32761, 32761, 32762, 32762, 32762, 32763, 32763, 32763, 32764, 32764,
    32764, 32764, 32765, 32765, 32765, 32765, 32765, 32766, 32766, 32766, 32766, 32766,
    32766, 32766, 32766, 32767, 32767, 32767, 32767, 32767, 32767, 32767, 32767, 32767,
    32767, 32767, 32767, 32767, 32767, 32767, 32767, 32767, 32767, 32767, 32767, 32767,
    32767, 32767, 32767, 32767, 32767, 32767, 32767, 32767, 32767, 32767, 32767, 32767,
    32767, 32767, 32767, 32767, 32767, 32767, 32767, 32767, 32767, 32767, 32767, 32767,
    32767, 32767, 32767, 32767, 32767, 32767, 32767, 32767, 32767, 32767, 32767, 32767,
    32767, 32767, 32767, 32767, 32767, 32767, 32767, 32767, 32767, 32767, 32767, 32767,
    32767, 32767, 32767, 32767, 32767, 32767, 32767, 32767, 32767, 32767, 32767, 32767,
    32767, 32767, 32767, 32767, 32767,
];

const _: () = assert!(TANH_Q15[256] == ONE_Q15);

#[cfg(test)]
mod tests;
