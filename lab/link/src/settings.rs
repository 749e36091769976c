//! The path as it was asked for, checked and turned into two directions.

use std::path::PathBuf;
use std::sync::Arc;

use thalweg_units::{Delay, Probability, Rate, Size};

use crate::aqm::Aqm;
use crate::engine::{Capacity, Direction};
use crate::error::Error;
use crate::quantity::{QueueLimit, Threshold};
use crate::trace::Trace;

/// A path. The default is one that changes nothing.
#[derive(Debug, Clone, Default)]
pub struct Settings {
    /// One-way delay of each direction.
    pub delay: Delay,
    /// Uniform variation of the delay either way.
    pub jitter: Delay,
    /// Rate of both directions.
    pub rate: Option<Rate>,
    /// Rate from far to near, if it is another.
    pub reverse_rate: Option<Rate>,
    /// Trace files instead of rates: near to far, far to near.
    pub traces: Option<[PathBuf; 2]>,
    /// Independent loss from near to far.
    pub loss: Probability,
    /// Independent loss from far to near.
    pub reverse_loss: Probability,
    /// Buffer of the bottleneck; one bandwidth-delay product if not given.
    pub queue: Option<QueueLimit>,
    /// Probability that a packet skips the delay.
    pub reorder: Probability,
    /// From where on packets are marked.
    pub ecn: Option<Threshold>,
    /// The queue's algorithm.
    pub aqm: Option<Aqm>,
    /// Seed of everything random.
    pub seed: u64,
}

impl Settings {
    /// Both directions, near to far first.
    ///
    /// # Errors
    /// Settings contradict each other, or a trace cannot be used.
    pub fn directions(&self) -> Result<[Direction; 2], Error> {
        self.check_consistency()?;
        let [forward, reverse] = self.capacities()?;
        Ok([
            self.direction(forward, self.loss, self.seed),
            // Another stream of random numbers.
            self.direction(reverse, self.reverse_loss, !self.seed),
        ])
    }

    fn check_consistency(&self) -> Result<(), Error> {
        let limited = self.rate.is_some() || self.traces.is_some();
        let fault = if self.jitter > self.delay {
            format!(
                "--jitter {} is more than --delay {}: packets would have to leave before they came",
                self.jitter, self.delay
            )
        } else if self.rate.is_some() && self.traces.is_some() {
            "--rate and --trace both say how fast packets leave; give one of them".to_owned()
        } else if self.reverse_rate.is_some() && self.rate.is_none() {
            "--reverse-rate needs --rate: expected the rate from near to far too".to_owned()
        } else if self.queue.is_some() && !limited {
            "--queue needs --rate or --trace: without a bottleneck nothing waits".to_owned()
        } else if self.ecn.is_some() && !limited {
            "--ecn needs --rate or --trace: without a bottleneck nothing waits".to_owned()
        } else if self.aqm.is_some() && !limited {
            "--aqm needs --rate or --trace: without a bottleneck nothing waits".to_owned()
        } else if self.aqm.is_some() && self.ecn.is_some() {
            "--aqm and --ecn both say which packets are marked; give one of them".to_owned()
        } else if self.reorder > Probability::ZERO && self.delay == Delay::ZERO {
            "--reorder needs --delay: a packet overtakes others by skipping it".to_owned()
        } else {
            return Ok(());
        };
        Err(Error::Options(fault))
    }

    fn capacities(&self) -> Result<[Capacity; 2], Error> {
        if let Some([forward, reverse]) = &self.traces {
            let read = |path| Trace::read(path).map(|trace| Capacity::Trace(Arc::new(trace)));
            return Ok([read(forward)?, read(reverse)?]);
        }
        let capacity = |rate: Option<Rate>| rate.map_or(Capacity::Unlimited, Capacity::Rate);
        let reverse = self.reverse_rate.or(self.rate);
        Ok([capacity(self.rate), capacity(reverse)])
    }

    fn direction(&self, capacity: Capacity, loss: Probability, seed: u64) -> Direction {
        let default = match self.aqm {
            Some(_) => QueueLimit::Bytes(Size::from_bytes(Aqm::LIMIT_BYTES)),
            None => QueueLimit::Bdp(1.0),
        };
        let queue = self.queue.unwrap_or(default);
        let queue_bytes = match &capacity {
            Capacity::Unlimited => u64::MAX,
            Capacity::Rate(rate) => queue.in_bytes(rate.bps(), self.delay),
            Capacity::Trace(trace) => queue.in_bytes(trace.mean_bps(), self.delay),
        };
        Direction {
            ack_delay: Delay::ZERO,
            loss,
            capacity,
            queue_bytes,
            ecn: self.ecn,
            aqm: self.aqm,
            delay: self.delay,
            jitter: self.jitter,
            reorder: self.reorder,
            seed,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(settings: &Settings) -> String {
        settings.directions().unwrap_err().to_string()
    }

    #[test]
    fn contradictions_are_refused() {
        let rate = Some(Rate::from_bps(1_000_000));
        let delay = Delay::from_us(1000);
        let traces = Some(["up".into(), "down".into()]);
        let queue = Some(QueueLimit::Bdp(1.0));
        let aqm = Some("codel".parse().unwrap());
        let default = Settings::default;
        for (settings, part) in [
            (
                Settings {
                    jitter: delay,
                    ..default()
                },
                "--jitter 1ms is more than --delay 0ms",
            ),
            (
                Settings {
                    rate,
                    traces,
                    ..default()
                },
                "give one of them",
            ),
            (
                Settings {
                    reverse_rate: rate,
                    ..default()
                },
                "--reverse-rate needs --rate",
            ),
            (Settings { queue, ..default() }, "--queue needs --rate"),
            (
                Settings {
                    ecn: Some(Threshold::Time(delay)),
                    ..default()
                },
                "--ecn needs --rate",
            ),
            (
                Settings { aqm, ..default() },
                "--aqm needs --rate or --trace",
            ),
            (
                Settings {
                    rate,
                    aqm,
                    ecn: Some(Threshold::Time(delay)),
                    ..default()
                },
                "--aqm and --ecn",
            ),
            (
                Settings {
                    reorder: Probability::ONE,
                    ..default()
                },
                "--reorder needs --delay",
            ),
        ] {
            let error = refused(&settings);
            assert!(error.contains(part), "{error}");
        }
    }

    #[test]
    fn each_direction_gets_its_own() {
        let settings = Settings {
            delay: Delay::from_us(10_000),
            rate: Some(Rate::from_bps(100_000_000)),
            reverse_rate: Some(Rate::from_bps(20_000_000)),
            loss: Probability::ONE,
            seed: 7,
            ..Settings::default()
        };
        let [forward, reverse] = settings.directions().unwrap();
        // Rate × 20 ms.
        assert_eq!(forward.queue_bytes, 250_000);
        assert_eq!(reverse.queue_bytes, 50_000);
        assert_eq!(
            (forward.loss, reverse.loss),
            (Probability::ONE, Probability::ZERO)
        );
        assert_ne!(forward.seed, reverse.seed);
        let queue = Some(QueueLimit::Bytes(Size::from_bytes(3000)));
        let [forward, _] = Settings { queue, ..settings }.directions().unwrap();
        assert_eq!(forward.queue_bytes, 3000);
    }
}
