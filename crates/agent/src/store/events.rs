//! Decisions and ends of connections: appended in batches, read by number, pruned by age.

use std::time::Duration;

use rusqlite::{Row, ToSql, Transaction, params};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::clock::Moment;
use super::snapshot::unsigned;
use super::{Store, StoreError};
use crate::view::{Event, Measurement, Window};

/// Largest number of rows that one call of [`Store::prune`] removes.
pub const PRUNE_STEP: u64 = 20_000;

const COLUMNS: &str = "id, time_ms, kind, connection, netns, host, remote, remote_port, \
     local_port, arm, chosen, system_arm, reason, propensity, passive, ecn, dry_run, switched, \
     error, end_kind, outcome, bytes, duration_us, rate_bytes_per_s, srtt_us, min_rtt_us, \
     segs_out, retrans, cost, weight, propensities, allowed, handshake_rtt_us, rule, parameters, \
     control, wall_us, receiver_us, buffer_us, app_limited, stands_for, level, \
     window, window_chosen, window_propensity, window_cost";

impl Store {
    /// Appends events in one transaction; their `id` is ignored. Returns the number of the last
    /// one, or `None` for an empty batch.
    pub fn append_events(
        &mut self,
        events: &[Event],
        moment: Moment,
    ) -> Result<Option<i64>, StoreError> {
        if events.is_empty() {
            return Ok(None);
        }
        let now_ms = self.clock.at(moment.monotonic_ns);
        let appended = self.transaction().and_then(|transaction| {
            append(&transaction, events, now_ms)?;
            let last = transaction.last_insert_rowid();
            transaction.commit()?;
            Ok(Some(last))
        });
        self.sql("store events", appended)
    }

    /// At most `limit` events with a number above `since`, oldest first; if given, of one host
    /// record.
    pub fn events(
        &self,
        since: i64,
        limit: u32,
        host: Option<&str>,
    ) -> Result<Vec<Event>, StoreError> {
        let result = match host {
            Some(host) => self.select(
                "host = ?1 AND id > ?2 ORDER BY id LIMIT ?3",
                &[&host, &since, &limit],
            ),
            None => self.select("id > ?1 ORDER BY id LIMIT ?2", &[&since, &limit]),
        };
        self.sql("read events", result)
    }

    /// The latest `limit` events, newest first; if given, of one host record.
    pub fn recent(&self, host: Option<&str>, limit: u32) -> Result<Vec<Event>, StoreError> {
        self.events_before(i64::MAX, limit, host)
    }

    /// At most `limit` events with a number below `before`, newest first; if given, of one host
    /// record.
    pub fn events_before(
        &self,
        before: i64,
        limit: u32,
        host: Option<&str>,
    ) -> Result<Vec<Event>, StoreError> {
        let result = match host {
            Some(host) => self.select(
                "host = ?1 AND id < ?2 ORDER BY id DESC LIMIT ?3",
                &[&host, &before, &limit],
            ),
            None => self.select("id < ?1 ORDER BY id DESC LIMIT ?2", &[&before, &limit]),
        };
        self.sql("read events", result)
    }

    /// Removes events that are older than `retention` or beyond the `max_rows` latest, oldest
    /// first, at most [`PRUNE_STEP`] of each kind. Returns their number. Call it again while it
    /// returns [`PRUNE_STEP`] or more.
    pub fn prune(
        &mut self,
        moment: Moment,
        retention: Duration,
        max_rows: u64,
    ) -> Result<u64, StoreError> {
        let retention_ms = i64::try_from(retention.as_millis()).unwrap_or(i64::MAX);
        let now_ms = self.clock.at(moment.monotonic_ns);
        let cutoff_ms = now_ms.saturating_sub(retention_ms);
        let pruned = self.transaction().and_then(|transaction| {
            // Numbers rise with the store's clock. Events of earlier versions have only the wall
            // clock's time.
            let by_age = transaction
                .prepare_cached(
                    "DELETE FROM events WHERE id IN
                     (SELECT id FROM (SELECT id, coalesce(clock_ms, time_ms) AS at FROM events
                                      ORDER BY id LIMIT ?2)
                      WHERE at < ?1)",
                )?
                .execute(params![cutoff_ms, PRUNE_STEP.cast_signed()])?;
            // Numbers rise without gaps except for rows removed by age. So this bounds the number
            // of rows without counting them.
            let by_number = transaction
                .prepare_cached(
                    "DELETE FROM events WHERE id IN
                     (SELECT id FROM events
                      WHERE id <= (SELECT max(id) FROM events) - ?1 ORDER BY id LIMIT ?2)",
                )?
                .execute(params![
                    i64::try_from(max_rows).unwrap_or(i64::MAX),
                    PRUNE_STEP.cast_signed()
                ])?;
            transaction.commit()?;
            Ok((by_age + by_number) as u64)
        });
        self.sql("remove old events", pruned)
    }

    fn select(
        &self,
        condition: &str,
        values: &[&dyn ToSql],
    ) -> Result<Vec<Event>, rusqlite::Error> {
        let sql = format!("SELECT {COLUMNS} FROM events WHERE {condition}");
        let mut statement = self.connection.prepare_cached(&sql)?;
        statement.query_map(values, event)?.collect()
    }
}

