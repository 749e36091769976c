//! Trials of a setting on the connections of a network: a group with it, one without, and what follows.

use std::collections::HashMap;
use std::net::IpAddr;

use thalweg_learner::{HostKey, Level};

use crate::kernel::Setup;
use crate::store::KeptWait;

pub mod account;

/// Connections of each group before times are compared: each new one compares again.
pub const COMPARED: f64 = 12.0;
/// Largest extra time of transfers against the control group, bits, and in standard errors.
const SLOWER_BITS: f64 = 0.1;
const SLOWER_ERRORS: f64 = 4.0;
/// Weight of old connections against a new one.
const MEMORY: f64 = 1000.0;
/// Wait after harm; doubled each time, up to a day.
pub const WAIT_NS: u64 = 600_000_000_000;
const WAIT_MAX_NS: u64 = 86_400_000_000_000;

/// Most clusters that are still added to.
const OPEN_MAX: usize = 64;

/// A cluster: transfers that are alike, as those of one connection.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Cluster {
    number: u32,
    weight: f64,
    /// Weighted sum of the logarithms of times, bits.
    bits: f64,
}

/// Mean of the logarithms of times of transfers, bits (log₂ of µs a byte), with its error: that of a mean
/// over clusters (Cochran, Sampling Techniques, 1977, chapter 9).
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Times {
    /// Sums over the clusters that have ended.
    weight: f64,
    bits: f64,
    weights_squared: f64,
    products: f64,
    bits_squared: f64,
    /// Clusters that are still added to, the oldest first.
    open: Vec<Cluster>,
}

impl Times {
    /// Adds a connection, or so many transfers of a cluster, that took `us` for `bytes`.
    pub fn add(&mut self, us: u64, bytes: u64, transfers: u32, cluster: Option<u32>) {
        if us == 0 || bytes == 0 {
            return;
        }
        if self.clusters() >= MEMORY {
            for sum in [
                &mut self.weight,
                &mut self.bits,
                &mut self.weights_squared,
                &mut self.products,
                &mut self.bits_squared,
            ] {
                *sum *= 0.5;
            }
        }
        let weight = f64::from(transfers.max(1));
        self.add_bits((us as f64 / bytes as f64).log2(), weight, cluster);
    }

    /// Adds the logarithm of a time, bits.
    fn add_bits(&mut self, bits: f64, weight: f64, cluster: Option<u32>) {
        let Some(number) = cluster else {
            return self.close(Cluster {
                number: 0,
                weight,
                bits: weight * bits,
            });
        };
        if let Some(open) = self.open.iter_mut().find(|it| it.number == number) {
            open.weight += weight;
            open.bits += weight * bits;
            return;
        }
        if self.open.len() >= OPEN_MAX {
            let oldest = self.open.remove(0);
            self.close(oldest);
        }
        self.open.push(Cluster {
            number,
            weight,
            bits: weight * bits,
        });
    }

    fn close(&mut self, cluster: Cluster) {
        let Cluster { weight, bits, .. } = cluster;
        self.weight += weight;
        self.bits += bits;
        self.weights_squared += weight * weight;
        self.products += weight * bits;
        self.bits_squared += bits * bits;
    }

    /// All clusters as ended ones.
    fn closed(&self) -> Self {
        let mut all = Self {
            open: Vec::new(),
            ..*self
        };
        self.open.iter().for_each(|it| all.close(*it));
        all
    }

    fn mean(&self) -> f64 {
        let all = self.closed();
        all.bits / all.weight.max(f64::MIN_POSITIVE)
    }

    /// Number of clusters of equal weights that tell as much (Kish, 1965).
    fn clusters(&self) -> f64 {
        let all = self.closed();
        match all.weights_squared {
            0.0 => 0.0,
            squared => all.weight * all.weight / squared,
        }
    }

    /// Variance of the mean.
    fn error_squared(&self) -> f64 {
        let all = self.closed();
        let mean = all.mean();
        let squares =
            all.bits_squared - 2.0 * mean * all.products + mean * mean * all.weights_squared;
        let clusters = all.clusters();
        let of_mean = squares.max(0.0) / (all.weight * all.weight).max(f64::MIN_POSITIVE);
        of_mean * clusters / (clusters - 1.0).max(1.0)
    }
}

/// Effect of a setting: times of the connections with it against the control group's.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Effect {
    /// Difference of the mean logarithms, bits; −1 is half of the time.
    bits: f64,
    /// Standard error of the difference.
    error_bits: f64,
}

