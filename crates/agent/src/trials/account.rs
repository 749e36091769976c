//! Account of a setting: connections with it against its control group, over all networks where it is
//! in force. Measures are ratios with intervals of 95 %.

use std::collections::HashMap;

use thalweg_learner::HostKey;

use super::{COMPARED, Effect, Times};
use crate::view::{EffectRatio, FeatureEffect};

/// Standard errors of an interval of 95 %.
const Z: f64 = 1.96;
/// Connections of each group before times are compared: of fewer the mean is not normal.
const CONNECTIONS: f64 = 30.0;
/// Largest number of running means.
const NETWORKS_MAX: usize = 8192;
/// Connections that a network's running mean is of.
const MEAN_OF: f64 = 64.0;
/// Bins of the histogram of durations in a doubling, and doublings from 1 µs on.
const BINS: f64 = 32.0;
const DOUBLINGS: usize = 36;
/// Quantile of durations.
const QUANTILE: f64 = 0.99;

/// Kind of a transfer, which decides on its measure of time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A long connection: its goodput.
    Long,
    /// A short connection: its duration.
    Short,
    /// So many exchanges of a cluster, as a sum: their time alone.
    Exchanges(u32),
}

/// Transfer of a connection that was drawn into a group, once it is over.
#[derive(Clone, Copy, Debug)]
pub struct Transfer {
    /// Remote network.
    pub network: HostKey,
    /// Whether the draw gave it the setting.
    pub is_treated: bool,
    /// Probability of its group. Groups have other shares of each network: a connection counts for
    /// one over it.
    pub probability: f64,
    /// Kind of the transfer.
    pub kind: Kind,
    /// Number of the cluster of exchanges; `None`: a whole connection.
    pub cluster: Option<u32>,
    /// Acknowledged bytes.
    pub bytes: u64,
    /// Time with data outstanding, µs.
    pub us: u64,
    /// Data segments that were sent.
    pub segs: u32,
    /// Retransmissions among them.
    pub retrans: u32,
}

/// Sums for the share of segments that were sent again, a ratio estimator with connections as clusters.
#[derive(Clone, Copy, Debug, Default)]
struct Retransmissions {
    segs: f64,
    retrans: f64,
    segs_squared: f64,
    retrans_squared: f64,
    product: f64,
}

impl Retransmissions {
    fn add(&mut self, segs: u32, retrans: u32, weight: f64) {
        let (segs, retrans) = (weight * f64::from(segs), weight * f64::from(retrans));
        self.segs += segs;
        self.retrans += retrans;
        self.segs_squared += segs * segs;
        self.retrans_squared += retrans * retrans;
        self.product += segs * retrans;
    }

    /// Logarithm of the share, bits, and the square of its standard error (delta method); `None`: too
    /// few connections have retransmitted.
    fn share_bits(&self) -> Option<(f64, f64)> {
        // Number of connections with as many retransmissions each that would tell as much.
        if self.retrans * self.retrans < COMPARED * self.retrans_squared || self.retrans == 0.0 {
            return None;
        }
        let share = self.retrans / self.segs;
        let squares =
            self.retrans_squared - 2.0 * share * self.product + share * share * self.segs_squared;
        let relative = squares.max(0.0) / (self.retrans * self.retrans);
        let bits_squared = std::f64::consts::LOG2_E * std::f64::consts::LOG2_E;
        Some((share.log2(), relative * bits_squared))
    }
}

/// Histogram of durations in logarithmic bins.
#[derive(Clone, Debug, Default)]
struct Durations {
    bins: Vec<f64>,
    weight: f64,
    weights_squared: f64,
}

/// Quantile, bits, with its interval.
#[derive(Clone, Copy, Debug)]
struct Quantile {
    low: f64,
    bits: f64,
    high: f64,
}

