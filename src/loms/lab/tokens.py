"""A tokenizer and a text source for engines that have no model: deterministic, cheap, obviously synthetic."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from zlib import crc32

_PIECE = re.compile(r"\s?\w{1,5}|\s?[^\w\s]|\s")
_OPENING = ("simul", "ated", ":")
_WORDS = (
    " lorem", " ipsum", " dolor", " sit", " amet", " elit", " sed", " do", " magna", " quis", " nulla", " velit",
    " esse", " fugit", " culpa", " anim", " id", " est", " ut", " enim", " ad", " minim", " nisi", " duis", " aute",
    " irure", " ex", " ea", " nunc", " arcu", " urna", " pede",
)  # fmt: skip


def pieces(text: str) -> list[str]:
    """Split a text into word pieces of at most five letters, about one per four characters of English.

    >>> pieces("Please elaborate.")
    ['Pleas', 'e', ' elabo', 'rate', '.']
    """
    return _PIECE.findall(text)


def tokenize(text: str) -> list[int]:
    """Token ids of a text; equal beginnings give equal ids."""
    return [crc32(piece.encode()) for piece in pieces(text)]


def chat_tokens(messages: Iterable[tuple[str, str]]) -> list[int]:
    """Token ids of (role, content) messages: one for each role, and one that opens the answer."""
    ids: list[int] = []
    for role, content in messages:
        ids.append(crc32(f"<|{role}|>".encode()))
        ids.extend(tokenize(content))
    ids.append(crc32(b"<|assistant|>"))
    return ids


def reply_pieces(seed: int, count: int) -> list[str]:
    """The first ``count`` pieces of an answer; each is one token, and the joined text splits into them again.

    >>> "".join(reply_pieces(7, 6))
    'simulated: esse culpa ad'
    """
    chosen = list(_OPENING[:count])
    state = seed & 0x7FFFFFFF
    for _ in range(count - len(chosen)):
        state = (state * 1103515245 + 12345) & 0x7FFFFFFF
        chosen.append(_WORDS[(state >> 16) % len(_WORDS)])
    return chosen


def natural_length(seed: int) -> int:
    """How many tokens an answer has when nothing cuts it short: 64 to 512, fixed by the seed."""
    return 64 + (seed >> 8) % 449


QUOTED: dict[str, str] = {piece: json.dumps(piece) for piece in (*_OPENING, *_WORDS)}
"""Every piece of an answer as a JSON string."""
