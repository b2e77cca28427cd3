"""Versions as engines write them, and where they stand among the releases that are known."""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from functools import lru_cache

Release = tuple[tuple[int, ...], int, int]
"""Numbers without trailing zeros, stage (dev −4 … final 0, post 1), number of the stage; compares by age."""

_VERSION = re.compile(r"[vVb]?(\d+(?:\.\d+)*)(?:[-._]?(dev|alpha|a|beta|b|preview|pre|rc|c|post)[-._]?(\d*))?")
_STAGES = {"dev": -4, "alpha": -3, "a": -3, "beta": -2, "b": -2, "preview": -1, "pre": -1, "rc": -1, "c": -1, "post": 1}


@lru_cache(maxsize=4096)
def parse_release(version: str) -> Release | None:
    """How old a version is, after PEP 440; None where the text does not tell.

    Local parts (``+cpu``) count for nothing. Builds from a source tree without tags call themselves ``0.1.dev…``
    (setuptools-scm) or build 0 (llama.cpp), which says nothing of their age.

    >>> parse_release("v0.9.2.dev3+g12ab") < parse_release("0.9.2") < parse_release("0.9.2.post1")
    True
    >>> parse_release("b11434-5d2c8f")
    ((11434,), 0, 0)
    >>> parse_release("0.1.dev14233+gabc") is None
    True
    """
    match = _VERSION.match(version.strip())
    if match is None:
        return None
    numbers = tuple(int(part) for part in match[1].split("."))
    while numbers and not numbers[-1]:
        numbers = numbers[:-1]
    stage = _STAGES[match[2]] if match[2] else 0
    if not numbers or (stage == _STAGES["dev"] and numbers in ((1,), (0, 1))):
        return None
    return numbers, stage, int(match[3] or 0)


def between(release: Release, known: tuple[Release, ...]) -> tuple[int | None, int | None]:
    """Positions in ``known`` (oldest first) of the newest that is not younger and of the oldest that is not older.

    Both are the same for one that is known; the second is None for one that is newer than all, the first for one
    that is older.
    """
    upper = bisect_left(known, release)
    lower = bisect_right(known, release) - 1
    return (lower if lower >= 0 else None), (upper if upper < len(known) else None)


def previous_minor(version: str) -> str:
    """The minor release before: ``0.12.0`` → ``0.11``; nothing where there is none."""
    release = parse_release(version)
    major, minor = (*release[0], 0, 0)[:2] if release else (0, 0)
    return f"{major}.{minor - 1}" if minor else ""
