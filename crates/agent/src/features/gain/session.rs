//! The comparisons in a running agent: reverts are put in force and reported.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::Result;
use axum::http::Uri;
use axum::response::Response;
use axum::routing::MethodFilter;
use thalweg_bpf_types::raw;
use thalweg_control::policy::{Outcomes, Trials};
use thalweg_control::system;
use thalweg_gain::Scope;
use thalweg_learner::Mode;
use thalweg_units::prefix::Prefix;

use super::advice::{Advice, Question, Source};
use super::durations::LENGTH_MS;
use super::metrics::Figures;
use super::present::Asked;
use super::rules::stored;
use super::store::Revert;
use super::{Drawn, Gain, api};
use crate::api::answer::Answer;
use crate::causes::Causes;
use crate::comparison::Compared;
use crate::counters::Counters;
use crate::feature::{Context, Feature, Hint, MetricsWriter, Polled, Route};
use crate::kernel::{ArmTable, Kernel};
use crate::limits;
use crate::overridden::Tally;
use crate::store::{Moment, Store, StoreError};
use crate::view;

/// Interval of polls, which find another policy.
const POLL: Duration = Duration::from_secs(10);
/// Interval of evaluations.
const EVALUATE: Duration = Duration::from_secs(60);
/// Causes of the problem `rules`: the ends of flows, and the policy in force.
const OUTCOMES: &str = "outcomes";
const ADOPTED: &str = "policy";
/// Time that the comparison of a rule outlives the rule, beyond its length, ms.
const REMEMBERED_MS: i64 = 24 * 3_600_000;

/// State of the feature; a session continues from the store.
#[derive(Default)]
pub struct State {
    gain: Mutex<Gain>,
    /// Lock while the gain is written to a store.
    saves: Mutex<()>,
    watch: Mutex<Watch>,
}

/// State of the event loop's part.
#[derive(Default)]
struct Watch {
    /// Ring of ended flows that a rule's share took or left.
    outcomes: Outcomes,
    /// Reasons that rules with a share are not compared.
    rule_faults: Causes,
    /// Time of the last evaluation; `None`: not in this session.
    evaluated: Option<Instant>,
    /// Reason that the last evaluation failed.
    problem: Option<String>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Feature for State {
    fn name(&self) -> &'static str {
        "gain"
    }

    fn hints(&self) -> &'static [Hint] {
        &[
            (
                "gain",
                "Restart the agent if it stays: what the learner gains is not looked at.",
            ),
            (
                "reverted",
                "Nothing must be done: it ends after 24 hours. `thalweg gain` shows the finding, `thalweg gain --resume` ends it now.",
            ),
            (
                "rules",
                "Restart the agent if it stays: what the policy's shares do is not looked at.",
            ),
            (
                "suspended",
                "Nothing must be done: it ends after 24 hours. `thalweg gain --rule NAME` shows the finding, `thalweg gain --resume` ends it now.",
            ),
            (
                "worse",
                "Look at `thalweg gain`. Nothing is taken back, as `control.revert` is off: set it, or leave the arm (`arms.deny`) or the rule out.",
            ),
        ]
    }

    fn load(&self, kernel: &Kernel, store: &mut Store) -> Result<()> {
        let setup = kernel.setup();
        let drawn = Drawn {
            ipv4: setup.cluster.0,
            ipv6: setup.cluster.1,
            control: setup.control,
            has_fleet: setup.has_fleet(),
        };
        let now = Moment::now();
        let watches = setup.advise.only || setup.dry_run;
        let advice = match watches && kernel.params().mode == Mode::Thalweg {
            true => {
                let system = system::default_cc()?;
                let kept = store.gain(&Advice::key(&system), now)?;
                Some(Advice::new(kept, &system))
            }
            false => None,
        };
        *lock(&self.gain) = Gain::new(store.gain("", now)?, drawn, advice);
        *lock(&self.watch) = Watch::default();
        Ok(())
    }

    fn poll_interval(&self) -> Option<Duration> {
        Some(POLL)
    }

    fn poll(&self, context: &Context<'_>) -> Polled {
        self.note_rules(context, ADOPTED, self.adopt_policy(context));
        let mut watch = lock(&self.watch);
        if watch.evaluated.is_none_or(|at| at.elapsed() >= EVALUATE) {
            watch.evaluated = Some(Instant::now());
            let outcome = self.evaluate(context);
            watch.problem = outcome.err().map(|error| format!("{error:#}"));
        }
        Polled {
            problem: watch.problem.clone(),
            ..Polled::default()
        }
    }

    fn read_rings(&self, context: &Context<'_>) {
        let pin = &context.kernel.setup().pin;
        let ended = lock(&self.watch).outcomes.take_outcomes(pin);
        let ended = match ended {
            Ok(ended) => ended,
            Err(error) => return self.note_rules(context, OUTCOMES, Err(error.into())),
        };
        self.note_rules(context, OUTCOMES, Ok(()));
        let Some(last) = ended.last() else { return };
        let known = |policy: &Trials| policy.number == last.generation;
        if !self.gain(|gain| gain.rules.policy().is_some_and(known))
            && let Err(error) = self.adopt_policy(context)
        {
            return self.note_rules(context, ADOPTED, Err(error));
        }
        self.gain(|gain| gain.rules.take(&ended));
    }

    fn take_events(&self, events: &[raw::thalweg_event], arms: &ArmTable, _: &Context<'_>) {
        self.gain(|gain| gain.take(events, arms));
    }

    fn save(&self, store: &mut Store) -> Result<(), StoreError> {
        // A later state must not be overwritten by an earlier one. Threads that count events or
        // answer requests do not wait for the disk.
        let _one_at_a_time = lock(&self.saves);
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

    fn comparisons(&self, learner: bool, context: &Context<'_>) -> Vec<Compared> {
        // Flows of the policy's rules count only once it is adopted. A poll reports an error.
        drop(self.adopt_policy(context));
        self.gain(|gain| gain.compared(learner))
    }

    fn count_overridden(&self, _: &Counters) -> Vec<Tally> {
        self.gain(|gain| gain.rules.count_overridden())
    }

    fn routes(&self) -> &'static [Route] {
        &[
            (MethodFilter::GET, "/v1/advise"),
            (MethodFilter::GET, "/v1/gain"),
            (MethodFilter::POST, "/v1/gain/resume"),
        ]
    }

    fn answer(&self, route: &str, uri: &Uri, context: &Context<'_>) -> Answer<Response> {
        match route {
            "/v1/advise" => api::advise(self, uri, context),
            "/v1/gain" => api::gain(self, uri, context),
            _ => api::resume(self, context),
        }
    }

    fn metrics(&self, context: &Context<'_>) -> Result<MetricsWriter> {
        let figures = Figures {
            gain: self.gain_view(Scope::Arm, context)?,
            rules: self.rule_views(context)?,
            advice: match context.kernel.params().mode {
                Mode::Thalweg => Some(self.advice_view(Scope::All, None, context)?),
                Mode::Classic => None,
            },
        };
        Ok(Box::new(move |page| figures.write(page)))
    }
}

