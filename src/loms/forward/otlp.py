"""OTLP out: what came in by OTLP is sent on as it came (in protobuf), through a queue on disk, over HTTP or gRPC.

Prompts are out of it already unless ``receive.keep_prompts`` keeps them. What a destination says it rejected of a
request that it took is not sent again (OTLP's partial success).
"""

from __future__ import annotations

import re
import struct
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

import grpc
from google.protobuf.message import DecodeError
from google.rpc.error_details_pb2 import RetryInfo
from google.rpc.status_pb2 import Status

from loms.core import selfmetrics
from loms.core.clock import Clock
from loms.core.errors import ConfigError, ForwardError
from loms.core.log import redact
from loms.core.settings import OtlpForward, Tls
from loms.forward.http import HttpDestination, name_of
from loms.forward.queue import DiskQueue
from loms.forward.sender import Destination, Sender, Standing

Signal = Literal["metrics", "traces", "logs"]
_SIGNALS: tuple[Signal, ...] = ("metrics", "traces", "logs")
_METHODS = tuple(
    f"/opentelemetry.proto.collector.{package}.v1.{service}Service/Export"
    for package, service in (("metrics", "Metrics"), ("trace", "Trace"), ("logs", "Logs"))
)
_ITEM = struct.Struct("<BI")
"""Which signal, and how many points, spans or records, in front of the message in gzip."""
_GZIP = 31
"""zlib's ``wbits`` for gzip."""
_RETRIED = frozenset(
    {
        grpc.StatusCode.CANCELLED,
        grpc.StatusCode.DEADLINE_EXCEEDED,
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        grpc.StatusCode.ABORTED,
        grpc.StatusCode.OUT_OF_RANGE,
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.DATA_LOSS,
    }
)
"""By OTLP's specification worth another try (RESOURCE_EXHAUSTED strictly only with ``RetryInfo``)."""


class OtlpOut:
    """The way to one destination: call it with a request's signal, protobuf and number of items."""

    def __init__(self, settings: OtlpForward, directory: Path, clock: Clock) -> None:
        """Queues under ``directory``. Raises `ConfigError` or `StoreError`."""
        self.name = name_of(settings)
        self._signals = frozenset(settings.signals)
        over_grpc = urlsplit(settings.url).scheme.startswith("grpc")
        destination: Destination = _Grpc(settings) if over_grpc else _Http(settings, clock)
        place = re.sub(r"[^a-zA-Z0-9_.-]", "_", self.name.removeprefix("otlp-"))
        queue = DiskQueue(directory / f"otlp-{place}", settings.queue, clock, self._dropped)
        self._sender = Sender(self.name, queue, destination, clock)

    def __call__(self, signal: Signal, body: bytes, items: int) -> None:
        if signal in self._signals:
            packed = zlib.compress(body, level=1, wbits=_GZIP)
            self._sender.put(_ITEM.pack(_SIGNALS.index(signal), items) + packed, items)

    def start(self) -> None:
        self._sender.start()

    def stop(self, timeout_seconds: float = 5.0) -> None:
        """Send what waits, for so long at most; the rest stays on disk."""
        self._sender.stop(timeout_seconds)

    def standing(self) -> Standing:
        return self._sender.standing()

    def step(self) -> float | None:
        """Send the first item that waits: see `Sender.step`."""
        return self._sender.step()

    def _dropped(self, reason: str, items: int) -> None:
        selfmetrics.forward_dropped.labels(self.name, reason).inc(items)


def otlp_outs_of(
    settings: Sequence[OtlpForward], directory: Path, clock: Clock, taken: Sequence[str] = ()
) -> list[OtlpOut]:
    """One for each destination. Raises `ConfigError` where two have one name, or one of those ``taken`` by others;
    `StoreError` for a queue.
    """
    names = [*taken, *(name_of(one) for one in settings)]
    if twice := next((name for name in names if names.count(name) > 1), None):
        hint = "give each a name of its own: otlp_forward[].name"
        raise ConfigError(f"otlp_forward: two destinations are named {twice!r}", hint=hint)
    return [OtlpOut(one, directory, clock) for one in settings]


