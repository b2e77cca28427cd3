"""How somebody else's HTTP API is read: in a bounded time, in bounded memory, over one pool of connections."""

from __future__ import annotations

import socket
import ssl
import threading
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit, urlunsplit

import urllib3
from urllib3 import HTTPResponse
from urllib3.connection import HTTPConnection, HTTPSConnection

from loms.core import settings
from loms.core.errors import ConfigError
from loms.core.log import redact

_READ_BYTES = 1 << 16


@dataclass(frozen=True, slots=True)
class Place:
    """Where the API is, and how it is called in messages."""

    url: str
    shown: str
    username: str
    password: str

    @classmethod
    def of(cls, url: str) -> Place:
        """Raises `ConfigError` for what is no http(s) URL."""
        try:
            parts = urlsplit(url.strip())
            host, _ = parts.hostname, parts.port
        except ValueError:
            host, parts = None, urlsplit("")
        if not host or parts.scheme not in ("http", "https"):
            raise ConfigError(
                f"source {redact(url)!r} is not an http or https URL", hint="for example http://prometheus:9090"
            )
        path = parts.path.rstrip("/").removesuffix("/api/v1")
        whole = urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], path, "", ""))
        return cls(whole, whole, unquote(parts.username or ""), unquote(parts.password or ""))


class TooLongError(ValueError):
    """A body is longer than is taken."""


class Deadline:
    """An end for one exchange, however much comes and however slowly: the connection is cut then."""

    def __init__(self) -> None:
        self.passed = False
        self._socket: socket.socket | None = None

    def watches(self, connection: socket.socket | None) -> None:
        self._socket = connection
        if self.passed:
            self.cut()

    def cut(self) -> None:
        self.passed = True
        if self._socket is not None:
            with suppress(OSError):  # of the socket below TLS, which somebody is reading from
                socket.socket.shutdown(self._socket, socket.SHUT_RDWR)


_current = threading.local()


@contextmanager
def within(seconds: float) -> Iterator[Deadline]:
    """What this thread asks of a pool of `pool` in here ends after so many seconds."""
    deadline = _current.deadline = Deadline()
    timer = threading.Timer(seconds, deadline.cut)
    timer.daemon = True
    timer.start()
    try:
        yield deadline
    finally:
        timer.cancel()
        deadline.watches(None)
        _current.deadline = None


def _watch(connection: HTTPConnection) -> None:
    deadline: Deadline | None = getattr(_current, "deadline", None)
    if deadline is not None:
        deadline.watches(connection.sock)


class _Plain(HTTPConnection):
    def getresponse(self) -> HTTPResponse:  # type: ignore[override]
        _watch(self)
        return super().getresponse()


class _Secure(HTTPSConnection):
    def getresponse(self) -> HTTPResponse:  # type: ignore[override]
        _watch(self)
        return super().getresponse()


class _PlainPool(urllib3.HTTPConnectionPool):
    ConnectionCls = _Plain


class _SecurePool(urllib3.HTTPSConnectionPool):
    ConnectionCls = _Secure


def pool(tls: settings.Tls, url: str) -> urllib3.PoolManager:
    """Connections for this URL. Raises `ConfigError` for a TLS file that cannot be used."""
    made = urllib3.PoolManager(maxsize=4) if url.startswith("http:") else _secure(tls)
    made.pool_classes_by_scheme = {"http": _PlainPool, "https": _SecurePool}
    return made


def body_of(answer: urllib3.BaseHTTPResponse, limit: int) -> bytes:
    """The whole body, decompressed; never more than ``limit`` bytes of it are held. Raises `TooLongError`, and
    `zlib.error` for a body that is not what its header says.
    """
    out = bytearray()
    zipped = answer.headers.get("Content-Encoding", "").strip().lower() in ("gzip", "x-gzip")
    stream = zlib.decompressobj(wbits=31) if zipped else None
    for part in answer.stream(_READ_BYTES, decode_content=False):
        out += stream.decompress(part, limit + 1 - len(out)) if stream else part
        if len(out) > limit:
            raise TooLongError
    if stream and out and not stream.eof:
        raise zlib.error("cut off")
    return bytes(out)


def path_of(file: Path | None) -> str | None:
    return str(file.expanduser()) if file else None


def _secure(tls: settings.Tls) -> urllib3.PoolManager:
    try:
        context = ssl.create_default_context(cafile=path_of(tls.ca_file))
        if tls.cert_file is not None:
            context.load_cert_chain(str(tls.cert_file.expanduser()), path_of(tls.key_file))
    except OSError as error:  # a file that is there and wrong is an SSLError, which is one too
        named = " or ".join(str(file) for file in (tls.ca_file, tls.cert_file, tls.key_file) if file)
        raise ConfigError(f"source.tls: {named} cannot be used: {error.strerror or error}") from None
    if tls.insecure_skip_verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        urllib3.disable_warnings(urllib3.exceptions.InsecureRequestWarning)  # the configuration asks for it
    if tls.server_name is None:
        return urllib3.PoolManager(maxsize=4, ssl_context=context)
    name = tls.server_name
    return urllib3.PoolManager(maxsize=4, ssl_context=context, server_hostname=name, assert_hostname=name)
