"""The one place where any exception may be swallowed: it is counted and logged, and work goes on.

Loops that must survive (scraping, evaluating, delivering) and hooks inside someone else's process run their body
under `guard`. Nothing here needs more than the standard library, because the SDK uses it too.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

failures: Counter[str] = Counter()
"""Where → how often an unexpected exception was caught there; exported as ``loms_internal_errors_total``."""

_log = logging.getLogger("loms.guard")


@contextmanager
def guard(where: str) -> Iterator[None]:
    """Run the body; count and log an unexpected exception instead of raising it.

    The first and then every power-of-two failure at one place is logged with its traceback, so that a failure in
    a one-second loop does not fill a disk.
    """
    try:
        yield
    except Exception:
        failures[where] += 1
        count = failures[where]
        if count & (count - 1) == 0:
            _log.exception("%s failed unexpectedly (%d times so far); going on", where, count)
