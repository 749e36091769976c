//! The tables, the migrations of older versions, and the check of a file's tables.

use rusqlite::{Connection, Transaction};

/// Application ID that marks the file as a store of Thalweg ("THLW").
pub(super) const APPLICATION_ID: i64 = 0x5448_4c57;

/// Version of the schema below.
pub(super) const VERSION: i64 = MIGRATIONS.len() as i64;

/// `MIGRATIONS[n]` turns version n into version n + 1; version 0 is an empty file.
pub(crate) const MIGRATIONS: [&str; 13] = [V1, V2, V3, V4, V5, V6, V7, V8, V9, V10, V11, V12, V13];

/// Migration to version 13: waits after harm. `setting` is a feature, or a part of one.
const V13: &str = "
CREATE TABLE waits (
    setting TEXT NOT NULL,
    netns INTEGER NOT NULL,
    -- Sixteen bytes, and a prefix of up to 128 bits.
    address BLOB NOT NULL,
    prefix INTEGER NOT NULL,
    -- Its end, on the store's clock.
    until_ms INTEGER NOT NULL,
    length_ms INTEGER NOT NULL,
    -- Highest step that is tried after it; NULL = any.
    highest INTEGER,
    PRIMARY KEY (setting, netns, address, prefix)
) STRICT, WITHOUT ROWID;
";

/// Migration to version 12: counts of overridden connections.
const V12: &str = "
ALTER TABLE gain ADD COLUMN overridden INTEGER NOT NULL DEFAULT 0;
";

/// Migration to version 11: source of the measurements that decided, `own` or `fleet`; NULL = there
/// is no fleet.
const V11: &str = "
ALTER TABLE gain_parts ADD COLUMN source TEXT;
";

/// Migration to version 10: initial windows beside congestion controls. In `host_arms` of their
/// records `arm` is a number of segments.
const V10: &str = "
ALTER TABLE hosts ADD COLUMN step INTEGER NOT NULL DEFAULT 0;
ALTER TABLE hosts ADD COLUMN step_scored INTEGER NOT NULL DEFAULT 0;
-- Segments; 0 = none was chosen.
ALTER TABLE events ADD COLUMN window INTEGER NOT NULL DEFAULT 0;
ALTER TABLE events ADD COLUMN window_chosen INTEGER NOT NULL DEFAULT 0;
ALTER TABLE events ADD COLUMN window_propensity REAL NOT NULL DEFAULT 0;
-- Bits above what the kernel's own would cost; NULL = not scored.
ALTER TABLE events ADD COLUMN window_cost REAL;
";

/// Migration to version 9: groups of hosts beside hosts, and the level of record that decided a
/// connection first; before, it was always the host. `level` of a record is the kernel's number.
const V9: &str = "
ALTER TABLE events ADD COLUMN level TEXT NOT NULL DEFAULT 'host';

ALTER TABLE host_arms RENAME TO arms_8;
ALTER TABLE hosts RENAME TO hosts_8;
CREATE TABLE hosts (
    id INTEGER PRIMARY KEY NOT NULL,
    mode TEXT NOT NULL,
    level INTEGER NOT NULL,
    netns INTEGER NOT NULL,
    address TEXT NOT NULL,
    prefix INTEGER NOT NULL,
    connections INTEGER NOT NULL,
    scored INTEGER NOT NULL,
    switched INTEGER NOT NULL,
    min_rtt_us INTEGER NOT NULL,
    max_rate INTEGER NOT NULL,
    seen_ms INTEGER NOT NULL,
    forgot_ms INTEGER,
    queue_q16 INTEGER NOT NULL,
    base_rtt_us INTEGER NOT NULL,
    usual_q16 INTEGER NOT NULL,
    usual_log_rate_q16 INTEGER NOT NULL,
    UNIQUE (mode, level, netns, address, prefix)
) STRICT;
INSERT INTO hosts SELECT id, mode, 0, netns, address, prefix, connections, scored, switched,
    min_rtt_us, max_rate, seen_ms, forgot_ms, queue_q16, base_rtt_us, 0, 0 FROM hosts_8;
