//! What the agent has answered, and how it changes per second.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use thalweg_agent::view::{Arm, Event, Host, Status};
use thalweg_control::inventory::Inventory;

/// An answer and an earlier one.
pub struct Observed<T> {
    /// The latest answer.
    pub now: T,
    at: Instant,
    before: Option<(T, Instant)>,
}

impl<T> Observed<T> {
    fn first(now: T, at: Instant) -> Self {
        let before = None;
        Self { now, at, before }
    }

    /// Takes the next answer. An answer soon after the one before, as after a key, would make rates
    /// jump: then they go on from the earlier one.
    fn next(&mut self, next: T, at: Instant, least: Duration) {
        let now = std::mem::replace(&mut self.now, next);
        let then = std::mem::replace(&mut self.at, at);
        if self.before.is_none() || at - then >= least {
            self.before = Some((now, then));
        }
    }

    /// Changes per second of a counter.
    pub fn per_second(&self, counter: impl Fn(&T) -> Option<u64>) -> Option<f64> {
        let (before, then) = self.before.as_ref()?;
        let grown = counter(&self.now)?.saturating_sub(counter(before)?);
        let seconds = (self.at - *then).as_secs_f64();
        (seconds > 0.0).then(|| grown as f64 / seconds)
    }
}

/// Records, and the connections of each for rates.
pub struct Hosts {
    /// The records.
    pub list: Vec<Host>,
    connections: HashMap<(String, u64), u64>,
}

impl From<Vec<Host>> for Hosts {
    fn from(list: Vec<Host>) -> Self {
        let one = |host: &Host| ((host.address.clone(), host.netns), host.connections.into());
        let connections = list.iter().map(one).collect();
        Self { list, connections }
    }
}

impl Hosts {
    /// The connections of a host, if it is among these.
    pub fn connections_of(&self, host: &Host) -> Option<u64> {
        let key = (host.address.clone(), host.netns);
        self.connections.get(&key).copied()
    }
}

/// Answers to one round of requests.
#[derive(Default)]
pub struct RoundAnswers {
    pub status: Option<Status>,
    pub arms: Option<Vec<Arm>>,
    pub hosts: Option<Vec<Host>>,
    /// `Some(None)`: this agent does not report it.
    pub kernel: Option<Option<Inventory>>,
    pub events: Option<Vec<Event>>,
    /// Why a request failed; then the rest was not asked for.
    pub trouble: Option<String>,
}

/// All that is known.
#[derive(Default)]
pub struct AgentView {
    pub status: Option<Observed<Status>>,
    pub arms: Vec<Arm>,
    pub hosts: Option<Observed<Hosts>>,
    pub kernel: Option<Observed<Option<Inventory>>>,
    pub events: Option<Vec<Event>>,
    /// Why the agent does not answer.
    pub trouble: Option<String>,
    /// Time of the status, ms since 1970.
    pub time_ms: i64,
}

impl AgentView {
    /// Takes what a round has brought; `least` is the shortest time that rates are told of.
    pub fn take_round(&mut self, round: RoundAnswers, at: Instant, time_ms: i64, least: Duration) {
        fn take<T>(known: &mut Option<Observed<T>>, new: Option<T>, at: Instant, least: Duration) {
            match (known.as_mut(), new) {
                (_, None) => {}
                (Some(known), Some(new)) => known.next(new, at, least),
                (None, Some(new)) => *known = Some(Observed::first(new, at)),
            }
        }
        if round.status.is_some() {
            self.time_ms = time_ms;
        }
        take(&mut self.status, round.status, at, least);
        take(&mut self.hosts, round.hosts.map(Hosts::from), at, least);
        take(&mut self.kernel, round.kernel, at, least);
        self.arms = round.arms.unwrap_or(std::mem::take(&mut self.arms));
        self.events = round.events.or(self.events.take());
        self.trouble = round.trouble;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_over_an_interval_at_least() {
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let least = Duration::from_millis(1000);
        let mut seen = Observed::first(100, at(0));
        let rate = |seen: &Observed<u64>| seen.per_second(|count| Some(*count));
        assert_eq!(rate(&seen), None);
        seen.next(300, at(2000), least);
        assert_eq!(rate(&seen), Some(100.0));
        // A key has been pressed: still since the first.
        seen.next(301, at(2010), least);
        assert!((rate(&seen).unwrap() - 100.0).abs() < 0.1);
        seen.next(500, at(4010), least);
        assert!((rate(&seen).unwrap() - 99.5).abs() < 0.01);
        // The agent has begun anew.
        seen.next(0, at(6010), least);
        assert_eq!(rate(&seen), Some(0.0));
    }
}
