"""One look at one target, at a URL or in a saved file: which engine it is, what it exposes, and what that gives."""

from __future__ import annotations

import os.path
import re
import sys
import zlib
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from loms.agent.reader import AnswerReader
from loms.collect.completion import CompletionClient
from loms.collect.http import HttpFetcher
from loms.collect.targets import Address, Auth, Target
from loms.core.errors import ConfigError, ExpositionError, TargetError
from loms.core.families import family_of
from loms.core.log import redact
from loms.core.model import Finding, Shape, labels_of
from loms.engines.contracts.contract import Contract, Observed, compare, contract_names, contract_of, observe
from loms.engines.contracts.release import parse_release
from loms.engines.engine import Identity, engines, known_paths, recognise
from loms.engines.identity import identify
from loms.engines.plan import Meaning
from loms.engines.read import read
from loms.engines.signals import Signal, signals
from loms.ingest.exposition import Limits

TIMEOUT_SECONDS = 10.0
MOST_BYTES = 256 << 20
"""Of one exposition, unpacked."""
_LIMITS = Limits(samples=5_000_000)
"""Somebody looks once and waits for it: wider than what a scrape may cost."""
_GZIP = b"\x1f\x8b"
_UNPACK_GZIP = 16 + zlib.MAX_WBITS
_STATUS = re.compile(r"the answer is HTTP (\d{3})$")
_UNKNOWN = "no known engine exposes this"
_OTHERS = "known: {}; for one of your own: --engine FILE (docs/howto/custom-engine.md)"


@dataclass(frozen=True, slots=True)
class Examination:
    """What was found at a target."""

    source: str
    """The URL, without credentials, or the file."""
    engine: str
    version: str
    """As the engine says it, or as the caller did; empty where nobody says."""
    releases: tuple[str, str]
    """Oldest and newest known release that the exposition fits; both are ``version`` where that is known, and empty
    where nothing is."""
    model: str
    shape: Shape
    meaning: Meaning
    contract: Contract | None
    observed: Observed
    findings: tuple[Finding, ...]
    signals: tuple[Signal, ...]


async def examine(where: str, *, version: str = "", token: str = "") -> Examination:
    """Look at ``where``: a file with a saved exposition, ``-`` for the same on standard input, a URL, or host:port.

    Without a path every path is tried at which some known engine is read. Raises `TargetError` or `ExpositionError`
    where nothing answers, where the answer is no exposition, and where no known engine exposes it; `ConfigError` for
    what is none of these, and for a version that no release of the engine can have.
    """
    if where == "-" or os.path.isfile(where):  # noqa: ASYNC240 - once, before anything runs
        source = "standard input" if where == "-" else where
        return _examined(source, _read_saved(where, source), Identity(version) if version else None, version)
    client, fetcher = CompletionClient(), HttpFetcher()
    try:
        target, shape = await _fetch(fetcher, where, token)
        identity = await identify(_engine_of(redact(target.address.shown), shape), partial(client.get, target))
        identity = replace(identity, version=version) if version else identity
        return _examined(redact(target.address.shown), shape, identity, version)
    finally:
        await client.close()
        await fetcher.close()


def _read_saved(where: str, source: str) -> Shape:
    """A saved answer, packed with gzip or not; with the line ends and the mark that an editor may have put there."""
    try:
        body = sys.stdin.buffer.read() if where == "-" else Path(where).read_bytes()
        if body.startswith(_GZIP):
            body = _unpacked(body)
        body = body.removeprefix(b"\xef\xbb\xbf").replace(b"\r\n", b"\n")
        openmetrics = body[-64:].rstrip().endswith(b"# EOF")
        return _read(body, "application/openmetrics-text" if openmetrics else "text/plain")
    except OSError as error:
        raise ExpositionError(f"{source}: {error.strerror or error}") from None
    except ExpositionError as error:
        hint = error.hint or "is this a saved /metrics answer?"
        raise ExpositionError(f"{source}: {error.message}", hint=hint) from None


def _unpacked(body: bytes) -> bytes:
    unpacking = zlib.decompressobj(_UNPACK_GZIP)
    try:
        text = unpacking.decompress(body, MOST_BYTES)
        if unpacking.unconsumed_tail:
            raise ExpositionError(f"unpacked, it is larger than {MOST_BYTES >> 20} MiB", hint="is it one answer only?")
    except zlib.error as error:
        raise ExpositionError(f"it cannot be unpacked: {error}", hint="is the file whole?") from None
    if not unpacking.eof:
        raise ExpositionError("it cannot be unpacked: its end is missing", hint="is the file whole?")
    return text


def _read(body: bytes, content_type: str) -> Shape:
    return AnswerReader(_LIMITS).read(body, content_type).shape


