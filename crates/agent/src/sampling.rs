//! Sampling of stored events: the store keeps all events of a share of the host-hours, so that it
//! reaches back as far as it should.
//!
//! An event belongs to the hour of its connection's decision, which it bears. The share changes
//! only with the hour: no host-hour is kept in part.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use thalweg_bpf_types::{key_from_raw, raw};
use thalweg_gain::Sampling;
use thalweg_learner::HOUR_NS;

use crate::config::agent::Events;

/// Smallest share that is chosen automatically, in halvings.
const HALVINGS_MAX: u32 = 20;
/// Hours from which the number of events is predicted: a day, with its high and low.
const DAY_H: u64 = 24;
/// Hours of events that a prediction needs at least.
const KNOWN_MIN_H: f64 = 1.0 / 12.0;
/// Number of latest unkept events that are remembered, for requests about the present.
const RECENT: usize = 512;

/// Sampling of this boot, as stored.
#[derive(Clone, Debug, PartialEq)]
pub struct KeptSampling {
    /// Salt of the draw.
    pub salt: u64,
    /// Time at which counting of events began, ns since the boot.
    pub began_ns: u64,
    /// Expected events an hour before that; `None`: unknown.
    pub before: Option<f64>,
    /// Hours by number since the boot. An absent hour had the share of the one before.
    pub hours: BTreeMap<u64, Hour>,
}

/// Sampling of one hour.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Hour {
    /// Share of the hosts whose events are kept.
    pub share: f64,
    /// Events that reached the agent in the hour, kept or not.
    pub seen: u64,
}

impl KeptSampling {
    /// Expected events in an hour, from the day before it; `None`: too little is known.
    pub fn expected(&self, hour: u64) -> Option<f64> {
        let from = hour.saturating_sub(DAY_H);
        let seen: u64 = self.hours.range(from..hour).map(|(_, it)| it.seen).sum();
        let began_h = self.began_ns as f64 / HOUR_NS as f64;
        let known_h = (hour as f64 - began_h.max(from as f64)).max(0.0);
        match self.before {
            Some(before) => {
                let day_h = DAY_H as f64;
                Some((seen as f64 + before * (day_h - known_h)) / day_h)
            }
            None if known_h < KNOWN_MIN_H => None,
            None => Some(seen as f64 / known_h),
        }
    }

    fn share(&self, hour: u64) -> f64 {
        let decided = self.hours.range(..=hour).next_back();
        decided.map_or(1.0, |(_, hour)| hour.share)
    }
}

/// Sampling of a session.
#[derive(Debug)]
pub struct Sampler {
    draw: Sampling,
    kept: KeptSampling,
    /// The configured share; `None`: the largest that there is room for.
    fixed: Option<f64>,
    /// Time that the stored events must span, and their largest number.
    retention: Duration,
    rows: u64,
    /// The latest hour, and its share.
    hour: u64,
    share: f64,
    /// The first hour that differs from the store's.
    unsaved: Option<u64>,
    /// Whether a share changed since then.
    turned: bool,
    recent: VecDeque<raw::thalweg_event>,
}

impl Sampler {
    /// Continues the sampling from the stored state, at a time of this boot.
    pub fn new(kept: KeptSampling, events: &Events, now_ns: u64) -> Self {
        let mut sampler = Self {
            draw: Sampling { salt: kept.salt },
            fixed: events.share,
            retention: events.retention,
            rows: events.retention_max,
            hour: 0,
            share: kept.share(u64::MAX),
            unsaved: None,
            turned: false,
            recent: VecDeque::new(),
            kept,
        };
        sampler.advance(now_ns);
        sampler
    }

    /// Decides the share of a new hour. Call it before [`Sampler::take`].
    pub fn advance(&mut self, now_ns: u64) {
        let hour = now_ns / HOUR_NS;
        let last = self.kept.hours.keys().next_back().copied();
        if last.is_none_or(|last| last < hour) {
            let share = self.fixed.unwrap_or_else(|| self.room(hour));
            self.kept.hours.insert(hour, Hour { share, seen: 0 });
            self.unsaved.get_or_insert(hour);
            self.turned = true;
        }
        self.hour = last.unwrap_or(hour).max(hour);
        self.share = self.kept.share(self.hour);
    }

    /// The largest power of a half at which the events of a whole retention have room.
    fn room(&self, hour: u64) -> f64 {
        let Some(expected) = self.kept.expected(hour) else {
            return 1.0;
        };
        let hours = self.retention.as_secs_f64() / 3600.0;
        let mut rows = expected * hours;
        let mut share = 1.0;
        for _ in 0..HALVINGS_MAX {
            if rows <= self.rows as f64 {
                break;
            }
            rows /= 2.0;
            share /= 2.0;
        }
        share
    }

    /// Counts an event. Returns how many it stands for in the store; 0: it is not kept.
    pub fn take(&mut self, event: &raw::thalweg_event) -> f64 {
        if let Some(now) = self.kept.hours.get_mut(&self.hour) {
            now.seen += 1;
            self.unsaved.get_or_insert(self.hour);
        }
        let hour = hour_of(event);
        let share = match hour == self.hour {
            true => self.share,
            false => self.kept.share(hour),
        };
        if share >= 1.0 {
            return 1.0;
        }
        if self
            .draw
            .keeps_host(key_from_raw(&event.host).tag(), hour, share)
        {
            return 1.0 / share;
        }
        if self.recent.len() >= RECENT {
            self.recent.pop_front();
        }
        self.recent.push_back(*event);
        0.0
    }

    /// Share of the host-hours that is kept now.
    pub fn share(&self) -> f64 {
        self.share
    }

    /// The least share since a time of this boot.
    pub fn share_since(&self, from_ns: u64) -> f64 {
        let from = from_ns / HOUR_NS;
        let later = self.kept.hours.range(from..).map(|(_, hour)| hour.share);
        later.fold(self.kept.share(from), f64::min)
    }

    /// The latest events that were not kept, newest first.
    pub fn recent(&self) -> Vec<raw::thalweg_event> {
        self.recent.iter().rev().copied().collect()
    }

    /// Whether the store must have a new share before it gets events: after a restart the same
    /// host-hours must be kept.
    pub fn has_turned(&self) -> bool {
        self.turned
    }

    /// Takes the hours that differ from the store's. From then on the store counts as up to date.
    pub fn take_changes(&mut self) -> Vec<(u64, Hour)> {
        self.turned = false;
        let first = self.unsaved.take();
        let hours = first.map(|first| self.kept.hours.range(first..));
        let hours = hours.into_iter().flatten();
        hours.map(|(hour, it)| (*hour, *it)).collect()
    }

    /// Puts back changes that could not be saved.
    pub fn put_back(&mut self, changes: &[(u64, Hour)]) {
        if let Some((first, _)) = changes.first() {
            self.turned = true;
            self.unsaved = Some(self.unsaved.map_or(*first, |other| other.min(*first)));
        }
    }
}

/// The hour of a connection's decision, of which its events bear the lower half.
fn hour_of(event: &raw::thalweg_event) -> u64 {
    let hour = event.time_ns / HOUR_NS;
    hour.saturating_sub((hour as u16).wrapping_sub(event.hour).into())
}

#[cfg(test)]
mod tests;