CREATE TABLE host_arms (
    host INTEGER NOT NULL REFERENCES hosts (id) ON DELETE CASCADE,
    arm TEXT NOT NULL,
    value INTEGER NOT NULL,
    max_rate INTEGER NOT NULL,
    weight_q16 INTEGER NOT NULL,
    deviation_q16 INTEGER NOT NULL,
    log_rate_q16 INTEGER NOT NULL,
    srtt_us INTEGER NOT NULL,
    min_rtt_us INTEGER NOT NULL,
    chosen INTEGER NOT NULL,
    greedy INTEGER NOT NULL,
    scored INTEGER NOT NULL,
    segs INTEGER NOT NULL,
    retrans INTEGER NOT NULL,
    own_q16 INTEGER NOT NULL,
    own_weight_q16 INTEGER NOT NULL,
    PRIMARY KEY (host, arm)
) STRICT, WITHOUT ROWID;
INSERT INTO host_arms SELECT host, arm, value, max_rate, weight_q16, deviation_q16, log_rate_q16,
    srtt_us, min_rtt_us, chosen, greedy, scored, segs, retrans, 0, 0 FROM arms_8;
DROP TABLE arms_8;
DROP TABLE hosts_8;
";

/// Migration to version 8: events of a share of the host-hours. Earlier versions stored all events.
const V8: &str = "
-- One over the share of host-hours that were kept in the hour of the connection's decision.
ALTER TABLE events ADD COLUMN stands_for REAL NOT NULL DEFAULT 1;
CREATE TABLE sampling (
    id INTEGER PRIMARY KEY NOT NULL CHECK (id = 0),
    -- Salt, began_ns and the hours are of this boot.
    boot_id TEXT NOT NULL,
    salt INTEGER NOT NULL,
    began_ns INTEGER NOT NULL,
    -- Events an hour, as expected when it began.
    before REAL
) STRICT;
CREATE TABLE sampling_hours (
    hour INTEGER PRIMARY KEY NOT NULL,
    share REAL NOT NULL,
    -- Events that reached the agent in it.
    seen INTEGER NOT NULL
) STRICT;
";

/// Migration to version 7: more sides than two, and limits of connections. `side` is as
/// `thalweg_gain::Side::text`. Advice has the key `advise:` and the system's arm.
const V7: &str = "
ALTER TABLE gain_groups RENAME TO groups_6;
CREATE TABLE gain_groups (
    rule TEXT NOT NULL,
    scope TEXT NOT NULL,
    name TEXT NOT NULL,
    side TEXT NOT NULL,
    measure INTEGER NOT NULL,
    hour INTEGER NOT NULL,
    clusters INTEGER NOT NULL,
    connections INTEGER NOT NULL,
    weight REAL NOT NULL,
    score REAL NOT NULL,
    weight2 REAL NOT NULL,
    product REAL NOT NULL,
    score2 REAL NOT NULL,
    score3 REAL NOT NULL,
    PRIMARY KEY (rule, scope, name, side, measure)
) STRICT, WITHOUT ROWID;
INSERT INTO gain_groups SELECT rule, scope, name, iif(control, 'control', 'treated'), measure, hour,
    clusters, connections, weight, score, weight2, product, score2, score3 FROM groups_6;
DROP TABLE groups_6;

ALTER TABLE gain_parts RENAME TO parts_6;
CREATE TABLE gain_parts (
    rule TEXT NOT NULL,
    hour INTEGER NOT NULL,
    tag INTEGER NOT NULL,
    side TEXT NOT NULL,
    port INTEGER NOT NULL,
    arm TEXT,
    prefix TEXT NOT NULL,
    counts BLOB NOT NULL,
    sums BLOB NOT NULL,
    -- As in gain_limits; empty = none.
    limits BLOB NOT NULL,
    PRIMARY KEY (rule, hour, tag, side, port)
) STRICT, WITHOUT ROWID;
INSERT INTO gain_parts SELECT rule, hour, tag, iif(control, 'control', 'treated'), port, arm,
    prefix, counts, sums, x'' FROM parts_6;
