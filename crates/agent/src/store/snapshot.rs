//! Host records in the store: saving changes, and loading all.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use rusqlite::{Connection, OptionalExtension, Row, Transaction, TransactionBehavior, params};
use thalweg_learner::{ArmState, Host, HostKey, Mode};

use super::clock::Moment;
use super::row::{HostRow, Snapshot, parse_key};
use super::{Store, StoreError};

/// The stored state of each host, in brief: enough to find changed records.
///
/// Every change of a record by a program comes with a later time, so times and counts show every
/// change. Hosts are identified by the kernel's 64-bit hash.
#[derive(Debug, Default)]
pub struct Saved {
    marks: HashMap<u64, Mark>,
    walk: u32,
    /// Value of [`Store::resets`] when this state was read.
    resets: u64,
    /// Rows with values that no version of Thalweg writes.
    unreadable: Vec<i64>,
}

#[derive(Debug)]
struct Mark {
    id: i64,
    print: u64,
    /// Number of the last walk that found the record in the kernel.
    walk: u32,
}

impl Saved {
    /// Begins a walk over all records of the kernel.
    pub fn begin(&mut self) {
        self.walk = self.walk.wrapping_add(1);
    }

    /// Treats every record as changed.
    pub fn distrust(&mut self) {
        for mark in self.marks.values_mut() {
            mark.print = !mark.print;
        }
    }

    /// Rows of hosts that this walk did not find.
    pub fn missing(&self) -> Vec<i64> {
        let unseen = self.marks.values().filter(|mark| mark.walk != self.walk);
        unseen.map(|mark| mark.id).collect()
    }
}

fn print(seen_ms: i64, connections: u32, scored: u32, switched: u32) -> u64 {
    let mut hasher = DefaultHasher::new();
    (seen_ms, connections, scored, switched).hash(&mut hasher);
    hasher.finish()
}

impl Store {
    /// Replaces all records of the snapshot's mode by the snapshot's, in one transaction. Ages are
    /// relative to `moment`.
    pub fn save_snapshot(&mut self, snapshot: &Snapshot, moment: Moment) -> Result<(), StoreError> {
        let clock = self.clock.clone();
        let now_ms = clock.at(moment.monotonic_ns);
        let saved = self.transaction().and_then(|transaction| {
            let mode = snapshot.mode.name();
            transaction.execute("DELETE FROM hosts WHERE mode = ?1", [mode])?;
            save_header(&transaction, snapshot)?;
            for row in &snapshot.hosts {
                save_host(&transaction, snapshot.mode, row, now_ms)?;
            }
            transaction.commit()
        });
        self.sql("save the host records", saved)
    }

    /// Assigns the records of a mode to this boot. Of another boot's, only those of the agent's own
    /// network namespace can be identified; they get its present cookie.
    pub fn adopt(&mut self, now: &Snapshot) -> Result<(), StoreError> {
        let adopted = self.transaction().and_then(|transaction| {
            let mode = now.mode.name();
            let last = transaction
                .query_row(
                    "SELECT boot_id, own_netns FROM snapshots WHERE mode = ?1",
                    [mode],
                    |row| Ok((row.get::<_, String>(0)?, row.get::<_, i64>(1)?)),
                )
                .optional()?;
            let own_netns = now.own_netns.cast_signed();
            match last {
                Some((boot, own)) if boot == now.boot_id && own == own_netns => return Ok(()),
                Some((boot, own)) if boot != now.boot_id => {
                    transaction.execute(
                        "DELETE FROM hosts WHERE mode = ?1 AND netns <> ?2",
                        params![mode, own],
                    )?;
                    transaction.execute(
                        "UPDATE hosts SET netns = ?2 WHERE mode = ?1 AND netns <> ?2",
                        params![mode, own_netns],
                    )?;
                }
                _ => {}
            }
            save_header(&transaction, now)?;
            transaction.commit()
        });
        self.sql("take up the host records", adopted)
    }

    /// Reads the stored state of each host of a mode.
    pub fn saved(&self, mode: Mode) -> Result<Saved, StoreError> {
        let resets = self.resets();
        let read = self
            .connection
            .prepare_cached(
                "SELECT id, netns, address, prefix, seen_ms, connections, scored, switched, level
                 FROM hosts WHERE mode = ?1",
            )
            .and_then(|mut statement| {
                let mut saved = Saved {
                    resets,
                    ..Saved::default()
                };
                let mut rows = statement.query([mode.name()])?;
                while let Some(row) = rows.next()? {
                    let id = row.get(0)?;
                    let address: String = row.get(2)?;
                    let key = parse_key(unsigned(row, 1)?, &address, row.get(3)?, row.get(8)?);
                    let Ok(key) = key else {
                        saved.unreadable.push(id);
                        continue;
                    };
                    let mark = Mark {
                        id,
                        print: print(row.get(4)?, row.get(5)?, row.get(6)?, row.get(7)?),
                        walk: 0,
                    };
                    saved.marks.insert(key.tag(), mark);
                }
                Ok(saved)
            });
        self.sql("read the host records", read)
    }

