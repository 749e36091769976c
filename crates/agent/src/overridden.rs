//! What ran instead of what was measured for, and connections whose end was not seen. Another sockops
//! program, a route or the congestion control itself may set another one after the learner, and a
//! program that overwrites a connection's callback flags clears the learner's. Such connections are not
//! scored; where they are many, they are a problem.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use crate::view::Counters;

/// Time after which counts matter no more, at least; at most half as long again.
const MEMORY: Duration = Duration::from_secs(600);
/// Overridden connections below which there is no problem.
const LEAST: u64 = 5;
/// One of so many connections is a problem.
const SHARE: u64 = 20;
/// Time for which a problem keeps its words: finding the programs of others takes time.
const RENEW: Duration = Duration::from_secs(60);

/// Numbers at a time.
#[derive(Clone, Default)]
struct Seen {
    counters: Counters,
    /// Stretches by the name of what ran instead.
    names: BTreeMap<String, u64>,
    /// Connections that ended unseen.
    unseen: u64,
}

/// The numbers of some minutes ago.
pub(crate) struct Overridden {
    since: Instant,
    before: Seen,
    /// The numbers that become `before` next.
    next: Seen,
    /// Connections that ended unseen, when they were last counted.
    unseen: Option<u64>,
    /// The problem's words, and since when.
    told: Option<(Instant, String)>,
}

impl Overridden {
    /// Starts at a time, with what has been counted until then: that of an earlier agent is no news.
    pub fn new(now: Instant, counters: Counters, names: BTreeMap<String, u64>) -> Self {
        let before = Seen {
            counters,
            names,
            unseen: 0,
        };
        Self {
            since: now,
            next: before.clone(),
            before,
            unseen: None,
            told: None,
        }
    }

    /// Takes the number of connections that ended unseen. Those of the first call are no news.
    pub fn note_unseen(&mut self, ends: u64) {
        if self.unseen.is_none() {
            self.before.unseen = ends;
            self.next.unseen = ends;
        }
        self.unseen = Some(ends);
    }

    /// The problem, if many connections ended with another congestion control than their arm or unseen,
    /// or began with another initial window. `others` names the programs that may be the cause.
    pub fn look(
        &mut self,
        now: Instant,
        counters: &Counters,
        names: BTreeMap<String, u64>,
        others: impl FnOnce() -> Vec<String>,
    ) -> Option<String> {
        let seen = Seen {
            counters: *counters,
            names,
            unseen: self.unseen.unwrap_or(0),
        };
        let before = &self.before;
        let mut parts = Vec::new();
        let since = |now: u64, before: u64| now.saturating_sub(before);
        let ended = since(measured(&seen.counters), measured(&before.counters));
        let other = since(
            seen.counters.skipped_overridden,
            before.counters.skipped_overridden,
        );
        if is_much(other, ended) {
            let mut names: Vec<_> = seen.names.iter().collect();
            names.retain(|(name, count)| **count > before.names.get(*name).copied().unwrap_or(0));
            let names: Vec<&str> = names.into_iter().map(|(name, _)| name.as_str()).collect();
            parts.push(format!(
                "{other} of {ended} measurements were of another congestion control than the \
                 connection was given or left with ({}), and are not scored",
                names.join(", ")
            ));
        }
        let windows = since(windows(&seen.counters), windows(&before.counters));
        let other = since(
            seen.counters.windows_overridden,
            before.counters.windows_overridden,
        );
        if is_much(other, windows) {
            parts.push(format!(
                "{other} of {windows} initial windows were replaced before the first data was \
                 acknowledged, and are not scored"
            ));
        }
        let unseen = since(seen.unseen, before.unseen);
        let ended = unseen + since(seen.counters.closed, before.counters.closed);
        if is_much(unseen, ended) {
            parts.push(format!(
                "the ends of {unseen} of {ended} connections were not seen, and are not scored"
            ));
        }
        if now.duration_since(self.since) >= MEMORY / 2 {
            self.since = now;
            self.before = std::mem::replace(&mut self.next, seen);
        }
        if parts.is_empty() {
            self.told = None;
            return None;
        }
        if let Some((at, text)) = &self.told
            && now.duration_since(*at) < RENEW
        {
            return Some(text.clone());
        }
        let others = others();
        let text = match others.is_empty() {
            true => parts.join("; "),
            false => format!(
                "{}; another sockops program may be the cause ({})",
                parts.join("; "),
                others.join(", ")
            ),
        };
        self.told = Some((now, text.clone()));
        Some(text)
    }
}

/// Measurements of connections that the learner decided about.
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

    fn counters(small: u64, overridden: u64) -> Counters {
        Counters {
            skipped_small: small,
            skipped_overridden: overridden,
            ..Counters::default()
        }
    }

    fn names(reno: u64) -> BTreeMap<String, u64> {
        [("reno".to_owned(), reno), ("vegas".to_owned(), 7)].into()
    }

    #[test]
    fn overridden_measurements_above_a_share_are_a_problem_until_others_outnumber_them() {
        let start = Instant::now();
        // What an earlier agent counted is no news.
        let mut overridden = Overridden::new(start, counters(0, 50), names(50));
        let none = || -> Vec<String> { unreachable!("nobody is looked for") };
        assert!(
            overridden
                .look(start, &counters(0, 54), names(54), none)
                .is_none()
        );
        let other = || vec!["setter (number 3) on /".to_owned()];
        let text = overridden.look(start, &counters(1, 65), names(65), other);
        assert_eq!(
            text.as_deref(),
            Some(
                "15 of 16 measurements were of another congestion control than the connection was given \
                 or left with (reno), and are not scored; another sockops program may be the cause \
                 (setter (number 3) on /)"
            )
        );
        assert!(
            overridden
                .look(start, &counters(286, 65), names(65), none)
                .is_none()
        );
    }

    #[test]
    fn overridden_measurements_are_forgotten_with_time() {
        let mut now = Instant::now();
        let mut overridden = Overridden::new(now, counters(0, 0), names(0));
        let mut look = |now, number| {
            let seen = overridden.look(now, &counters(0, number), names(number), Vec::new);
            seen.is_some()
        };
        // The first look counts all since the start.
        assert!(look(now, 15));
        now += MEMORY / 2;
        assert!(look(now, 15));
        now += MEMORY / 2;
        assert!(look(now, 15));
        assert!(!look(now, 15));
        assert!(look(now, 20));
    }

    #[test]
    fn ends_that_are_not_seen_are_a_problem_beside_others_that_are() {
        let start = Instant::now();
        let mut overridden = Overridden::new(start, counters(0, 0), names(0));
        let mut look = |unseen, closed| {
            overridden.note_unseen(unseen);
            let counters = Counters {
                closed,
                ..Counters::default()
            };
            overridden.look(start, &counters, names(0), Vec::new)
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
        let mut counters = Counters::default();
        let mut overridden = Overridden::new(now, counters, BTreeMap::new());
        counters.windows_scored = 90;
        counters.windows_overridden = 10;
        let text = overridden.look(now, &counters, BTreeMap::new(), Vec::new);
        assert!(
            text.is_some_and(|text| text.starts_with("10 of 100 initial windows were replaced"))
        );
    }
}
