-- What a part of LOMS wants to know of a target after a restart: the newest version of a key counts. The payload is
-- that part's own text.
CREATE TABLE IF NOT EXISTS target_notes
(
    kind LowCardinality(String),
    job String,
    instance String,
    version UInt64,
    seen DateTime64(3),
    payload String CODEC(ZSTD(1))
)
ENGINE = ReplacingMergeTree(version)
ORDER BY (kind, job, instance);