    /// Whether nothing was removed on request since this state was read.
    pub fn is_current(&self, saved: &Saved) -> bool {
        self.resets() == saved.resets
    }

    /// Whether the store's record equals the kernel's; marks it as found.
    pub fn has(&self, saved: &mut Saved, key: &HostKey, host: &Host) -> bool {
        let seen_ms = self.clock.at(host.seen_ns);
        let print = print(seen_ms, host.connections, host.scored, host.switched);
        match saved.marks.get_mut(&key.tag()) {
            Some(mark) => {
                mark.walk = saved.walk;
                mark.print == print
            }
            None => false,
        }
    }

    /// Saves records of the kernel, in one transaction. The ages of `rows` are relative to
    /// `moment`.
    ///
    /// Fails if records were removed on request since `saved` was read ([`Store::is_current`]): a
    /// walk that saw them must not bring them back.
    pub fn save_hosts(
        &mut self,
        mode: Mode,
        saved: &mut Saved,
        rows: &[HostRow],
        moment: Moment,
    ) -> Result<(), StoreError> {
        let now_ms = self.clock.at(moment.monotonic_ns);
        let lease = Arc::clone(&self.lease);
        let written = self.transaction().and_then(|transaction| {
            // A removal is counted first, then waits for this transaction.
            if lease.resets() != saved.resets {
                return Ok(None);
            }
            let ids = rows
                .iter()
                .map(|row| save_host(&transaction, mode, row, now_ms))
                .collect::<Result<Vec<_>, _>>()?;
            transaction.commit()?;
            Ok(Some(ids))
        });
        let Some(ids) = self.sql("save the host records", written)? else {
            return Err(StoreError::Removed {
                path: self.path.clone(),
            });
        };
        for (row, id) in rows.iter().zip(ids) {
            let seen_ms = now_ms.saturating_sub_unsigned(row.seen_age_ms);
            let mark = Mark {
                id,
                print: print(seen_ms, row.connections, row.scored, row.switched),
                walk: saved.walk,
            };
            saved.marks.insert(row.key.tag(), mark);
        }
        Ok(())
    }

    /// The host of a row; `None` if the row is gone, or has values that Thalweg never writes.
    pub fn host_of(&self, id: i64) -> Result<Option<HostKey>, StoreError> {
        let found = self
            .connection
            .prepare_cached("SELECT netns, address, prefix, level FROM hosts WHERE id = ?1")
            .and_then(|mut statement| {
                statement
                    .query_row([id], |row| {
                        let address: String = row.get(1)?;
                        Ok(parse_key(unsigned(row, 0)?, &address, row.get(2)?, row.get(3)?).ok())
                    })
                    .optional()
            });
        Ok(self.sql("read the host records", found)?.flatten())
    }

    /// Removes the records of hosts that the kernel no longer has.
    pub fn remove_hosts(
        &mut self,
        mode: Mode,
        saved: &mut Saved,
        gone: &[HostKey],
    ) -> Result<(), StoreError> {
        let removed = self.transaction().and_then(|transaction| {
            for key in gone {
                delete(&transaction, mode, key)?;
            }
            transaction.commit()
        });
        self.sql("remove host records", removed)?;
        for key in gone {
            saved.marks.remove(&key.tag());
        }
        Ok(())
    }

    /// Removes unreadable rows.
    pub fn remove_unreadable(&mut self, saved: &mut Saved) -> Result<(), StoreError> {
        for id in std::mem::take(&mut saved.unreadable) {
            let removed = self
                .connection
                .execute("DELETE FROM hosts WHERE id = ?1", [id]);
            self.sql("remove host records", removed)?;
        }
        Ok(())
    }

    /// Records the wall clock, if it was set, and the time of saving.
    pub fn note_saved(&mut self, header: &Snapshot, moment: Moment) -> Result<(), StoreError> {
        let mut clock = self.clock.clone();
        let boot_id = self.boot_id.clone();
        let noted = self.transaction().and_then(|transaction| {
            save_header(&transaction, header)?;
            clock.note(&transaction, &boot_id, moment)?;
            transaction.commit()
        });
        self.sql("save the host records", noted)?;
        self.clock = clock;
        Ok(())
    }

