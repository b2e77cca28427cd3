"""OTLP's attribute values as text, spelled as the Collector's ClickHouse exporter does it (pdata's ``AsString``)."""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Iterable
from typing import Any

Pairs = list[tuple[str, str]]


def text_of(value: Any) -> str:
    """An ``AnyValue`` as text: numbers, booleans, arrays and maps as in JSON, bytes in base64, nothing as ''.

    A number that JSON lacks is spelled as the exporter does it.

    >>> from opentelemetry.proto.common.v1.common_pb2 import AnyValue
    >>> text_of(AnyValue(double_value=2.0)), text_of(AnyValue(bool_value=True)), text_of(AnyValue(bytes_value=b"ab"))
    ('2', 'true', 'YWI=')
    >>> text_of(AnyValue(array_value={"values": [{"int_value": 1}, {"string_value": "<a>"}, {}]}))
    '[1,"<a>",null]'
    """
    kind = value.WhichOneof("value")
    if kind == "string_value":
        text: str = value.string_value
        return text
    if kind == "int_value":
        return str(value.int_value)
    if kind == "double_value":
        return _number(value.double_value) or f"json: unsupported value: {_NOT_IN_JSON[repr(value.double_value)]}"
    if kind == "bool_value":
        return "true" if value.bool_value else "false"
    if kind == "bytes_value":
        return base64.b64encode(value.bytes_value).decode()
    if kind is None:
        return ""
    return _json(value, kind) or ""


def pairs_of(attributes: Iterable[Any]) -> Pairs:
    """``KeyValue`` messages as pairs of text, in their order."""
    return [(one.key, value.string_value or text_of(value)) for one in attributes for value in (one.value,)]


_NOT_IN_JSON = {"nan": "NaN", "inf": "+Inf", "-inf": "-Inf"}


def _number(value: float) -> str:
    """As JavaScript writes it: the shortest digits, positional from 1e-6 to 1e21. Empty where JSON has none.

    >>> _number(0.000001), _number(1.5e-7), _number(1e20), _number(1e21), _number(-0.0)
    ('0.000001', '1.5e-7', '100000000000000000000', '1e+21', '-0')
    """
    if not math.isfinite(value):
        return ""
    text = repr(value)
    if "e" not in text:
        return text.removesuffix(".0")
    digits, _, exponent = text.partition("e")
    power = int(exponent)
    if -7 < power < 21:
        return f"{value:.{max(0, len(digits.replace('-', '').replace('.', '')) - 1 - power)}f}"
    return f"{digits}e{power:+d}"


def _json(value: Any, kind: str | None) -> str | None:
    """JSON text as Go writes it (keys sorted, no spaces); None when a number in it cannot be written."""
    if kind is None:
        return "null"
    if kind == "array_value":
        items = [_json(one, one.WhichOneof("value")) for one in value.array_value.values]
        return None if None in items else f"[{','.join(item for item in items if item is not None)}]"
    if kind == "kvlist_value":
        fields = {one.key: _json(one.value, one.value.WhichOneof("value")) for one in value.kvlist_value.values}
        if None in fields.values():
            return None
        return f"{{{','.join(f'{_quoted(key)}:{fields[key]}' for key in sorted(fields))}}}"
    if kind == "double_value":
        return _number(value.double_value) or None
    text = text_of(value)
    return text if kind in ("int_value", "bool_value") else _quoted(text)


def _quoted(text: str) -> str:
    quoted = json.dumps(text, ensure_ascii=False)
    return quoted.replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")