impl Durations {
    fn add(&mut self, bits: f64, weight: f64) {
        let last = DOUBLINGS * BINS as usize - 1;
        self.bins.resize(last + 1, 0.0);
        self.bins[((bits * BINS) as usize).min(last)] += weight;
        self.weight += weight;
        self.weights_squared += weight * weight;
    }

    /// The bin of a quantile; `None`: no duration is beyond it.
    fn bin(&self, quantile: f64) -> Option<f64> {
        let (wanted, mut sum) = (quantile * self.weight, 0.0);
        let reaches = |weight: &f64| {
            sum += weight;
            sum >= wanted
        };
        let at = self.bins.iter().position(reaches);
        at.filter(|_| quantile < 1.0).map(|bin| bin as f64)
    }

    /// The quantile, between order statistics that the binomial distribution gives; `None`: too few.
    fn quantile(&self) -> Option<Quantile> {
        if self.weight == 0.0 {
            return None;
        }
        let connections = self.weight * self.weight / self.weights_squared;
        let half = Z * (QUANTILE * (1.0 - QUANTILE) / connections).sqrt();
        Some(Quantile {
            low: self.bin(QUANTILE - half)? / BINS,
            bits: (self.bin(QUANTILE)? + 0.5) / BINS,
            high: (self.bin(QUANTILE + half)? + 1.0) / BINS,
        })
    }
}

/// Sums over a group.
#[derive(Clone, Debug, Default)]
struct Group {
    transfers: u64,
    /// Times of long transfers, then of the others, beside their network's running mean.
    times: [Times; 2],
    durations: Durations,
    retransmissions: Retransmissions,
}

/// Account of a setting since the session began. Nothing is forgotten: both groups are of one time.
#[derive(Debug, Default)]
pub struct Account {
    groups: [Group; 2],
    /// Number and running mean of the logarithms of times, of both groups, by network and whether they
    /// are long. A connection is compared with those before it, so networks that differ add no error.
    means: HashMap<(HostKey, bool), (f64, f64)>,
}

impl Account {
    /// Adds a transfer to a network where the setting is in force.
    pub fn add(&mut self, transfer: &Transfer) {
        let weight = match transfer.kind {
            Kind::Exchanges(number) => f64::from(number.max(1)),
            _ => 1.0,
        } / transfer.probability;
        let group = &mut self.groups[usize::from(transfer.is_treated)];
        group.transfers += 1;
        if transfer.cluster.is_none() {
            let retransmissions = &mut group.retransmissions;
            retransmissions.add(transfer.segs, transfer.retrans, 1.0 / transfer.probability);
        }
        if transfer.us == 0 || transfer.bytes == 0 {
            return;
        }
        let duration = (transfer.us as f64).log2();
        let bits = match transfer.kind {
            Kind::Short => duration,
            _ => duration - (transfer.bytes as f64).log2(),
        };
        if transfer.kind == Kind::Short {
            group.durations.add(duration, weight);
        }
        let is_long = transfer.kind == Kind::Long;
        if let Some(mean) = self.exchange_mean((transfer.network, is_long), bits) {
            let group = &mut self.groups[usize::from(transfer.is_treated)];
            group.times[usize::from(!is_long)].add_bits(bits - mean, weight, transfer.cluster);
        }
    }

    /// Running mean before a transfer, which it then counts; `None`: the transfer is the first.
    fn exchange_mean(&mut self, key: (HostKey, bool), bits: f64) -> Option<f64> {
        if self.means.len() >= NETWORKS_MAX && !self.means.contains_key(&key) {
            self.means.clear();
        }
        let (number, mean) = self.means.entry(key).or_default();
        let before = (*number > 0.0).then_some(*mean);
        *number = (*number + 1.0).min(MEAN_OF);
        *mean += (bits - *mean) / *number;
        before
    }