class _Http:
    """``POST <url>/v1/<signal>``."""

    def __init__(self, settings: OtlpForward, clock: Clock) -> None:
        self._http = HttpDestination(settings, clock)
        self._path = urlsplit(settings.url).path.rstrip("/")

    def send(self, item: bytes, /) -> int:
        signal, items = _ITEM.unpack_from(item)
        headers = {"Content-Type": "application/x-protobuf", "Content-Encoding": "gzip"}
        self._http.post(item[_ITEM.size :], headers, weight=items, path=f"{self._path}/v1/{_SIGNALS[signal]}")
        return int(items)


class _Grpc:
    """The export services at ``grpc://host:port`` or, with TLS, ``grpcs://host:port``."""

    def __init__(self, settings: OtlpForward) -> None:
        """Raises `ConfigError` for TLS that gRPC cannot have."""
        parts = urlsplit(settings.url)
        self._name, self._host, self._timeout = name_of(settings), parts.netloc, settings.timeout
        self._metadata = [(name.lower(), value.get_secret_value()) for name, value in settings.headers.items()]
        if settings.bearer_token:
            self._metadata.append(("authorization", f"Bearer {settings.bearer_token.get_secret_value()}"))
        if settings.basic_auth:
            raise ConfigError(f"otlp_forward {self._name}: gRPC has no basic_auth", hint="use bearer_token or headers")
        options: list[tuple[str, Any]] = [("grpc.max_receive_message_length", 2**20)]
        if parts.scheme == "grpcs":
            if settings.tls.server_name:
                options.append(("grpc.ssl_target_name_override", settings.tls.server_name))
            self._channel = grpc.secure_channel(self._host, _credentials(settings.tls, self._name), options)
        else:
            self._channel = grpc.insecure_channel(self._host, options)
        self._calls = [self._channel.unary_unary(method) for method in _METHODS]

    def send(self, item: bytes, /) -> int:
        signal, items = _ITEM.unpack_from(item)
        body = zlib.decompress(item[_ITEM.size :], wbits=_GZIP)
        try:
            self._calls[signal](body, timeout=self._timeout, metadata=self._metadata, compression=grpc.Compression.Gzip)
        except grpc.RpcError as error:
            raise self._error(error, items) from None
        return int(items)

    def _error(self, error: Any, items: int) -> ForwardError:
        code = error.code()
        said = " ".join(str(error.details() or "").split())[:200]
        return ForwardError(
            f"{self._name}: {self._host} answered {code.name}{f': {redact(said)}' if said else ''}",
            reason=f"grpc_{code.name.lower()}",
            retry=code in _RETRIED,
            retry_after_seconds=_retry_after(error.trailing_metadata() or ()),
            weight=items,
        )


def _retry_after(metadata: Sequence[tuple[str, str | bytes]]) -> float | None:
    """Seconds, from the ``RetryInfo`` among a status's details."""
    details = dict(metadata).get("grpc-status-details-bin", b"")
    info = RetryInfo()
    try:
        for one in Status.FromString(details).details:
            if one.Unpack(info):
                return float(info.retry_delay.seconds + info.retry_delay.nanos / 1e9)
    except (DecodeError, TypeError):
        pass
    return None


def _credentials(tls: Tls, name: str) -> grpc.ChannelCredentials:
    if tls.insecure_skip_verify:
        raise ConfigError(
            f"otlp_forward {name}: gRPC always verifies", hint="name the certificate's issuer: tls.ca_file"
        )
    try:
        files = [file.read_bytes() if file else None for file in (tls.ca_file, tls.key_file, tls.cert_file)]
    except OSError as error:
        raise ConfigError(f"otlp_forward {name}: {error.filename}: {error.strerror or error}") from None
    return grpc.ssl_channel_credentials(*files)
