"""The samples that systems are compared over: made alike each time, sent by remote write or put into LOMS's tables."""

from __future__ import annotations

import http.client
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa

from loms.core.clock import SystemClock
from loms.core.model import Floats, Ids, Ints, Labels, Series, labels_of
from loms.ingest.exposition import ExpositionReader
from loms.store.database import Database
from loms.store.series import series_rows

TEXT = Path(__file__).parents[1] / "tests/data/vllm-0.32.0/loaded.txt"
INTERVAL_MS = 15_000
HOURS = 6
SERIES = 500
PORTION = 40
"""Scrapes that are sent at once: ten minutes."""
LIVE = 84
"""Newest scrapes that LOMS gets one by one, as it does from targets: 21 minutes."""


class Fleet:
    """The samples of all instances, in portions, the same at each pass. ``end_ms`` lies on a second."""

    def __init__(self, instances: int, end_ms: int) -> None:
        exposition = ExpositionReader().read(TEXT.read_bytes(), "text/plain; version=0.0.4")
        shape, kept = exposition.shape, [i for i, n in enumerate(exposition.shape.names) if "_created" not in n]
        kept = sorted((kept + [i for i in range(len(shape.names)) if i not in set(kept)])[:SERIES])
        self.base: Floats = exposition.values[kept]
        self.gauge = np.array([shape.types.get(shape.names[i]) == "gauge" for i in kept])
        self.still = np.array([bool(re.search(r"_created$|_info$|process_start", shape.names[i])) for i in kept])
        self.ratio = np.array([shape.names[i].endswith("_perc") for i in kept])
        self.instances = instances
        self.scrapes = HOURS * 3_600_000 // INTERVAL_MS
        self.end_ms = end_ms
        self.series: list[list[Series]] = []
        for number in range(instances):
            own = {"instance": f"10.0.{number // 250}.{number % 250}:8000", "job": "vllm"}
            model = f"model-{number % 4}"
            self.series.append(
                [
                    Series.of(
                        shape.names[i],
                        labels_of({k: model if k == "model_name" else v for k, v in shape.labels[i]} | own),
                    )
                    for i in kept
                ]
            )

    @property
    def samples(self) -> int:
        return self.scrapes * self.instances * SERIES

    def portions(self, since: int = 0, until: int | None = None) -> Iterator[list[tuple[Ints, Floats]]]:
        """Per instance the times [scrape] and values [series, scrape] of one portion, in order of time.

        Only those of the scrapes from number ``since`` up to ``until``; negative numbers count from the end.
        """
        since, until, _ = slice(since, until).indices(self.scrapes)
        random = np.random.default_rng(1)
        activity = np.cumsum(random.poisson(3.0, (self.instances, self.scrapes)) / 100.0, axis=1)
        for number in range(0, self.instances, 10):  # a restart
            at = int(random.integers(self.scrapes // 4, self.scrapes))
            activity[number, at:] -= activity[number, at]
        times = self.end_ms - 7_000 - INTERVAL_MS * np.arange(self.scrapes - 1, -1, -1)
        offsets = random.integers(-1_500, 1_500, self.instances) * 2 + 1  # odd: never on a window's edge
        for first in range(0, self.scrapes, PORTION):
            part = slice(first, first + PORTION)
            portion = [
                (times[part] + offsets[number], self._values(activity[number, part], random))
                for number in range(self.instances)
            ]
            cut = slice(max(since - first, 0), max(until - first, 0))
            if len(times[part][cut]):
                yield [(own[cut], values[:, cut]) for own, values in portion]

    def _values(self, activity: Floats, random: np.random.Generator) -> Floats:
        counters = self.base[:, None] * activity[None, :]
        whole = self.base == np.floor(self.base)
        counters = np.where(whole[:, None], np.floor(counters), counters)
        wandering = np.floor(random.gamma(2.0, 4.0, (int(self.gauge.sum()), len(activity))))
        values = np.where(self.still[:, None], self.base[:, None], counters)
        values[self.gauge & ~self.still] = wandering[: (self.gauge & ~self.still).sum()]
        values[self.ratio] = random.random((int(self.ratio.sum()), len(activity)))
        return values


# Remote write, encoded here: a portion of an instance is one request


def varint(number: int) -> bytes:
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    out.append(number)
    return bytes(out)


def field(number: int, body: bytes) -> bytes:
    return bytes([number << 3 | 2]) + varint(len(body)) + body


def label_head(series: Series) -> bytes:
    pairs: Labels = labels_of((("__name__", series.name), *series.labels))
    return b"".join(field(1, field(1, k.encode()) + field(2, v.encode())) for k, v in pairs)


def write_request(heads: Sequence[bytes], times: Ints, values: Floats) -> bytes:
    """A snappy-compressed ``prometheus.WriteRequest``; each sample takes 18 bytes."""
    samples = np.zeros((*values.shape, 18), np.uint8)
    samples[..., :3] = (0x12, 16, 0x09)
    samples[..., 3:11] = np.ascontiguousarray(values).astype("<f8").view(np.uint8).reshape(*values.shape, 8)
    samples[..., 11] = 0x10
    for place in range(6):
        samples[..., 12 + place] = (times >> (7 * place)) & 127 | (128 if place < 5 else 0)
    size = values.shape[1] * 18
    rows = [
        bytes([0x0A]) + varint(len(head) + size) + head + row.tobytes()
        for head, row in zip(heads, samples, strict=True)
    ]
    body: bytes = pa.compress(b"".join(rows), codec="snappy", asbytes=True)
    return body


def send(fleet: Fleet, port: int, live: bool = False) -> None:
    """All samples, a portion of an instance a request; or, ``live``, the newest ones, each scrape a request."""
    heads = [[label_head(one) for one in series] for series in fleet.series]
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    headers = {"Content-Encoding": "snappy", "Content-Type": "application/x-protobuf"}
    headers["X-Prometheus-Remote-Write-Version"] = "0.1.0"
    for portion in fleet.portions(since=-LIVE if live else 0):
        for first in range(0, len(portion[0][0]), 1 if live else PORTION):
            part = slice(first, first + 1) if live else slice(None)
            for own, (times, values) in zip(heads, portion, strict=True):
                connection.request("POST", "/api/v1/write", write_request(own, times[part], values[:, part]), headers)
                answer = connection.getresponse()
                said = answer.read()
                if answer.status // 100 != 2:
                    raise SystemExit(f"port {port} refuses samples: {answer.status} {said[:300]!r}")
    connection.close()


def store(fleet: Fleet, directory: Path) -> None:
    """The same portions, but for the newest scrapes, into LOMS's tables."""
    ids: list[Ids] = [np.array([one.id for one in series], np.uint64) for series in fleet.series]
    with Database.open(directory, 15 * 86_400, SystemClock()) as database:
        for series in fleet.series:
            database.insert_arrow("series", series_rows(series, fleet.end_ms))
        for portion in fleet.portions(until=-LIVE):
            columns = {
                "series_id": np.concatenate(
                    [np.repeat(own, len(times)) for own, (times, _) in zip(ids, portion, strict=True)]
                ),
                "ts": np.concatenate([np.tile(times, SERIES) for times, _ in portion]).astype("datetime64[ms]"),
                "value": np.concatenate([values.ravel() for _, values in portion]),
            }
            database.insert_arrow("samples", pa.table(columns))
