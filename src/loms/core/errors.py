"""Everything that can go wrong on purpose, as one small tree.

LomsError                  exit code 1
├── ConfigError            2   a file, line or key that a person wrote
├── ExpositionError        3   a target's text breaks the exposition format
├── TargetError            3   a target cannot be reached or answers wrongly
├── PayloadError           3   what another program sent here cannot be taken
├── QueryError             4   a PromQL expression is wrong (bad_data)
│   ├── QueryLimitError    4   it is right but would read too much (execution)
│   ├── QueryTimeoutError  4   it took too long (timeout)
│   └── QueryCancelledError 4  nobody waits for its answer any more (canceled)
├── StoreError             5   the store refuses, is broken or too new
│   └── StoreBusyError     5   another process holds the data directory
├── NotifyError            6   a receiver did not take a notification
├── ForwardError           6   a destination did not take what was sent on
└── MissingPackageError    7   an optional part is not installed

The message is one clear sentence that names the file, line, key or endpoint; the hint says what to do next.
"""

from __future__ import annotations

from typing import ClassVar


class LomsError(Exception):
    """Root of all errors that LOMS raises knowingly."""

    exit_code: ClassVar[int] = 1

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class ConfigError(LomsError):
    exit_code = 2


class ExpositionError(LomsError):
    exit_code = 3


class TargetError(LomsError):
    """``reason`` is a label value of ``loms_scrape_failed``: timeout, refused, http, malformed, …"""

    exit_code = 3

    def __init__(self, message: str, *, reason: str, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.reason = reason


class PayloadError(LomsError):
    """``status`` is the HTTP answer: 400 malformed, 413 too large, 415 of a kind that is not taken."""

    exit_code = 3

    def __init__(self, message: str, *, status: int = 400, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.status = status


class QueryError(LomsError):
    """``kind`` is the Prometheus API's errorType."""

    exit_code = 4
    kind: ClassVar[str] = "bad_data"


class QueryLimitError(QueryError):
    kind = "execution"


class QueryTimeoutError(QueryError):
    kind = "timeout"


class QueryCancelledError(QueryError):
    kind = "canceled"


class StoreError(LomsError):
    exit_code = 5


class StoreBusyError(StoreError):
    pass


class NotifyError(LomsError):
    """``retry`` says whether sending the same again later can succeed."""

    exit_code = 6

    def __init__(self, message: str, *, retry: bool, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.retry = retry


class ForwardError(LomsError):
    """``retry``: sending the same again later can succeed, after ``retry_after_seconds`` where the receiver says so.

    ``reason`` is a label value of ``loms_forward_failures_total``: network, http_503, …; ``weight`` is how much the
    item counted for.
    """

    exit_code = 6

    def __init__(
        self,
        message: str,
        *,
        reason: str,
        retry: bool,
        retry_after_seconds: float | None = None,
        weight: int = 1,
        hint: str = "",
    ) -> None:
        super().__init__(message, hint=hint)
        self.reason = reason
        self.retry = retry
        self.retry_after_seconds = retry_after_seconds
        self.weight = weight


class MissingPackageError(LomsError):
    exit_code = 7
