//! Host records: saved all at once, loaded all at once.

use rusqlite::{OptionalExtension, Row, Transaction, params};
use thalweg_core::{ArmState, HostKey, Mode};

use super::row::{HostRow, Snapshot, parse_key};
use super::{Store, StoreError};

impl Store {
    /// Replaces all records of the snapshot's mode by the snapshot's, in one transaction.
    pub fn save_snapshot(&mut self, snapshot: &Snapshot) -> Result<(), StoreError> {
        let saved = self.connection.transaction().and_then(|transaction| {
            save(&transaction, snapshot)?;
            transaction.commit()
        });
        self.sql("save the host records", saved)
    }

    /// As [`Store::save_snapshot`], with records that come one by one: `walk` hands each to the
    /// function it is given. `header` is a snapshot whose own records are not looked at.
    ///
    /// An error of `walk` leaves the last snapshot in place.
    pub fn save_walk(
        &mut self,
        header: &Snapshot,
        walk: impl FnOnce(&mut dyn FnMut(&HostRow) -> anyhow::Result<()>) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        let transaction = self.connection.transaction()?;
        save_header(&transaction, header)?;
        walk(&mut |host| Ok(save_host(&transaction, header.mode, host)?))?;
        Ok(transaction.commit()?)
    }

    /// The last snapshot of a mode, if there is one.
    pub fn load_snapshot(&self, mode: Mode) -> Result<Option<Snapshot>, StoreError> {
        let header = self
            .connection
            .query_row(
                "SELECT boot_id, own_netns, saved_at_ms FROM snapshots WHERE mode = ?1",
                [mode.name()],
                |row| {
                    Ok(Snapshot {
                        mode,
                        boot_id: row.get(0)?,
                        own_netns: unsigned(row, 1)?,
                        saved_at_ms: row.get(2)?,
                        hosts: Vec::new(),
                    })
                },
            )
            .optional();
        let Some(mut snapshot) = self.sql("load the host records", header)? else {
            return Ok(None);
        };
        let invalid = |fault| StoreError::Row {
            path: self.path.clone(),
            fault,
        };
        for (id, row) in self.sql("load the host records", self.load_hosts(mode))? {
            let mut row = row.map_err(invalid)?;
            row.arms = self.sql("load the host records", self.load_arms(id))?;
            if let Some((field, why)) = row.fault(mode) {
                return Err(invalid(format!("{}: {field}: {why}", row.key)));
            }
            snapshot.hosts.push(row);
        }
        Ok(Some(snapshot))
    }

    /// Removes all saved records of a mode; returns how many.
    pub fn clear_hosts(&mut self, mode: Mode) -> Result<usize, StoreError> {
        let removed = self
            .connection
            .execute("DELETE FROM hosts WHERE mode = ?1", [mode.name()]);
        self.sql("remove the host records", removed)
    }

    /// Removes one saved record; returns whether there was one.
    pub fn reset_host(&mut self, mode: Mode, key: &HostKey) -> Result<bool, StoreError> {
        let removed = self.connection.execute(
            "DELETE FROM hosts WHERE mode = ?1 AND netns = ?2 AND address = ?3 AND prefix = ?4",
            params![
                mode.name(),
                key.netns.cast_signed(),
                key.address().to_string(),
                key.own_prefix()
            ],
        );
        Ok(self.sql("remove a host record", removed)? > 0)
    }

    /// Rows without their arms, each with its id; `Err` inside: a key that cannot be.
    #[allow(clippy::type_complexity, reason = "said once, here")]
    fn load_hosts(
        &self,
        mode: Mode,
    ) -> Result<Vec<(i64, Result<HostRow, String>)>, rusqlite::Error> {
        let mut statement = self.connection.prepare_cached(
            "SELECT id, netns, address, prefix, connections, scored, switched, min_rtt_us,
                    max_rate, seen_age_ms, forgot_age_ms, queue_q16, base_rtt_us
             FROM hosts WHERE mode = ?1 ORDER BY id",
        )?;
        let rows = statement.query_map([mode.name()], |row| {
            let address: String = row.get(2)?;
            let forgot_age_ms: Option<i64> = row.get(10)?;
            let key = parse_key(unsigned(row, 1)?, &address, row.get(3)?);
            let connections = row.get(4)?;
            let scored = row.get(5)?;
            let switched = row.get(6)?;
            let min_rtt_us = row.get(7)?;
            let max_rate = unsigned(row, 8)?;
            let seen_age_ms = unsigned(row, 9)?;
            let queue_q16 = row.get(11)?;
            let base_rtt_us = row.get(12)?;
            let host = key.map(|key| HostRow {
                key,
                connections,
                scored,
                switched,
                min_rtt_us,
                max_rate,
                queue_q16,
                base_rtt_us,
                seen_age_ms,
                forgot_age_ms: forgot_age_ms.map(i64::cast_unsigned),
                arms: Vec::new(),
            });
            Ok((row.get(0)?, host))
        })?;
        rows.collect()
    }

