//! Overridden connections, and connections whose end was not seen. Another sockops program, a route
//! or the congestion control itself may replace the learner's choice. A program that overwrites a
//! connection's callback flags clears the learner's. The kernel may refuse a setting of a policy's
//! rule, or something may replace it. Such connections are not scored; many of them are a problem.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use crate::view::Counters;

/// Least time after which counts no longer matter; it is at most half as long again.
const MEMORY: Duration = Duration::from_secs(600);
/// Overridden connections below which there is no problem.
const LEAST: u64 = 5;
/// Share of connections that is a problem, as a divisor.
const SHARE: u64 = 20;
/// Time for which the list of other programs is kept: reading it takes time.
const RENEW: Duration = Duration::from_secs(60);

/// Counts at one moment.
#[derive(Clone, Default)]
pub(crate) struct Seen {
    /// Counters of the programs.
    pub counters: Counters,
    /// Measurement intervals by the name of the congestion control that ran instead.
    pub names: BTreeMap<String, u64>,
    /// Flows that rules with a share took, by the rule's name.
    pub rules: BTreeMap<String, Taken>,
    /// Connections that ended unseen, where [`Overridden::note_unseen`] was called.
    pub unseen: u64,
}

/// Ended flows that a rule took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Taken {
    /// Number of such flows.
    pub ended: u64,
    /// Number of flows without the rule's settings: the kernel refused one, or something replaced one.
    pub overridden: u64,
}

/// Subject of a part of the problem.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Subject {
    Measurements,
    Windows,
    Ends,
    /// Flows that the rule of this name took.
    Rule(String),
}

/// Parts of the problem, each with its text. A part stays until most connections are right again. A
/// pause without measurements does not end it.
#[derive(Default)]
struct Parts(BTreeMap<Subject, String>);

impl Parts {
    /// Judges `part` of `whole` that were overridden or unseen.
    fn judge_share(
        &mut self,
        subject: Subject,
        part: u64,
        whole: u64,
        text: impl FnOnce() -> String,
    ) {
        if is_much(part, whole) {
            self.0.insert(subject, text());
        } else if part * SHARE < whole {
            self.0.remove(&subject);
        }
    }

    /// Forgets rules that are no longer in force.
    fn keep_rules(&mut self, rules: &BTreeMap<String, Taken>) {
        self.0.retain(|subject, _| match subject {
            Subject::Rule(name) => rules.contains_key(name),
            _ => true,
        });
    }
}

/// Counts of some minutes ago, with the present problem.
pub(crate) struct Overridden {
    since: Instant,
    before: Seen,
    /// Counts that become `before` next.
    next: Seen,
    /// Number of connections that ended unseen, at the last count.
    unseen: Option<u64>,
    parts: Parts,
    /// Other programs that may be the cause, and the time when they were listed.
    others: Option<(Instant, Vec<String>)>,
}

impl Overridden {
    /// Starts at a time with the counts so far: those of an earlier agent do not matter.
    pub fn new(now: Instant, before: Seen) -> Self {
        Self {
            since: now,
            next: before.clone(),
            before,
            unseen: None,
            parts: Parts::default(),
            others: None,
        }
    }

    /// Takes the number of connections that ended unseen. The first call only sets the baseline.
    pub fn note_unseen(&mut self, ends: u64) {
        if self.unseen.is_none() {
            self.before.unseen = ends;
            self.next.unseen = ends;
        }
        self.unseen = Some(ends);
    }

