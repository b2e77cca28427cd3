"""Remote write's messages by protobuf itself: the field numbers are those of the two specifications.

prometheus.io/docs/specs/prw/remote_write_spec (prompb/types.proto, remote.proto) and …_2_0
(io/prometheus/write/v2/types.proto). Native histograms have no fields here: they are passed over anyway.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

_F = descriptor_pb2.FieldDescriptorProto
_KINDS = {
    "string": _F.TYPE_STRING,
    "double": _F.TYPE_DOUBLE,
    "int64": _F.TYPE_INT64,
    "uint32": _F.TYPE_UINT32,
    "int32": _F.TYPE_INT32,
}
_ONE: Mapping[str, Mapping[str, tuple[int, str]]] = {
    "Label": {"name": (1, "string"), "value": (2, "string")},
    "Sample": {"value": (1, "double"), "timestamp": (2, "int64")},
    "Exemplar": {"labels": (1, "*Label"), "value": (2, "double"), "timestamp": (3, "int64")},
    "Histogram": {"sum": (3, "double"), "timestamp": (15, "int64")},
    "TimeSeries": {
        "labels": (1, "*Label"),
        "samples": (2, "*Sample"),
        "exemplars": (3, "*Exemplar"),
        "histograms": (4, "*Histogram"),
    },
    "MetricMetadata": {
        "type": (1, "int32"),
        "metric_family_name": (2, "string"),
        "help": (4, "string"),
        "unit": (5, "string"),
    },
    "WriteRequest": {"timeseries": (1, "*TimeSeries"), "metadata": (3, "*MetricMetadata")},
}
_TWO: Mapping[str, Mapping[str, tuple[int, str]]] = {
    "Sample": {"value": (1, "double"), "timestamp": (2, "int64"), "start_timestamp": (3, "int64")},
    "Exemplar": {"labels_refs": (1, "*uint32"), "value": (2, "double"), "timestamp": (3, "int64")},
    "Histogram": {"sum": (3, "double"), "timestamp": (15, "int64")},
    "Metadata": {"type": (1, "int32"), "help_ref": (3, "uint32"), "unit_ref": (4, "uint32")},
    "TimeSeries": {
        "labels_refs": (1, "*uint32"),
        "samples": (2, "*Sample"),
        "histograms": (3, "*Histogram"),
        "exemplars": (4, "*Exemplar"),
        "metadata": (5, "Metadata"),
        "created_timestamp": (6, "int64"),
    },
    "Request": {"symbols": (4, "*string"), "timeseries": (5, "*TimeSeries")},
}


def _messages(package: str, table: Mapping[str, Mapping[str, tuple[int, str]]]) -> dict[str, Any]:
    file = descriptor_pb2.FileDescriptorProto(name=f"{package}.proto", package=package, syntax="proto3")
    for name, fields in table.items():
        message = file.message_type.add(name=name)
        for field, (number, kind) in fields.items():
            added = message.field.add(name=field, number=number)
            added.label = _F.LABEL_REPEATED if kind[0] == "*" else _F.LABEL_OPTIONAL
            kind = kind.lstrip("*")
            added.type = _KINDS.get(kind, _F.TYPE_MESSAGE)
            if kind not in _KINDS:
                added.type_name = f".{package}.{kind}"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{package}.{name}")) for name in table}


ONE = _messages("prometheus", _ONE)
TWO = _messages("io.prometheus.write.v2", _TWO)

Row = tuple[Mapping[str, str], list[tuple[int, float]]]
"""Labels, and (time in ms, value) of its samples."""


def request(*rows: Row) -> bytes:
    """A message of version 1.0."""
    message = ONE["WriteRequest"]()
    for labels, samples in rows:
        series = message.timeseries.add()
        for name, value in labels.items():
            series.labels.add(name=name, value=value)
        for time_ms, value in samples:
            series.samples.add(timestamp=time_ms, value=value)
    return bytes(message.SerializeToString())


def request_2(*rows: Row) -> bytes:
    """A message of version 2.0."""
    message = TWO["Request"](symbols=[""])
    symbols = {"": 0}

    def ref(text: str) -> int:
        if text not in symbols:
            symbols[text] = len(symbols)
            message.symbols.append(text)
        return symbols[text]

    for labels, samples in rows:
        series = message.timeseries.add(labels_refs=[ref(text) for pair in labels.items() for text in pair])
        for time_ms, value in samples:
            series.samples.add(timestamp=time_ms, value=value)
    return bytes(message.SerializeToString())


def snappy(message: bytes) -> bytes:
    compressed: bytes = pa.compress(message, codec="snappy", asbytes=True)
    return compressed


def zstd(message: bytes) -> bytes:
    compressed: bytes = pa.compress(message, codec="zstd", asbytes=True)
    return compressed
