"""Answers byte by byte: every split of the bytes must give the same result."""

from __future__ import annotations

import gzip
import zlib
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loms.collect.http_answer import Answer, decompress
from loms.core.errors import TargetError

PLAIN = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 5\r\n\r\nhello"
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3;x=y\r\nhel\r\n2\r\nlo\r\n0\r\nTrailer: t\r\n\r\n"


def read(data: bytes, piece: int = 1 << 20, limit: int = 100) -> Answer:
    """Feed pieces of the given length, then the end of the connection if the answer is not complete."""
    answer = Answer(limit)
    complete = False
    for at in range(0, len(data), piece):
        assert not complete, "complete before its last byte"
        complete = answer.feed(data[at : at + piece])
    if not complete:
        answer.end()
    return answer


@pytest.mark.parametrize("piece", [1, 2, 3, 7, 1000])
@pytest.mark.parametrize("data", [PLAIN, CHUNKED, b"HTTP/1.1 100 Continue\r\n\r\n" + PLAIN])
def test_answers_in_pieces(data: bytes, piece: int) -> None:
    answer = read(data, piece)
    assert (answer.status, answer.body, answer.keep_alive) == (200, b"hello", True)


def test_header_names_have_no_case() -> None:
    assert read(PLAIN).headers["content-type"] == "text/plain"


def test_a_body_without_length_lasts_until_the_connection_ends() -> None:
    answer = read(b"HTTP/1.1 200 OK\r\n\r\nhello")
    assert (answer.body, answer.keep_alive) == (b"hello", False)


@pytest.mark.parametrize(
    ("head", "kept"),
    [
        (b"HTTP/1.1 200 OK\r\nConnection: close\r\n", False),
        (b"HTTP/1.0 200 OK\r\n", False),
        (b"HTTP/1.0 200 OK\r\nConnection: Keep-Alive\r\n", True),
    ],
)
def test_which_connections_are_kept(head: bytes, kept: bool) -> None:
    assert read(head + b"Content-Length: 0\r\n\r\n").keep_alive is kept


def test_bytes_after_the_answer_are_dropped_with_the_connection() -> None:
    answer = read(PLAIN + b"more")
    assert (answer.body, answer.keep_alive) == (b"hello", False)
    assert not read(CHUNKED + b"more").keep_alive


@pytest.mark.parametrize(
    ("data", "reason", "complaint"),
    [
        (b"", "connection", "without an answer"),
        (PLAIN[:20], "connection", "within the answer's head"),
        (PLAIN[:-2], "connection", "after 3 of 5 bytes"),
        (CHUNKED[:-19], "connection", "closed after 3 bytes"),
        (b"SSH-2.0-OpenSSH_9.2\r\n", "http", "not HTTP"),
        (b"HTTP/1.1 abc\r\n\r\n", "http", "does not begin with an HTTP status"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n", "http", "Content-Length '-1'"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 101\r\n\r\n", "too_large", "larger than 100 bytes"),
        (b"HTTP/1.1 200 OK\r\n\r\n" + b"x" * 101, "too_large", "larger than 100 bytes"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n", "http", "a chunk has no size"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1_0\r\n", "http", "a chunk has no size"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n65\r\n", "too_large", "larger than 100 bytes"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + b"0" * 5000, "http", "does not end"),
        (b"HTTP/1.1 200 OK\r\nX: " + b"x" * 70_000, "http", "head is longer"),
    ],
)
def test_broken_answers(data: bytes, reason: str, complaint: str) -> None:
    with pytest.raises(TargetError, match=complaint) as caught:
        read(data)
    assert caught.value.reason == reason


def test_chunks_add_up_against_the_limit() -> None:
    with pytest.raises(TargetError, match="larger than 100 bytes"):
        read(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + b"32\r\n" + b"x" * 50 + b"\r\n33\r\n")


scraps = st.sampled_from(
    [
        *(b"HTTP/1.1 200 OK\r\n", b"HTTP/1.1 100 Go\r\n", b"\r\n", b"Content-Length: 3\r\n", b"Content-Length: x\r\n"),
        *(
            b"Transfer-Encoding: chunked\r\n",
            b"3\r\nabc\r\n",
            b"0\r\n",
            b"abc",
            b"\xff",
            b"Connection: close\r\n",
            b"7f",
        ),
    ]
)


def outcome(pieces: list[bytes]) -> tuple[int, bytes] | str:
    answer = Answer(50)
    try:
        if not any(answer.feed(piece) for piece in pieces):
            answer.end()
    except TargetError as error:
        return error.reason
    return answer.status, answer.body


@given(st.lists(scraps, max_size=10).map(b"".join), st.lists(st.integers(0, 200), max_size=4))
def test_any_bytes_give_an_answer_or_a_target_error_however_they_are_cut(data: bytes, cuts: list[int]) -> None:
    edges = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    pieces = [data[start:end] for start, end in pairwise(edges)]
    whole, cut = outcome([data]), outcome(pieces)
    if isinstance(whole, tuple) and isinstance(cut, tuple):
        assert cut == whole


class TestDecompress:
    def test_gzip(self) -> None:
        assert decompress(gzip.compress(b"a 1\n"), "gzip", 100) == b"a 1\n"

    def test_several_members(self) -> None:
        assert decompress(gzip.compress(b"a 1\n") + gzip.compress(b"b 2\n"), "gzip", 100) == b"a 1\nb 2\n"

    def test_nothing_to_do(self) -> None:
        assert decompress(b"a 1\n", "", 1) == b"a 1\n"

    def test_a_bomb_is_stopped_at_the_limit(self) -> None:
        with pytest.raises(TargetError, match="larger than 1000 bytes when decompressed") as caught:
            decompress(gzip.compress(bytes(10_000_000)), "gzip", 1000)
        assert caught.value.reason == "too_large"

    def test_exactly_the_limit_is_fine(self) -> None:
        assert len(decompress(gzip.compress(bytes(1000)), "gzip", 1000)) == 1000

    @pytest.mark.parametrize(
        ("body", "encoding", "complaint"),
        [
            (b"a 1\n", "gzip", "says that it is gzip"),
            (gzip.compress(b"a 1\n")[:-3], "gzip", "cut off"),
            (zlib.compress(b"a 1\n"), "br", "compressed as 'br'"),
        ],
        ids=["not gzip", "cut off", "unknown"],
    )
    def test_what_cannot_be_decompressed(self, body: bytes, encoding: str, complaint: str) -> None:
        with pytest.raises(TargetError, match=complaint) as caught:
            decompress(body, encoding, 100)
        assert caught.value.reason == "http"
