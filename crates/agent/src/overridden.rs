//! Overridden connections, and connections whose end was not seen. Another sockops program, a route
//! or the congestion control itself may replace the learner's choice. A program that overwrites a
//! connection's callback flags clears the learner's. The kernel may refuse a setting of a feature, or
//! something may replace it. Such connections are not scored; many of them are a problem.

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
    /// Connections with settings of features.
    pub of_features: Vec<Tally>,
    /// Connections that ended unseen, where [`Overridden::note_unseen`] was called.
    pub unseen: u64,
}

/// Connections with settings of one kind.
#[derive(Clone, Debug)]
pub struct Tally {
    /// Kind of the settings, one of its feature's.
    pub subject: String,
    /// Number of those that the kernel refused or something replaced.
    pub overridden: u64,
    /// Number of all of them.
    pub all: u64,
    /// Text of the problem from the kind and the two numbers, since some time.
    pub words: fn(&str, u64, u64) -> String,
}

/// Subject of a part of the problem.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Subject {
    Measurements,
    Ends,
    /// Settings of a feature.
    Settings(String),
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

    /// Forgets settings that are no longer in force.
    fn keep_settings(&mut self, tallies: &[Tally]) {
        self.0.retain(|subject, _| match subject {
            Subject::Settings(name) => tallies.iter().any(|it| it.subject == *name),
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
    /// or without a feature's settings. `others` lists the programs that may be the cause.
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
        let unseen = since(seen.unseen, before.unseen);
        let ended = unseen + since(seen.counters.closed, before.counters.closed);
        parts.judge_share(Subject::Ends, unseen, ended, || {
            format!("the ends of {unseen} of {ended} connections were not seen, and are not scored")
        });
        parts.keep_settings(&seen.of_features);
        for tally in &seen.of_features {
            let mut before = before.of_features.iter();
            // A larger count is of other settings with this name.
            let before = before.find(|it| it.subject == tally.subject && it.all <= tally.all);
            let all = since(tally.all, before.map_or(0, |it| it.all));
            let other = since(tally.overridden, before.map_or(0, |it| it.overridden));
            let subject = Subject::Settings(tally.subject.clone());
            parts.judge_share(subject, other, all, || {
                (tally.words)(&tally.subject, other, all)
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

    fn seen_settings(tallies: &[(&str, u64, u64)]) -> Seen {
        let tally = |(subject, overridden, all): &(&str, u64, u64)| Tally {
            subject: (*subject).to_owned(),
            overridden: *overridden,
            all: *all,
            words: |subject, overridden, all| format!("{overridden} of {all} {subject}"),
        };
        Seen {
            of_features: tallies.iter().map(tally).collect(),
            ..Seen::default()
        }
    }

    #[test]
    fn settings_that_are_no_longer_in_force_are_no_problem() {
        let now = Instant::now();
        let mut overridden = Overridden::new(now, Seen::default());
        let seen = seen_settings(&[("pace", 9, 9)]);
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
    fn replaced_settings_are_a_problem_kind_by_kind() {
        let now = Instant::now();
        let seen = seen_settings;
        let mut overridden = Overridden::new(now, seen(&[]));
        // A few, and few among many, are none.
        let few = seen(&[("few", 4, 8), ("many", 40, 1000)]);
        assert!(overridden.look(now, few, Vec::new).is_none());
        let much = seen(&[("busy", 0, 100_000), ("much", 9, 40)]);
        let text = overridden.look(now, much, Vec::new);
        assert_eq!(text.as_deref(), Some("9 of 40 much"));
        // Other settings with the same name count anew.
        let mut overridden = Overridden::new(now, seen(&[("much", 390, 400)]));
        let text = overridden.look(now, seen(&[("much", 10, 20)]), Vec::new);
        assert_eq!(text.as_deref(), Some("10 of 20 much"));
    }
}