DROP TABLE parts_6;

-- Thirteen sums (binary64, little-endian) of each group, in the order of
-- thalweg_gain::Limits::numbers.
CREATE TABLE gain_limits (
    rule TEXT NOT NULL,
    scope TEXT NOT NULL,
    name TEXT NOT NULL,
    hour INTEGER NOT NULL,
    sums BLOB NOT NULL,
    PRIMARY KEY (rule, scope, name)
) STRICT, WITHOUT ROWID;
";

/// Migration to version 6: the gain of rules with a share. `rule` is the key of its experiment; ''
/// is the learner.
const V6: &str = "
ALTER TABLE gain RENAME TO gain_5;
CREATE TABLE gain (
    rule TEXT PRIMARY KEY NOT NULL,
    -- The hours of gain_parts are those of this boot.
    boot_id TEXT NOT NULL,
    -- When the comparisons began, on the store's clock.
    since_ms INTEGER NOT NULL,
    left_out INTEGER NOT NULL
) STRICT;
INSERT INTO gain SELECT '', boot_id, since_ms, left_out FROM gain_5;
DROP TABLE gain_5;

ALTER TABLE gain_strata RENAME TO strata_5;
CREATE TABLE gain_strata (
    rule TEXT NOT NULL,
    number INTEGER NOT NULL,
    count INTEGER NOT NULL,
    mean REAL NOT NULL,
    PRIMARY KEY (rule, number)
) STRICT, WITHOUT ROWID;
INSERT INTO gain_strata SELECT '', number, count, mean FROM strata_5;
DROP TABLE strata_5;

ALTER TABLE gain_groups RENAME TO groups_5;
CREATE TABLE gain_groups (
    rule TEXT NOT NULL,
    scope TEXT NOT NULL,
    name TEXT NOT NULL,
    control INTEGER NOT NULL,
    measure INTEGER NOT NULL,
    hour INTEGER NOT NULL,
    clusters INTEGER NOT NULL,
    connections INTEGER NOT NULL,
    weight REAL NOT NULL,
    score REAL NOT NULL,
    weight2 REAL NOT NULL,
    product REAL NOT NULL,
    score2 REAL NOT NULL,
    score3 REAL NOT NULL,
    PRIMARY KEY (rule, scope, name, control, measure)
) STRICT, WITHOUT ROWID;
INSERT INTO gain_groups SELECT '', scope, name, control, measure, hour, clusters, connections,
    weight, score, weight2, product, score2, score3 FROM groups_5;
DROP TABLE groups_5;

ALTER TABLE gain_parts RENAME TO parts_5;
CREATE TABLE gain_parts (
    rule TEXT NOT NULL,
    hour INTEGER NOT NULL,
    tag INTEGER NOT NULL,
    control INTEGER NOT NULL,
    port INTEGER NOT NULL,
    arm TEXT,
    prefix TEXT NOT NULL,
    counts BLOB NOT NULL,
    sums BLOB NOT NULL,
    PRIMARY KEY (rule, hour, tag, control, port)
) STRICT, WITHOUT ROWID;
INSERT INTO gain_parts SELECT '', hour, tag, control, port, arm, prefix, counts, sums FROM parts_5;
DROP TABLE parts_5;

ALTER TABLE gain_reverts RENAME TO reverts_5;
CREATE TABLE gain_reverts (
    rule TEXT NOT NULL,
    -- '': all exploring, or the rule.
    arm TEXT NOT NULL,
    since_ms INTEGER NOT NULL,
    until_ms INTEGER NOT NULL,
    why TEXT NOT NULL,
    PRIMARY KEY (rule, arm)
) STRICT, WITHOUT ROWID;
INSERT INTO gain_reverts SELECT '', arm, since_ms, until_ms, why FROM reverts_5;
DROP TABLE reverts_5;
";

