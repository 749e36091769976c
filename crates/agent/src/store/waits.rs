//! Waits after harm, which outlive a restart: a feature's setting is not tried anew on a network.

use rusqlite::params;
use thalweg_learner::{HostKey, Level};

use super::clock::Moment;
use super::snapshot::unsigned;
use super::{Store, StoreError};

/// A wait of a feature for a network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeptWait {
    /// The network.
    pub key: HostKey,
    /// CLOCK_MONOTONIC of its end; 0: it is over.
    pub until_ns: u64,
    /// Length, which the next one doubles.
    pub length_ns: u64,
    /// Highest step that is tried after it; `None`: any.
    pub highest: Option<u32>,
}

impl Store {
    /// Replaces the waits of a setting.
    ///
    /// # Errors
    /// The database cannot be written.
    pub fn save_waits(
        &mut self,
        setting: &str,
        waits: &[KeptWait],
        moment: Moment,
    ) -> Result<(), StoreError> {
        let clock = self.clock.clone();
        let written = self.transaction().and_then(|transaction| {
            transaction.execute("DELETE FROM waits WHERE setting = ?1", [setting])?;
            for wait in waits {
                let ends = wait.until_ns.max(moment.monotonic_ns);
                transaction.execute(
                    "INSERT INTO waits (setting, netns, address, prefix, until_ms, length_ms, highest)
                     VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)",
                    params![
                        setting,
                        wait.key.netns.cast_signed(),
                        wait.key.addr,
                        wait.key.prefix_len,
                        clock.at(ends),
                        (wait.length_ns / 1_000_000).cast_signed(),
                        wait.highest,
                    ],
                )?;
            }
            transaction.commit()
        });
        self.sql("save the waits after harm", written)
    }

    /// The waits of a setting.
    ///
    /// # Errors
    /// The database cannot be read.
    pub fn waits(&mut self, setting: &str, moment: Moment) -> Result<Vec<KeptWait>, StoreError> {
        let now_ms = self.clock.at(moment.monotonic_ns);
        let found = self.transaction().and_then(|transaction| {
            let mut rows = transaction.prepare(
                "SELECT netns, address, prefix, until_ms, length_ms, highest FROM waits
                 WHERE setting = ?1",
            )?;
            let rows = rows.query_map([setting], |row| {
                let left_ms = u64::try_from(row.get::<_, i64>(3)? - now_ms).unwrap_or(0);
                Ok(KeptWait {
                    key: HostKey {
                        netns: unsigned(row, 0)?,
                        addr: row.get(1)?,
                        prefix_len: row.get(2)?,
                        level: Level::Prefix,
                    },
                    until_ns: moment.monotonic_ns + left_ms * 1_000_000,
                    length_ns: unsigned(row, 4)? * 1_000_000,
                    highest: row.get(5)?,
                })
            })?;
            rows.collect()
        });
        self.sql("read the waits after harm", found)
    }
}
