"""One look at one target, at a URL or in a saved file: which engine it is, what it exposes, and what that gives."""

from __future__ import annotations

import os.path
import re
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from loms.agent.reader import AnswerReader
from loms.collect.completion import CompletionClient
from loms.collect.http import HttpFetcher
from loms.collect.targets import Address, Auth, Target
from loms.core.errors import ConfigError, ExpositionError, TargetError
from loms.core.log import redact
from loms.core.model import Finding, Shape, labels_of
from loms.engines.contract import Contract, Observed, compare, contract_names, contract_of, observe
from loms.engines.engine import Identity, engines, known_paths, recognise
from loms.engines.identity import identify
from loms.engines.plan import Meaning
from loms.engines.read import read
from loms.engines.signals import Signal, signals

TIMEOUT_SECONDS = 10.0


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
    """Look at ``where``: a file with a saved exposition, a URL, or host:port.

    Without a path every path is tried at which some known engine is read. Raises `TargetError` or `ExpositionError`
    where nothing answers, where the answer is no exposition, and where no known engine exposes it; `ConfigError` for
    what is none of the three.
    """
    if os.path.isfile(where):  # noqa: ASYNC240 - once, before anything runs
        return _examined(where, _read_file(Path(where)), Identity(version) if version else None, version)
    client, fetcher = CompletionClient(), HttpFetcher()
    try:
        target, shape = await _fetch(fetcher, where, token)
        identity = await identify(_engine_of(redact(target.address.shown), shape), partial(client.get, target))
        identity = replace(identity, version=version) if version else identity
        return _examined(redact(target.address.shown), shape, identity, version)
    finally:
        await client.close()
        await fetcher.close()


def _read_file(path: Path) -> Shape:
    try:
        return AnswerReader().read(path.read_bytes(), "text/plain").shape
    except OSError as error:
        raise ExpositionError(f"{path}: {error.strerror or error}") from None
    except ExpositionError as error:
        hint = error.hint or "is this a saved /metrics answer?"
        raise ExpositionError(f"{path}: {error.message}", hint=hint) from None


async def _fetch(fetcher: HttpFetcher, where: str, token: str) -> tuple[Target, Shape]:
    if "://" not in where and not re.fullmatch(r"(\[[\da-fA-F:.]+\]|[\w.-]+):\d+(/.*)?", where):
        raise ConfigError(f"{where!r} is neither a file nor host:port nor a URL", hint="for example 10.0.0.7:8000")
    url = where if "://" in where else f"http://{where}"
    host = Address.of(url)
    here = redact(host.shown).partition("://")[2].partition("/")[0]
    bare = host.path == "/"
    failures: list[str] = []
    for path in known_paths() if bare else ("",):
        target = Target("doctor", here, url.rstrip("/") + path if bare else url, auth=Auth(bearer_token=token))
        shown = redact(target.address.shown)
        try:
            response = await fetcher.fetch(target, TIMEOUT_SECONDS)
            shape = AnswerReader().read(response.body, response.content_type).shape
        except TargetError as error:
            if error.reason in ("refused", "connection", "timeout", "dns", "unreachable", "tls"):
                told = redact(error.message).replace(shown, here)  # the path does not matter
                raise TargetError(told, reason=error.reason, hint=error.hint or "is this its host and port?") from None
            failures.append(redact(error.message))
            continue
        except ExpositionError as error:
            failures.append(f"{shown}: {error.message}")
            continue
        if shape.names and recognise(_families(shape)):
            return target, shape
        failures.append(f"{shown}: no known engine exposes this")
    flags = (f"{c.title}: {c.flag}" for c in map(contract_of, contract_names()) if c is not None and c.flag)
    raise TargetError(
        failures[0] if len(failures) == 1 else f"no engine's metrics at {here}: {'; '.join(failures)}",
        reason="http",
        hint=f"metrics may be off ({', '.join(flags)}), or need a path: URL/path",
    )


def _families(shape: Shape) -> frozenset[str]:
    return frozenset(shape.types) | frozenset(shape.names)


def _engine_of(source: str, shape: Shape) -> str:
    name = recognise(_families(shape))
    if name is None:
        raise ExpositionError(
            f"{source}: no known engine exposes this",
            hint=f"known: {', '.join(engines)}; for one of your own: --engine FILE (docs/howto/custom-engine.md)",
        )
    return name


def _examined(source: str, shape: Shape, identity: Identity | None, version: str) -> Examination:
    name = _engine_of(source, shape)
    engine, contract = engines[name], contract_of(name)
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
