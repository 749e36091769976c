//! The store's own clock.
//!
//! Wall clocks are set forward and back, and the kernel's monotonic clock restarts with each boot.
//! The store's clock, in milliseconds, does neither. Within a boot it follows the monotonic clock.
//! Between boots it advances by the wall clock, but never goes back. In a new file it starts at the
//! wall clock's time.

use rusqlite::{Connection, OptionalExtension, Transaction, params};
use thalweg_control::system;

/// A moment on the machine's clocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moment {
    /// Monotonic clock, ns since this boot.
    pub monotonic_ns: u64,
    /// Wall clock, ms since 1970.
    pub wall_ms: i64,
}

impl Moment {
    /// The present moment, with the monotonic clock rounded up to a full millisecond. So records
    /// read before are older, and ages in milliseconds lose nothing.
    pub fn now() -> Self {
        Self {
            monotonic_ns: system::monotonic_ns().div_ceil(NS_PER_MS) * NS_PER_MS,
            wall_ms: (system::wall_ns() / NS_PER_MS) as i64,
        }
    }
}

const NS_PER_MS: u64 = 1_000_000;
/// Least change of the wall clock that is recorded, ms.
const SET_MS: u64 = 1000;

/// The store's clock during one boot.
#[derive(Clone, Debug)]
pub(super) struct Clock {
    /// Time of the store's clock minus that of the monotonic clock, ms.
    offset_ms: i64,
    /// Wall clock minus monotonic clock when it was last recorded, ms.
    wall_offset_ms: i64,
}

impl Clock {
    /// Continues the clock from the file, and records the moment.
    pub(super) fn start(
        transaction: &Transaction<'_>,
        boot_id: &str,
        moment: Moment,
    ) -> Result<Self, rusqlite::Error> {
        let noted = transaction
            .query_row(
                "SELECT boot_id, offset_ms, clock_ms, wall_ms FROM clock",
                [],
                |row| {
                    Ok((
                        row.get::<_, String>(0)?,
                        row.get::<_, i64>(1)?,
                        row.get::<_, i64>(2)?,
                        row.get::<_, i64>(3)?,
                    ))
                },
            )
            .optional()?;
        let offset_ms = match noted {
            Some((boot, offset_ms, ..)) if boot == boot_id => offset_ms,
            Some((_, _, clock_ms, wall_ms)) => {
                let passed = moment.wall_ms.saturating_sub(wall_ms).max(0);
                clock_ms.saturating_add(passed) - monotonic_ms(moment.monotonic_ns)
            }
            None => {
                // A file from before this clock has the wall clock's times.
                let latest: i64 = transaction.query_row(
                    "SELECT coalesce(max(saved_at_ms), 0) FROM snapshots",
                    [],
                    |row| row.get(0),
                )?;
                moment.wall_ms.max(latest) - monotonic_ms(moment.monotonic_ns)
            }
        };
        let mut clock = Self {
            offset_ms,
            wall_offset_ms: 0,
        };
        clock.write(transaction, boot_id, moment)?;
        Ok(clock)
    }

    /// The time of a moment of this boot, ms.
    pub(super) fn at(&self, monotonic_ns: u64) -> i64 {
        self.offset_ms.saturating_add(monotonic_ms(monotonic_ns))
    }

    /// Records the wall clock after it was set: the time until the next boot is counted from there.
    pub(super) fn note(
        &mut self,
        connection: &Connection,
        boot_id: &str,
        moment: Moment,
    ) -> Result<(), rusqlite::Error> {
        if wall_offset_ms(moment).abs_diff(self.wall_offset_ms) < SET_MS {
            return Ok(());
        }
        self.write(connection, boot_id, moment)
    }

    fn write(
        &mut self,
        connection: &Connection,
        boot_id: &str,
        moment: Moment,
    ) -> Result<(), rusqlite::Error> {
        connection.execute(
            "INSERT OR REPLACE INTO clock (id, boot_id, offset_ms, clock_ms, wall_ms)
             VALUES (0, ?1, ?2, ?3, ?4)",
            params![
                boot_id,
                self.offset_ms,
                self.at(moment.monotonic_ns),
                moment.wall_ms
            ],
        )?;
        self.wall_offset_ms = wall_offset_ms(moment);
        Ok(())
    }
}

fn monotonic_ms(monotonic_ns: u64) -> i64 {
    // 584 years of ns fit into a u64, and their ms into an i64.
    monotonic_ns.div_ceil(NS_PER_MS).cast_signed()
}

fn wall_offset_ms(moment: Moment) -> i64 {
    moment
        .wall_ms
        .saturating_sub(monotonic_ms(moment.monotonic_ns))
}