    /// Effect of a feature's setting.
    pub fn effect(&self, feature: &str) -> FeatureEffect {
        let [control, treated] = &self.groups;
        let [long, short] = [0, 1].map(|at| time_effect(&control.times[at], &treated.times[at]));
        FeatureEffect {
            feature: feature.to_owned(),
            treated: treated.transfers,
            control: control.transfers,
            goodput: long.map(|it| EffectRatio {
                ratio: it.ratio().recip(),
                low: it.interval().1.recip(),
                high: it.interval().0.recip(),
            }),
            completion: short.map(ratio_of),
            completion_p99: self.quantile_ratio(),
            retransmitted: self.retransmission_ratio(),
        }
    }

    /// Ratio of quantiles; its interval combines those of both (MOVER; Zou and Donner, 2008).
    fn quantile_ratio(&self) -> Option<EffectRatio> {
        let [control, treated] = &self.groups;
        let (control, treated) = (control.durations.quantile()?, treated.durations.quantile()?);
        let bits = treated.bits - control.bits;
        let below = (treated.bits - treated.low).hypot(control.high - control.bits);
        let above = (treated.high - treated.bits).hypot(control.bits - control.low);
        Some(EffectRatio {
            ratio: bits.exp2(),
            low: (bits - below).exp2(),
            high: (bits + above).exp2(),
        })
    }

    fn retransmission_ratio(&self) -> Option<EffectRatio> {
        let [control, treated] = &self.groups;
        let (control, control_squared) = control.retransmissions.share_bits()?;
        let (treated, treated_squared) = treated.retransmissions.share_bits()?;
        Some(ratio_of(Effect {
            bits: treated - control,
            error_bits: (control_squared + treated_squared).sqrt(),
        }))
    }
}

fn time_effect(control: &Times, treated: &Times) -> Option<Effect> {
    let are_enough = control.clusters().min(treated.clusters()) >= CONNECTIONS;
    are_enough
        .then(|| Effect::new([(control, treated)]))
        .flatten()
}

fn ratio_of(effect: Effect) -> EffectRatio {
    let (low, high) = effect.interval();
    EffectRatio {
        ratio: effect.ratio(),
        low,
        high,
    }
}

#[cfg(test)]
mod tests {
    use thalweg_learner::{HostKey, Level};

    use super::{Account, Kind, Transfer};
    use crate::view::{EffectRatio, FeatureEffect};

    /// Random numbers (SplitMix64).
    struct Random(u64);