impl State {
    fn gain<T>(&self, action: impl FnOnce(&mut Gain) -> T) -> T {
        action(&mut lock(&self.gain))
    }

    fn note_rules(&self, context: &Context<'_>, cause: &'static str, outcome: Result<()>) {
        let mut watch = lock(&self.watch);
        watch.rule_faults.note_outcome(cause, outcome);
        context
            .reporter
            .problem("rules", watch.rule_faults.in_words());
    }

    /// Evaluates the gain, and reverts worse choices.
    fn evaluate(&self, context: &Context<'_>) -> Result<()> {
        let moment = Moment::now();
        let now_ms = context.store(|store| Ok(store.now_ms(moment)))?;
        let system_arm = system::default_cc()?;
        let (now_ns, reverts) = (moment.monotonic_ns, context.kernel.setup().reverts);
        self.follow_default(&system_arm, moment, context)?;
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
        self.put_in_force(context)?;
        self.adopt_policy(context)?;
        let looked = self.gain(|gain| gain.rules.look(now_ns, now_ms, reverts));
        let of_rules = looked.told.into_iter();
        told.extend(of_rules.map(|(name, it)| format!("rule {name}: {}", it.why)));
        match told.is_empty() {
            true => context.reporter.problem("worse", None),
            false => context.reporter.warning("worse", told.join("; ")),
        }
        for name in &looked.ended {
            tracing::info!(
                rule = name,
                "rule {name} is in force again: its time is over"
            );
        }
        self.put_rules_in_force(context)
    }

    /// Follows a change of the default, whose comparisons have their own state.
    fn follow_default(
        &self,
        system_arm: &str,
        moment: Moment,
        context: &Context<'_>,
    ) -> Result<()> {
        let is_other = |advice: &Advice| advice.system() != system_arm;
        if !self.gain(|gain| gain.advice.as_ref().is_some_and(is_other)) {
            return Ok(());
        }
        context.store(|store| {
            self.save(store)?;
            let kept = store.gain(&Advice::key(system_arm), moment)?;
            self.gain(|gain| gain.advice = Some(Advice::new(kept, system_arm)));
            Ok(())
        })
    }

