"""Bodies that others send compressed, decoded without ever holding more than a limit: a small one can stand for
gigabytes.
"""

from __future__ import annotations

import zlib

import pyarrow as pa

from loms.core.errors import PayloadError
from loms.ingest.protobuf import varint

_CHUNK = 1 << 20


def decompress(body: bytes, encoding: str, limit: int) -> bytes:
    """``body`` decoded; ``encoding`` is ``identity`` (or empty), ``snappy`` (the block format), ``gzip`` or ``zstd``.

    Raises `PayloadError`: 413 beyond ``limit`` bytes, 415 for another encoding, 400 for what is not in its encoding.
    """
    if encoding in ("", "identity"):
        if len(body) > limit:
            raise _too_large(limit)
        return body
    if encoding == "snappy":
        return _snappy(body, limit)
    if encoding in ("gzip", "x-gzip"):
        return _gzip(body, limit)
    if encoding == "zstd":
        return _zstd(body, limit)
    raise PayloadError(f"the content encoding {encoding[:40]!r} is not understood", status=415)


def _snappy(body: bytes, limit: int) -> bytes:
    """The block says its length first; the codec writes exactly so much, or fails."""
    length, _ = varint(body, 0, len(body))
    if length > limit:
        raise _too_large(limit)
    try:
        return pa.decompress(body, decompressed_size=length, codec="snappy", asbytes=True)  # type: ignore[no-any-return]
    except (OSError, pa.ArrowInvalid):
        raise PayloadError("the body is no block of snappy") from None


def _gzip(body: bytes, limit: int) -> bytes:
    out = bytearray()
    while body:
        stream = zlib.decompressobj(wbits=31)
        try:
            out += stream.decompress(body, limit + 1 - len(out))
        except zlib.error:
            raise PayloadError("the body says that it is gzip, and is not") from None
        if len(out) > limit:
            raise _too_large(limit)
        if not stream.eof:
            raise PayloadError("the gzip body is cut off")
        body = stream.unused_data
    return bytes(out)


def _zstd(body: bytes, limit: int) -> bytes:
    out = bytearray()
    try:
        with pa.CompressedInputStream(pa.BufferReader(body), "zstd") as stream:
            while chunk := stream.read(min(_CHUNK, limit + 1 - len(out))):
                out += chunk
                if len(out) > limit:
                    raise _too_large(limit)
    except OSError as error:
        cut_off = "runcated" in str(error)
        text = "the zstd body is cut off" if cut_off else "the body says that it is zstd, and is not"
        raise PayloadError(text) from None
    return bytes(out)


def _too_large(limit: int) -> PayloadError:
    return PayloadError(
        f"the body is larger than {limit} bytes when decompressed",
        status=413,
        hint="send less at once, or raise receive.decompressed",
    )
