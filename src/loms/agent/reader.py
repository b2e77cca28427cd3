"""What a target answers → an exposition: the text formats, and JSON answers of engines that have no exposition."""

from __future__ import annotations

import json
from typing import Any

from loms.core.model import Exposition
from loms.engines.engine import expose
from loms.ingest.exposition import ExpositionReader, Limits

_TEXT = "text/plain; version=0.0.4; charset=utf-8"


class AnswerReader:
    """Satisfies `loms.collect.protocols.Reader`. One per target.

    >>> AnswerReader().read(b'{"models": []}', "application/json").shape.names
    ('ollama_models_loaded',)
    """

    def __init__(self, limits: Limits | None = None) -> None:
        self._reader = ExpositionReader(limits)

    def read(self, body: bytes, content_type: str, /) -> Exposition:
        """Raises `ExpositionError`; for JSON that belongs to no engine, the one that its content type deserves."""
        if body[:64].lstrip()[:1] in (b"{", b"["):
            text = expose(_decoded(body))
            if text:
                return self._reader.read(text.encode(), _TEXT)
        return self._reader.read(body, content_type)


def _decoded(body: bytes) -> Any:
    """The value of a JSON text, a list of values for JSON lines, None for anything else."""
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        pass
    try:
        return [json.loads(line) for line in body.splitlines() if line.strip()]
    except (ValueError, RecursionError):
        return None