    /// Adopts the policy in force, if it is another one.
    fn adopt_policy(&self, context: &Context<'_>) -> Result<()> {
        let policy = Trials::read(&context.kernel.setup().pin, context.policies)?;
        if self.gain(|gain| gain.rules.policy() == policy.as_ref()) {
            return Ok(());
        }
        let mut loaded = BTreeMap::new();
        if let Some(policy) = &policy {
            let moment = Moment::now();
            let missing = self.gain(|gain| gain.rules.missing(policy));
            context.store(|store| {
                store.forget_rules(store.now_ms(moment) - LENGTH_MS - REMEMBERED_MS)?;
                for key in missing {
                    loaded.insert(key, store.gain(&stored(key), moment)?);
                }
                Ok(())
            })?;
        }
        self.gain(|gain| gain.rules.adopt(policy, loaded));
        self.put_rules_in_force(context)
    }

    /// Makes the kernel's policy and the problems agree with the suspended rules.
    fn put_rules_in_force(&self, context: &Context<'_>) -> Result<()> {
        let now_ms = context.now_ms();
        let reverts = context.kernel.setup().reverts;
        let suspended = self.gain(|gain| gain.rules.suspended(now_ms, reverts));
        if let Some(policy) = self.gain(|gain| gain.rules.policy().cloned()) {
            let keys: BTreeSet<u64> = suspended.iter().map(|(_, key, _)| *key).collect();
            policy.suspend_rules(&context.kernel.setup().pin, context.policies, &keys)?;
        }
        if suspended.is_empty() {
            context.reporter.problem("suspended", None);
            return Ok(());
        }
        let told = |(name, _, revert): &(String, u64, Revert)| {
            format!("no flow gets rule {name} for 24 hours: {}", revert.why)
        };
        let texts: Vec<String> = suspended.iter().map(told).collect();
        context.reporter.warning("suspended", texts.join("; "));
        Ok(())
    }

    /// Ends all reverts; returns their number.
    pub fn resume(&self, context: &Context<'_>) -> Result<usize> {
        let now_ms = context.now_ms();
        let ended = self.gain(|gain| gain.resume(now_ms));
        for revert in &ended {
            tracing::info!("{} again, on request", given_back(revert));
        }
        self.put_in_force(context)?;
        let rules = self.gain(|gain| gain.rules.resume(now_ms));
        for name in &rules {
            tracing::info!(rule = name, "rule {name} is in force again, on request");
        }
        self.put_rules_in_force(context)?;
        Ok(ended.len() + rules.len())
    }

    /// Makes the kernel and the problems agree with the reverts.
    fn put_in_force(&self, context: &Context<'_>) -> Result<()> {
        let table = context.kernel.arms()?;
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
        if mask != context.kernel.reverted() {
            context.kernel.revert(mask)?;
        }
        if reverts.is_empty() {
            context.reporter.problem("reverted", None);
        } else {
            let texts: Vec<String> = reverts.iter().map(taken_back).collect();
            context.reporter.warning("reverted", texts.join("; "));
        }
        Ok(())
    }

    /// The answer of `GET /v1/gain`.
    pub fn gain_view(&self, scope: Scope, context: &Context<'_>) -> Result<view::Gain> {
        let setup = context.kernel.setup();
        let asked = Asked {
            scope,
            now_ms: context.now_ms(),
            events_dropped: context.kernel.counters()?.events_dropped,
            dry_run: setup.dry_run,
            advises: setup.advise.only,
            share: f64::from(setup.control.share_q16),
        };
        Ok(self.gain(|gain| gain.view(&asked)))
    }

    /// The answer of `GET /v1/advise`.
    pub fn advice_view(
        &self,
        scope: Scope,
        prefix: Option<Prefix>,
        context: &Context<'_>,
    ) -> Result<view::Advice> {
        let setup = context.kernel.setup();
        let control = setup.control;
        let question = Question {
            scope,
            prefix,
            now_ms: context.now_ms(),
            events_dropped: context.kernel.counters()?.events_dropped,
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
            untold: limits::untold(context.kernel),
        };
        Ok(self.gain(|gain| gain.advise(&question)))
    }

    /// The answer of `GET /v1/gain?rule=NAME`; the inner error says why there is none.
    pub fn rule_view(
        &self,
        name: &str,
        scope: Scope,
        context: &Context<'_>,
    ) -> Result<Result<view::Gain, String>> {
        self.adopt_policy(context)?;
        let pin = &context.kernel.setup().pin;
        let lost = match self.gain(|gain| gain.rules.policy().cloned()) {
            Some(policy) => policy.lost_outcomes(pin)?,
            None => 0,
        };
        let now_ms = context.now_ms();
        Ok(self.gain(|gain| gain.rules.view(name, scope, now_ms, lost)))
    }

    /// Comparisons of all rules.
    fn rule_views(&self, context: &Context<'_>) -> Result<Vec<view::Gain>> {
        let now_ms = context.now_ms();
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