/// Migration to version 5: the learner's gain, as sums of clusters and reverts.
const V5: &str = "
CREATE TABLE gain (
    id INTEGER PRIMARY KEY NOT NULL CHECK (id = 0),
    -- The hours of gain_parts are those of this boot.
    boot_id TEXT NOT NULL,
    -- When the comparisons began, on the store's clock.
    since_ms INTEGER NOT NULL,
    left_out INTEGER NOT NULL
) STRICT;

CREATE TABLE gain_strata (
    number INTEGER PRIMARY KEY NOT NULL,
    count INTEGER NOT NULL,
    mean REAL NOT NULL
) STRICT;

CREATE TABLE gain_groups (
    scope TEXT NOT NULL,
    name TEXT NOT NULL,
    control INTEGER NOT NULL,
    measure INTEGER NOT NULL,
    hour INTEGER NOT NULL,
    clusters INTEGER NOT NULL,
    connections INTEGER NOT NULL,
    weight REAL NOT NULL,
    score REAL NOT NULL,
    weight2 REAL NOT NULL,
    product REAL NOT NULL,
    score2 REAL NOT NULL,
    score3 REAL NOT NULL,
    PRIMARY KEY (scope, name, control, measure)
) STRICT, WITHOUT ROWID;

-- Clusters that are not over. Numbers of connections (32 bits each) and sums (binary64), both
-- little-endian, one of each by measure.
CREATE TABLE gain_parts (
    hour INTEGER NOT NULL,
    tag INTEGER NOT NULL,
    control INTEGER NOT NULL,
    port INTEGER NOT NULL,
    arm TEXT,
    prefix TEXT NOT NULL,
    counts BLOB NOT NULL,
    sums BLOB NOT NULL,
    PRIMARY KEY (hour, tag, control, port)
) STRICT, WITHOUT ROWID;

-- Arm '': all exploring.
CREATE TABLE gain_reverts (
    arm TEXT PRIMARY KEY NOT NULL,
    since_ms INTEGER NOT NULL,
    until_ms INTEGER NOT NULL,
    why TEXT NOT NULL
) STRICT;
";

/// Migration to version 4: data for judging another rule of choice by these events.
const V4: &str = "
-- Decisions: JSON, probability by arm, and the permitted arms.
ALTER TABLE events ADD COLUMN propensities TEXT;
ALTER TABLE events ADD COLUMN allowed TEXT;
ALTER TABLE events ADD COLUMN handshake_rtt_us INTEGER NOT NULL DEFAULT 0;
ALTER TABLE events ADD COLUMN rule INTEGER NOT NULL DEFAULT 0;
ALTER TABLE events ADD COLUMN parameters INTEGER NOT NULL DEFAULT 0;
ALTER TABLE events ADD COLUMN control INTEGER NOT NULL DEFAULT 0;
ALTER TABLE events ADD COLUMN wall_us INTEGER NOT NULL DEFAULT 0;
ALTER TABLE events ADD COLUMN receiver_us INTEGER NOT NULL DEFAULT 0;
ALTER TABLE events ADD COLUMN buffer_us INTEGER NOT NULL DEFAULT 0;
ALTER TABLE events ADD COLUMN app_limited INTEGER NOT NULL DEFAULT 0;
-- Drawn once: one row.
CREATE TABLE control_salt (
    id INTEGER PRIMARY KEY NOT NULL CHECK (id = 0),
    salt INTEGER NOT NULL
) STRICT;
";

/// Migration to version 3: times of host records are the store's own, not ages at a snapshot, so an
/// unchanged record need not be written. Events are removed by number, which follows that clock.
const V3: &str = "
UPDATE hosts SET
    seen_age_ms = coalesce((SELECT saved_at_ms FROM snapshots WHERE mode = hosts.mode), 0)
        - seen_age_ms,
    forgot_age_ms = coalesce((SELECT saved_at_ms FROM snapshots WHERE mode = hosts.mode), 0)
        - forgot_age_ms;
