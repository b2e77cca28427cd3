"""What a request to a target proves and checks: the ``Authorization`` header and the TLS context."""

from __future__ import annotations

import base64
import ssl
from pathlib import Path

from loms.collect.targets import Address, Auth, Tls
from loms.core.errors import TargetError


def authorization(auth: Auth, address: Address) -> str:
    """The header's value, empty where there is none. Credentials in the URL count where none are configured.

    Files are read each time, so that tokens can rotate. Raises `TargetError`. Meant for the target's own origin only.
    """
    if auth.bearer_token or auth.bearer_token_file:
        return f"Bearer {auth.bearer_token or _secret(auth.bearer_token_file)}"
    username = auth.username or address.username
    if not username:
        return ""
    password = auth.password or (_secret(auth.password_file) if auth.password_file else address.password)
    return f"Basic {base64.b64encode(f'{username}:{password}'.encode()).decode()}"


class TlsContexts:
    """One context per `Tls`, kept as long as its files stay the same."""

    def __init__(self) -> None:
        self._contexts: dict[tuple[Tls, tuple[int, ...]], ssl.SSLContext] = {}

    def get(self, tls: Tls) -> ssl.SSLContext:
        """Raises `TargetError` (``tls``) for files that cannot be used."""
        files = [Path(name) for name in (tls.ca_file, tls.cert_file, tls.key_file) if name]
        try:
            key = (tls, tuple(file.stat().st_mtime_ns for file in files))
            if key not in self._contexts:
                context = ssl.create_default_context(cafile=tls.ca_file or None)
                if tls.insecure_skip_verify:
                    context.check_hostname = False
                    context.verify_mode = ssl.CERT_NONE
                if tls.cert_file:
                    context.load_cert_chain(tls.cert_file, tls.key_file or None)
                self._contexts = {kept: c for kept, c in self._contexts.items() if kept[0] != tls} | {key: context}
        except OSError as error:
            named = " or ".join(str(file) for file in files)
            reason = error.strerror or str(error) or type(error).__name__
            raise TargetError(f"the TLS files {named} cannot be used: {reason}", reason="tls") from None
        return self._contexts[key]


def _secret(path: str) -> str:
    try:
        text = Path(path).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise TargetError(f"the credentials file {path} cannot be read: {reason}", reason="http") from None
    if not text.isprintable():
        raise TargetError(f"the credentials file {path} holds more than one line", reason="http")
    return text