    impl Random {
        fn uniform(&mut self) -> f64 {
            self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mut it = self.0;
            it = (it ^ (it >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            it = (it ^ (it >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            ((it ^ (it >> 31)) >> 11) as f64 / (1u64 << 53) as f64
        }

        fn exponential(&mut self) -> f64 {
            -(1.0 - self.uniform()).ln()
        }
    }

    fn network(number: u8) -> HostKey {
        HostKey {
            netns: 1,
            addr: [number; 16],
            prefix_len: 24,
            level: Level::Prefix,
        }
    }

    /// Effect of a setting that multiplies times, and retransmissions, over networks whose times differ
    /// by a factor of 128 and whose groups have other shares.
    fn effect(seed: u64, time: f64, retransmitted: f64) -> FeatureEffect {
        let (mut random, mut account) = (Random(seed), Account::default());
        for number in 0..2400 {
            let at = (random.uniform() * 8.0) as u8;
            let share = if at < 4 { 0.5 } else { 0.8 };
            let is_treated = random.uniform() < share;
            let factor = |of: f64| if is_treated { of } else { 1.0 };
            let kind = if number % 8 == 0 {
                Kind::Long
            } else {
                Kind::Short
            };
            let segs = if kind == Kind::Long { 200 } else { 10 };
            let scale = 1000.0 * f64::from(1u32 << at) * f64::from(segs);
            // A connection has a rate of losses of its own.
            let loss = 0.02 * random.exponential() * factor(retransmitted);
            account.add(&Transfer {
                network: network(at),
                is_treated,
                probability: if is_treated { share } else { 1.0 - share },
                kind,
                cluster: None,
                bytes: 1460 * u64::from(segs),
                us: 1 + (scale * random.exponential() * factor(time)) as u64,
                segs,
                retrans: (0..segs).filter(|_| random.uniform() < loss).count() as u32,
            });
        }
        account.effect("timers")
    }

    /// Share of seeds whose interval has the truth in it.
    fn coverage(time: f64, retransmitted: f64) -> [f64; 4] {
        const SEEDS: u64 = 400;
        let mut counts = [0.0; 4];
        for seed in 0..SEEDS {
            let found = effect(seed << 32, time, retransmitted);
            let holds = |found: Option<EffectRatio>, truth: f64| {
                let found = found.expect("there are enough connections");
                assert!(
                    found.low < found.ratio && found.ratio < found.high,
                    "{found:?}"
                );
                f64::from(u8::from(found.low < truth && truth < found.high))
            };
            let measures = [
                holds(found.goodput, time.recip()),
                holds(found.completion, time),
                holds(found.completion_p99, time),
                holds(found.retransmitted, retransmitted),
            ];
            for (count, held) in counts.iter_mut().zip(measures) {
                *count += held / SEEDS as f64;
            }
        }
        counts
    }

    #[test]
    fn intervals_have_a_known_ratio_in_them_as_often_as_they_say() {
        // Three standard errors of 400 draws are 0.033.
        for share in coverage(0.5, 1.5) {
            assert!(share > 0.917, "{share}");
        }
    }

    #[test]
    fn a_setting_that_does_nothing_has_one_in_its_intervals() {
        for share in coverage(1.0, 1.0) {
            assert!(share > 0.917, "{share}");
        }
    }

    #[test]
    fn intervals_exclude_one_where_the_setting_does_something() {
        let found = effect(7, 0.5, 2.0);
        assert!(found.goodput.is_some_and(|it| it.low > 1.0), "{found:?}");
        assert!(
            found.completion.is_some_and(|it| it.high < 1.0),
            "{found:?}"
        );
        assert!(
            found.completion_p99.is_some_and(|it| it.high < 1.0),
            "{found:?}"
        );
        assert!(
            found.retransmitted.is_some_and(|it| it.low > 1.0),
            "{found:?}"
        );
        assert_eq!(found.treated + found.control, 2400);
    }

    #[test]
    fn shares_of_segments_are_compared_and_not_of_connections() {
        let mut account = Account::default();
        for number in 0..200 {
            let (is_treated, is_long) = (number % 2 == 0, number % 4 < 2);
            let segs = if is_long { 900 } else { 100 };
            account.add(&Transfer {
                network: network(1),
                is_treated,
                probability: 0.5,
                kind: Kind::Long,
                cluster: None,
                bytes: 1,
                us: 1,
                segs,
                // 2 % of segments, or 1 %, of long connections alone.
                retrans: if is_long {
                    20 >> u32::from(!is_treated)
                } else {
                    0
                },
            });
        }
        let found = account.effect("timers").retransmitted;
        let ratio = found.map(|it| (it.ratio * 1e6).round());
        assert_eq!(ratio, Some(2e6), "{found:?}");
    }

    #[test]
    fn few_connections_have_no_ratios_and_sums_no_quantiles() {
        let mut account = Account::default();
        for number in 0..4000 {
            account.add(&Transfer {
                network: network(1),
                is_treated: number % 2 == 0,
                probability: 0.5,
                kind: Kind::Exchanges(8),
                cluster: None,
                bytes: 100_000,
                us: 1000 + number,
                segs: 100,
                retrans: 0,
            });
            if number == 40 {
                assert_eq!(account.effect("idle").completion, None);
            }
        }
        let found = account.effect("idle");
        assert!(found.completion.is_some(), "{found:?}");
        assert_eq!(
            (found.goodput, found.completion_p99, found.retransmitted),
            (None, None, None)
        );
    }
}
