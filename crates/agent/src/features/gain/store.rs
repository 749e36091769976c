//! The gain of the learner, and of rules with a share: sums of clusters, and reverts. The learner's
//! own have an empty key.

use std::collections::BTreeMap;

use rusqlite::{OptionalExtension, Row as SqlRow, Transaction, params};
use thalweg_gain::{
    Baseline, Changes, Cluster, Content, Groups, Ledger, Limits, Moments, Part, ROWS, Scope, Side,
    Source, Stratum,
};
use thalweg_learner::HOUR_NS;

use crate::store::{Moment, Store, StoreError, unsigned};

#[cfg(test)]
mod tests;

/// A revert until a time of the store's clock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Revert {
    /// The arm that no connection gets; `None`: there is no exploration, or the rule is suspended.
    pub arm: Option<String>,
    /// Begin of the revert, ms.
    pub since_ms: i64,
    /// End of the revert, ms.
    pub until_ms: i64,
    /// The finding, in words.
    pub why: String,
}

/// Stored state of a comparison.
#[derive(Debug, Default)]
pub struct KeptGain {
    /// Sums of the clusters.
    pub ledger: Ledger,
    /// Begin of the comparisons, ms of the store's clock.
    pub since_ms: i64,
    /// Present reverts.
    pub reverts: Vec<Revert>,
}

/// Changes of a comparison since the last save, in a copy: counting continues meanwhile.
#[derive(Debug)]
pub struct ChangedGain {
    /// Key of the rule's experiment; empty for the learner.
    pub rule: String,
    since_ms: i64,
    left_out: u64,
    overridden: u64,
    baseline: Baseline,
    reverts: Vec<Revert>,
    /// Groups; `None`: they have not changed.
    groups: Option<Groups>,
    changes: Changes,
}

impl KeptGain {
    /// Takes the changes since the last save.
    pub fn take_changes(&mut self, rule: String) -> ChangedGain {
        let changes = self.ledger.take_changes();
        ChangedGain {
            rule,
            since_ms: self.since_ms,
            left_out: self.ledger.left_out,
            overridden: self.ledger.overridden,
            baseline: self.ledger.baseline().clone(),
            reverts: self.reverts.clone(),
            groups: changes
                .regrouped
                .then(|| self.ledger.closed_groups().clone()),
            changes,
        }
    }

    /// Puts back changes that could not be saved.
    pub fn put_back(&mut self, changed: ChangedGain) {
        self.ledger.put_back(changed.changes);
    }
}

impl Store {
    /// Reads the state of a comparison by the key of the rule's experiment; '' is the learner.
    /// Clusters of an earlier boot are closed, as their hours are over. Hours of this boot that
    /// were closed stay so. Invalid rows are left out.
    pub(super) fn gain(&self, rule: &str, moment: Moment) -> Result<KeptGain, StoreError> {
        self.sql("read the gain", self.read_gain(rule, moment))
    }

    fn read_gain(&self, rule: &str, moment: Moment) -> Result<KeptGain, rusqlite::Error> {
        let now_ms = self.now_ms(moment);
        let known: Option<(String, i64, u64, u64)> = self
            .connection
            .query_row(
                "SELECT boot_id, since_ms, left_out, overridden FROM gain WHERE rule = ?1",
                [rule],
                |row| {
                    let (left_out, overridden) = (unsigned(row, 2)?, unsigned(row, 3)?);
                    Ok((row.get(0)?, row.get(1)?, left_out, overridden))
                },
            )
            .optional()?;
        let (boot_id, since_ms, left_out, overridden) =
            known.unwrap_or_else(|| (self.boot_id.clone(), now_ms, 0, 0));
        let mut baseline = Baseline::default();
        let strata = "SELECT number, count, mean FROM gain_strata WHERE rule = ?1";
        for stratum in self.rows(strata, rule, |row| {
            let number = unsigned(row, 0)? as usize;
            let (count, mean) = (unsigned(row, 1)?, row.get(2)?);
            Ok((number, Stratum { count, mean }))
        })? {
            baseline.restore(stratum.0, stratum.1);
        }
        let mut ledger = Ledger::restore(baseline, self.gain_groups(rule)?, self.gain_parts(rule)?);
        ledger.left_out = left_out;
        ledger.overridden = overridden;
        match boot_id == self.boot_id {
            true => ledger.resume_at(moment.monotonic_ns / HOUR_NS),
            false => ledger.close_all(),
        }
        let reverts = self.rows(
            "SELECT arm, since_ms, until_ms, why FROM gain_reverts WHERE rule = ?1 ORDER BY arm",
            rule,
            |row| {
                let arm: String = row.get(0)?;
                Ok(Revert {
                    arm: (!arm.is_empty()).then_some(arm),
                    since_ms: row.get(1)?,
                    until_ms: row.get(2)?,
                    why: row.get(3)?,
                })
            },
        )?;
        Ok(KeptGain {
            ledger,
            since_ms,
            reverts,
        })
    }

