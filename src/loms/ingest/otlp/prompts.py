"""What users wrote and models answered is not kept unless that is asked for: its length and hash take its place.

Recognised by the names of OpenTelemetry's GenAI conventions, old and new, and of the libraries that write spans of
their own: OpenInference, Traceloop, Vercel's AI SDK, MLflow, Langfuse, Pydantic AI.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from functools import lru_cache
from typing import Any

from loms.ingest.otlp.values import text_of

_TEXT = re.compile(
    r"""
      gen_ai\.(?:input|output)\.(?:messages|type\.text)(?:\..*)?
    | gen_ai\.(?:system_instructions|tool\.definitions|evaluation\.explanation)(?:\..*)?
    | gen_ai\.tool\.call\.(?:arguments|result)(?:\..*)?
    | gen_ai\.(?:prompt|completion)(?:[._]?\d.*|\..*|_text)?
    | gen_ai\.(?:retrieval\.(?:query\.text|documents)|request\.messages|response\.(?:text|messages))(?:\..*)?
    | gen_ai\.event\.content(?:\..*)?
    | gen_ai\.(?:system|user|assistant|tool)\.message(?:\..*)? | gen_ai\.choice(?:\..*)?
    | (?:input|output)\.value | (?:llm\.)?(?:input|output)_messages(?:\..*)?
    | llm\.(?:prompts|completions|prompt_template)(?:\..*)? | llm\.function_call | message\.content(?:s\..*)?
    | embedding\.(?:text|embeddings\..*\.text) | retrieval\.documents(?:\..*)?
    | reranker\.(?:query|(?:input|output)_documents(?:\..*)?) | document\.content
    | tool\.parameters | tool_call\.function\.arguments
    | traceloop\.entity\.(?:input|output)
    | ai\.(?:prompt|response\.(?:text|object|reasoning|toolCalls)|result\.(?:text|object|toolCalls))(?:\..*)?
    | ai\.toolCall\.(?:args|result) | ai\.values?
    | mlflow\.span(?:Inputs|Outputs) | langfuse\.(?:observation|trace)\.(?:input|output)
    | pydantic_ai\.all_messages | all_messages_events | (?:tool_)?arguments | tool_response | final_result
    """,
    re.VERBOSE,
)
_PLAIN = re.compile(r"(?!gen_ai\.tool\.call\.).*\.(?:role|name|finish_reason|id|type|score)")
_LONGEST_NAME = 200
_NESTED = ("kvlist_value", "array_value")
"""Parts of a message that are no text of anybody's."""
_EVENT = re.compile(
    r"gen_ai\.(?:(?:system|user|assistant|tool)\.message|choice|content\.(?:prompt|completion)"
    r"|client\.inference\.operation\.details|evaluation\.result)"
)
_HARMLESS = re.compile(r"event\.name|gen_ai\..*|server\..*|error\.type|(?:.*\.)?(?:role|id|index)")
"""Attributes of a message's event that may stay if `_TEXT` does not name them."""

_INSTEAD = re.compile(r"\(not kept: \d+ characters, sha256 [0-9a-f]{16}\)")
"""What another LOMS has put there already."""

_MARKS = (
    b"put.value", b"_messages", b"llm.", b"message.", b"embedding.", b"retrieval.", b"reranker.", b"document.content",
    b"tool_call", b"tool.param", b"\x06gen_ai\x12", b"\x03llm\x12", b"\x02ai\x12", b"\x05input\x12", b"\x06output\x12",
    b"tool_re", b"traceloop.", b"mlflow.", b"langfuse.", b"arguments", b"final_result",
)  # fmt: skip
_AI_MARKS = re.compile(
    rb"ai\.(?:(?<=gen_ai\.)(?:input|output|system_|system\.m|user\.|assistant|tool\.|choice|prompt|completion|content"
    rb"|client\.inference|evaluation|retrieval|request\.mess|response\.(?:text|mess)|event)"
    rb"|(?<!gen_ai\.)(?:prompt|response|result|toolCall|value)|all_mess)"
)


def may_carry(body: bytes) -> bool:
    """False for a request in protobuf that has no attribute or event of those names: nothing need be looked at."""
    return any(mark in body for mark in _MARKS) or _AI_MARKS.search(body) is not None


def redact(request: Any) -> int:
    """Put length and hash in the place of every prompt and answer in spans or records; returns how many."""
    count = 0
    for group in getattr(request, "resource_spans", ()):
        count += _attributes(group.resource.attributes)
        for scope in group.scope_spans:
            count += _attributes(scope.scope.attributes)
            for span in scope.spans:
                count += _attributes(span.attributes)
                for event in span.events:
                    count += _attributes(event.attributes, event=event.name)
                for link in span.links:
                    count += _attributes(link.attributes)
    for group in getattr(request, "resource_logs", ()):
        count += _attributes(group.resource.attributes)
        for scope in group.scope_logs:
            count += _attributes(scope.scope.attributes)
            for record in scope.log_records:
                count += _record(record)
    return count


@lru_cache(maxsize=8192)
def names_prompt(key: str) -> bool:
    """Whether an attribute of this name holds somebody's text.

    >>> [names_prompt(key) for key in ("gen_ai.input.messages", "gen_ai.prompt.0.content", "gen_ai.prompt.0.role")]
    [True, True, False]
    """
    return _TEXT.fullmatch(key) is not None and _PLAIN.fullmatch(key) is None


@lru_cache(maxsize=1024)
def _is_message(event: str) -> bool:
    return _EVENT.fullmatch(event) is not None


@lru_cache(maxsize=1024)
def _is_harmless(key: str) -> bool:
    return _HARMLESS.fullmatch(key) is not None


def _attributes(attributes: Iterable[Any], event: str = "") -> int:
    message = bool(event) and _is_message(event)
    count = 0
    for one in attributes:
        if names_prompt(one.key) or (message and not _is_harmless(one.key)):
            one.value.string_value = _instead(one.value)
            count += 1
        elif one.value.WhichOneof("value") in _NESTED:
            count += _within(one.value, one.key)
    return count


def _within(value: Any, key: str = "") -> int:
    """In maps and arrays, however deep, keys are names too: by themselves, and behind the names they stand under."""
    count = 0
    waiting = [(value, key)]
    while waiting:
        value, key = waiting.pop()
        if value.WhichOneof("value") == "array_value":
            waiting += [(one, key) for one in value.array_value.values if one.WhichOneof("value") in _NESTED]
            continue
        for one in value.kvlist_value.values:
            full = f"{key}.{one.key}"[-_LONGEST_NAME:] if key else one.key
            if names_prompt(one.key) or names_prompt(full):
                one.value.string_value = _instead(one.value)
                count += 1
            elif one.value.WhichOneof("value") in _NESTED:
                waiting.append((one.value, full))
    return count


def _record(record: Any) -> int:
    event = record.event_name or next(
        (one.value.string_value for one in record.attributes if one.key == "event.name"), ""
    )
    count = _attributes(record.attributes, event=event)
    if record.HasField("body"):
        if _is_message(event):
            record.body.string_value = _instead(record.body)
            return count + 1
        if record.body.WhichOneof("value") in _NESTED:
            count += _within(record.body)
    return count


def _instead(value: Any) -> str:
    """Of text the characters are counted; of anything else those of its JSON."""
    text = text_of(value)
    if _INSTEAD.fullmatch(text):
        return text
    digest = hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()
    return f"(not kept: {len(text)} characters, sha256 {digest[:16]})"
