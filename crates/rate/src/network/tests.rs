use super::*;

#[test]
fn the_table_is_that_of_tanh_and_lines_between_are_close() {
    for (i, entry) in TANH_Q15.iter().enumerate() {
        let exact = (32768.0 * (i as f64 / 32.0).tanh()).round().min(32767.0);
        assert_eq!(f64::from(*entry), exact, "entry {i}");
    }
    for z_q12 in -MAX_TANH_INPUT_Q12..=MAX_TANH_INPUT_Q12 {
        let exact = 32768.0 * (z_q12 as f64 / 4096.0).tanh();
        let error = f64::from(tanh_q15(z_q12)) - exact;
        assert!(error.abs() < 4.0, "{z_q12}: off by {error}");
    }
}

/// A feature of -32767 times 512 / 2^17 is -127.996, which counts as -127. The rounding at -32384
/// would give -126.
#[test]
fn the_lowest_feature_is_the_lowest_activation() {
    let input = Scale {
        multiplier: 512,
        shift: 17,
    };
    // -127 * -1 in Q12 times 2^5 is 4064; 126 would give 4032.
    let output = Layer::new("output", 1, &[-1], &[0], &[1 << 25], 20).unwrap();
    let network = Network::new(input, vec![output]).unwrap();
    assert_eq!(network.infer(&[-32767]), tanh_q15(4064));
    assert_eq!(network.infer(&[-32384]), tanh_q15(4032));
}

fn one_layer(name: &str, columns: usize, weights: &[i8], rows: usize) -> Layer {
    Layer::new(
        name,
        columns,
        weights,
        &vec![0; rows],
        &vec![1 << 30; rows],
        40,
    )
    .unwrap()
}

/// Two layers by hand.
#[test]
fn a_small_network_by_hand() {
    // Features of 1 and -1/2 become 127 and -63: -63.5, ties upwards.
    let input = Scale {
        multiplier: 127,
        shift: 15,
    };
    // Row 0: 2 * 127 + -3 * -63 + 10 = 453; a quarter of it is 113. Row 1: negative, so 0.
    let hidden = Layer::new("hidden", 2, &[2, -3, -1, 0], &[10, 0], &[1 << 28; 2], 30).unwrap();
    // 113 * -4 = -452, times 8 is -3616 in Q12: -0.8828.
    let output = Layer::new("output", 2, &[-4, 100], &[0], &[1 << 30], 27).unwrap();
    let network = Network::new(input, vec![hidden, output]).unwrap();
    let action = f64::from(network.infer(&[32767, -16384])) / 32768.0;
    assert!(
        (action - (-3616.0f64 / 4096.0).tanh()).abs() < 2e-4,
        "{action}"
    );
}

#[test]
fn the_largest_sums_do_not_overflow() {
    let bias = [MAX_BIAS; MAX_WIDTH];
    let multipliers = [MAX_MULTIPLIER; MAX_WIDTH];
    let layer = |columns, rows: usize, shift| {
        let weights = vec![127i8; rows * columns];
        Layer::new(
            "l",
            columns,
            &weights,
            &bias[..rows],
            &multipliers[..rows],
            shift,
        )
        .unwrap()
    };
    // With a shift of 25, the scaled sums of narrow layers still fit 32 bits; with 24 they do not.
    let shifts = [*SHIFTS.start(), 23, 24, 25, *SHIFTS.end()];
    for (width, shift) in [MAX_WIDTH, NARROW]
        .into_iter()
        .flat_map(|width| shifts.map(|shift| (width, shift)))
    {
        let input = Scale {
            multiplier: MAX_MULTIPLIER,
            shift,
        };
        let layers = vec![
            layer(16, width, shift),
            layer(width, width, shift),
            layer(width, 1, 8),
        ];
        let network = Network::new(input, layers).unwrap();
        assert_eq!(network.infer(&[32767; 16]), 32767);
        assert_eq!(network.infer(&[-32767; 16]), 32767, "biases are positive");
    }
}

/// The formulas of docs/reference/model.md, in 128 bits, one number at a time.
fn by_the_formulas(network: &Network, inputs: &[i16]) -> i16 {
    let rounded = |product: i128, shift: u32| (product + (1 << (shift - 1))) >> shift;
    let Scale { multiplier, shift } = network.input_scale();
    let mut values: Vec<i128> = (inputs.iter())
        .map(|input| rounded(i128::from(*input) * i128::from(multiplier), shift))
        .map(|value| value.clamp(-127, 127))
        .collect();
    for (number, layer) in network.layers().iter().enumerate() {
        let last = number + 1 == network.layers().len();
        let (least, most) = if last { (-32767, 32767) } else { (0, 127) };
        let rows = 0..layer.row_count();
        values = rows
            .map(|row| {
                let products = values
                    .iter()
                    .enumerate()
                    .map(|(column, value)| i128::from(layer.weight(row, column)) * value);
                let sum = products.sum::<i128>() + i128::from(layer.bias()[row]);
                let scaled = rounded(sum * i128::from(layer.multipliers()[row]), layer.shift());
                scaled.clamp(least, most)
            })
            .collect();
    }
    tanh_q15(values[0] as i64)
}