impl Effect {
    /// Effect from pairs of the control group's times and those with the setting, weighted by
    /// precision; `None`: not known yet.
    pub fn new<'a>(pairs: impl IntoIterator<Item = (&'a Times, &'a Times)>) -> Option<Self> {
        let (mut precision, mut sum) = (0.0, 0.0);
        for (control, treated) in pairs {
            if control.clusters() < COMPARED || treated.clusters() < COMPARED {
                continue;
            }
            let squared = (control.error_squared() + treated.error_squared()).max(1e-9);
            precision += 1.0 / squared;
            sum += (treated.mean() - control.mean()) / squared;
        }
        (precision > 0.0).then(|| Self {
            bits: sum / precision,
            error_bits: precision.recip().sqrt(),
        })
    }

    /// Whether transfers take so much longer that the setting is taken back.
    pub fn is_harm(&self) -> bool {
        self.bits > SLOWER_BITS && self.bits > SLOWER_ERRORS * self.error_bits
    }

    /// Ratio of the times.
    pub fn ratio(&self) -> f64 {
        self.bits.exp2()
    }

    /// Interval of the ratio, 95 %.
    pub fn interval(&self) -> (f64, f64) {
        let half = 1.96 * self.error_bits;
        ((self.bits - half).exp2(), (self.bits + half).exp2())
    }
}

/// Part of a sum; 0 of nothing.
pub fn share(part: f64, of: f64) -> f64 {
    if of > 0.0 { part / of } else { 0.0 }
}

/// Wait after harm, before a setting is tried again.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Wait {
    /// CLOCK_MONOTONIC of its end.
    until_ns: u64,
    /// Length of the last one; 0: there was none.
    length_ns: u64,
}

impl Wait {
    /// Begins the next one, twice as long as the last.
    pub fn begin(&mut self, now_ns: u64) {
        self.length_ns = (2 * self.length_ns).clamp(WAIT_NS, WAIT_MAX_NS);
        self.until_ns = now_ns + self.length_ns;
    }

    /// The wait for the store; `None`: there was none.
    pub fn kept(&self, key: HostKey, highest: Option<u32>) -> Option<KeptWait> {
        (self.length_ns > 0).then_some(KeptWait {
            key,
            until_ns: self.until_ns,
            length_ns: self.length_ns,
            highest,
        })
    }

    /// A wait from the store.
    pub fn restore(kept: &KeptWait) -> Self {
        Self {
            until_ns: kept.until_ns,
            length_ns: kept.length_ns,
        }
    }

    /// Whether the last one is over.
    pub fn is_over(&self, now_ns: u64) -> bool {
        now_ns >= self.until_ns
    }
}

/// Key of the network of an address.
pub fn network_key(setup: &Setup, netns: u64, address: IpAddr) -> Option<HostKey> {
    let (v4, v6) = (setup.networks.ipv4_prefix, setup.networks.ipv6_prefix);
    Some(HostKey {
        level: Level::Prefix,
        ..HostKey::new(netns, address, v4, v6).ok()?
    })
}

/// The eighth of the networks whose last connection ended longest ago.
pub fn oldest<T>(networks: &HashMap<HostKey, T>, seen_ns: impl Fn(&T) -> u64) -> Vec<HostKey> {
    let mut times: Vec<u64> = networks.values().map(&seen_ns).collect();
    times.sort_unstable();
    let bound_ns = times.get(times.len() / 8).copied().unwrap_or(0);
    let old = networks.iter().filter(|(_, it)| seen_ns(it) <= bound_ns);
    old.map(|(key, _)| *key).collect()
}

#[cfg(test)]
mod tests {
    use super::{Effect, Times};

    #[test]
    fn transfers_weigh_and_connections_decide_on_the_error() {
        let mut times = [(); 3].map(|()| Times::default());
        for number in 0..40 {
            let us = 1000 + 100 * (number % 3);
            times[0].add(us, 1000, 1, None);
            times[1].add(us, 1000, 8, None);
            // Slow transfers that are told one by one weigh no more.
            let transfers = if number % 3 == 2 { 1 } else { 8 };
            times[2].add(us, 1000, transfers, None);
        }
        assert!((times[0].mean() - times[1].mean()).abs() < 1e-9);
        assert!((times[0].error_squared() - times[1].error_squared()).abs() < 1e-9);
        assert!(times[2].mean() < times[0].mean());
        assert!(times[2].clusters() < 40.0);
        let effect = Effect::new([(&times[0], &times[1])]);
        assert!(effect.is_some_and(|it| !it.is_harm()));
    }

    /// Many transfers of few clusters tell little more than the clusters do.
    #[test]
    fn transfers_of_a_cluster_tell_as_much_as_it() {
        let mut times = [Times::default(), Times::default()];
        for number in 0..100u32 {
            let us = 1000 + 97 * u64::from(number % 10);
            times[0].add(us, 1000, 1, None);
            for _ in 0..50 {
                times[1].add(us, 1000, 1, Some(number));
            }
        }
        let [apart, together] = times;
        assert!((apart.mean() - together.mean()).abs() < 1e-9);
        assert!((apart.clusters() - together.clusters()).abs() < 1e-6);
        assert!((apart.error_squared() / together.error_squared() - 1.0).abs() < 1e-6);
    }
}