    fn rows<T>(
        &self,
        sql: &str,
        rule: &str,
        read: impl FnMut(&SqlRow<'_>) -> Result<T, rusqlite::Error>,
    ) -> Result<Vec<T>, rusqlite::Error> {
        self.connection
            .prepare(sql)?
            .query_map([rule], read)?
            .collect()
    }

    fn gain_groups(&self, rule: &str) -> Result<Groups, rusqlite::Error> {
        let mut groups = Groups::new();
        let rows = self.rows(
            "SELECT scope, name, side, measure, hour, clusters, connections, weight, score,
                    weight2, product, score2, score3 FROM gain_groups WHERE rule = ?1",
            rule,
            |row| {
                let key: (String, String) = (row.get(0)?, row.get(1)?);
                let measure = unsigned(row, 3)? as usize;
                let place: (String, usize, u64) = (row.get(2)?, measure, unsigned(row, 4)?);
                let moments = Moments {
                    clusters: unsigned(row, 5)?,
                    connections: unsigned(row, 6)?,
                    weight: row.get(7)?,
                    score: row.get(8)?,
                    weight2: row.get(9)?,
                    cross: row.get(10)?,
                    score2: row.get(11)?,
                    score3: row.get(12)?,
                };
                Ok((key, place, moments))
            },
        )?;
        for ((scope, name), (side, measure, hour), moments) in rows {
            let known = Scope::parse(&scope).zip(Side::parse(&side));
            let Some((scope, side)) = known.filter(|_| measure < ROWS) else {
                continue;
            };
            let group = groups.entry((scope, name)).or_default();
            group.hour = hour;
            let side = group.sides.entry(side);
            side.or_insert([Moments::NONE; ROWS])[measure] = moments;
        }
        let limits = "SELECT scope, name, hour, sums FROM gain_limits WHERE rule = ?1";
        for (scope, name, hour, sums) in self.rows(limits, rule, |row| {
            let (scope, name): (String, String) = (row.get(0)?, row.get(1)?);
            Ok((scope, name, unsigned(row, 2)?, row.get::<_, Vec<u8>>(3)?))
        })? {
            if let (Some(scope), Some(limits)) = (Scope::parse(&scope), limits_of(&sums)) {
                let group = groups.entry((scope, name)).or_default();
                (group.hour, group.limits) = (hour, limits);
            }
        }
        Ok(groups)
    }

    fn gain_parts(&self, rule: &str) -> Result<BTreeMap<Part, Content>, rusqlite::Error> {
        let parts = self.rows(
            "SELECT hour, tag, side, port, arm, prefix, counts, sums, limits, source
             FROM gain_parts WHERE rule = ?1",
            rule,
            |row| {
                let Some(side) = Side::parse(&row.get::<_, String>(2)?) else {
                    return Ok(None);
                };
                let part = Part {
                    hour: unsigned(row, 0)?,
                    tag: unsigned(row, 1)?,
                    side,
                    port: row.get(3)?,
                };
                let sums = cluster(&row.get::<_, Vec<u8>>(6)?, &row.get::<_, Vec<u8>>(7)?);
                let mut sums = sums.unwrap_or_default();
                sums.limits = limits_of(&row.get::<_, Vec<u8>>(8)?).unwrap_or_default();
                let content = Content {
                    sums,
                    arm: row.get(4)?,
                    prefix: row.get(5)?,
                    source: row
                        .get::<_, Option<String>>(9)?
                        .and_then(|it| Source::parse(&it)),
                };
                Ok(Some((part, content)))
            },
        )?;
        Ok(parts.into_iter().flatten().collect())
    }

    /// Removes rules whose comparisons began before a time, ms of the store's clock: rules in force
    /// begin again before that.
    pub(super) fn forget_rules(&mut self, before_ms: i64) -> Result<(), StoreError> {
        let removed = self.transaction().and_then(|transaction| {
            for table in [
                "gain_strata",
                "gain_groups",
                "gain_limits",
                "gain_parts",
                "gain_reverts",
                "gain",
            ] {
                let sql = format!(
                    "DELETE FROM {table} WHERE rule IN
                         (SELECT rule FROM gain WHERE rule != '' AND since_ms < ?1)"
                );
                transaction.execute(&sql, [before_ms])?;
            }
            transaction.commit()
        });
        self.sql("forget old rules", removed)
    }

    /// Saves changes in one transaction.
    pub(super) fn save_gain(&mut self, changed: &ChangedGain) -> Result<(), StoreError> {
        let boot_id = self.boot_id.clone();
        let saved = self.transaction().and_then(|transaction| {
            write_head(&transaction, changed, &boot_id)?;
            if let Some(groups) = &changed.groups {
                write_groups(&transaction, &changed.rule, groups)?;
            }
            write_parts(&transaction, &changed.rule, &changed.changes)?;
            transaction.commit()
        });
        self.sql("save the gain", saved)
    }
}

fn write_head(
    transaction: &Transaction<'_>,
    changed: &ChangedGain,
    boot_id: &str,
) -> Result<(), rusqlite::Error> {
    let rule = changed.rule.as_str();
    transaction.execute(
        "INSERT OR REPLACE INTO gain (rule, boot_id, since_ms, left_out, overridden)
         VALUES (?1, ?2, ?3, ?4, ?5)",
        params![
            rule,
            boot_id,
            changed.since_ms,
            changed.left_out.cast_signed(),
            changed.overridden.cast_signed()
        ],
    )?;
    let mut stratum = transaction.prepare_cached(
        "INSERT OR REPLACE INTO gain_strata (rule, number, count, mean) VALUES (?1, ?2, ?3, ?4)",
    )?;
    for (number, one) in changed.baseline.strata() {
        stratum.execute(params![
            rule,
            number as i64,
            one.count.cast_signed(),
            one.mean
        ])?;
    }
    transaction.execute("DELETE FROM gain_reverts WHERE rule = ?1", [rule])?;
    for revert in &changed.reverts {
        let arm = revert.arm.as_deref().unwrap_or_default();
        transaction.execute(
            "INSERT INTO gain_reverts (rule, arm, since_ms, until_ms, why)
             VALUES (?1, ?2, ?3, ?4, ?5)",
            params![rule, arm, revert.since_ms, revert.until_ms, revert.why],
        )?;
    }
    Ok(())
}

fn write_groups(
    transaction: &Transaction<'_>,
    rule: &str,
    groups: &Groups,
) -> Result<(), rusqlite::Error> {
    for table in ["gain_groups", "gain_limits"] {
        transaction.execute(&format!("DELETE FROM {table} WHERE rule = ?1"), [rule])?;
    }
    let mut limits = transaction.prepare_cached(
        "INSERT INTO gain_limits (rule, scope, name, hour, sums) VALUES (?1, ?2, ?3, ?4, ?5)",
    )?;
    for ((scope, name), group) in groups {
        if group.limits.connections > 0 {
            let (hour, sums) = (group.hour.cast_signed(), bytes(&group.limits));
            limits.execute(params![rule, scope.name(), name, hour, sums])?;
        }
    }
    let mut insert = transaction.prepare_cached(
        "INSERT INTO gain_groups (rule, scope, name, side, measure, hour, clusters, connections,
             weight, score, weight2, product, score2, score3)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14)",
    )?;
    for ((scope, name), group) in groups {
        for (side, rows) in &group.sides {
            for (measure, moments) in rows.iter().enumerate() {
                if moments.clusters == 0 {
                    continue;
                }
                insert.execute(params![
                    rule,
                    scope.name(),
                    name,
                    side.file_text(),
                    measure as i64,
                    group.hour.cast_signed(),
                    moments.clusters.cast_signed(),
                    moments.connections.cast_signed(),
                    moments.weight,
                    moments.score,
                    moments.weight2,
                    moments.cross,
                    moments.score2,
                    moments.score3,
                ])?;
            }
        }
    }
    Ok(())
}

