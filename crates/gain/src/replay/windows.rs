//! One initial window for all connections, from logged choices of a learner.
//!
//! An event has the probability of the window that was chosen, not of the others. That suffices for
//! weights. Where another window had no chance is not in the log, so it is taken from the past: a
//! connection counts for a window that its network chose before, if that one or a larger one was
//! chosen for one of its last connections: a record permits all windows up to the largest. The present
//! choice has no part in it, so that it favours no window. The kernel's own always has a chance.

use std::collections::BTreeMap;

use thalweg_learner::window::{COUNT, OWN};

use super::rule::size_class;
use super::{ARMS, Decided, Estimate, Estimator, Size, TooSmall};

/// A connection counts for a window if its network chose it or a larger one for one of this many
/// connections before.
const LAST: u64 = 100;
/// Least [overlap](Size::overlap). Below it the log gave the window no chance in many connections
/// that count.
pub const OVERLAP_MIN: f64 = 0.5;

/// A connection with the initial window that was chosen for it.
#[derive(Clone, Copy, Debug)]
pub struct First {
    /// Number of its host.
    pub host: u64,
    /// Number of its network, whose record chooses.
    pub network: u64,
    /// When it was established, ns.
    pub start_ns: u64,
    /// Window of the connection, as an arm.
    pub arm: usize,
    /// Probability of that choice, above 0.
    pub propensity: f64,
    /// Control group: no rule may decide.
    pub control: bool,
    /// Number of connections that it stands for.
    pub stands_for: f64,
    /// Acknowledged bytes.
    pub bytes: u64,
    /// `None`: it says nothing about its window.
    pub cost: Option<Cost>,
}

/// The time of a transfer in units of the round trips that it takes with the kernel's own window,
/// bits.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Cost {
    /// As the learner counts it: retransmissions cost.
    pub bits: f64,
    /// The time alone.
    pub time_bits: f64,
}

/// A window that all connections would get.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct OfWindow {
    /// The window, as an arm.
    pub arm: usize,
    /// Connections that had it, and that tell of it.
    pub had: u64,
    /// Compared with the log.
    pub judged: Result<Judged, Untold>,
}

/// One window for all, compared with the log over the connections that count.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Judged {
    /// The sample.
    pub size: Size,
    /// [`Cost::bits`].
    pub cost: Estimate,
    /// [`Cost::time_bits`].
    pub time: Estimate,
}

/// Why nothing can be told of a window.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
pub enum Untold {
    /// No connection had it.
    #[error("no connection had it")]
    Never,
    /// Too few had it.
    #[error(transparent)]
    TooSmall(TooSmall),
    /// The log gave it no chance in many connections that seemed to count.
    // Rounded down, so that the share found is below the share needed.
    #[error(
        "it had a chance in {:.0} % of the connections, {:.0} % are needed",
        (100.0 * .0.overlap).floor(),
        100.0 * OVERLAP_MIN
    )]
    Seldom(Size),
}

impl Untold {
    /// The sample; `None`: there is none.
    pub fn sample_size(&self) -> Option<&Size> {
        match self {
            Untold::Never => None,
            Untold::TooSmall(small) => Some(&small.size),
            Untold::Seldom(size) => Some(size),
        }
    }
}

/// The estimates of one window.
#[derive(Clone, Debug, Default)]
struct Estimators {
    had: u64,
    cost: Estimator,
    time: Estimator,
}

/// A network on the way through the log.
#[derive(Clone, Copy, Debug, Default)]
struct Network {
    connections: u64,
    /// Number of the last connection that had each window; 0: none.
    last: [u64; COUNT],
}

/// Takes connections in order of time.
#[derive(Clone, Debug, Default)]
pub struct Windows {
    windows: [Estimators; COUNT],
    networks: BTreeMap<u64, Network>,
    connections: u64,
    control: u64,
    without_cost: u64,
}

impl Windows {
    /// Adds the next connection, in order of [`First::start_ns`].
    pub fn add_connection(&mut self, first: &First) {
        if first.control {
            self.control += 1;
            return;
        }
        let network = self.networks.entry(first.network).or_default();
        let counts: [bool; COUNT] = std::array::from_fn(|arm| {
            let last = network.last[arm..].iter().max().copied().unwrap_or(0);
            arm == OWN || network.last[arm] > 0 && network.connections - last < LAST
        });
        network.connections += 1;
        network.last[first.arm] = network.connections;
        let Some(cost) = first.cost else {
            self.without_cost += 1;
            return;
        };
        self.connections += 1;
        self.windows[first.arm].had += 1;
        for (arm, of) in self.windows.iter_mut().enumerate() {
            let only = |arm: usize| {
                let mut shares = [0.0; ARMS];
                shares[arm] = 1.0;
                shares
            };
            let decided = Decided {
                host: first.host,
                class: size_class(first.bytes),
                arm: first.arm,
                logged: &only(first.arm),
                rule: &only(arm),
                stands_for: first.stands_for,
                pace: 1.0,
                outcome: cost.bits,
            };
            of.cost.add_drawn(&decided, first.propensity, counts[arm]);
            let decided = Decided {
                outcome: cost.time_bits,
                ..decided
            };
            of.time.add_drawn(&decided, first.propensity, counts[arm]);
        }
    }

    /// Connections that tell of their windows.
    pub fn connection_count(&self) -> u64 {
        self.connections
    }

    /// Connections of the control group, which are left out.
    pub fn control_count(&self) -> u64 {
        self.control
    }

    /// Connections that say nothing about their windows.
    pub fn without_cost(&self) -> u64 {
        self.without_cost
    }

    /// One window for all, for each in the mask and each that a connection had.
    pub fn window_outcomes(&self, mask: u16) -> Vec<OfWindow> {
        let of = self.windows.iter().enumerate();
        of.filter(|(arm, of)| of.had > 0 || mask >> arm & 1 != 0)
            .map(|(arm, of)| OfWindow {
                arm,
                had: of.had,
                judged: of.judge_window(),
            })
            .collect()
    }
}

impl Estimators {
    fn judge_window(&self) -> Result<Judged, Untold> {
        if self.had == 0 {
            return Err(Untold::Never);
        }
        let size = self.time.sample_size();
        let cost = self.cost.estimate().map_err(Untold::TooSmall)?;
        let time = self.time.estimate().map_err(Untold::TooSmall)?;
        if size.overlap < OVERLAP_MIN {
            return Err(Untold::Seldom(size));
        }
        Ok(Judged { size, cost, time })
    }
}
