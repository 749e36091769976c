//! The percentile bootstrap of a comparison of two medians.

use thalweg_report::sample;
use thalweg_units::random::Random;

use super::Options;

/// The interval of `compare(median of a, median of b)`. Neither may be empty.
pub(super) fn bootstrap_interval(
    a: &[f64],
    b: &[f64],
    options: &Options,
    compare: impl Fn(f64, f64) -> f64,
) -> (f64, f64) {
    // Sorting once suffices: a resample is then a count per place, and walking the counts finds its
    // median.
    let sorted = |values: &[f64]| {
        let mut values = values.to_vec();
        values.sort_by(f64::total_cmp);
        values
    };
    let (a, b) = (sorted(a), sorted(b));
    let mut random = Random::new(options.seed);
    let mut counts = vec![0u32; a.len().max(b.len())];
    let values: Vec<f64> = (0..options.resamples)
        .map(|_| {
            let first = resampled_median(&a, &mut random, &mut counts);
            let second = resampled_median(&b, &mut random, &mut counts);
            compare(first, second)
        })
        .collect();
    let tail = (1.0 - options.confidence) / 2.0;
    let end = |share| sample::quantile(&values, share).unwrap_or(f64::NAN);
    (end(tail), end(1.0 - tail))
}

/// The median of as many draws, with replacement, as there are sorted values.
fn resampled_median(sorted: &[f64], random: &mut Random, counts: &mut [u32]) -> f64 {
    let length = sorted.len();
    let counts = &mut counts[..length];
    counts.fill(0);
    for _ in 0..length {
        counts[random.below(length as u64) as usize] += 1;
    }
    let at = |rank: usize| {
        let mut passed = 0;
        let place = counts.iter().position(|count| {
            passed += *count as usize;
            passed > rank
        });
        // The counts sum to the length, and the rank is below it.
        sorted[place.unwrap_or(length - 1)]
    };
    let (low, high) = (at((length - 1) / 2), at(length / 2));
    if low == high {
        low
    } else {
        low + (high - low) / 2.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Normal draws (Box and Muller 1958).
    fn normal(random: &mut Random) -> f64 {
        let radius = (-2.0 * (1.0 - random.fraction()).ln()).sqrt();
        radius * (std::f64::consts::TAU * random.fraction()).cos()
    }

    /// The share of sample pairs whose interval holds the known ratio of medians. The samples are
    /// log-normal, like goodput under loss.
    fn coverage(a: usize, b: usize, ratio: f64, trials: u32) -> f64 {
        let mut random = Random::new(7);
        let mut held = 0;
        for trial in 0..trials {
            let mut sample = |size: usize, median: f64| -> Vec<f64> {
                (0..size)
                    .map(|_| median * (0.6 * normal(&mut random)).exp())
                    .collect()
            };
            let (old, new) = (sample(a, 100.0), sample(b, 100.0 * ratio));
            let options = Options {
                resamples: 1_000,
                seed: u64::from(trial),
                ..Options::default()
            };
            let (low, high) = bootstrap_interval(&old, &new, &options, |a, b| b / a);
            held += u32::from((low..=high).contains(&ratio));
        }
        f64::from(held) / f64::from(trials)
    }

    #[test]
    fn intervals_hold_the_true_ratio_about_as_often_as_they_say() {
        // With 600 trials, three standard errors of 95 % are 2.7 points. The percentile interval of
        // a median is a little wide for small samples.
        for (a, b, ratio) in [(60, 60, 1.0), (30, 60, 1.5), (20, 20, 0.5)] {
            let held = coverage(a, b, ratio, 600);
            println!("{a} against {b}, ratio {ratio}: {held:.3} of 600 intervals hold it");
            assert!((0.923..=0.99).contains(&held), "{a}, {b}, {ratio}: {held}");
        }
    }

    #[test]
    fn a_resampled_median_is_one_of_the_values_and_centred() {
        let sorted = [1.0, 2.0, 3.0, 4.0, 100.0];
        let mut random = Random::new(1);
        let mut counts = vec![0; 5];
        let draws: Vec<f64> = (0..10_000)
            .map(|_| resampled_median(&sorted, &mut random, &mut counts))
            .collect();
        assert!(draws.iter().all(|draw| sorted.contains(draw)));
        assert_eq!(sample::median(&draws), Some(3.0));
        // Chance that at least 3 of 5 draws are the largest: Σ C(5,k)·4^(5−k)/5^5
        // for k = 3, 4, 5 = 181/3125.
        let largest = draws.iter().filter(|draw| **draw == 100.0).count() as f64 / 10_000.0;
        assert!((largest - 181.0 / 3125.0).abs() < 0.01, "{largest}");
    }

    #[test]
    fn the_same_seed_gives_the_same_interval() {
        let a: Vec<f64> = (1..30).map(f64::from).collect();
        let b: Vec<f64> = (5..40).map(f64::from).collect();
        let with = |seed| {
            let options = Options {
                seed,
                ..Options::default()
            };
            bootstrap_interval(&a, &b, &options, |a, b| b / a)
        };
        assert_eq!(with(3), with(3));
        let (low, high) = with(3);
        assert!(low <= 22.0 / 15.0 && 22.0 / 15.0 <= high);
    }
}
