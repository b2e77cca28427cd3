-- Rollups: one row for each series and minute (hour) in which it has samples. A bucket is open on the left and closed on
-- the right, as PromQL's windows are, and named by its end; a row that is written again replaces the one before.
--
-- What stands in a row: how many samples (staleness markers left out), their sum, extremes (NaN only where all are), sum
-- of squared distances from the mean (spread), first and last value and how long before the bucket's end they lie,
-- changes and resets between neighbours and what was lost in resets (the value before each), and whether a staleness
-- marker is the newest of all (ended). From rows in order these follow for any longer window.
CREATE TABLE IF NOT EXISTS rollup_minute
(
    series_id UInt64 CODEC(ZSTD(1)),
    bucket DateTime('UTC') CODEC(Delta, ZSTD(1)),
    samples UInt32 CODEC(T64, ZSTD(1)),
    total Float64 CODEC(ZSTD(1)),
    lowest Float64 CODEC(ZSTD(1)),
    highest Float64 CODEC(ZSTD(1)),
    spread Float64 CODEC(ZSTD(1)),
    opening Float64 CODEC(ZSTD(1)),
    closing Float64 CODEC(ZSTD(1)),
    opening_before_ms UInt32 CODEC(T64, ZSTD(1)),
    closing_before_ms UInt32 CODEC(T64, ZSTD(1)),
    changes UInt32 CODEC(T64, ZSTD(1)),
    resets UInt32 CODEC(T64, ZSTD(1)),
    lost Float64 CODEC(ZSTD(1)),
    ended UInt8 CODEC(ZSTD(1)),
    version UInt64 CODEC(Delta, ZSTD(1))
)
ENGINE = ReplacingMergeTree(version)
PARTITION BY toYYYYMMDD(bucket, 'UTC')
ORDER BY (series_id, bucket)
SETTINGS materialize_ttl_recalculate_only = 1, min_age_to_force_merge_seconds = 86400, min_age_to_force_merge_on_partition_only = 1;

CREATE TABLE IF NOT EXISTS rollup_hour
(
    series_id UInt64 CODEC(ZSTD(1)),
    bucket DateTime('UTC') CODEC(Delta, ZSTD(1)),
    samples UInt32 CODEC(T64, ZSTD(1)),
    total Float64 CODEC(ZSTD(1)),
    lowest Float64 CODEC(ZSTD(1)),
    highest Float64 CODEC(ZSTD(1)),
    spread Float64 CODEC(ZSTD(1)),
    opening Float64 CODEC(ZSTD(1)),
    closing Float64 CODEC(ZSTD(1)),
    opening_before_ms UInt32 CODEC(T64, ZSTD(1)),
    closing_before_ms UInt32 CODEC(T64, ZSTD(1)),
    changes UInt32 CODEC(T64, ZSTD(1)),
    resets UInt32 CODEC(T64, ZSTD(1)),
    lost Float64 CODEC(ZSTD(1)),
    ended UInt8 CODEC(ZSTD(1)),
    version UInt64 CODEC(Delta, ZSTD(1))
)
ENGINE = ReplacingMergeTree(version)
PARTITION BY toYYYYMM(bucket, 'UTC')
ORDER BY (series_id, bucket)
SETTINGS materialize_ttl_recalculate_only = 1, min_age_to_force_merge_seconds = 86400, min_age_to_force_merge_on_partition_only = 1;

-- How far the rollups have come: the newest version of a key counts.
CREATE TABLE IF NOT EXISTS rollup_progress
(
    key LowCardinality(String),
    value Int64,
    version UInt64
)
ENGINE = ReplacingMergeTree(version)
ORDER BY key;

-- Hours of series that got samples late, so that their buckets are to be made again; written before the samples are.
CREATE TABLE IF NOT EXISTS rollup_late
(
    hour DateTime('UTC') CODEC(ZSTD(1)),
    series_id UInt64 CODEC(ZSTD(1)),
    noted DateTime64(3) CODEC(ZSTD(1))
)
ENGINE = MergeTree
ORDER BY (hour, series_id)
TTL toDateTime(noted) + toIntervalDay(30);
