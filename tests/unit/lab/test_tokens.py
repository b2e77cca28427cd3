from __future__ import annotations

import subprocess
import sys

from hypothesis import given, settings
from hypothesis import strategies as st

from loms.lab.tokens import chat_tokens, natural_length, pieces, reply_pieces, tokenize


@settings(deadline=None)
@given(st.text())
def test_no_character_is_lost(text: str) -> None:
    assert "".join(pieces(text)) == text


def test_about_four_characters_a_token() -> None:
    text = (
        "The scheduler serves requests that are running before it admits any that are still waiting in the queue. " * 9
    )
    assert 3 <= len(text) / len(tokenize(text)) <= 5


def test_equal_beginnings_give_equal_tokens() -> None:
    system = ("system", "You are a patient assistant.")
    first, second = chat_tokens([system, ("user", "Why?")]), chat_tokens([system, ("user", "When was that?")])
    shared = len(chat_tokens([system]))  # the marker of the answer stands where the next role's is
    assert first[: shared - 1] == second[: shared - 1]
    assert first != second


@settings(deadline=None)
@given(st.integers(min_value=0, max_value=2**31 - 1), st.integers(min_value=1, max_value=200))
def test_an_answer_splits_into_its_own_pieces(seed: int, count: int) -> None:
    said = reply_pieces(seed, count)
    assert len(said) == count
    assert pieces("".join(said)) == said


def test_an_answer_continued_begins_with_the_conversation_so_far() -> None:
    question = ("user", "Tell me more.")
    answer = "".join(reply_pieces(3, 20))
    so_far = [*chat_tokens([question]), *tokenize(answer)]
    assert chat_tokens([question, ("assistant", answer), ("user", "And then?")])[: len(so_far)] == so_far


@settings(deadline=None)
@given(st.integers(min_value=0, max_value=2**31 - 1))
def test_natural_lengths(seed: int) -> None:
    assert 64 <= natural_length(seed) <= 512


def test_tokens_are_the_same_in_every_process() -> None:
    code = "from loms.lab.tokens import tokenize; print(*tokenize('Say it again, please.'))"
    other = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert [int(token) for token in other.stdout.split()] == tokenize("Say it again, please.")