async def _fetch(fetcher: HttpFetcher, where: str, token: str) -> tuple[Target, Shape]:
    url = _url(where)
    host = Address.of(url)
    here = redact(host.shown).partition("://")[2].partition("/")[0]
    bare = host.path == "/"
    failures: dict[str, list[str]] = {}
    for path in known_paths() if bare else ("",):
        at = url.rstrip("/") + path if bare else url
        target = Target("doctor", here, at, auth=Auth(bearer_token=token), body_limit_bytes=MOST_BYTES)
        shown = redact(target.address.shown)
        try:
            response = await fetcher.fetch(target, TIMEOUT_SECONDS)
            shape = _read(response.body, response.content_type)
        except TargetError as error:
            told = redact(error.message)
            if error.reason in ("refused", "connection", "timeout", "dns", "unreachable", "tls"):
                told = told.replace(shown, here)  # the path does not matter
                raise TargetError(told, reason=error.reason, hint=error.hint or "is this its host and port?") from None
            failures.setdefault(told.removeprefix(f"{shown}: "), []).append(shown)
            continue
        except ExpositionError as error:
            failures.setdefault(error.message, []).append(shown)
            continue
        if shape.names and recognise(_families(shape)):
            return target, shape
        failures.setdefault(_UNKNOWN, []).append(shown)
    telling = {reason: paths for reason, paths in failures.items() if not reason.endswith("HTTP 404")} or failures
    told = "; ".join(f"{' and '.join(paths)}: {reason}" for reason, paths in telling.items())
    raise TargetError(told, reason="http", hint=_advice(telling))


def _url(where: str) -> str:
    """The URL that is meant. Raises `ConfigError`."""
    if "://" not in where and not re.fullmatch(r"(\[[\da-fA-F:.]+\]|[\w.-]+):\d+(/.*)?", where):
        raise ConfigError(f"{where!r} is neither a file nor host:port nor a URL", hint="for example 10.0.0.7:8000")
    url = where if "://" in where else f"http://{where}"
    scheme = url.partition("://")[0]
    if scheme not in ("http", "https"):
        raise ConfigError(f"{redact(where)!r}: metrics are read over http or https, not {scheme}")
    port = re.match(r"\w+://[^/?#]*:(\d+)(?:[/?#]|$)", url)
    if port and not 0 < int(port[1]) < 65_536:
        raise ConfigError(f"{redact(where)!r}: there is no port {port[1]}", hint="ports are 1 to 65535")
    return url


def _advice(failures: Iterable[str]) -> str:
    """What to do about the most telling of these."""
    statuses = {match[1] for reason in failures if (match := _STATUS.search(reason))}
    if statuses & {"401", "403"}:
        return "give its token with --token or LOMS_TARGET_TOKEN"
    if any(reason.endswith("redirects") for reason in failures) or any(status[0] == "3" for status in statuses):
        return "give the URL that it leads to in the end"
    if _UNKNOWN in failures:
        return _OTHERS.format(", ".join(engines))
    if any(status[0] == "5" and status != "501" for status in statuses):
        return "the target itself, or a proxy in front of it, fails; its log says why"
    if statuses:
        flags = (f"{c.title}: {c.flag}" for c in map(contract_of, contract_names()) if c is not None and c.flag)
        return f"metrics may be off ({', '.join(flags)}), or need a path: URL/path"
    return "is this the metrics path?"


def _families(shape: Shape) -> frozenset[str]:
    return frozenset(shape.types) | frozenset(shape.names)


def _engine_of(source: str, shape: Shape) -> str:
    name = recognise(_families(shape))
    if name is None:
        raise ExpositionError(
            f"{source}: {_UNKNOWN}",
            hint=_OTHERS.format(", ".join(engines)),
        )
    return name


def _examined(source: str, shape: Shape, identity: Identity | None, version: str) -> Examination:
    name = _engine_of(source, shape)
    engine, contract = engines[name], contract_of(name)
    if version and contract is not None and parse_release(version) is None:
        raise ConfigError(
            f"--version {version!r} is no release of {contract.title}", hint=f"for example {contract.releases[-1]}"
        )
    stated = identity.version if identity else version
    families = frozenset(map(engine.spell, shape.types))
    releases = contract.span(stated, families) if contract else (stated, stated)
    identity = identity or Identity(stated)  # a file cannot be asked
    meaning = read(name, engine, shape, dict(labels_of({"job": "doctor", "instance": source})), identity)
    observed = observe(shape, name, releases[1], engine.spell)
    return Examination(
        source=source,
        engine=name,
        version=stated,
        releases=releases,
        model=meaning.model,
        shape=shape,
        meaning=meaning,
        contract=contract,
        observed=observed,
        findings=tuple(compare(contract, observed)) if contract else (),
        signals=tuple(signals(meaning, shape, contract, releases[1])),
    )


def replica_values(found: Examination) -> dict[tuple[str, str], frozenset[str]]:
    """(family, label) → the values of the labels over which the engine tells the same several times."""
    engine, shape = engines[found.engine], found.shape
    types = {engine.spell(name): kind for name, kind in shape.types.items()}
    values: dict[tuple[str, str], set[str]] = {}
    for name, labels in zip(shape.names, shape.labels, strict=True):
        for label, value in labels:
            if label in engine.replicas:
                values.setdefault((family_of(engine.spell(name), types)[0], label), set()).add(value)
    return {key: frozenset(told) for key, told in values.items()}
