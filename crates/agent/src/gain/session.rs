//! The gain in a running agent: reverts are put in force and reported.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::PoisonError;

use anyhow::Result;
use thalweg_bpf_types::raw;
use thalweg_control::policy::Trials;
use thalweg_control::policy::history::History;
use thalweg_control::system;
use thalweg_gain::Scope;
use thalweg_units::prefix::Prefix;

use super::rules::stored;
use super::times::LENGTH_MS;
use super::{Advice, Asked, Gain, Question, Source};
use crate::shared::Shared;
use crate::store::{Moment, Revert, Store, StoreError};
use crate::view;

/// Time that the comparison of a rule outlives the rule, beyond its length, ms.
const REMEMBERED_MS: i64 = 24 * 3_600_000;

impl Shared {
    /// Evaluates the gain, and reverts worse choices.
    pub fn look_at_gain(&self, policies: &History) -> Result<()> {
        let moment = Moment::now();
        let now_ms = self.store(|store| Ok(store.now_ms(moment)))?;
        let system_arm = system::default_cc()?;
        let (now_ns, reverts) = (moment.monotonic_ns, self.config.control.revert);
        self.follow_default(&system_arm, moment)?;
        let ended = self.gain(|gain| match &mut gain.advice {
            Some(advice) => advice.look(now_ns, now_ms),
            None => Vec::new(),
        });
        for (arm, why) in &ended {
            tracing::info!(arm, "trials of {arm} have ended: {why}");
        }
        let looked = self.gain(|gain| gain.look(now_ns, now_ms, &system_arm, reverts));
        for revert in &looked.ended {
            tracing::info!("{} again", given_back(revert));
        }
        let mut told: Vec<String> = looked.told.into_iter().map(|it| it.why).collect();
        self.put_in_force()?;
        self.adopt_policy(policies)?;
        let looked = self.gain(|gain| gain.rules.look(now_ns, now_ms, reverts));
        let of_rules = looked.told.into_iter();
        told.extend(of_rules.map(|(name, it)| format!("rule {name}: {}", it.why)));
        match told.is_empty() {
            true => self.problem("worse", None),
            false => self.warning("worse", told.join("; ")),
        }
        for name in &looked.ended {
            tracing::info!(
                rule = name,
                "rule {name} is in force again: its time is over"
            );
        }
        self.put_rules_in_force(policies)
    }

    /// Saves changes of the gain. Threads that count events or answer requests do not wait for the
    /// disk.
    pub fn save_gain(&self, store: &mut Store) -> Result<(), StoreError> {
        // A later state must not be overwritten by an earlier one.
        let _one_at_a_time = self
            .gain_saves
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let mut saved = Ok(());
        for changed in self.gain(Gain::take_changes) {
            if saved.is_ok() {
                saved = store.save_gain(&changed);
            }
            if saved.is_err() {
                self.gain(|gain| gain.put_back(changed));
            }
        }
        saved
    }

    /// Follows a change of the default, whose comparisons have their own state.
    fn follow_default(&self, system_arm: &str, moment: Moment) -> Result<()> {
        let is_other = |advice: &Advice| advice.system() != system_arm;
        if !self.gain(|gain| gain.advice.as_ref().is_some_and(is_other)) {
            return Ok(());
        }
        self.store(|store| {
            self.save_gain(store)?;
            let kept = store.gain(&Advice::key(system_arm), moment)?;
            self.gain(|gain| gain.advice = Some(Advice::new(kept, system_arm)));
            Ok(())
        })
    }

    /// Adopts the policy in force, if it is another one.
    pub fn adopt_policy(&self, policies: &History) -> Result<()> {
        let policy = Trials::read(&self.kernel.setup().pin, policies)?;
        if self.gain(|gain| gain.rules.policy() == policy.as_ref()) {
            return Ok(());
        }
        let mut loaded = BTreeMap::new();
        if let Some(policy) = &policy {
            let moment = Moment::now();
            let missing = self.gain(|gain| gain.rules.missing(policy));
            self.store(|store| {
                store.forget_rules(store.now_ms(moment) - LENGTH_MS - REMEMBERED_MS)?;
                for key in missing {
                    loaded.insert(key, store.gain(&stored(key), moment)?);
                }
                Ok(())
            })?;
        }
        self.gain(|gain| gain.rules.adopt(policy, loaded));
        self.put_rules_in_force(policies)
    }

