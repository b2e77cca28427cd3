-- What is known of a metric family beside its samples: the newest version of a key counts.
CREATE TABLE IF NOT EXISTS metric_metadata
(
    family String,
    type LowCardinality(String),
    unit String,
    help String CODEC(ZSTD(1)),
    seen DateTime64(3)
)
ENGINE = ReplacingMergeTree(seen)
ORDER BY family;
