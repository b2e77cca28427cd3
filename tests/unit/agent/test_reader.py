from __future__ import annotations

import json
from pathlib import Path

import pytest

from loms.agent.reader import AnswerReader
from loms.core.errors import ExpositionError
from loms.ingest.exposition import ExpositionReader, Limits

OLLAMA = Path(__file__).parents[2] / "data" / "ollama"
JSON = "application/json; charset=utf-8"


def test_text_is_read_as_ever() -> None:
    text = b"# TYPE up gauge\nup 1\n"
    read, usual = AnswerReader().read(text, "text/plain"), ExpositionReader().read(text, "text/plain")
    assert (read.shape.names, read.values.tolist()) == (usual.shape.names, usual.values.tolist())


def test_json_of_an_engine_without_exposition() -> None:
    reader, body = AnswerReader(), (OLLAMA / "ps.json").read_bytes()
    first, second = reader.read(body, JSON), reader.read(b"\n " + body, JSON)
    assert dict(zip(first.shape.names, first.values.tolist(), strict=True))["ollama_models_loaded"] == 2
    assert second.shape is first.shape


def test_json_lines_are_a_list() -> None:
    body = (OLLAMA / "responses.jsonl").read_bytes()
    whole = json.dumps([json.loads(line) for line in body.splitlines()]).encode()
    lines = AnswerReader().read(body, "application/x-ndjson")
    assert lines.values.tolist() == AnswerReader().read(whole, "").values.tolist()
    assert "ollama_eval_tokens_total" in lines.shape.names


@pytest.mark.parametrize("body", [b'{"status": "ok"}', b"[1, 2", b"[" * 100_000, b"{}", b"[]", b'{"a":1}\n{"b"'])
@pytest.mark.parametrize("content_type", [JSON, "text/html"])
def test_json_of_nobody_is_the_error_that_it_always_was(body: bytes, content_type: str) -> None:
    with pytest.raises(ExpositionError) as usual:
        ExpositionReader().read(body, content_type)
    with pytest.raises(ExpositionError) as raised:
        AnswerReader().read(body, content_type)
    assert (raised.value.message, raised.value.hint) == (usual.value.message, usual.value.hint)


def test_quoted_names_of_the_text_format_are_no_json() -> None:
    assert AnswerReader().read(b'{"my.metric",a="b"} 1\n', "text/plain").shape.names == ("my.metric",)


def test_limits_hold_for_what_stands_for_an_answer() -> None:
    with pytest.raises(ExpositionError, match="samples"):
        AnswerReader(Limits(samples=2)).read((OLLAMA / "ps.json").read_bytes(), JSON)
