"""What the writer takes is what readers get: every bit of a value, every millisecond, every character of a label."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from loms.core.clock import ManualClock
from loms.core.model import STALE_NAN_BITS, SampleBatch, Series, labels_of
from loms.store.database import Database
from loms.store.writer import Writer

DEADLINE = 60.0
ODD_BITS = (
    STALE_NAN_BITS,
    0x7FF8000000000000,  # the usual NaN
    0x7FF0000000000001,  # a signalling NaN
    0xFFF8000000000000,  # a negative NaN
    0x7FF0000000000000,  # +Inf
    0xFFF0000000000000,  # -Inf
    0x8000000000000000,  # -0
    0x0000000000000001,  # the least number above 0
)
bits = st.sampled_from(ODD_BITS) | st.integers(0, 2**64 - 1)
ids = st.sampled_from((0, 1, 2**63, 2**64 - 1)) | st.integers(0, 2**64 - 1)
NOON_MS = 1_790_000_000_000 // 86_400_000 * 86_400_000 + 43_200_000
CLOCK = ManualClock(NOON_MS)
times = st.integers(NOON_MS - 200 * 86_400_000, NOON_MS + 600_000) | st.sampled_from(
    (NOON_MS - 43_200_001, NOON_MS - 43_200_000)  # the last millisecond of a day and the first of the next
)
samples = st.lists(st.tuples(ids, times, bits), max_size=20)
words = st.text(st.characters(codec="utf-8"), max_size=12)
series = st.builds(
    Series,
    ids,
    st.text(st.characters(codec="utf-8"), min_size=1, max_size=12),
    st.dictionaries(words, words, max_size=5).map(labels_of),
)


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Database]:
    with Database.open(tmp_path_factory.mktemp("store"), 1e9, CLOCK) as opened:
        yield opened


@pytest.fixture
def writer(database: Database) -> Iterator[Writer]:
    opened = Writer(database, CLOCK, flush_seconds=3600)
    yield opened
    opened.close()


def batch_of(rows: list[tuple[int, int, int]], new: tuple[Series, ...] = ()) -> SampleBatch:
    columns = list(zip(*rows, strict=True)) or [(), (), ()]
    values = np.array(columns[2], dtype=np.uint64).view(np.float64)
    return SampleBatch(np.array(columns[0], dtype=np.uint64), np.array(columns[1], dtype=np.int64), values, new)


@given(st.lists(samples, max_size=4))
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_samples_come_back_bit_by_bit(
    database: Database, writer: Writer, batches: list[list[tuple[int, int, int]]]
) -> None:
    database.command("TRUNCATE TABLE samples")
    for rows in batches:
        writer(batch_of(rows))
    assert writer.flush(DEADLINE)
    database.command("OPTIMIZE TABLE samples FINAL")
    columns = database.query_columns("SELECT series_id, ts, value FROM samples")
    stored = zip(
        columns["series_id"].to_pylist(),
        columns["ts"].cast(pa.int64()).to_pylist(),
        np.asarray(columns["value"]).view(np.uint64).tolist(),
        strict=True,
    )
    assert Counter(stored) == Counter(row for rows in batches for row in rows)


@given(st.lists(series, min_size=1, max_size=8))
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_series_come_back_character_by_character(database: Database, new: list[Series]) -> None:
    database.command("TRUNCATE TABLE series")
    fresh = Writer(database, CLOCK, flush_seconds=3600)
    for one in new:
        fresh(batch_of([], (one,)))
    assert fresh.flush(DEADLINE)
    fresh.close()
    columns = database.query_columns("SELECT id, name, labels FROM series FINAL")
    rows = zip(*(columns[name].to_pylist() for name in ("id", "name", "labels")), strict=True)
    assert Counter(Series(i, name, tuple(labels)) for i, name, labels in rows) == Counter(set(new))
