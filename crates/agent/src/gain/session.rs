//! The account of the gain in a running agent: what is found is put in force and told.

use anyhow::Result;
use thalweg_bpf_types::raw;
use thalweg_control::system;
use thalweg_gain::Scope;

use super::Asked;
use crate::shared::Shared;
use crate::store::{Moment, Revert};
use crate::view;

impl Shared {
    /// Looks at the gain, and takes back what is worse.
    pub fn look_at_gain(&self) -> Result<()> {
        let moment = Moment::now();
        let now_ms = self.store(|store| Ok(store.now_ms(moment)))?;
        let system_arm = system::default_cc()?;
        let looked = self.gain(|gain| gain.look(moment.monotonic_ns, now_ms, &system_arm));
        for revert in &looked.ended {
            tracing::info!("{} again: its time is over", given_back(revert));
        }
        self.put_in_force()
    }

    /// Ends all that is taken back; returns their number.
    pub fn resume(&self) -> Result<usize> {
        let now_ms = self.store(|store| Ok(store.now_ms(Moment::now())))?;
        let ended = self.gain(|gain| gain.resume(now_ms));
        for revert in &ended {
            tracing::info!("{} again, on request", given_back(revert));
        }
        self.put_in_force()?;
        Ok(ended.len())
    }

    /// Makes kernel and problems agree with what is taken back.
    fn put_in_force(&self) -> Result<()> {
        let reverts = self.gain(|gain| gain.reverts().to_vec());
        let table = self.kernel.arms()?;
        let mask = reverts.iter().fold(0, |mask, revert| match &revert.arm {
            None => mask | raw::THALWEG_NO_TRIALS,
            Some(arm) => table.index(arm).map_or(mask, |index| mask | 1 << index),
        });
        if mask != self.kernel.reverted() {
            self.kernel.revert(mask)?;
        }
        if reverts.is_empty() {
            self.problem("reverted", None);
        } else {
            let texts: Vec<String> = reverts.iter().map(taken_back).collect();
            self.warning("reverted", texts.join("; "));
        }
        Ok(())
    }

    /// The answer of `GET /v1/gain`.
    pub fn gain_view(&self, scope: Scope) -> Result<view::Gain> {
        let asked = Asked {
            scope,
            now_ms: self.store(|store| Ok(store.now_ms(Moment::now())))?,
            events_dropped: self.kernel.counters()?.events_dropped,
            dry_run: self.kernel.setup().dry_run,
            share: f64::from(self.kernel.setup().control.share_q16),
        };
        Ok(self.gain(|gain| gain.view(&asked)))
    }
}

fn taken_back(revert: &Revert) -> String {
    let what = match &revert.arm {
        Some(arm) => format!("no connection gets {arm}"),
        None => "nothing is explored".to_owned(),
    };
    format!("{what} for 24 hours: {}", revert.why)
}

fn given_back(revert: &Revert) -> String {
    match &revert.arm {
        Some(arm) => format!("connections get {arm}"),
        None => "the learner explores".to_owned(),
    }
}
