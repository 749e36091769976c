//! Nanoseconds per decision of the learned rate controller, in this process, without the kernel.

use std::hint::black_box;
use std::time::Duration;

use anyhow::Result;
use nix::time::{ClockId, clock_gettime};
use thalweg_rate::models::{FloatLayer, Network as FloatNetwork};
use thalweg_rate::{
    Decider, Feature, FeatureKind, Features, Flow, Forest, Layer, Measurement, Model, Network,
    Node, Scale,
};

use crate::table::{Target, line, spread};

/// Widths of the published network.
const WIDTHS: [usize; 4] = [4, 12, 12, 1];
/// Number of different inputs, so that the branch predictor cannot learn them.
const INPUTS: usize = 4096;
const ROUNDS: usize = 101;

/// Random numbers; xorshift, seeded.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn q15(&mut self) -> i16 {
        ((self.next() >> 20) as i16).max(-i16::MAX)
    }

    fn unit(&mut self) -> f32 {
        f32::from(self.q15()) / 32768.0
    }
}

/// Runs the measurement; returns whether the targets are met.
pub fn run() -> Result<bool> {
    let mut random = Random(0x2545_f491_4f6c_dd1d);
    let float = float_network(&mut random)?;
    let integer = integer_network(&mut random)?;
    let tree = forest(&mut random, 1, 8)?;
    let boosted = forest(&mut random, 32, 4)?;
    let list = [FeatureKind::Action, FeatureKind::Error].map(|kind| Feature {
        kind,
        scale_q16: 1 << 16,
    });
    let features = Features::new(list.to_vec(), 2, 1 << 22, 1 << 16)?;
    let whole = Model::new(features, Decider::Network(integer.clone()))?;

    let fixed: Vec<[i16; 4]> = (0..INPUTS)
        .map(|_| std::array::from_fn(|_| random.q15()))
        .collect();
    let floats: Vec<[f32; 4]> = fixed
        .iter()
        .map(|inputs| inputs.map(|input| f32::from(input) / 32768.0))
        .collect();
    let times: Vec<u64> = (0..INPUTS)
        .map(|_| 10_000 + random.next() % 40_000)
        .collect();

    let mut met = true;
    met &= measure("4-12-12-1, 32-bit floats", None, |i| {
        black_box(float.infer(&floats[i]));
    })?;
    met &= measure("4-12-12-1, 8-bit integers", Some(30.0), |i| {
        black_box(integer.infer(&fixed[i]));
    })?;
    met &= measure("one tree of depth 8", None, |i| {
        black_box(tree.infer(&fixed[i]));
    })?;
    met &= measure("32 trees of depth 4", None, |i| {
        black_box(boosted.infer(&fixed[i]));
    })?;
    let mut flow = Flow::default();
    met &= measure("features, 4-12-12-1 in integers, memory", None, |i| {
        let measurement = Measurement {
            rtt_ns: times[i],
            base_rtt_ns: 12_000,
            rate: 1_000_000_000 + 77_000 * times[i],
            line_rate: 100_000_000_000,
        };
        black_box(whole.decide_action(&mut flow, &measurement));
    })?;
    Ok(met)
}

/// Processor time of this thread: the machine's load matters little.
pub fn now() -> Result<Duration> {
    Ok(clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID)?.into())
}

fn measure(name: &str, at_most_ns: Option<f64>, mut decide: impl FnMut(usize)) -> Result<bool> {
    let mut rounds = Vec::new();
    for _ in 0..ROUNDS {
        let start = now()?;
        for i in 0..INPUTS {
            decide(black_box(i));
        }
        rounds.push((now()? - start).as_nanos() as f64 / INPUTS as f64);
    }
    let spread = spread(&rounds);
    Ok(match at_most_ns {
        Some(most) => line(name, "ns", &spread, &Target::AtMost(most)),
        None => {
            println!(
                "{name:<68} {:>9.3} ns       [{:.3} … {:.3}] n={}",
                spread.median, spread.low, spread.high, spread.count
            );
            true
        }
    })
}

fn float_network(random: &mut Random) -> Result<FloatNetwork> {
    let mut layers = Vec::new();
    for pair in WIDTHS.windows(2) {
        let weights: Vec<f32> = (0..pair[0] * pair[1]).map(|_| random.unit()).collect();
        layers.push(FloatLayer::new("", pair[0], &weights, &vec![0.0; pair[1]])?);
    }
    Ok(FloatNetwork::new(layers)?)
}

fn integer_network(random: &mut Random) -> Result<Network> {
    let mut layers = Vec::new();
    for pair in WIDTHS.windows(2) {
        let weights: Vec<i8> = (0..pair[0] * pair[1])
            .map(|_| (random.q15() / 259) as i8)
            .collect();
        let (bias, multipliers) = (vec![0; pair[1]], vec![3 << 29; pair[1]]);
        // About 2^-8: sums of a dozen products become a few dozen.
        layers.push(Layer::new("", pair[0], &weights, &bias, &multipliers, 38)?);
    }
    let input = Scale {
        multiplier: 127 << 23,
        shift: 38,
    };
    Ok(Network::new(input, layers)?)
}

fn forest(random: &mut Random, trees: usize, depth: u32) -> Result<Forest> {
    let (mut nodes, mut roots) = (Vec::new(), Vec::new());
    for _ in 0..trees {
        let root = nodes.len() as u16;
        roots.push(root);
        for at in 0..(2u16 << depth) - 1 {
            let leaf = at >= (1 << depth) - 1;
            let (left, right) = if leaf {
                (at, at)
            } else {
                (2 * at + 1, 2 * at + 2)
            };
            nodes.push(Node {
                input: (random.next() >> 40) as u8 % 4,
                threshold_q15: random.q15(),
                left: root + left,
                right: root + right,
                value_q15: i32::from(random.q15()) / trees as i32,
            });
        }
    }
    Ok(Forest::new(nodes, roots, 4)?)
}