    /// Records the wall clock, if it was set.
    pub fn note_clock(&mut self, moment: Moment) -> Result<(), StoreError> {
        let noted = self.clock.note(&self.connection, &self.boot_id, moment);
        self.sql("note the time", noted)
    }

    /// Header of a mode's records, with their source; `None`: there are none.
    pub fn header(&self, mode: Mode) -> Result<Option<Snapshot>, StoreError> {
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
        self.sql("load the host records", header)
    }

    /// Passes on the records of a mode one by one, the longest unseen first. Ages are relative to
    /// `moment`. Returns the faults of invalid rows, which are left out.
    pub fn each_host(
        &self,
        mode: Mode,
        moment: Moment,
        mut visit: impl FnMut(HostRow) -> anyhow::Result<()>,
    ) -> anyhow::Result<Vec<String>> {
        let what = "load the host records";
        let now_ms = self.clock.at(moment.monotonic_ns);
        let ids = self
            .connection
            .prepare_cached("SELECT id FROM hosts WHERE mode = ?1 ORDER BY seen_ms, id")
            .and_then(|mut statement| {
                let ids = statement.query_map([mode.name()], |row| row.get(0))?;
                ids.collect::<Result<Vec<i64>, _>>()
            });
        let mut faults = Vec::new();
        for id in self.sql(what, ids)? {
            match self.sql(what, self.load_host(id, now_ms))? {
                Ok(row) => match row.fault(mode) {
                    None => visit(row)?,
                    Some((field, why)) => faults.push(format!("{}: {field}: {why}", row.key)),
                },
                Err(fault) => faults.push(fault),
            }
        }
        Ok(faults)
    }

    /// Names of all arms with data.
    pub fn arm_names(&self, mode: Mode) -> Result<Vec<String>, StoreError> {
        let names = self
            .connection
            .prepare_cached(
                "SELECT DISTINCT arm FROM host_arms WHERE host IN
                 (SELECT id FROM hosts WHERE mode = ?1) ORDER BY arm",
            )
            .and_then(|mut statement| {
                statement
                    .query_map([mode.name()], |row| row.get(0))?
                    .collect()
            });
        self.sql("load the host records", names)
    }

    /// Removes all saved records of a mode; returns their number.
    pub fn clear_hosts(&mut self, mode: Mode) -> Result<usize, StoreError> {
        self.note_reset();
        let removed = self.transaction().and_then(|transaction| {
            let removed =
                transaction.execute("DELETE FROM hosts WHERE mode = ?1", [mode.name()])?;
            transaction.commit()?;
            Ok(removed)
        });
        self.sql("remove the host records", removed)
    }

    /// Removes one saved record; returns whether there was one.
    pub fn reset_host(&mut self, mode: Mode, key: &HostKey) -> Result<bool, StoreError> {
        self.note_reset();
        let removed = delete(&self.connection, mode, key);
        Ok(self.sql("remove a host record", removed)? > 0)
    }

    /// Begins a write transaction, so that writers wait here, not at the first change.
    pub(crate) fn transaction(&mut self) -> Result<Transaction<'_>, rusqlite::Error> {
        self.connection
            .transaction_with_behavior(TransactionBehavior::Immediate)
    }

    /// Loads one row with its arms; the inner error is an invalid key.
    fn load_host(&self, id: i64, now_ms: i64) -> Result<Result<HostRow, String>, rusqlite::Error> {
        let mut statement = self.connection.prepare_cached(
            "SELECT netns, address, prefix, connections, scored, switched, min_rtt_us, max_rate,
                    seen_ms, forgot_ms, queue_q16, base_rtt_us, level, usual_q16,
                    usual_log_rate_q16, step, step_scored
             FROM hosts WHERE id = ?1",
        )?;
        statement.query_row([id], |row| {
            let address: String = row.get(1)?;
            let key = match parse_key(unsigned(row, 0)?, &address, row.get(2)?, row.get(12)?) {
                Ok(key) => key,
                Err(fault) => return Ok(Err(fault)),
            };
            let age_ms = |ms: i64| u64::try_from(now_ms.saturating_sub(ms)).unwrap_or(0);
            Ok(Ok(HostRow {
                key,
                connections: row.get(3)?,
                scored: row.get(4)?,
                switched: row.get(5)?,
                min_rtt_us: row.get(6)?,
                max_rate: unsigned(row, 7)?,
                seen_age_ms: age_ms(row.get(8)?),
                forgot_age_ms: row.get::<_, Option<i64>>(9)?.map(age_ms),
                queue_q16: row.get(10)?,
                base_rtt_us: row.get(11)?,
                usual_q16: row.get(13)?,
                usual_log_rate_q16: row.get(14)?,
                step: row.get(15)?,
                step_scored: row.get(16)?,
                arms: self.load_arms(id)?,
            }))
        })
    }

    fn load_arms(&self, host: i64) -> Result<Vec<(String, ArmState)>, rusqlite::Error> {
        let mut statement = self.connection.prepare_cached(
            "SELECT arm, value, max_rate, weight_q16, deviation_q16, log_rate_q16, srtt_us,
                    min_rtt_us, chosen, greedy, scored, segs, retrans, own_q16, own_weight_q16
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
                own_q16: row.get(13)?,
                own_weight_q16: row.get(14)?,
                ..ArmState::default()
            };
            Ok((row.get(0)?, arm))
        })?;
        rows.collect()
    }
}

