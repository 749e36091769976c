//! Rates that change over time, from a file in the format of Mahimahi (Netravali et al. 2015): each
//! line has the millisecond of an opportunity to send one packet, and the last line's is the length,
//! after which the trace begins anew.

use std::path::{Path, PathBuf};

use serde::Serialize;
use thalweg_units::one_line;
use thalweg_units::random::mix;
use thalweg_units::reader::Table;

use crate::units::Rate;

/// The time for which a rate holds, ms.
pub(crate) const STEP_MS: u64 = 200;
/// The lowest rate. A bottleneck that waits for a packet's worth hears of no new rate before.
const LEAST: Rate = Rate::from_bps(100_000);

/// A trace.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Trace {
    /// The file as the scenario names it.
    pub name: PathBuf,
    /// Path of the file.
    #[serde(skip)]
    pub file: PathBuf,
    /// The rate of each 200 ms; there is at least one.
    pub rates: Vec<Rate>,
}

impl Trace {
    /// Takes `trace`, the name of a file relative to the folder.
    pub(super) fn read(table: &mut Table<'_>, folder: &Path) -> Option<Self> {
        let name: PathBuf = table.value("trace")?;
        let file = folder.join(&name);
        match thalweg_link::trace::Trace::read(&file) {
            Ok(trace) => {
                let rates = trace.rates_bps(STEP_MS).into_iter();
                let rates = rates.map(|bps| Rate::from_bps(bps).max(LEAST)).collect();
                Some(Self { name, file, rates })
            }
            Err(error) => {
                let found = one_line(&error.to_string());
                table.wrong("trace", found, "a trace in Mahimahi's format");
                None
            }
        }
    }

    /// The mean rate.
    pub fn mean_rate(&self) -> Rate {
        let sum: u64 = self.rates.iter().map(|rate| rate.bps()).sum();
        Rate::from_bps(sum / self.rates.len() as u64)
    }

    /// The rate of a step, counted from the begin of a run. A seed decides where in the trace that
    /// is, so that paths with one trace do not go up and down together.
    pub(crate) fn rate_at_step(&self, seed: u64, step: u64) -> Rate {
        let length = self.rates.len() as u64;
        let place = (mix(seed) % length + step) % length;
        self.rates[place as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_decides_where_a_trace_begins() {
        let rates: Vec<Rate> = (1..=7).map(|n| Rate::from_bps(n * 1_000_000)).collect();
        let trace = Trace {
            name: "x".into(),
            file: "x".into(),
            rates,
        };
        assert_eq!(trace.mean_rate().bps(), 4_000_000);
        let begin = trace.rate_at_step(5, 0);
        assert_eq!(
            (trace.rate_at_step(5, 7), trace.rate_at_step(5, 700)),
            (begin, begin)
        );
        assert_ne!(trace.rate_at_step(5, 1), begin);
        let begins: std::collections::BTreeSet<u64> = (0..20)
            .map(|seed| trace.rate_at_step(seed, 0).bps())
            .collect();
        assert!(begins.len() > 3, "{begins:?}");
    }
}
