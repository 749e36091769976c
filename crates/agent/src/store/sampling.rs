//! Draws that outlive a restart: of the control group, and of the host-hours whose events are kept.

use std::collections::BTreeMap;
use std::hash::{BuildHasher, Hasher, RandomState};

use rusqlite::{Connection, OptionalExtension, params};
use thalweg_learner::HOUR_NS;

use super::clock::Moment;
use super::snapshot::unsigned;
use super::{Store, StoreError};
use crate::sampling::{Hour, KeptSampling};

/// A random salt: the standard library keys its hasher with randomness of the system.
fn fresh_salt() -> u64 {
    RandomState::new().build_hasher().finish()
}

impl Store {
    /// Salt of the control group's draw, drawn on the first call.
    ///
    /// # Errors
    /// The database cannot be read or written.
    pub fn control_salt(&mut self) -> Result<u64, StoreError> {
        let fresh = fresh_salt() >> 1;
        let kept = self.transaction().and_then(|transaction| {
            transaction.execute(
                "INSERT OR IGNORE INTO control_salt (id, salt) VALUES (0, ?1)",
                [fresh.cast_signed()],
            )?;
            let salt = transaction
                .query_row("SELECT salt FROM control_salt", [], |row| unsigned(row, 0))?;
            transaction.commit()?;
            Ok(salt)
        });
        self.sql("draw the control group", kept)
    }

    /// Sampling of this boot; begins one if there is none yet.
    ///
    /// # Errors
    /// The database cannot be read or written.
    pub fn sampling(&mut self, moment: Moment) -> Result<KeptSampling, StoreError> {
        let boot_id = self.boot_id.clone();
        let hour = moment.monotonic_ns / HOUR_NS;
        let hour_ms = self.clock.at(hour * HOUR_NS);
        let kept = self.transaction().and_then(|transaction| {
            let found = read(&transaction)?;
            let kept = match found {
                Some((boot, kept)) if boot == boot_id => return Ok(kept),
                // Hours count from the boot: the old salt would repeat its first draws.
                Some((_, old)) => begin(
                    moment,
                    old.hours
                        .keys()
                        .next_back()
                        .and_then(|last| old.expected(*last)),
                ),
                None => {
                    let mut kept = begin(moment, None);
                    // An earlier version has kept all of the present hour so far.
                    let stored: bool = transaction.query_row(
                        "SELECT coalesce((SELECT clock_ms FROM events ORDER BY id DESC LIMIT 1), ?1)
                         > ?1",
                        [hour_ms],
                        |row| row.get(0),
                    )?;
                    if stored {
                        kept.hours.insert(
                            hour,
                            Hour {
                                share: 1.0,
                                seen: 0,
                            },
                        );
                    }
                    kept
                }
            };
            transaction.execute_batch("DELETE FROM sampling_hours")?;
            transaction.execute(
                "INSERT OR REPLACE INTO sampling (id, boot_id, salt, began_ns, before)
                 VALUES (0, ?1, ?2, ?3, ?4)",
                params![
                    boot_id,
                    kept.salt.cast_signed(),
                    kept.began_ns.cast_signed(),
                    kept.before
                ],
            )?;
            write(
                &transaction,
                kept.hours.iter().map(|(hour, it)| (*hour, *it)),
            )?;
            transaction.commit()?;
            Ok(kept)
        });
        self.sql("draw the sample of the events", kept)
    }

    /// Writes hours of this boot's sampling.
    ///
    /// # Errors
    /// The database cannot be written.
    pub fn save_sampling(&mut self, hours: &[(u64, Hour)]) -> Result<(), StoreError> {
        if hours.is_empty() {
            return Ok(());
        }
        let written = self.transaction().and_then(|transaction| {
            write(&transaction, hours.iter().copied())?;
            transaction.commit()
        });
        self.sql("note the share of events", written)
    }
}

fn begin(moment: Moment, before: Option<f64>) -> KeptSampling {
    KeptSampling {
        salt: fresh_salt(),
        began_ns: moment.monotonic_ns,
        before,
        hours: BTreeMap::new(),
    }
}

/// Reads the sampling, and its boot.
fn read(connection: &Connection) -> Result<Option<(String, KeptSampling)>, rusqlite::Error> {
    let mut hours = connection.prepare("SELECT hour, share, seen FROM sampling_hours")?;
    let hours = hours.query_map([], |row| {
        let (share, seen) = (row.get(1)?, unsigned(row, 2)?);
        Ok((unsigned(row, 0)?, Hour { share, seen }))
    })?;
    let hours: BTreeMap<u64, Hour> = hours.collect::<Result<_, _>>()?;
    let row = connection.query_row(
        "SELECT boot_id, salt, began_ns, before FROM sampling",
        [],
        |row| {
            let kept = KeptSampling {
                salt: unsigned(row, 1)?,
                began_ns: unsigned(row, 2)?,
                before: row.get(3)?,
                hours,
            };
            Ok((row.get(0)?, kept))
        },
    );
    row.optional()
}

fn write(
    connection: &Connection,
    hours: impl Iterator<Item = (u64, Hour)>,
) -> Result<(), rusqlite::Error> {
    let mut insert = connection.prepare_cached(
        "INSERT OR REPLACE INTO sampling_hours (hour, share, seen) VALUES (?1, ?2, ?3)",
    )?;
    for (hour, it) in hours {
        insert.execute(params![hour.cast_signed(), it.share, it.seen.cast_signed()])?;
    }
    Ok(())
}
