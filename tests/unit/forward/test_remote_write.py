"""What goes out, read with protobuf itself by the specifications' own messages."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from support.post_host import Answer, PostHost
from support.remote_write_messages import ONE, TWO

from loms.core import selfmetrics
from loms.core.clock import ManualClock, SystemClock
from loms.core.errors import ConfigError, StoreError
from loms.core.model import STALE_NAN, SampleBatch, Series
from loms.core.settings import RemoteWrite
from loms.forward.queue import DiskQueue
from loms.forward.remote_write import FORGET_SECONDS, MEMORY_ROWS, REQUEST_SAMPLES, RemoteWriteOut, outs_of
from loms.ingest.decompression import decompress

T = 1_764_456_000_000
RAW = Series.of("vllm:num_requests_running", (("instance", "h:1"),))
ALIAS = Series(RAW.id, "loms_engine_requests_running", (("engine", "vllm"), ("instance", "h:1")))
UP = Series.of("up", (("instance", "h:1"),))


def nobody(ids: Sequence[int]) -> Iterable[Series]:
    return ()


def out(tmp_path: Path, clock: ManualClock | None = None, resolve: Any = nobody, **settings: Any) -> RemoteWriteOut:
    config = RemoteWrite.model_validate({"url": "http://h:1/api/v1/write", "name": "there", **settings})
    return RemoteWriteOut(config, tmp_path, clock or ManualClock(T), resolve)


def batch(*rows: tuple[Series, int, float], series: tuple[Series, ...] = ()) -> SampleBatch:
    return SampleBatch(
        np.array([one.id for one, _, _ in rows], dtype=np.uint64),
        np.array([t for _, t, _ in rows], dtype=np.int64),
        np.array([v for _, _, v in rows]),
        series,
    )


def queued(one: RemoteWriteOut, tmp_path: Path) -> list[bytes]:
    """The messages that wait on disk, decompressed; ``one`` is done with."""
    one.stop()
    queue = DiskQueue(tmp_path / "there", 2**30, ManualClock(T))
    found = []
    while (item := queue.peek()) is not None:
        found.append(decompress(item.data[5:], "snappy", 2**30))
        queue.done(item)
    return found


def sent(one: RemoteWriteOut, tmp_path: Path) -> list[tuple[str, int, float]]:
    """(name, time, value) of everything that waits on disk."""
    return [
        (next(one.value for one in series.labels if one.name == "__name__"), sample.timestamp, sample.value)
        for message in queued(one, tmp_path)
        for series in ONE["WriteRequest"].FromString(message).timeseries
        for sample in series.samples
    ]


def dropped(reason: str) -> float:
    return (
        selfmetrics.registry.get_sample_value("loms_forward_dropped_total", {"destination": "there", "reason": reason})
        or 0.0
    )


def test_a_series_goes_out_under_each_of_its_names_once(tmp_path: Path) -> None:
    one = out(tmp_path)
    one(batch((RAW, T, 3.0), (UP, T, 1.0), series=(RAW, ALIAS, UP)))
    one(batch((RAW, T + 1, 4.0), series=(RAW, ALIAS)))
    assert one.encode() == 5
    assert sent(one, tmp_path) == [
        (RAW.name, T, 3.0),
        (ALIAS.name, T, 3.0),
        ("up", T, 1.0),
        (RAW.name, T + 1, 4.0),
        (ALIAS.name, T + 1, 4.0),
    ]


def test_labels_are_whole_and_sorted(tmp_path: Path) -> None:
    one = out(tmp_path)
    odd = Series.of("m", (("Upper", "1"), ("a", 'é\n"'), ("zone", "x")))
    one(batch((odd, T, 1.0), series=(odd,)))
    one.encode()
    (message,) = queued(one, tmp_path)
    (series,) = ONE["WriteRequest"].FromString(message).timeseries
    assert [(label.name, label.value) for label in series.labels] == [
        ("Upper", "1"),
        ("__name__", "m"),
        ("a", 'é\n"'),
        ("zone", "x"),
    ]


def test_only_kept_names_go_out(tmp_path: Path) -> None:
    one = out(tmp_path, keep=["loms_.*", "u."])
    upper = Series.of("upper", ())
    one(batch((RAW, T, 3.0), (UP, T, 1.0), (upper, T, 1.0), series=(RAW, ALIAS, UP, upper)))
    one.encode()
    assert [name for name, _, _ in sent(one, tmp_path)] == [ALIAS.name, "up"]


def test_the_second_version(tmp_path: Path) -> None:
    one = out(tmp_path, version="2.0")
    one(batch((RAW, T, STALE_NAN), (UP, T, 1.0), series=(RAW, ALIAS, UP)))
    one.encode()
    (raw,) = queued(one, tmp_path)
    message = TWO["Request"].FromString(raw)
    names = [[message.symbols[ref] for ref in series.labels_refs] for series in message.timeseries]
    assert names[1] == ["__name__", ALIAS.name, "engine", "vllm", "instance", "h:1"]
    assert [len(series.samples) for series in message.timeseries] == [1, 1, 1]


def test_large_batches_become_several_requests(tmp_path: Path) -> None:
    one = out(tmp_path)
    one(batch(*((UP, T + i, float(i)) for i in range(2 * REQUEST_SAMPLES + 1)), series=(UP,)))
    one.encode()
    assert [len(ONE["WriteRequest"].FromString(some).timeseries) for some in queued(one, tmp_path)] == [
        REQUEST_SAMPLES,
        REQUEST_SAMPLES,
        1,
    ]


def test_a_series_that_is_not_known_is_asked_of_the_store_once(tmp_path: Path) -> None:
    asked: list[Sequence[int]] = []

    def resolve(ids: Sequence[int]) -> Iterable[Series]:
        asked.append(ids)
        return [RAW, ALIAS] if RAW.id in ids else []

    before = dropped("unknown_series")
    clock = ManualClock(T)
    one = out(tmp_path, clock, resolve)
    one(batch((RAW, T, 1.0), (UP, T, 1.0)))
    one.encode()
    one(batch((RAW, T + 1, 1.0)))
    one.encode()
    assert asked == [sorted([RAW.id, UP.id])]
    for _ in range(3):  # a series that is silent for two turns is forgotten
        clock.advance(FORGET_SECONDS + 1)
        one(batch((RAW, T + 2, 1.0)))
        one.encode()
    assert len(asked) == 1
    for _ in range(2):
        clock.advance(FORGET_SECONDS + 1)
        one(batch((UP, T + 2, 1.0), series=(UP,)))
        one.encode()
    one(batch((RAW, T + 3, 1.0)))
    one.encode()
    assert asked[1:] == [[RAW.id]]
    assert [name for name, t, _ in sent(one, tmp_path) if t == T + 3] == [RAW.name, ALIAS.name]
    assert dropped("unknown_series") == before + 1


def test_a_store_that_cannot_be_asked_costs_only_what_is_not_known(tmp_path: Path) -> None:
    def broken(ids: Sequence[int]) -> Iterable[Series]:
        raise StoreError("the store is closed")

    before = dropped("unknown_series")
    one = out(tmp_path, resolve=broken)
    one(batch((RAW, T, 1.0), (UP, T, 1.0), series=(UP,)))
    one.encode()
    assert sent(one, tmp_path) == [("up", T, 1.0)]
    assert dropped("unknown_series") == before + 1


def test_times_that_no_receiver_would_take_are_left_out(tmp_path: Path) -> None:
    before = dropped("out_of_bounds")
    one = out(tmp_path)
    one(batch((UP, -1, 1.0), (UP, 2**50, 1.0), (UP, T, 2.0), series=(UP,)))
    one.encode()
    assert sent(one, tmp_path) == [("up", T, 2.0)]
    assert dropped("out_of_bounds") == before + 2


def test_what_waits_in_memory_is_bounded(tmp_path: Path) -> None:
    before = dropped("memory_full")
    one = out(tmp_path)
    large = SampleBatch(
        np.full(MEMORY_ROWS, UP.id, dtype=np.uint64), np.full(MEMORY_ROWS, T), np.zeros(MEMORY_ROWS), (UP,)
    )
    one(large)
    one(batch((UP, T, 1.0)))
    assert dropped("memory_full") == before + 1


@pytest.mark.parametrize(("version", "content_type"), [("1.0", ""), ("2.0", ";proto=io.prometheus.write.v2.Request")])
def test_it_is_sent_with_the_protocols_headers_and_again_when_it_was_refused_for_now(
    tmp_path: Path, version: str, content_type: str
) -> None:
    with PostHost([Answer(503, {"Retry-After": "0"}), Answer(400, text="no")]) as host:
        config = RemoteWrite.model_validate({"url": host.url, "name": "real", "version": version})
        one = RemoteWriteOut(config, tmp_path, SystemClock(), nobody)
        one.start()
        one(batch((UP, T, 1.0), series=(UP,)))
        assert host.arrived.acquire(timeout=30)
        assert host.arrived.acquire(timeout=30)
        one(batch((UP, T + 1, 1.0)))
        one.stop(30)
    first, second, third = host.posted
    assert first.body == second.body != third.body
    assert first.headers["Content-Type"] == f"application/x-protobuf{content_type}"
    assert first.headers["Content-Encoding"] == "snappy"
    assert first.headers["X-Prometheus-Remote-Write-Version"] == {"1.0": "0.1.0", "2.0": "2.0.0"}[version]
    length = pa.decompress(first.body, decompressed_size=_length(first.body), codec="snappy", asbytes=True)
    assert b"up" in length


def _length(block: bytes) -> int:
    """Of a snappy block of less than 128 bytes."""
    assert block[0] < 128
    return block[0]


def test_two_destinations_of_one_name_are_refused(tmp_path: Path) -> None:
    config = RemoteWrite.model_validate({"url": "http://h:1/a"})
    other = RemoteWrite.model_validate({"url": "http://h:1/b"})
    with pytest.raises(ConfigError, match="two destinations are named 'h:1'"):
        outs_of([config, other], tmp_path, ManualClock(T), nobody)
    named = outs_of([config, other.model_copy(update={"name": "b"})], tmp_path, ManualClock(T), nobody)
    assert [one.name for one in named] == ["h:1", "b"]
