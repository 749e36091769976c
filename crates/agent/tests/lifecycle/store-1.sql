-- SPDX-License-Identifier: Apache-2.0 OR MIT
-- A store of schema 1, as an agent of kernel interface version 4 left it; @BOOT@ and @NETNS@ are filled in.
PRAGMA application_id = 0x54484c57;
PRAGMA user_version = 1;
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
INSERT INTO snapshots VALUES ('thalweg', '@BOOT@', @NETNS@, 0);
INSERT INTO hosts (id, mode, netns, address, prefix, connections, scored, switched, min_rtt_us, max_rate, seen_age_ms, forgot_age_ms)
VALUES (1, 'thalweg', @NETNS@, '192.0.2.9', 32, 20, 9, 1, 5000, 1000000, 1000, NULL),
       (2, 'thalweg', @NETNS@, '192.0.2.10', 32, 4, 2, 0, 5000, 1000000, 1000, NULL);
INSERT INTO host_arms VALUES (1, 'bbr', 100000, 1000000, 65536, 1000, 900000, 6000, 5000, 12, 10, 9),
                             (2, 'bbr', 100000, 1000000, 65536, 1000, 900000, 6000, 5000, 2, 1, 2);
