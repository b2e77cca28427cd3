-- Alerts, incidents and the notification outbox: the newest version of a key counts. The JSON payload is the value;
-- the other columns are for selection and for people who read the tables by SQL. Rows are few and must outlive a
-- power cut, so each insert is synced to the disk; they are kept without limit.

CREATE TABLE IF NOT EXISTS alerts
(
    fingerprint String,
    version UInt64,
    state LowCardinality(String),
    rule LowCardinality(String),
    active_at DateTime64(3),
    payload String CODEC(ZSTD(1))
)
ENGINE = ReplacingMergeTree(version)
ORDER BY fingerprint
SETTINGS fsync_after_insert = 1, fsync_part_directory = 1;

CREATE TABLE IF NOT EXISTS incidents
(
    id String,
    version UInt64,
    state LowCardinality(String),
    severity LowCardinality(String),
    opened_at DateTime64(3),
    updated_at DateTime64(3),
    resolved_at Nullable(DateTime64(3)),
    payload String CODEC(ZSTD(1))
)
ENGINE = ReplacingMergeTree(version)
ORDER BY id
SETTINGS fsync_after_insert = 1, fsync_part_directory = 1;

-- The payload of a notification that is no longer pending is written empty, so that merges free its space.
CREATE TABLE IF NOT EXISTS notifications
(
    key String,
    version UInt64,
    state LowCardinality(String),
    attempts UInt32,
    next_attempt DateTime64(3),
    payload String CODEC(ZSTD(1))
)
ENGINE = ReplacingMergeTree(version)
ORDER BY key
SETTINGS fsync_after_insert = 1, fsync_part_directory = 1;
