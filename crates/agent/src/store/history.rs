//! Decisions over time, from the stored events.

use rusqlite::params;

use super::{Store, StoreError};

/// Largest number of events that one answer takes into account, and of one host.
const EVENTS_MAX: i64 = 100_000;
const EVENTS_MAX_HOST: i64 = 10_000;

/// Equal intervals, one after the other.
#[derive(Clone, Copy, Debug)]
pub struct Intervals {
    /// Start of the first, milliseconds since 1970.
    pub from_ms: i64,
    /// Length of each, milliseconds.
    pub length_ms: i64,
    /// Their number.
    pub count: u32,
}

/// Decisions of the intervals.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Decided {
    /// Interval, arm (`None`: unknown CC), and number of decisions.
    pub counts: Vec<(u32, Option<String>, u64)>,
    /// Whether there were too many events, so that only the latest are counted.
    pub cut: bool,
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
            Some(_) => ("host = ?3", EVENTS_MAX_HOST),
            None => ("?3 IS NULL", EVENTS_MAX),
        };
        let mut statement = self.connection.prepare_cached(&format!(
            "SELECT kind = 'decision', (time_ms - ?1) / ?2 - (time_ms < ?1) AS part, arm, count(*)
             FROM (SELECT kind, time_ms, arm FROM events WHERE {of_host} AND id > ?4
                   ORDER BY id DESC LIMIT ?5)
             GROUP BY 1, part, arm"
        ))?;
        let first = self.before(intervals.from_ms)?;
        let mut rows = statement.query(params![
            intervals.from_ms,
            intervals.length_ms,
            host,
            first,
            limit
        ])?;
        let (mut found, mut read) = (Decided::default(), 0);
        while let Some(row) = rows.next()? {
            let (part, count): (i64, i64) = (row.get(1)?, row.get(3)?);
            read += count;
            if row.get(0)? && (0..i64::from(intervals.count)).contains(&part) {
                let part = u32::try_from(part).unwrap_or(0);
                found.counts.push((part, row.get(2)?, count.unsigned_abs()));
            }
        }
        found.cut = read >= limit;
        Ok(found)
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
