"""One HTTP/1.1 answer, from bytes as they arrive to a bounded body (RFC 9112); no sockets here."""

from __future__ import annotations

import re
import zlib

from loms.core.errors import TargetError

_MAX_HEAD = 64 << 10
_STATUS = re.compile(rb"HTTP/1\.([01]) ([0-9]{3})(?: |$)")
_CHUNK_SIZE = re.compile(rb"([0-9a-fA-F]{1,15})[ \t]*(?:;.*)?")


class Answer:
    """Feed it what the socket gives; ask for the parts once `feed` has returned True.

    Every violation is a `TargetError`: ``http`` for what breaks the protocol, ``too_large`` beyond ``limit`` bytes.
    """

    def __init__(self, limit: int) -> None:
        self.status = 0
        self.headers: dict[str, str] = {}
        self.keep_alive = False
        self.received = 0
        """Bytes so far, head included."""
        self._limit = limit
        self._raw = bytearray()
        self._body = bytearray()
        self._length: int | None = None
        self._chunked = False
        self._trailer = False

    @property
    def body(self) -> bytes:
        return bytes(self._body if self._chunked else self._raw)

    def feed(self, data: bytes | memoryview) -> bool:
        """True when the answer is complete."""
        self.received += len(data)
        self._raw += data
        while not self.status:
            if not self._read_head():
                return False
        if self._chunked:
            return self._read_chunks()
        if len(self._raw) > self._limit:
            raise self._too_large()
        if self._length is None:
            return False
        if len(self._raw) > self._length:
            self.keep_alive = False
            del self._raw[self._length :]
        return len(self._raw) == self._length

    def end(self) -> None:
        """The server closed the connection: fine where nothing else marks the end, else the answer was cut off."""
        if not self.received:
            raise TargetError("the connection was closed without an answer", reason="connection")
        if not self.status:
            raise TargetError("the connection was closed within the answer's head", reason="connection")
        if self._chunked or self._length is not None:
            of = "" if self._length is None else f" of {self._length}"
            got = len(self._body if self._chunked else self._raw)
            raise TargetError(f"the connection was closed after {got}{of} bytes of the body", reason="connection")

    def _read_head(self) -> bool:
        """Status and headers, if they are there; an interim answer (1xx) is passed over."""
        end = self._raw.find(b"\r\n\r\n")
        if end < 0 and len(self._raw) > 12 and not self._raw.startswith(b"HTTP/1."):
            raise TargetError("the answer is not HTTP", reason="http", hint="is this the right port?")
        if end > _MAX_HEAD or (end < 0 and len(self._raw) > _MAX_HEAD):
            raise TargetError(f"the answer's head is longer than {_MAX_HEAD} bytes", reason="http")
        if end < 0:
            return False
        first, *lines = bytes(self._raw[:end]).split(b"\r\n")
        del self._raw[: end + 4]
        match = _STATUS.match(first)
        if match is None:
            raise TargetError(f"the answer does not begin with an HTTP status: {first[:60]!r}", reason="http")
        if match[2][:1] == b"1":
            return bool(self._raw)
        headers: dict[str, str] = {}
        for line in lines:
            name, _, value = line.decode("latin-1").partition(":")
            headers[name.strip().lower()] = value.strip()
        self._take_head(int(match[2]), headers, persistent=match[1] == b"1")
        return True

    def _take_head(self, status: int, headers: dict[str, str], persistent: bool) -> None:
        self.status, self.headers = status, headers
        self._chunked = "chunked" in headers.get("transfer-encoding", "").lower()
        length = headers.get("content-length", "")
        if status in (204, 304):
            self._length, self._chunked = 0, False
        elif length and not self._chunked:
            if not (length.isascii() and length.isdigit() and len(length) < 19):
                raise TargetError(f"the Content-Length {length[:40]!r} is not a number", reason="http")
            self._length = int(length)
            if self._length > self._limit:
                raise self._too_large()
        connection = headers.get("connection", "").lower()
        ends_clearly = self._chunked or self._length is not None
        self.keep_alive = ends_clearly and "close" not in connection and (persistent or "keep-alive" in connection)

    def _read_chunks(self) -> bool:
        """Move whole chunks from the raw bytes to the body; True after the last one and its trailer."""
        at = 0
        while (end := self._raw.find(b"\r\n", at, at + 4096)) >= 0:
            line = bytes(self._raw[at:end])
            if self._trailer:
                at = end + 2
                if not line:
                    self.keep_alive = self.keep_alive and at == len(self._raw)
                    return True
                continue
            match = _CHUNK_SIZE.fullmatch(line)
            if match is None:
                raise TargetError(f"a chunk has no size: {line[:40]!r}", reason="http")
            size = int(match[1], 16)
            if len(self._body) + size > self._limit:
                raise self._too_large()
            start = end + 2
            if size and len(self._raw) < start + size + 2:
                break
            self._trailer = not size
            self._body += self._raw[start : start + size]
            at = start + size + (2 if size else 0)
        else:
            if len(self._raw) - at > 4096:
                raise TargetError("a chunk's size line does not end", reason="http")
        del self._raw[:at]
        return False

    def _too_large(self) -> TargetError:
        return TargetError(
            f"the answer is larger than {self._limit} bytes", reason="too_large", hint="raise the body limit"
        )


def decompress(body: bytes, encoding: str, limit: int) -> bytes:
    """``body`` decoded, never holding more than ``limit`` bytes of output (a small body can stand for gigabytes)."""
    if encoding in ("", "identity"):
        return body
    if encoding not in ("gzip", "x-gzip"):
        raise TargetError(f"the answer is compressed as {encoding[:40]!r}, which was not asked for", reason="http")
    out = bytearray()
    while body:
        stream = zlib.decompressobj(wbits=31)
        try:
            out += stream.decompress(body, limit + 1 - len(out))
        except zlib.error:
            raise TargetError("the answer says that it is gzip, and is not", reason="http") from None
        if len(out) > limit:
            raise TargetError(
                f"the answer is larger than {limit} bytes when decompressed",
                reason="too_large",
                hint="raise the body limit",
            )
        if not stream.eof:
            raise TargetError("the compressed answer is cut off", reason="http")
        body = stream.unused_data
    return bytes(out)