    /// The problem if many connections ended unseen, with another congestion control than their arm
    /// or without their rule's settings, or began with another initial window. `others` lists the
    /// programs that may be the cause.
    pub fn look(
        &mut self,
        now: Instant,
        mut seen: Seen,
        others: impl FnOnce() -> Vec<String>,
    ) -> Option<String> {
        seen.unseen = self.unseen.unwrap_or(0);
        let (before, parts) = (&self.before, &mut self.parts);
        let since = |now: u64, before: u64| now.saturating_sub(before);
        let ended = since(measured(&seen.counters), measured(&before.counters));
        let other = since(
            seen.counters.skipped_overridden,
            before.counters.skipped_overridden,
        );
        parts.judge_share(Subject::Measurements, other, ended, || {
            let mut names: Vec<_> = seen.names.iter().collect();
            names.retain(|(name, count)| **count > before.names.get(*name).copied().unwrap_or(0));
            let names: Vec<&str> = names.into_iter().map(|(name, _)| name.as_str()).collect();
            format!(
                "{other} of {ended} measurements were of another congestion control than the \
                 connection was given or left with ({}), and are not scored",
                names.join(", ")
            )
        });
        let windows = since(windows(&seen.counters), windows(&before.counters));
        let other = since(
            seen.counters.windows_overridden,
            before.counters.windows_overridden,
        );
        parts.judge_share(Subject::Windows, other, windows, || {
            format!(
                "{other} of {windows} initial windows were replaced before the first data was \
                 acknowledged, and are not scored"
            )
        });
        let unseen = since(seen.unseen, before.unseen);
        let ended = unseen + since(seen.counters.closed, before.counters.closed);
        parts.judge_share(Subject::Ends, unseen, ended, || {
            format!("the ends of {unseen} of {ended} connections were not seen, and are not scored")
        });
        parts.keep_rules(&seen.rules);
        for (name, taken) in &seen.rules {
            let before = before.rules.get(name).copied();
            // A larger count is of another policy.
            let before = before.filter(|before| before.ended <= taken.ended);
            let before = before.unwrap_or_default();
            let ended = since(taken.ended, before.ended);
            let other = since(taken.overridden, before.overridden);
            parts.judge_share(Subject::Rule(name.clone()), other, ended, || {
                format!(
                    "{other} of {ended} flows that rule {name} took ended without its settings (the \
                     kernel refused one, or something replaced it), and are not compared"
                )
            });
        }
        if now.duration_since(self.since) >= MEMORY / 2 {
            self.since = now;
            self.before = std::mem::replace(&mut self.next, seen);
        }
        let parts: Vec<&str> = self.parts.0.values().map(String::as_str).collect();
        if parts.is_empty() {
            self.others = None;
            return None;
        }
        let is_recent = |(at, _): &(Instant, _)| now.duration_since(*at) < RENEW;
        let known = self.others.take().filter(is_recent);
        let (at, others) = known.unwrap_or_else(|| (now, others()));
        let mut text = parts.join("; ");
        if !others.is_empty() {
            text += &format!(
                "; another sockops program may be the cause ({})",
                others.join(", ")
            );
        }
        self.others = Some((at, others));
        Some(text)
    }
}

/// Number of measurements of connections that the learner decided about.
fn measured(counters: &Counters) -> u64 {
    counters.scored
        + counters.skipped_small
        + counters.skipped_app_limited
        + counters.skipped_timeout
        + counters.skipped_overridden
}

fn windows(counters: &Counters) -> u64 {
    counters.windows_scored + counters.windows_overridden
}

