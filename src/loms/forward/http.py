"""POST to a destination: TLS, credentials, and which answers are worth another try."""

from __future__ import annotations

import base64
import ssl
from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit, urlunsplit

import urllib3

from loms import __version__
from loms.core.clock import Clock
from loms.core.errors import ConfigError, ForwardError
from loms.core.log import redact
from loms.core.settings import Forward, Tls

_SHOWN = 200
"""Characters of an answer's body that a message repeats."""


class HttpDestination:
    """One URL. Answers of 5xx, 429 and 408 and broken connections are worth another try, other answers are not."""

    def __init__(self, settings: Forward, clock: Clock) -> None:
        """Raises `ConfigError` for TLS files that cannot be used."""
        self._settings = settings
        self._clock = clock
        parts = urlsplit(settings.url)
        self._url = urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))
        self._url_user = (unquote(parts.username or ""), unquote(parts.password or "")) if parts.username else None
        self.host = parts.netloc.rpartition("@")[2]
        self.name = name_of(settings)
        options: dict[str, Any] = {}
        if parts.scheme == "https":
            options["ssl_context"] = _context(settings.tls, self.name)
            if settings.tls.server_name:
                options |= {"server_hostname": settings.tls.server_name, "assert_hostname": settings.tls.server_name}
        timeout = urllib3.Timeout(connect=min(10.0, settings.timeout), read=settings.timeout)
        self._pool = urllib3.PoolManager(num_pools=1, maxsize=1, retries=False, timeout=timeout, **options)

    def post(self, body: bytes, headers: Mapping[str, str], *, weight: int, url: str = "") -> None:
        """Send; ``url`` is another one than the destination's. Raises `ForwardError`."""
        headers = {"User-Agent": f"loms/{__version__}", **headers, **self._own_headers()}
        try:
            answer = self._pool.request(
                "POST", url or self._url, body=body, headers=headers, redirect=False, preload_content=False
            )
            try:
                text = answer.read(_SHOWN * 4, decode_content=True)
                answer.drain_conn()
            finally:
                answer.release_conn()
        except (urllib3.exceptions.HTTPError, OSError) as error:
            reason = _plainly(error)
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


def name_of(settings: Forward) -> str:
    """Its name in logs, self-metrics and on disk."""
    return settings.name or urlsplit(settings.url).netloc.rpartition("@")[2]


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
        urllib3.disable_warnings(urllib3.exceptions.InsecureRequestWarning)  # who asks for it knows
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
