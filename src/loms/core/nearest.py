"""What to say of a word that is none of those known."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

_SHOWN = 24


def did_you_mean(found: object, known: Iterable[str]) -> str:
    """
    >>> did_you_mean("metrcs", ["metrics", "never"]), did_you_mean("x", ["metrics", "never"])
    ("did you mean 'metrics'?", 'known: metrics, never')
    """
    words = list(known)
    near = difflib.get_close_matches(str(found), words, n=1, cutoff=0.5)
    if near:
        return f"did you mean {near[0]!r}?"
    return f"known: {', '.join(words[:_SHOWN]) or 'none'}{', …' if len(words) > _SHOWN else ''}"