fn is_much(part: u64, whole: u64) -> bool {
    part >= LEAST && part * SHARE >= whole
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(small: u64, overridden: u64) -> Seen {
        let names = [("reno".to_owned(), overridden), ("vegas".to_owned(), 7)];
        Seen {
            counters: Counters {
                skipped_small: small,
                skipped_overridden: overridden,
                ..Counters::default()
            },
            names: names.into(),
            ..Seen::default()
        }
    }

    #[test]
    fn overridden_measurements_above_a_share_are_a_problem_until_others_outnumber_them() {
        let start = Instant::now();
        // What an earlier agent counted is no news.
        let mut overridden = Overridden::new(start, seen(0, 50));
        let none = || -> Vec<String> { unreachable!("nobody is looked for") };
        assert!(overridden.look(start, seen(0, 54), none).is_none());
        let other = || vec!["setter (number 3) on /".to_owned()];
        let text = overridden.look(start, seen(1, 65), other);
        assert_eq!(
            text.as_deref(),
            Some(
                "15 of 16 measurements were of another congestion control than the connection was given \
                 or left with (reno), and are not scored; another sockops program may be the cause \
                 (setter (number 3) on /)"
            )
        );
        assert!(overridden.look(start, seen(286, 65), none).is_none());
    }

    #[test]
    fn overridden_measurements_count_less_with_time_and_stand_until_one_is_as_it_should_be() {
        let mut now = Instant::now();
        let mut overridden = Overridden::new(now, seen(0, 0));
        let mut look = |now, small, number| {
            let told = overridden.look(now, seen(small, number), Vec::new);
            told.is_some()
        };
        // The first look counts all since the start.
        assert!(look(now, 0, 15));
        for _ in 0..3 {
            now += MEMORY / 2;
            assert!(look(now, 0, 15));
        }
        // Nothing was measured meanwhile, for however long.
        assert!(look(now + 100 * MEMORY, 0, 15));
        // Beside 15 this one would not count.
        assert!(!look(now, 1, 15));
        assert!(look(now, 1, 20));
    }

    #[test]
    fn rule_that_is_no_longer_in_force_is_no_problem() {
        let now = Instant::now();
        let mut overridden = Overridden::new(now, Seen::default());
        let taken = Taken {
            ended: 9,
            overridden: 9,
        };
        let mut seen = Seen::default();
        seen.rules.insert("pace".to_owned(), taken);
        assert!(overridden.look(now, seen, Vec::new).is_some());
        assert!(overridden.look(now, Seen::default(), Vec::new).is_none());
    }

    #[test]
    fn ends_that_are_not_seen_are_a_problem_beside_others_that_are() {
        let start = Instant::now();
        let mut overridden = Overridden::new(start, Seen::default());
        let mut look = |unseen, closed| {
            overridden.note_unseen(unseen);
            let mut seen = Seen::default();
            seen.counters.closed = closed;
            overridden.look(start, seen, Vec::new)
        };
        // What an earlier agent left is no news.
        assert_eq!(look(100, 0), None);
        assert_eq!(look(104, 0), None);
        assert_eq!(
            look(110, 90).as_deref(),
            Some("the ends of 10 of 100 connections were not seen, and are not scored")
        );
        assert_eq!(look(110, 191), None);
    }

    #[test]
    fn replaced_initial_windows_are_named_beside() {
        let now = Instant::now();
        let mut overridden = Overridden::new(now, Seen::default());
        let mut seen = Seen::default();
        seen.counters.windows_scored = 90;
        seen.counters.windows_overridden = 10;
        let text = overridden.look(now, seen, Vec::new);
        assert!(
            text.is_some_and(|text| text.starts_with("10 of 100 initial windows were replaced"))
        );
    }

    #[test]
    #[allow(clippy::unwrap_used, reason = "a test may fail by unwrap")]
    fn flows_without_the_settings_of_their_rule_are_a_problem_rule_by_rule() {
        let now = Instant::now();
        let taken = |ended, overridden| Taken { ended, overridden };
        let seen = |rules: &[(&str, Taken)]| Seen {
            rules: rules
                .iter()
                .map(|(name, taken)| ((*name).to_owned(), *taken))
                .collect(),
            ..Seen::default()
        };
        let mut overridden = Overridden::new(now, seen(&[]));
        // A few, and few among many, are none.
        let few = seen(&[("few", taken(8, 4)), ("many", taken(1000, 40))]);
        assert!(overridden.look(now, few, Vec::new).is_none());
        let much = seen(&[("busy", taken(100_000, 0)), ("much", taken(40, 9))]);
        let text = overridden.look(now, much, Vec::new).unwrap();
        assert!(
            text.starts_with("9 of 40 flows that rule much took ended without its settings"),
            "{text}"
        );
        assert!(!text.contains("busy"), "{text}");
        // Another policy counts anew.
        let mut overridden = Overridden::new(now, seen(&[("much", taken(400, 390))]));
        let again = seen(&[("much", taken(20, 10))]);
        let text = overridden.look(now, again, Vec::new).unwrap();
        assert!(text.starts_with("10 of 20 flows"), "{text}");
    }
}