fn write_parts(
    transaction: &Transaction<'_>,
    rule: &str,
    changes: &Changes,
) -> Result<(), rusqlite::Error> {
    let mut remove = transaction.prepare_cached(
        "DELETE FROM gain_parts
         WHERE rule = ?1 AND hour = ?2 AND tag = ?3 AND side = ?4 AND port = ?5",
    )?;
    for part in &changes.closed {
        let (hour, tag) = (part.hour.cast_signed(), part.tag.cast_signed());
        remove.execute(params![rule, hour, tag, part.side.file_text(), part.port])?;
    }
    let mut insert = transaction.prepare_cached(
        "INSERT OR REPLACE INTO gain_parts
             (rule, hour, tag, side, port, arm, prefix, counts, sums, limits, source)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11)",
    )?;
    for (part, content) in &changes.open {
        let counts = content.sums.counts.iter().flat_map(|it| it.to_le_bytes());
        let sums = content.sums.sums.iter().flat_map(|it| it.to_le_bytes());
        insert.execute(params![
            rule,
            part.hour.cast_signed(),
            part.tag.cast_signed(),
            part.side.file_text(),
            part.port,
            content.arm,
            content.prefix,
            counts.collect::<Vec<u8>>(),
            sums.collect::<Vec<u8>>(),
            bytes(&content.sums.limits),
            content.source.map(Source::name),
        ])?;
    }
    Ok(())
}

