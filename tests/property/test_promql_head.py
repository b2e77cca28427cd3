"""What the head answers from memory is what the store answers from its tables."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st
from promql.embedded import Embedded

from loms.core.clock import ManualClock
from loms.core.model import STALE_NAN, Floats, SampleBatch, Series, labels_of
from loms.promql.clickhouse import ClickHouseSource
from loms.promql.engine import Engine
from loms.promql.head import Head
from loms.promql.head_source import HeadSource
from loms.promql.values import MatrixResult, VectorResult
from loms.store.series import series_rows

NAMES = count()
NOW_MS = 10_000_000
EXPRESSIONS = (
    "{n}",
    "timestamp({n})",
    '{{__name__=~"{n}|{n}_alias"}}',
    "sum by (g) ({n})",
    "max without (i) ({n})",
    "count({n})",
    "topk(2, {n})",
    "absent({n}{{g='a'}})",
    "{n} offset 45s",
    "rate({n}[1m])",
    "increase({n}[2m])",
    "irate({n}[1m])",
    "delta({n}[90s])",
    "sum(rate({n}[1m]))",
    "avg by (g) (avg_over_time({n}[1m]))",
    "max_over_time({n}[1m])",
    "min_over_time({n}[30s])",
    "sum_over_time({n}[61s])",
    "count_over_time({n}[5m])",
    "quantile_over_time(0.9, {n}[1m])",
    "changes({n}[1m])",
    "resets({n}[2m])",
    "last_over_time({n}[10s])",
    "present_over_time({n}[1m])",
    "deriv({n}[1m])",
    "{n}_alias + {n}_alias offset 15s",
    "max_over_time(sum({n})[1m:15s])",
)

numbers = st.one_of(
    st.integers(0, 100).map(float), st.sampled_from([0.0, -0.0, np.nan, np.inf, -np.inf, STALE_NAN, STALE_NAN])
)


class Fed:
    """Batches of one metric, told to the head and kept for the store: two targets, of two and three series.

    One series has an alias, and one has two ids, one in each target.
    """

    def __init__(self, name: str) -> None:
        own = [Series.of(name, labels_of({"i": str(i), "g": "ab"[i % 2]})) for i in range(4)]
        alias = Series(own[0].id, f"{name}_alias", labels_of({"g": "a"}))
        split = Series(own[1].id ^ 1, own[1].name, own[1].labels)
        self.series = (*own, alias, split)
        self.targets = tuple(
            np.array([one.id for one in series], np.uint64) for series in (own[:2], (own[2], split, own[3]))
        )
        self.batches: list[SampleBatch] = []

    def write(self, embedded: Embedded) -> None:
        ids, times, values = (
            np.concatenate([getattr(batch, part) for batch in self.batches])
            for part in ("series_ids", "timestamps_ms", "values")
        )
        embedded.database.insert_arrow("series", series_rows(self.series, now_ms=0))
        columns = {"series_id": ids, "ts": times.astype("datetime64[ms]"), "value": values}
        embedded.database.insert_arrow("samples", pa.table(columns))


@st.composite
def batches(draw: st.DrawFn, fed: Fed) -> None:
    """Scrapes of either target, some late, some at a time that was there before, some of part of its series."""
    now_ms = NOW_MS - 900_000 + draw(st.integers(0, 600_000))
    for _ in range(draw(st.integers(1, 40))):
        now_ms += draw(st.sampled_from([15_000, 15_000, 15_000, 1, 700, 70_000]))
        ids = fed.targets[draw(st.integers(0, 1))]
        at_ms = now_ms - draw(st.sampled_from([0, 0, 0, 0, 0, 15_000, 20_001, 400_000]))
        times, values = np.full(len(ids), at_ms), np.array(draw(st.tuples(*[numbers] * len(ids))))
        form = draw(st.sampled_from(["whole", "whole", "whole", "some", "times", "copy"]))
        if form == "some":
            ids, times, values = ids[:1], times[:1], values[:1]
        elif form == "times":
            times = times - np.arange(len(ids)) * 7
        elif form == "copy":
            ids = ids[::-1].copy()
        fed.batches.append(SampleBatch(ids, times, values))


@pytest.fixture(scope="module")
def embedded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Embedded]:
    embedded = Embedded(tmp_path_factory.mktemp("head"))
    yield embedded
    embedded.close()


def outcome(engine: Engine, expr: str, at_ms: int, range_ms: int) -> tuple[object, Floats]:
    """The answer as something that compares with NaN equal, series in the order in which they come."""
    found = engine.query_range(expr, at_ms - range_ms, at_ms, 7_500) if range_ms else engine.query(expr, at_ms)
    assert isinstance(found, MatrixResult | VectorResult)
    if isinstance(found, VectorResult):
        return found.labels, found.values
    return (found.labels, *(times.tolist() for times in found.times_ms)), np.concatenate([*found.values, np.empty(0)])


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_head_and_store_give_the_same_answers(embedded: Embedded, data: st.DataObject) -> None:
    """With a restart before some batch, and bounds of room and time that let go of what is old."""
    name = f"m{next(NAMES)}"
    fed = Fed(name)
    data.draw(batches(fed))
    restarted = data.draw(st.sampled_from([0, 0, 0, 0, 1, len(fed.batches) // 2]))
    before = [int(batch.timestamps_ms.max()) for batch in fed.batches[:restarted]]
    size = data.draw(st.sampled_from([1 << 24] * 4 + [6_000, 10_000]))
    clock = ManualClock(NOW_MS - 1_500_000)
    head = Head(
        clock, size=size, seconds=data.draw(st.sampled_from([3_600, 1_500, 700])), from_ms=max(before, default=0)
    )
    for batch in fed.batches[restarted:]:
        clock.advance(max(0, int(batch.timestamps_ms[0]) - clock.now_ms()) / 1000)
        head(batch)
    fed.write(embedded)
    store = ClickHouseSource(embedded.database.query_columns, None, embedded.database.series_version)
    mixed, plain = Engine(HeadSource(head, store)), Engine(store)
    at_ms = clock.now_ms() - data.draw(st.sampled_from([0, 0, 15_000, 100_000]))
    event(f"held {head.holds(at_ms - 300_000, at_ms)}")
    for expr in EXPRESSIONS:
        for range_ms in (0, 60_000):
            got, want = (outcome(one, expr.format(n=name), at_ms, range_ms) for one in (mixed, plain))
            assert got[0] == want[0], (expr, range_ms)
            np.testing.assert_allclose(got[1], want[1], rtol=1e-9, atol=1e-9, err_msg=f"{expr} {range_ms}")