/// Inserts events; the caller commits the transaction.
pub(super) fn append(
    transaction: &Transaction<'_>,
    events: &[Event],
    now_ms: i64,
) -> Result<(), rusqlite::Error> {
    let mut insert = transaction.prepare_cached(&format!(
        "INSERT INTO events ({COLUMNS}, clock_ms) VALUES (NULL, ?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10,
         ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18, ?19, ?20, ?21, ?22, ?23, ?24, ?25, ?26, ?27,
         ?28, ?29, ?30, ?31, ?32, ?33, ?34, ?35, ?36, ?37, ?38, ?39, ?40, ?41, ?42, ?43, ?44,
         ?45, ?46)"
    ))?;
    for event in events {
        let measured = event.measurement.as_ref();
        insert.execute(params![
            event.time_ms,
            event.kind,
            event.connection.cast_signed(),
            event.netns.cast_signed(),
            event.host,
            event.remote,
            event.remote_port,
            event.local_port,
            event.arm,
            event.chosen,
            event.system_arm,
            event.reason,
            event.propensity,
            event.passive,
            event.ecn,
            event.dry_run,
            event.switched,
            event.error,
            measured.map(|m| &m.end),
            measured.map(|m| &m.outcome),
            measured.map(|m| m.bytes.cast_signed()),
            measured.map(|m| m.duration_us.cast_signed()),
            measured.map(|m| m.rate_bytes_per_s.cast_signed()),
            measured.map(|m| m.srtt_us),
            measured.map(|m| m.min_rtt_us),
            measured.map(|m| m.segs_out),
            measured.map(|m| m.retrans),
            measured.map(|m| m.cost.cast_signed()),
            measured.map(|m| m.weight),
            event.propensities.as_ref().map(json),
            event.allowed.as_ref().map(json),
            event.handshake_rtt_us,
            event.rule,
            event.parameters,
            event.control,
            measured.map_or(0, |m| m.wall_us.cast_signed()),
            measured.map_or(0, |m| m.receiver_us),
            measured.map_or(0, |m| m.buffer_us),
            measured.is_some_and(|m| m.app_limited),
            event.stands_for,
            event.level,
            event.window.as_ref().map_or(0, |it| it.segments),
            event.window.as_ref().map_or(0, |it| it.chosen),
            event.window.as_ref().map_or(0.0, |it| it.propensity),
            event.window.as_ref().and_then(|it| it.cost_bits),
            now_ms,
        ])?;
    }
    Ok(())
}

/// JSON of maps and lists of names and finite numbers, which cannot fail.
fn json<T: Serialize>(value: &T) -> String {
    serde_json::to_string(value).unwrap_or_default()
}

/// Value of a column that [`json`] wrote; `None`: the column has none, or another form.
fn of_json<T: DeserializeOwned>(
    row: &Row<'_>,
    column: usize,
) -> Result<Option<T>, rusqlite::Error> {
    let text = row.get::<_, Option<String>>(column)?;
    Ok(text.and_then(|text| serde_json::from_str(&text).ok()))
}

fn window(row: &Row<'_>) -> Result<Option<Window>, rusqlite::Error> {
    let window = Window {
        segments: row.get(42)?,
        chosen: row.get(43)?,
        propensity: row.get(44)?,
        cost_bits: row.get(45)?,
    };
    Ok((window.segments > 0).then_some(window))
}

fn event(row: &Row<'_>) -> Result<Event, rusqlite::Error> {
    let measurement = match row.get::<_, Option<String>>(19)? {
        None => None,
        Some(end) => Some(Measurement {
            end,
            outcome: row.get(20)?,
            bytes: unsigned(row, 21)?,
            duration_us: unsigned(row, 22)?,
            rate_bytes_per_s: unsigned(row, 23)?,
            srtt_us: row.get(24)?,
            min_rtt_us: row.get(25)?,
            segs_out: row.get(26)?,
            retrans: row.get(27)?,
            cost: unsigned(row, 28)?,
            weight: row.get(29)?,
            wall_us: unsigned(row, 36)?,
            receiver_us: row.get(37)?,
            buffer_us: row.get(38)?,
            app_limited: row.get(39)?,
        }),
    };
    Ok(Event {
        id: row.get(0)?,
        time_ms: row.get(1)?,
        kind: row.get(2)?,
        connection: unsigned(row, 3)?,
        netns: unsigned(row, 4)?,
        host: row.get(5)?,
        remote: row.get(6)?,
        remote_port: row.get(7)?,
        local_port: row.get(8)?,
        arm: row.get(9)?,
        chosen: row.get(10)?,
        system_arm: row.get(11)?,
        reason: row.get(12)?,
        propensity: row.get(13)?,
        passive: row.get(14)?,
        ecn: row.get(15)?,
        dry_run: row.get(16)?,
        switched: row.get(17)?,
        error: row.get(18)?,
        propensities: of_json(row, 30)?,
        allowed: of_json(row, 31)?,
        handshake_rtt_us: row.get(32)?,
        rule: row.get(33)?,
        parameters: row.get(34)?,
        control: row.get(35)?,
        stands_for: row.get(40)?,
        level: row.get(41)?,
        window: window(row)?,
        measurement,
    })
}