/// Bytes of the sums of limits, as stored.
fn bytes(limits: &Limits) -> Vec<u8> {
    let numbers = limits.to_numbers();
    numbers.iter().flat_map(|it| it.to_le_bytes()).collect()
}

/// The limits of such bytes; `None`: the bytes are invalid.
fn limits_of(bytes: &[u8]) -> Option<Limits> {
    let mut numbers = [0.0; Limits::NUMBERS];
    if bytes.len() != 8 * Limits::NUMBERS {
        return None;
    }
    for (number, bytes) in numbers.iter_mut().zip(bytes.chunks_exact(8)) {
        *number = f64::from_le_bytes(bytes.try_into().ok()?);
    }
    Limits::from_numbers(numbers)
}

/// A cluster from its two lists; `None` if a length is wrong or a sum is no number.
fn cluster(counts: &[u8], sums: &[u8]) -> Option<Cluster> {
    let mut cluster = Cluster::default();
    if counts.len() != ROWS * 4 || sums.len() != ROWS * 8 {
        return None;
    }
    for (count, bytes) in cluster.counts.iter_mut().zip(counts.chunks_exact(4)) {
        *count = u32::from_le_bytes(bytes.try_into().ok()?);
    }
    for (sum, bytes) in cluster.sums.iter_mut().zip(sums.chunks_exact(8)) {
        *sum = f64::from_le_bytes(bytes.try_into().ok()?);
    }
    cluster
        .sums
        .iter()
        .all(|sum| sum.is_finite())
        .then_some(cluster)
}
