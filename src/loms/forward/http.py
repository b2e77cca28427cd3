"""POST to a destination: TLS, credentials, and which answers are worth another try."""

from __future__ import annotations

import base64
import http.client
import socket
import ssl
import threading
import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from email.utils import parsedate_to_datetime
from pathlib import Path
from urllib.parse import unquote, urlsplit, urlunsplit

import urllib3
from urllib3.connection import HTTPConnection, HTTPSConnection

from loms import __version__
from loms.core.clock import Clock
from loms.core.errors import ConfigError, ForwardError
from loms.core.log import redact
from loms.core.settings import Forward, OtlpForward, Tls

_SHOWN = 200
"""Characters of an answer's body that a message repeats."""


class HttpDestination:
    """One URL. Answers of 5xx, 429 and 408 and broken connections are worth another try, other answers are not."""

    def __init__(self, settings: Forward, clock: Clock) -> None:
        """Raises `ConfigError` for TLS files that cannot be used."""
        self._settings = settings
        self._clock = clock
        parts = urlsplit(settings.url)
        self._target = urlunsplit(parts._replace(scheme="", netloc="", fragment="")) or "/"
        self._url_user = (unquote(parts.username or ""), unquote(parts.password or "")) if parts.username else None
        self.host = parts.netloc.rpartition("@")[2]
        self.name = name_of(settings)
        host = parts.hostname or ""
        self._connection = HTTPConnection(host, parts.port)
        if parts.scheme == "https":
            context = _context(settings.tls, self.name)
            wanted = settings.tls.server_name
            self._connection = HTTPSConnection(
                host,
                parts.port,
                ssl_context=context,
                server_hostname=wanted,
                assert_hostname=wanted if wanted and context.check_hostname else None,
            )
        weakref.finalize(self, self._connection.close)

    def post(self, body: bytes, headers: Mapping[str, str], *, weight: int, path: str = "") -> None:
        """Send; ``path`` is another one than the destination's. For one thread at a time. Raises `ForwardError`.

        It ends at the latest soon after the configured time, however slowly the answer comes.
        """
        headers = {"User-Agent": f"loms/{__version__}", **headers, **self._own_headers()}
        late = threading.Event()
        try:
            with _ended_after(self._settings.timeout, self._connection, late):
                answer, text = self._exchange(body, headers, path or self._target, late)
        except (urllib3.exceptions.HTTPError, http.client.HTTPException, OSError) as error:
            self._connection.close()
            reason = f"no whole answer in {self._settings.timeout:g} s" if late.is_set() else _plainly(error)
            raise ForwardError(
                f"{self.name}: no answer from {self.host}: {reason}", reason="network", retry=True, weight=weight
            ) from None
        if 200 <= answer.status < 300:
            return
        said = " ".join(text.decode("utf-8", "replace").split())[:_SHOWN]
        raise ForwardError(
            f"{self.name}: {self.host} answered {answer.status}{f': {redact(said)}' if said else ''}",
            reason=f"http_{answer.status}",
            retry=answer.status >= 500 or answer.status in (408, 429),
            retry_after_seconds=self._retry_after(answer.headers.get("Retry-After", "")),
            weight=weight,
        )

    def _exchange(
        self, body: bytes, headers: Mapping[str, str], path: str, late: threading.Event
    ) -> tuple[urllib3.HTTPResponse, bytes]:
        """The answer, whose head is whole, with the beginning of its body.

        The status says it all: what has a longer body, or one that does not come, is not read on, and the connection
        ends.
        """
        connection = self._connection
        if not connection.is_connected:
            connection.close()
        connection.timeout = min(10.0, self._settings.timeout)  # until there is a connection
        connection.request("POST", path, body=body, headers=headers, preload_content=False)
        connection.timeout = self._settings.timeout
        answer = connection.getresponse()
        text, goes_on = b"", False
        try:
            if late.is_set():  # a head that was cut off looks like a whole one
                raise TimeoutError
            with suppress(urllib3.exceptions.HTTPError, http.client.HTTPException, OSError):
                text = answer.read(_SHOWN * 4, decode_content=True)
                goes_on = not answer.read(1) and "close" not in answer.headers.get("Connection", "").lower()
        finally:
            if late.is_set() or not goes_on:
                answer.close()
                connection.close()
        return answer, text

    def _own_headers(self) -> dict[str, str]:
        """Configured headers and credentials, those in the URL last; a password file is read each time."""
        settings = self._settings
        headers = {name: value.get_secret_value() for name, value in settings.headers.items()}
        if settings.bearer_token:
            headers["Authorization"] = f"Bearer {settings.bearer_token.get_secret_value()}"
        elif basic := settings.basic_auth:
            password = basic.password.get_secret_value() if basic.password else ""
            if basic.password_file:
                try:
                    password = Path(basic.password_file).read_text(encoding="utf-8").strip()
                except OSError as error:
                    text = f"{self.name}: password file: {error.strerror or error}"
                    raise ForwardError(text, reason="credentials", retry=True) from None
            headers["Authorization"] = _basic(basic.username, password)
        elif self._url_user:
            headers["Authorization"] = _basic(*self._url_user)
        return headers

    def _retry_after(self, text: str) -> float | None:
        """Seconds, from the header's number or date (RFC 9110, 10.2.3)."""
        if text.isascii() and text.isdigit():
            return float(text[:9])
        try:
            return max(0.0, parsedate_to_datetime(text).timestamp() - self._clock.now_ms() / 1000)
        except (TypeError, ValueError):
            return None


@contextmanager
def _ended_after(seconds: float, connection: HTTPConnection, late: threading.Event) -> Iterator[None]:
    """Cut the connection when the block is not through after so long: each byte may come in time, and the whole not."""
    through = threading.Event()

    def watch() -> None:
        wait = seconds
        while not through.wait(wait):
            late.set()
            with suppress(OSError, AttributeError):  # there may be no connection yet, or no more
                connection.sock.shutdown(socket.SHUT_RDWR)
            wait = 0.1

    watcher = threading.Thread(target=watch, name="forward-deadline", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        through.set()
        watcher.join()


def name_of(settings: Forward) -> str:
    """Its name in logs and self-metrics; one host may be a destination of both kinds."""
    kind = "otlp-" if isinstance(settings, OtlpForward) else ""
    return settings.name or kind + urlsplit(settings.url).netloc.rpartition("@")[2]


def _basic(username: str, password: str) -> str:
    return f"Basic {base64.b64encode(f'{username}:{password}'.encode()).decode()}"


def _context(tls: Tls, name: str) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=str(tls.ca_file) if tls.ca_file else None)
        if tls.cert_file:
            context.load_cert_chain(tls.cert_file, tls.key_file)
    except OSError as error:
        raise ConfigError(f"{name}: the TLS files cannot be used: {error.strerror or error}") from None
    if tls.insecure_skip_verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


def _plainly(error: BaseException) -> str:
    """The cause in few words, without addresses of objects."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError) and cause.strerror:
            return cause.strerror
        cause = getattr(cause, "reason", None) or cause.__cause__ or cause.__context__
    timeout = isinstance(error, urllib3.exceptions.TimeoutError)
    return "it took too long" if timeout else type(error).__name__
