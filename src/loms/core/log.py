"""Logging: one line per event on stderr, secrets blanked whoever logs them."""

from __future__ import annotations

import json
import logging
import re
import sys

from loms.core.clock import iso_utc

_SECRETS = (
    re.compile(
        r"(?i)(\b(?:bearer|basic)\s+|\b(?:password|token|api[_-]?key|secret)['\"]?\s*[:=]\s*['\"]?)"
        r"(?!bearer\b|basic\b)([^\s'\"&,]+)"
    ),
    re.compile(r"(://[^/\s:@]+:)([^\s/@]+)(?=@)"),
)


def redact(text: str) -> str:
    """Blank what looks like a credential.

    >>> redact("Authorization: Bearer abc.def and http://user:pw@host/")
    'Authorization: Bearer *** and http://user:***@host/'
    """
    for pattern in _SECRETS:
        text = pattern.sub(r"\1***", text)
    return text


class _Lines(logging.Formatter):
    def __init__(self, as_json: bool) -> None:
        super().__init__()
        self._as_json = as_json

    def format(self, record: logging.LogRecord) -> str:
        message = redact(record.getMessage())
        trace = redact(self.formatException(record.exc_info)) if record.exc_info else ""
        time, level = iso_utc(int(record.created * 1000)), record.levelname.lower()
        if self._as_json:
            line = {"time": time, "level": level, "logger": record.name, "message": message}
            return json.dumps({**line, "trace": trace} if trace else line, ensure_ascii=False)
        return f"{time} {level:<7} {record.name}: {message}" + (f"\n{trace}" if trace else "")


def configure(level: str = "info", *, as_json: bool = False) -> None:
    """Send everything under ``loms`` (and warnings of libraries) to stderr. Calling again replaces the handler."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Lines(as_json))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    logging.getLogger("loms").setLevel(level.upper())
