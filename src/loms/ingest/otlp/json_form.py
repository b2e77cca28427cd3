"""OTLP's JSON (opentelemetry.io/docs/specs/otlp/#json-protobuf-encoding) → the same messages that protobuf gives.

It is proto3's JSON with differences: ids are hex and not base64, enums are numbers (names are taken too), and unknown
fields are passed over. What each field may be is read once from the messages' own descriptors.
"""

from __future__ import annotations

import base64
import binascii
import json
import math
import re
from collections.abc import Callable, Mapping
from functools import cache, partial
from typing import Any, TypeVar

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message

from loms.core.errors import PayloadError

M = TypeVar("M", bound=Message)
Reader = Callable[[Any, int], Any]
"""JSON value, depth → what the message's constructor takes. Raises `_WrongError`."""

_DEPTH = 96
"""Messages within messages: what protobuf's own decoder allows, less a little."""
_HEX = frozenset({"trace_id", "span_id", "parent_span_id"})
_NOT_IN_JSON = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
_BITS = {
    FieldDescriptor.CPPTYPE_INT32: (-(2**31), 2**31 - 1),
    FieldDescriptor.CPPTYPE_UINT32: (0, 2**32 - 1),
    FieldDescriptor.CPPTYPE_INT64: (-(2**63), 2**63 - 1),
    FieldDescriptor.CPPTYPE_UINT64: (0, 2**64 - 1),
}
_MOST_VALUES = 1_000_000
"""In one request: as objects they take a hundred bytes each."""
_INTEGER = re.compile(r"-?[0-9]{1,20}")


class _WrongError(Exception):
    """A value that its field cannot have; names are put in front on the way up."""

    def at(self, name: str) -> _WrongError:
        return _WrongError(f"{name}.{self}" if not str(self).startswith(":") else f"{name}{self}")


def message_of(kind: type[M], body: bytes) -> M:
    """The message that ``body`` is the JSON of. Raises `PayloadError` that names the field."""
    if body.count(b",") + body.count(b"{") + body.count(b"[") > _MOST_VALUES:
        raise PayloadError(
            f"the JSON has more than {_MOST_VALUES} values", status=413, hint="send protobuf, or less at a time"
        )
    try:
        fields = json.loads(body)
    except RecursionError:
        raise PayloadError("the JSON is nested too deeply") from None
    except ValueError as error:  # also text that is not UTF-8
        raise PayloadError(f"the body is no JSON: {error}") from None
    try:
        message: M = kind(**_fields(kind.DESCRIPTOR, fields, 0))
    except _WrongError as error:
        raise PayloadError(f"the JSON is no {kind.DESCRIPTOR.name}: {str(error).removeprefix(': ')}") from None
    except (ValueError, TypeError, UnicodeError) as error:  # text with half a surrogate pair
        raise PayloadError(f"the JSON is no {kind.DESCRIPTOR.name}: {error}") from None
    return message


def _fields(descriptor: Descriptor, value: object, depth: int) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise _WrongError(": an object is wanted")
    if depth > _DEPTH:
        raise _WrongError(": nested too deeply")
    readers = _readers(descriptor)
    read: dict[str, Any] = {}
    for key, content in value.items():
        field = readers.get(key)
        if field is None or content is None:
            continue
        try:
            read[field[0]] = field[1](content, depth + 1)
        except _WrongError as error:
            raise error.at(key) from None
    return read


@cache
def _readers(descriptor: Descriptor) -> Mapping[str, tuple[str, Reader]]:
    """Both spellings of each field (``traceId``, ``trace_id``) → its name and how it is read."""
    found: dict[str, tuple[str, Reader]] = {}
    for field in descriptor.fields:
        reader = _reader(field)
        if field.is_repeated:
            reader = partial(_each, reader)
        found[field.name] = found[field.json_name] = (field.name, reader)
    return found


def _reader(field: FieldDescriptor) -> Reader:
    kind = field.cpp_type
    if kind == FieldDescriptor.CPPTYPE_MESSAGE:
        return partial(_fields, field.message_type)
    if kind in _BITS:
        return partial(_integer, *_BITS[kind])
    if kind in (FieldDescriptor.CPPTYPE_DOUBLE, FieldDescriptor.CPPTYPE_FLOAT):
        return _float
    if kind == FieldDescriptor.CPPTYPE_BOOL:
        return _bool
    if kind == FieldDescriptor.CPPTYPE_ENUM:
        return partial(_enum, {value.name: value.number for value in field.enum_type.values})
    if field.type == FieldDescriptor.TYPE_BYTES:
        return _id if field.name in _HEX else _bytes
    return _string


def _each(reader: Reader, value: object, depth: int) -> list[Any]:
    if not isinstance(value, list):
        raise _WrongError(": an array is wanted")
    return [reader(one, depth) for one in value]


def _integer(least: int, most: int, value: object, _: int) -> int:
    number: int | None = None
    if isinstance(value, int) and not isinstance(value, bool):
        number = value
    elif (isinstance(value, float) and value.is_integer()) or (isinstance(value, str) and _INTEGER.fullmatch(value)):
        number = int(value)
    if number is None or not least <= number <= most:
        raise _WrongError(f": an integer from {least} to {most} is wanted")
    return number


def _float(value: object, _: int) -> float:
    if isinstance(value, str):
        if value in _NOT_IN_JSON:
            return _NOT_IN_JSON[value]
        if len(value) > 400:
            raise _WrongError(": a number is wanted")
    elif isinstance(value, bool) or not isinstance(value, (int, float)):
        raise _WrongError(": a number is wanted")
    try:
        return float(value)
    except (ValueError, OverflowError):
        raise _WrongError(": a number is wanted") from None


def _bool(value: object, _: int) -> bool:
    if not isinstance(value, bool):
        raise _WrongError(": true or false is wanted")
    return value


def _string(value: object, _: int) -> str:
    if not isinstance(value, str):
        raise _WrongError(": a string is wanted")
    return value


def _enum(names: Mapping[str, int], value: object, depth: int) -> int:
    if isinstance(value, str) and value in names:
        return names[value]
    return _integer(-(2**31), 2**31 - 1, value, depth)


def _id(value: object, depth: int) -> bytes:
    try:
        return bytes.fromhex(_string(value, depth))
    except ValueError:
        raise _WrongError(": hex digits are wanted") from None


def _bytes(value: object, depth: int) -> bytes:
    text = _string(value, depth).replace("-", "+").replace("_", "/")
    try:
        return base64.b64decode(text + "=" * (-len(text) % 4), validate=True)
    except binascii.Error:
        raise _WrongError(": base64 is wanted") from None