fn delete(connection: &Connection, mode: Mode, key: &HostKey) -> Result<usize, rusqlite::Error> {
    connection
        .prepare_cached(
            "DELETE FROM hosts WHERE mode = ?1 AND netns = ?2 AND address = ?3 AND prefix = ?4
             AND level = ?5",
        )?
        .execute(params![
            mode.name(),
            key.netns.cast_signed(),
            key.address().to_string(),
            key.own_prefix(),
            key.level as u32
        ])
}

/// Writes the records' source and the time of saving.
fn save_header(transaction: &Transaction<'_>, header: &Snapshot) -> Result<(), rusqlite::Error> {
    transaction.execute(
        "INSERT OR REPLACE INTO snapshots (mode, boot_id, own_netns, saved_at_ms)
         VALUES (?1, ?2, ?3, ?4)",
        params![
            header.mode.name(),
            header.boot_id,
            header.own_netns.cast_signed(),
            header.saved_at_ms
        ],
    )?;
    Ok(())
}

/// Writes a record, replacing an existing one; returns its id.
pub(super) fn save_host(
    transaction: &Transaction<'_>,
    mode: Mode,
    host: &HostRow,
    now_ms: i64,
) -> Result<i64, rusqlite::Error> {
    let mut insert_host = transaction.prepare_cached(
        "INSERT INTO hosts (mode, netns, address, prefix, connections, scored, switched,
                            min_rtt_us, max_rate, seen_ms, forgot_ms, queue_q16, base_rtt_us,
                            level, usual_q16, usual_log_rate_q16, step, step_scored)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18)
         ON CONFLICT (mode, level, netns, address, prefix) DO UPDATE SET
             connections = excluded.connections, scored = excluded.scored,
             switched = excluded.switched, min_rtt_us = excluded.min_rtt_us,
             max_rate = excluded.max_rate, seen_ms = excluded.seen_ms,
             forgot_ms = excluded.forgot_ms, queue_q16 = excluded.queue_q16,
             base_rtt_us = excluded.base_rtt_us, usual_q16 = excluded.usual_q16,
             usual_log_rate_q16 = excluded.usual_log_rate_q16, step = excluded.step,
             step_scored = excluded.step_scored
         RETURNING id",
    )?;
    let mut remove_arms = transaction.prepare_cached("DELETE FROM host_arms WHERE host = ?1")?;
    let mut insert_arm = transaction.prepare_cached(
        "INSERT INTO host_arms (host, arm, value, max_rate, weight_q16, deviation_q16,
                                log_rate_q16, srtt_us, min_rtt_us, chosen, greedy, scored, segs,
                                retrans, own_q16, own_weight_q16)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16)",
    )?;
    let id: i64 = insert_host.query_row(
        params![
            mode.name(),
            host.key.netns.cast_signed(),
            host.key.address().to_string(),
            host.key.own_prefix(),
            host.connections,
            host.scored,
            host.switched,
            host.min_rtt_us,
            host.max_rate.cast_signed(),
            now_ms.saturating_sub_unsigned(host.seen_age_ms),
            host.forgot_age_ms
                .map(|age_ms| now_ms.saturating_sub_unsigned(age_ms)),
            host.queue_q16,
            host.base_rtt_us,
            host.key.level as u32,
            host.usual_q16,
            host.usual_log_rate_q16,
            host.step,
            host.step_scored,
        ],
        |row| row.get(0),
    )?;
    remove_arms.execute([id])?;
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
            arm.own_q16,
            arm.own_weight_q16,
        ])?;
    }
    Ok(id)
}

/// Reads an unsigned 64-bit value, stored as the signed one with the same bits.
pub fn unsigned(row: &Row<'_>, column: usize) -> Result<u64, rusqlite::Error> {
    Ok(row.get::<_, i64>(column)?.cast_unsigned())
}
