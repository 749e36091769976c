//! Decisions over time, from the stored events.

use std::collections::BTreeMap;

use rusqlite::params;

use super::{Store, StoreError};

/// Largest number of events that one answer takes into account, of all hosts and of one host.
const EVENTS_MAX: i64 = 100_000;
const EVENTS_MAX_HOST: i64 = 10_000;

/// Equal intervals, one after the other.
#[derive(Clone, Copy, Debug)]
pub struct Intervals {
    /// Start of the first interval, milliseconds since 1970.
    pub from_ms: i64,
    /// Length of each interval, milliseconds.
    pub length_ms: i64,
    /// Number of intervals.
    pub count: u32,
}

/// Decisions of the intervals.
#[derive(Clone, Debug, PartialEq)]
pub struct Decided {
    /// Interval, arm (`None`: unknown CC), and number of decisions. Of all hosts it is an estimate
    /// where not all host-hours were kept; of one host it counts stored events.
    pub counts: Vec<(u32, Option<String>, u64)>,
    /// Whether there were too many events, so that only the latest are counted.
    pub cut: bool,
    /// The least share of host-hours of which events are stored.
    pub share: f64,
}

impl Store {
    /// Decisions by interval and arm; if given, of one host record.
    pub fn history(&self, intervals: Intervals, host: Option<&str>) -> Result<Decided, StoreError> {
        let result = self.decided(intervals, host);
        self.sql("read events", result)
    }

    fn decided(
        &self,
        intervals: Intervals,
        host: Option<&str>,
    ) -> Result<Decided, rusqlite::Error> {
        let (of_host, limit) = match host {
            Some(_) => ("host = ?1", EVENTS_MAX_HOST),
            None => ("?1 IS NULL", EVENTS_MAX),
        };
        // Counted here, as SQLite would sort all rows first.
        let mut statement = self.connection.prepare_cached(&format!(
            "SELECT time_ms, arm, kind = 'decision', stands_for FROM events
             WHERE {of_host} AND id > ?2 ORDER BY id DESC LIMIT ?3"
        ))?;
        let first = self.before(intervals.from_ms)?;
        let mut rows = statement.query(params![host, first, limit])?;
        let mut arms: Vec<Option<String>> = Vec::new();
        let mut counts: BTreeMap<(u32, usize), f64> = BTreeMap::new();
        let mut share: f64 = 1.0;
        let mut read = 0;
        while let Some(row) = rows.next()? {
            read += 1;
            let since: i64 = row.get::<_, i64>(0)? - intervals.from_ms;
            let part = u32::try_from(since.div_euclid(intervals.length_ms)).ok();
            let Some(part) = part.filter(|part| *part < intervals.count) else {
                continue;
            };
            let stands_for: f64 = row.get(3)?;
            share = share.min(1.0 / stands_for);
            if !row.get::<_, bool>(2)? {
                continue;
            }
            let name = row.get_ref(1)?.as_str_or_null()?;
            let known = arms.iter().position(|arm| arm.as_deref() == name);
            let arm = known.unwrap_or_else(|| {
                arms.push(name.map(str::to_owned));
                arms.len() - 1
            });
            // An hour of one host is kept whole or not at all.
            *counts.entry((part, arm)).or_default() += host.map_or(stands_for, |_| 1.0);
        }
        let counts = counts.into_iter();
        Ok(Decided {
            counts: counts
                .map(|((part, arm), count)| (part, arms[arm].clone(), count.round() as u64))
                .collect(),
            cut: read >= limit,
            share,
        })
    }

    /// The number before the first event since a moment, found by halving: numbers rise with time.
    /// Where the clock was set back, some earlier events are found, too.
    fn before(&self, moment_ms: i64) -> Result<i64, rusqlite::Error> {
        let (mut low, mut high): (i64, i64) = self.connection.query_row(
            "SELECT coalesce((SELECT min(id) FROM events), 1) - 1,
                    coalesce((SELECT max(id) FROM events), 0)",
            [],
            |row| Ok((row.get(0)?, row.get(1)?)),
        )?;
        let mut next = self
            .connection
            .prepare_cached("SELECT time_ms FROM events WHERE id > ?1 ORDER BY id LIMIT 1")?;
        while low < high {
            let middle = low + (high - low) / 2;
            if next.query_row([middle], |row| row.get::<_, i64>(0))? < moment_ms {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        Ok(low)
    }
}