ALTER TABLE hosts RENAME COLUMN seen_age_ms TO seen_ms;
ALTER TABLE hosts RENAME COLUMN forgot_age_ms TO forgot_ms;
CREATE TABLE clock (
    id INTEGER PRIMARY KEY NOT NULL CHECK (id = 0),
    boot_id TEXT NOT NULL,
    -- The store's time minus the monotonic clock's.
    offset_ms INTEGER NOT NULL,
    -- The same moment on the store's clock and on the wall clock.
    clock_ms INTEGER NOT NULL,
    wall_ms INTEGER NOT NULL
) STRICT;
DROP INDEX events_by_time;
ALTER TABLE events ADD COLUMN clock_ms INTEGER;
";

const V2: &str = "
ALTER TABLE hosts ADD COLUMN queue_q16 INTEGER NOT NULL DEFAULT 0;
ALTER TABLE hosts ADD COLUMN base_rtt_us INTEGER NOT NULL DEFAULT 0;
ALTER TABLE host_arms ADD COLUMN segs INTEGER NOT NULL DEFAULT 0;
ALTER TABLE host_arms ADD COLUMN retrans INTEGER NOT NULL DEFAULT 0;
";

const V1: &str = "
CREATE TABLE snapshots (
    mode TEXT PRIMARY KEY NOT NULL,
    boot_id TEXT NOT NULL,
    own_netns INTEGER NOT NULL,
    saved_at_ms INTEGER NOT NULL
) STRICT;

-- Ages are milliseconds before saved_at_ms of the snapshot.
CREATE TABLE hosts (
    id INTEGER PRIMARY KEY NOT NULL,
    mode TEXT NOT NULL,
    netns INTEGER NOT NULL,
    address TEXT NOT NULL,
    prefix INTEGER NOT NULL,
    connections INTEGER NOT NULL,
    scored INTEGER NOT NULL,
    switched INTEGER NOT NULL,
    min_rtt_us INTEGER NOT NULL,
    max_rate INTEGER NOT NULL,
    seen_age_ms INTEGER NOT NULL,
    forgot_age_ms INTEGER,
    UNIQUE (mode, netns, address, prefix)
) STRICT;

CREATE TABLE host_arms (
    host INTEGER NOT NULL REFERENCES hosts (id) ON DELETE CASCADE,
    arm TEXT NOT NULL,
    value INTEGER NOT NULL,
    max_rate INTEGER NOT NULL,
    weight_q16 INTEGER NOT NULL,
    deviation_q16 INTEGER NOT NULL,
    log_rate_q16 INTEGER NOT NULL,
    srtt_us INTEGER NOT NULL,
    min_rtt_us INTEGER NOT NULL,
    chosen INTEGER NOT NULL,
    greedy INTEGER NOT NULL,
    scored INTEGER NOT NULL,
    PRIMARY KEY (host, arm)
) STRICT, WITHOUT ROWID;

CREATE TABLE events (
    id INTEGER PRIMARY KEY AUTOINCREMENT NOT NULL,
    time_ms INTEGER NOT NULL,
    kind TEXT NOT NULL,
    connection INTEGER NOT NULL,
    netns INTEGER NOT NULL,
    host TEXT NOT NULL,
    remote TEXT NOT NULL,
    remote_port INTEGER NOT NULL,
    local_port INTEGER NOT NULL,
    arm TEXT,
    chosen TEXT,
    system_arm TEXT,
    reason TEXT NOT NULL,
    propensity REAL NOT NULL,
    passive INTEGER NOT NULL,
    ecn INTEGER NOT NULL,
    dry_run INTEGER NOT NULL,
    switched INTEGER NOT NULL,
    error TEXT,
    -- Close only: end_kind says whether there is a measurement.
    end_kind TEXT,
    outcome TEXT,
    bytes INTEGER,
    duration_us INTEGER,
    rate_bytes_per_s INTEGER,
    srtt_us INTEGER,
    min_rtt_us INTEGER,
    segs_out INTEGER,
    retrans INTEGER,
    cost INTEGER,
    weight REAL
) STRICT;
CREATE INDEX events_by_host ON events (host, id);
CREATE INDEX events_by_time ON events (time_ms);
";