/// Networks of all widths, with scales of all sizes, against the formulas.
#[test]
fn vectors_compute_what_the_formulas_say() {
    let mut state = 0x2545_f491_4f6c_dd1d_u64;
    let mut below = |bound: u64| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 20) % bound
    };
    let mut distinct = std::collections::BTreeSet::new();
    let mut narrow = 0;
    for round in 0..3_000 {
        let mut widths = vec![1 + below(16) as usize];
        widths.extend((0..below(3)).map(|_| 1 + below(32) as usize));
        widths.push(1);
        let layers = (widths.windows(2))
            .map(|pair| {
                let (columns, rows) = (pair[0], pair[1]);
                let weights: Vec<i8> = (0..rows * columns)
                    .map(|_| (below(255) as i16 - 127) as i8)
                    .collect();
                let bias_bits = below(25);
                let bias: Vec<i32> = (0..rows)
                    .map(|_| below(2 << bias_bits) as i32 - (1 << bias_bits))
                    .collect();
                // Mostly scales with results between the limits, sometimes any scale.
                let shift = if round % 3 == 0 {
                    8 + below(49)
                } else {
                    34 + below(8)
                } as u32;
                let multipliers: Vec<u32> = (0..rows)
                    .map(|_| (below(1 << 31) >> (below(8) * below(5))) as u32)
                    .collect();
                Layer::new("layer", columns, &weights, &bias, &multipliers, shift).unwrap()
            })
            .collect();
        let input = Scale {
            multiplier: (below(1 << 31) >> below(31)) as u32,
            shift: if round % 3 == 0 {
                8 + below(49)
            } else {
                30 + below(12)
            } as u32,
        };
        let network = Network::new(input, layers).unwrap();
        narrow += u32::from(network.narrow.is_some());
        for _ in 0..4 {
            let inputs: Vec<i16> = (0..network.input_count())
                .map(|_| match below(8) {
                    0 => [-32767, -1, 0, 1, 32767][below(5) as usize],
                    _ => (below(65535) as i32 - 32767) as i16,
                })
                .collect();
            let found = network.infer(&inputs);
            assert_eq!(
                found,
                by_the_formulas(&network, &inputs),
                "{network:?} {inputs:?}"
            );
            distinct.insert(found);
        }
    }
    assert!(distinct.len() > 500, "only {} actions", distinct.len());
    assert!(
        (500..2_500).contains(&narrow),
        "{narrow} of 3000 are narrow"
    );
}

#[test]
fn what_does_not_fit_is_refused() {
    let refused = |columns, weights: &[i8], bias: &[i32], multipliers: &[u32], shift| {
        Layer::new("layers.0", columns, weights, bias, multipliers, shift)
            .unwrap_err()
            .to_string()
    };
    assert!(refused(33, &[], &[], &[1], 30).starts_with("layers.0.columns: found 33"));
    assert!(refused(1, &[], &[], &[], 30).starts_with("layers.0.rows: found 0"));
    assert!(refused(2, &[1], &[0], &[1], 30).contains("found 1, expected 1 rows of 2"));
    assert!(refused(1, &[1], &[0, 0], &[1], 30).starts_with("layers.0.bias_q: found 2"));
    assert!(refused(2, &[1, -128], &[0], &[1], 30).contains("weight_q[0, 1]: found -128"));
    assert!(refused(1, &[1], &[1 << 25], &[1], 30).contains("bias_q[0]"));
    assert!(refused(1, &[1], &[i32::MIN], &[1], 30).contains("bias_q[0]"));
    assert!(refused(1, &[1], &[0], &[1 << 31], 30).contains("multiplier[0]"));
    assert!(refused(1, &[1], &[0], &[1], 57).contains("shift: found 57, expected 8 to 56"));

    let input = Scale {
        multiplier: 1,
        shift: 30,
    };
    let network = |layers| Network::new(input, layers).unwrap_err().to_string();
    assert!(network(vec![]).starts_with("layers: found 0"));
    let wide = one_layer("a", 2, &[1; 6], 3);
    let out = one_layer("b", 3, &[1; 3], 1);
    assert!(network(vec![wide.clone()]).contains("3 rows, expected 1"));
    let four = one_layer("c", 4, &[1; 4], 1);
    assert!(network(vec![wide.clone(), four]).contains("4 columns, expected 3"));
    assert!(network(vec![one_layer("d", 17, &[1; 17], 1)]).contains("1 to 16 inputs"));
    let deep = vec![out.clone(); 4];
    assert!(network(deep).starts_with("layers: found 4"));
}
