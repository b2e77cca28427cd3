"""Attribute values as text. What is right: Go's strconv and encoding/json, by which the Collector's exporter spells."""

from __future__ import annotations

from typing import Any

import pytest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue

from loms.ingest.otlp.values import text_of


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ({"string_value": "plain"}, "plain"),
        ({"string_value": ""}, ""),
        ({}, ""),
        ({"bool_value": False}, "false"),
        ({"int_value": -(2**63)}, "-9223372036854775808"),
        ({"double_value": 1.0}, "1"),
        ({"double_value": 0.1}, "0.1"),
        ({"double_value": 123456789.125}, "123456789.125"),
        ({"double_value": 1e20}, "100000000000000000000"),
        ({"double_value": 1e21}, "1e+21"),
        ({"double_value": 1.5e300}, "1.5e+300"),
        ({"double_value": 0.000001}, "0.000001"),
        ({"double_value": 1e-7}, "1e-7"),
        ({"double_value": -2.5e-10}, "-2.5e-10"),
        ({"double_value": 1.7976931348623157e16}, "17976931348623156"),
        ({"double_value": float("inf")}, "json: unsupported value: +Inf"),
        ({"double_value": float("nan")}, "json: unsupported value: NaN"),
        ({"bytes_value": b"\x00\xff\x10"}, "AP8Q"),
        ({"array_value": {}}, "[]"),
        ({"array_value": {"values": [{"string_value": 'a"<b>&'}, {"double_value": 2.0}, {}]}}, '["a\\"<b>&",2,null]'),
        ({"array_value": {"values": [{"double_value": float("nan")}]}}, ""),
        ({"array_value": {"values": [{"string_value": "\u2028\n"}]}}, '["\\u2028\\n"]'),
        (
            {
                "kvlist_value": {
                    "values": [
                        {"key": "z", "value": {"bool_value": True}},
                        {"key": "a", "value": {"bytes_value": b"\x01"}},
                        {"key": "m", "value": {"kvlist_value": {"values": [{"key": "k", "value": {"int_value": 7}}]}}},
                    ]
                }
            },
            '{"a":"AQ==","m":{"k":7},"z":true}',
        ),
    ],
)
def test_every_kind_is_spelled_as_the_exporter_does(value: dict[str, Any], text: str) -> None:
    assert text_of(AnyValue(**value)) == text