    fn load_arms(&self, host: i64) -> Result<Vec<(String, ArmState)>, rusqlite::Error> {
        let mut statement = self.connection.prepare_cached(
            "SELECT arm, value, max_rate, weight_q16, deviation_q16, log_rate_q16, srtt_us,
                    min_rtt_us, chosen, greedy, scored, segs, retrans
             FROM host_arms WHERE host = ?1 ORDER BY arm",
        )?;
        let rows = statement.query_map([host], |row| {
            let arm = ArmState {
                value: unsigned(row, 1)?,
                max_rate: unsigned(row, 2)?,
                weight_q16: row.get(3)?,
                deviation_q16: row.get(4)?,
                log_rate_q16: row.get(5)?,
                srtt_us: row.get(6)?,
                min_rtt_us: row.get(7)?,
                chosen: row.get(8)?,
                greedy: row.get(9)?,
                scored: row.get(10)?,
                segs: row.get(11)?,
                retrans: row.get(12)?,
            };
            Ok((row.get(0)?, arm))
        })?;
        rows.collect()
    }
}

/// Writes a snapshot over the last one; the caller commits.
pub(super) fn save(
    transaction: &Transaction<'_>,
    snapshot: &Snapshot,
) -> Result<(), rusqlite::Error> {
    save_header(transaction, snapshot)?;
    snapshot
        .hosts
        .iter()
        .try_for_each(|host| save_host(transaction, snapshot.mode, host))
}

/// Removes the records of the snapshot's mode and writes what is not a record.
fn save_header(transaction: &Transaction<'_>, snapshot: &Snapshot) -> Result<(), rusqlite::Error> {
    let mode = snapshot.mode.name();
    transaction.execute("DELETE FROM hosts WHERE mode = ?1", [mode])?;
    transaction.execute(
        "INSERT OR REPLACE INTO snapshots (mode, boot_id, own_netns, saved_at_ms)
         VALUES (?1, ?2, ?3, ?4)",
        params![
            mode,
            snapshot.boot_id,
            snapshot.own_netns.cast_signed(),
            snapshot.saved_at_ms
        ],
    )?;
    Ok(())
}

fn save_host(
    transaction: &Transaction<'_>,
    mode: Mode,
    host: &HostRow,
) -> Result<(), rusqlite::Error> {
    let mut insert_host = transaction.prepare_cached(
        "INSERT INTO hosts (mode, netns, address, prefix, connections, scored, switched,
                            min_rtt_us, max_rate, seen_age_ms, forgot_age_ms, queue_q16,
                            base_rtt_us)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13)",
    )?;
    let mut insert_arm = transaction.prepare_cached(
        "INSERT INTO host_arms (host, arm, value, max_rate, weight_q16, deviation_q16,
                                log_rate_q16, srtt_us, min_rtt_us, chosen, greedy, scored, segs,
                                retrans)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14)",
    )?;
    let id = insert_host.insert(params![
        mode.name(),
        host.key.netns.cast_signed(),
        host.key.address().to_string(),
        host.key.own_prefix(),
        host.connections,
        host.scored,
        host.switched,
        host.min_rtt_us,
        host.max_rate.cast_signed(),
        host.seen_age_ms.cast_signed(),
        host.forgot_age_ms.map(u64::cast_signed),
        host.queue_q16,
        host.base_rtt_us,
    ])?;
    for (name, arm) in &host.arms {
        insert_arm.execute(params![
            id,
            name,
            arm.value.cast_signed(),
            arm.max_rate.cast_signed(),
            arm.weight_q16,
            arm.deviation_q16,
            arm.log_rate_q16,
            arm.srtt_us,
            arm.min_rtt_us,
            arm.chosen,
            arm.greedy,
            arm.scored,
            arm.segs,
            arm.retrans,
        ])?;
    }
    Ok(())
}

/// A 64-bit value without sign, kept as the signed one of the same bits.
pub(super) fn unsigned(row: &Row<'_>, column: usize) -> Result<u64, rusqlite::Error> {
    Ok(row.get::<_, i64>(column)?.cast_unsigned())
}