    /// Makes the kernel's policy and the problems agree with the suspended rules.
    fn put_rules_in_force(&self, policies: &History) -> Result<()> {
        let now_ms = self.store(|store| Ok(store.now_ms(Moment::now())))?;
        let reverts = self.config.control.revert;
        let suspended = self.gain(|gain| gain.rules.suspended(now_ms, reverts));
        if let Some(policy) = self.gain(|gain| gain.rules.policy().cloned()) {
            let keys: BTreeSet<u64> = suspended.iter().map(|(_, key, _)| *key).collect();
            policy.suspend_rules(&self.kernel.setup().pin, policies, &keys)?;
        }
        if suspended.is_empty() {
            self.problem("suspended", None);
            return Ok(());
        }
        let told = |(name, _, revert): &(String, u64, Revert)| {
            format!("no flow gets rule {name} for 24 hours: {}", revert.why)
        };
        let texts: Vec<String> = suspended.iter().map(told).collect();
        self.warning("suspended", texts.join("; "));
        Ok(())
    }

    /// Ends all reverts; returns their number.
    pub fn resume(&self, policies: &History) -> Result<usize> {
        let now_ms = self.store(|store| Ok(store.now_ms(Moment::now())))?;
        let ended = self.gain(|gain| gain.resume(now_ms));
        for revert in &ended {
            tracing::info!("{} again, on request", given_back(revert));
        }
        self.put_in_force()?;
        let rules = self.gain(|gain| gain.rules.resume(now_ms));
        for name in &rules {
            tracing::info!(rule = name, "rule {name} is in force again, on request");
        }
        self.put_rules_in_force(policies)?;
        Ok(ended.len() + rules.len())
    }

    /// Makes the kernel and the problems agree with the reverts.
    fn put_in_force(&self) -> Result<()> {
        let table = self.kernel.arms()?;
        let of = |arm: &str| table.index(arm).map_or(0, |index| 1u32 << index);
        let (reverts, ended) = self.gain(|gain| {
            let ended = gain.advice.iter().flat_map(Advice::ended);
            (
                gain.reverts().to_vec(),
                ended.fold(0, |mask, arm| mask | of(arm)),
            )
        });
        let mask = reverts
            .iter()
            .fold(ended, |mask, revert| match &revert.arm {
                None => mask | raw::THALWEG_NO_TRIALS,
                Some(arm) => mask | of(arm),
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
            advises: self.kernel.setup().advise.only,
            share: f64::from(self.kernel.setup().control.share_q16),
        };
        Ok(self.gain(|gain| gain.view(&asked)))
    }

    /// The answer of `GET /v1/advise`.
    pub fn advice_view(&self, scope: Scope, prefix: Option<Prefix>) -> Result<view::Advice> {
        let setup = self.kernel.setup();
        let control = setup.control;
        let question = Question {
            scope,
            prefix,
            now_ms: self.store(|store| Ok(store.now_ms(Moment::now())))?,
            events_dropped: self.kernel.counters()?.events_dropped,
            source: match () {
                () if setup.advise.only => Source::Advice {
                    trials: setup.advise.trials,
                },
                () if setup.dry_run => Source::DryRun,
                () => Source::Learner {
                    has_control: control.share_q16 > 0,
                },
            },
            system: system::default_cc()?,
            untold: self.limits_untold(),
        };
        Ok(self.gain(|gain| gain.advise(&question)))
    }

    /// Reason that the kernel does not report limits; `None`: it reports them.
    pub fn limits_untold(&self) -> Option<String> {
        if self.kernel.setup().kernel_btf {
            return None;
        }
        let why = match self.kernel.without_btf() {
            Some(_) => "it refused the program that reads its own structures",
            None => "it has no BTF (CONFIG_DEBUG_INFO_BTF)",
        };
        Some(format!(
            "The kernel does not tell what holds connections up: {why}."
        ))
    }

    /// The answer of `GET /v1/gain?rule=NAME`; the inner error says why there is none.
    pub fn rule_view(
        &self,
        policies: &History,
        name: &str,
        scope: Scope,
    ) -> Result<Result<view::Gain, String>> {
        self.adopt_policy(policies)?;
        let pin = &self.kernel.setup().pin;
        let lost = match self.gain(|gain| gain.rules.policy().cloned()) {
            Some(policy) => policy.lost_outcomes(pin)?,
            None => 0,
        };
        let now_ms = self.store(|store| Ok(store.now_ms(Moment::now())))?;
        Ok(self.gain(|gain| gain.rules.view(name, scope, now_ms, lost)))
    }

    /// Comparisons of all rules.
    pub fn rule_views(&self) -> Result<Vec<view::Gain>> {
        let now_ms = self.store(|store| Ok(store.now_ms(Moment::now())))?;
        Ok(self.gain(|gain| gain.rules.views(now_ms)))
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