/// Columns that each table must have.
const TABLES: [(&str, &str); 14] = [
    ("sampling", "id boot_id salt began_ns before"),
    ("sampling_hours", "hour share seen"),
    ("control_salt", "id salt"),
    ("gain", "rule boot_id since_ms left_out overridden"),
    ("gain_strata", "rule number count mean"),
    (
        "gain_groups",
        "rule scope name side measure hour clusters connections weight score weight2 product \
         score2 score3",
    ),
    (
        "gain_parts",
        "rule hour tag side port arm prefix counts sums limits source",
    ),
    ("gain_limits", "rule scope name hour sums"),
    ("gain_reverts", "rule arm since_ms until_ms why"),
    ("clock", "boot_id offset_ms clock_ms wall_ms"),
    ("snapshots", "mode boot_id own_netns saved_at_ms"),
    (
        "hosts",
        "id mode level netns address prefix connections scored switched min_rtt_us max_rate \
         seen_ms forgot_ms queue_q16 base_rtt_us usual_q16 usual_log_rate_q16 step \
         step_scored",
    ),
    (
        "host_arms",
        "host arm value max_rate weight_q16 deviation_q16 log_rate_q16 srtt_us min_rtt_us \
         chosen greedy scored segs retrans own_q16 own_weight_q16",
    ),
    (
        "events",
        "id time_ms kind connection netns host remote remote_port local_port arm chosen \
         system_arm reason propensity passive ecn dry_run switched error end_kind outcome bytes \
         duration_us rate_bytes_per_s srtt_us min_rtt_us segs_out retrans cost weight clock_ms \
         propensities allowed handshake_rtt_us rule parameters control wall_us receiver_us \
         buffer_us app_limited stands_for level window window_chosen window_propensity \
         window_cost",
    ),
];

/// Version of a file; 0 for an empty one.
pub(super) fn version(connection: &Connection) -> Result<i64, rusqlite::Error> {
    connection.pragma_query_value(None, "user_version", |row| row.get(0))
}

/// Migrates a file from an older version to the present one, inside a transaction.
pub(super) fn migrate(transaction: &Transaction<'_>, from: i64) -> Result<(), rusqlite::Error> {
    let done = usize::try_from(from).unwrap_or(0);
    for step in MIGRATIONS.iter().skip(done) {
        transaction.execute_batch(step)?;
    }
    transaction.pragma_update(None, "application_id", APPLICATION_ID)?;
    transaction.pragma_update(None, "user_version", VERSION)
}

/// The first difference between a file and the present version, in words.
pub(super) fn difference(connection: &Connection) -> Result<Option<String>, rusqlite::Error> {
    for (table, columns) in TABLES {
        let mut statement = connection.prepare("SELECT name FROM pragma_table_info(?1)")?;
        let found: Vec<String> = statement
            .query_map([table], |row| row.get(0))?
            .collect::<Result<_, _>>()?;
        if found.is_empty() {
            return Ok(Some(format!("it has no table {table}")));
        }
        for column in columns.split_whitespace() {
            if !found.iter().any(|name| name == column) {
                return Ok(Some(format!("its table {table} has no column {column}")));
            }
        }
    }
    Ok(None)
}

/// Whether a file holds any table at all.
pub(super) fn is_empty(connection: &Connection) -> Result<bool, rusqlite::Error> {
    connection.query_row("SELECT count(*) = 0 FROM sqlite_schema", [], |row| {
        row.get(0)
    })
}
