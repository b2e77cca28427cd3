"""``POST /api/v1/write``: Prometheus remote write 1.0 and 2.0, also as vmagent speaks it (zstd).

What the answers mean to a sender, which goes by the status alone: 2xx, all is stored; 4xx, come no more with this (what
could be taken of it is stored); 5xx, come again with all of it.
Sources: prometheus.io/docs/specs/prw/remote_write_spec and …_2_0; Prometheus's storage/remote/write_handler.go.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Literal

from fastapi import APIRouter, Request
from fastapi.responses import PlainTextResponse, Response
from starlette.requests import ClientDisconnect

from loms.core import selfmetrics
from loms.core.errors import PayloadError, StoreError
from loms.core.model import Metadata
from loms.core.settings import Receive
from loms.ingest.decompression import decompress
from loms.ingest.remote_write import Decoder
from loms.ingest.remote_write_series import Policy
from loms.store.arrivals import Accepted, Arrivals

THREADS = 4
LARGE = 2**20
"""Messages beyond it have a decoder of their own, so that small ones do not wait for seconds until it is done."""
BODIES_AT_ONCE = 4
"""Compressed requests held in memory at a time, in largest ones."""
RETRY_AFTER_SECONDS = 5

_log = logging.getLogger("loms.receive")
_MESSAGES = {"prometheus.WriteRequest": 1, "io.prometheus.write.v2.Request": 2}


@dataclass(frozen=True, slots=True)
class Verdict:
    """The answer to one request."""

    status: int
    text: str = ""
    written: int = 0
    """Samples that are in the store, those that were there before included."""


@dataclass(slots=True)
class _Remarks:
    """Refusals already logged: each kind once, for the sender logs them too."""

    seen: set[str] = field(default_factory=set)

    def once(self, kind: str, text: str) -> None:
        if kind not in self.seen:
            self.seen.add(kind)
            _log.warning("remote write: %s; from now on this is only counted, in loms_dropped_samples_total", text)


class RemoteWriteReceiver:
    """Takes requests from several threads."""

    def __init__(self, settings: Receive, arrivals: Arrivals, note: Callable[[Iterable[Metadata]], None]) -> None:
        self.settings = settings
        self._arrivals = arrivals
        self._note = note
        policy = Policy(
            settings.labels, settings.label_value_length, settings.labels_length, expanded=settings.decompressed
        )
        self._decoders = [(Decoder(policy), threading.Lock()) for _ in range(2)]
        """For small messages and for large ones."""
        self._remarks = _Remarks()

    def receive(self, body: bytes, version: int, encoding: str) -> Verdict:
        """Store what ``body`` holds; never raises on account of it."""
        try:
            message = decompress(body, encoding, self.settings.decompressed)
            decoder, decoding = self._decoders[len(message) > LARGE]
            with decoding:
                received = decoder.decode(message) if version == 1 else decoder.decode_2(message)
        except PayloadError as error:
            return Verdict(error.status, str(error))
        if received.exemplars:
            selfmetrics.remote_write_exemplars.inc(received.exemplars)
        self._note(received.metadata)
        try:
            accepted = self._arrivals.accept(received.batch)
        except StoreError as error:
            return Verdict(503, error.message)
        written = accepted.accepted + accepted.duplicate
        if accepted.full:
            return Verdict(503, "the store's queue is full; come again", written)
        for reason, samples in received.refused.items():
            selfmetrics.samples_dropped.labels(reason).inc(samples)
        lost = _lost(received.refused, accepted)
        if not lost:
            return Verdict(204, written=written)
        text = f"{sum(lost.values())} of {len(received.batch) + sum(received.refused.values())} samples are not taken: "
        text += ", ".join(f"{reason} ({count})" for reason, count in lost.items())
        text += f"; the first: {received.remark}" if received.remark else ""
        self._remarks.once(next(iter(lost)), text)
        return Verdict(400, text, written)


def _lost(refused: Mapping[str, int], accepted: Accepted) -> dict[str, int]:
    """Reason → samples that will never be in the store."""
    lost = dict(refused)
    lost |= {"conflicting": accepted.conflicting, "out_of_bounds": accepted.out_of_bounds}
    return {reason: count for reason, count in lost.items() if count}


def router(receiver: RemoteWriteReceiver) -> APIRouter:
    """The route."""
    api = APIRouter(tags=["prometheus"])
    intake = _Intake(receiver)

    @api.get("/api/v1/write", include_in_schema=False)
    def handshake(get_vm_proto_version: str = "") -> Response:
        """vmagents of the years 2023 to 2025 ask whether they may compress with zstd."""
        return PlainTextResponse("1") if get_vm_proto_version else PlainTextResponse("POST only\n", 405)

    @api.post("/api/v1/write")
    async def write(request: Request) -> Response:
        """Samples from Prometheus, vmagent, an OpenTelemetry Collector, …"""
        if request.query_params.get("get_vm_proto_version"):
            return PlainTextResponse("1")
        version = _version(request.headers.get("content-type", ""))
        try:
            verdict = await intake.take(request, version)
        except ClientDisconnect:
            verdict = Verdict(400, "the body is cut off")
        selfmetrics.remote_write_requests.labels(str(verdict.status)).inc()
        headers = {"Retry-After": str(RETRY_AFTER_SECONDS)} if verdict.status >= 500 else {}
        if version != 1:
            headers["X-Prometheus-Remote-Write-Samples-Written"] = str(verdict.written)
            headers["X-Prometheus-Remote-Write-Histograms-Written"] = "0"
            headers["X-Prometheus-Remote-Write-Exemplars-Written"] = "0"
        if verdict.status == 204:
            return Response(status_code=204, headers=headers)
        return PlainTextResponse(f"{verdict.text}\n", verdict.status, headers)

    return api


class _Intake:
    """Reads bodies on the event loop, within bounds, and has them worked on in threads of its own."""

    def __init__(self, receiver: RemoteWriteReceiver) -> None:
        self._receiver = receiver
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="remote-write")
        self._limit = receiver.settings.body
        self._room = BODIES_AT_ONCE * self._limit
        """Bytes of bodies for which there is memory left."""

    async def take(self, request: Request, version: Literal[1, 2] | None) -> Verdict:
        if version is None:
            kinds = " or ".join(f"application/x-protobuf;proto={name}" for name in _MESSAGES)
            return Verdict(415, f"the content type must be {kinds}")
        encoding = request.headers.get("content-encoding", "snappy").strip().lower()
        length = request.headers.get("content-length", "")
        if length.isascii() and length.isdigit() and int(length[:19]) > self._limit:
            return self._too_large()
        body = bytearray()
        try:
            async for chunk in request.stream():
                if len(body) + len(chunk) > self._limit:
                    return self._too_large()
                if len(chunk) > self._room:
                    return Verdict(503, "too many large requests at once; come again")
                self._room -= len(chunk)
                body += chunk
            work = self._threads.submit(self._receiver.receive, bytes(body), version, encoding)
            return await asyncio.wrap_future(work)
        finally:
            self._room += len(body)

    def _too_large(self) -> Verdict:
        return Verdict(413, f"the body is larger than {self._limit} bytes (receive.body)")


def _version(content_type: str) -> Literal[1, 2] | None:
    """Of the message, by the content type; None for what is no remote write.

    Without one it is none either: a page in a browser can send that anywhere, unasked.
    """
    kind, *parameters = (part.strip() for part in content_type.split(";"))
    if kind.lower() != "application/x-protobuf":
        return None
    named = [part[6:].strip('"') for part in parameters if part.startswith("proto=")]
    found = _MESSAGES.get(named[0]) if named else 1
    return 1 if found == 1 else 2 if found == 2 else None
