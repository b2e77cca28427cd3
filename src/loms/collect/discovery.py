"""Where targets come from: the configuration, Prometheus ``file_sd`` files, engines on this machine's usual ports."""

from __future__ import annotations

import asyncio
import glob
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import urlencode

from loms.collect.protocols import Fetcher, Reader, Recognise
from loms.collect.targets import Target
from loms.core.clock import Clock
from loms.core.errors import ConfigError, ExpositionError, TargetError
from loms.core.model import labels_of
from loms.core.nearest import did_you_mean
from loms.core.units import parse_duration
from loms.core.yaml_file import parse, read_text

_log = logging.getLogger("loms.discovery")

LastGood = Callable[[Target], int | None]


class Static:
    """Targets that stand in the configuration."""

    poll_seconds = 86_400.0
    problems: tuple[str, ...] = ()

    def __init__(self, targets: Sequence[Target]) -> None:
        self._targets = tuple(targets)

    async def refresh(self, last_good_ms: LastGood, /) -> Sequence[Target]:
        return self._targets


@dataclass(frozen=True, slots=True)
class _File:
    version: tuple[int, int]
    """mtime in ns, and size."""
    targets: tuple[Target, ...]
    problem: str = ""


class FileDiscovery:
    """Prometheus's file-based service discovery: JSON or YAML, watched by modification time.

    ``patterns`` are paths whose last part may be a glob. ``template`` is a target without address; labels of the file
    are added to its own and win; ``scheme`` and ``path`` hold where the file does not say. Understood: ``job``,
    ``instance``, ``__scheme__``, ``__metrics_path__``, ``__param_<name>``, ``__scrape_interval__``,
    ``__scrape_timeout__``; other labels that begin with ``__`` are left out. A file that cannot be read keeps the
    targets that it had, and says so in `problems`; a file that is gone takes its targets with it.
    """

    def __init__(
        self,
        patterns: Sequence[str],
        template: Target,
        *,
        scheme: str = "http",
        path: str = "/metrics",
        poll_seconds: float = 5.0,
    ) -> None:
        self.poll_seconds = poll_seconds
        self._patterns = patterns
        self._template = replace(template, discovered_by="file_sd")
        self._defaults = {"__scheme__": scheme, "__metrics_path__": path}
        self._files: dict[Path, _File] = {}

    @property
    def problems(self) -> tuple[str, ...]:
        return tuple(file.problem for file in self._files.values() if file.problem)

    async def refresh(self, last_good_ms: LastGood, /) -> Sequence[Target]:
        paths = _matching(self._patterns)
        self._files = {path: self._look(path) for path in paths}
        return [target for file in self._files.values() for target in file.targets]

    def _look(self, path: Path) -> _File:
        before = self._files.get(path, _File((0, 0), ()))
        version = before.version
        try:
            stat = path.stat()
            version = (stat.st_mtime_ns, stat.st_size)
            if version == before.version:
                return before
            return _File(version, _targets(_load(path), path, self._template, self._defaults))
        except OSError as error:
            problem = f"{path}: {error.strerror or error}"
        except (ConfigError, TargetError) as error:
            problem = str(error)
        if problem != before.problem:
            _log.warning("%s; its %d earlier targets stay", problem, len(before.targets))
        return _File(version, before.targets, problem)


def _matching(patterns: Sequence[str]) -> list[Path]:
    found = (glob.glob(str(Path(pattern).expanduser())) for pattern in patterns)
    return sorted({Path(name) for names in found for name in names})


def _load(path: Path) -> object:
    text = read_text(path)
    try:
        return json.loads(text) if path.suffix == ".json" else parse(text, str(path)).data() or []
    except json.JSONDecodeError as error:
        raise ConfigError(f"{path}:{error.lineno}: not valid JSON: {error.msg}") from None


def _targets(data: object, path: Path, template: Target, defaults: Mapping[str, str]) -> tuple[Target, ...]:
    """Raises `ConfigError` that names the file and the group."""
    if not isinstance(data, list):
        raise ConfigError(f"{path}: the file must be a list of target groups")
    found = []
    for count, group in enumerate(data, 1):
        addresses, labels = (group.get("targets"), group.get("labels") or {}) if isinstance(group, dict) else (None, {})
        if not isinstance(addresses, list) or not all(isinstance(a, str) for a in addresses):
            raise ConfigError(f"{path}: group {count} has no list of targets", hint="targets: ['host:port', …]")
        if not isinstance(labels, dict) or not all(isinstance(x, str) for pair in labels.items() for x in pair):
            raise ConfigError(f"{path}: the labels of group {count} must be texts", hint="quote numbers")
        unknown = set(group) - {"targets", "labels"}
        if unknown:
            hint = did_you_mean(min(unknown), ("targets", "labels"))
            raise ConfigError(f"{path}: group {count} has an unknown key {min(unknown)!r}; {hint}")
        found += [_target(address, {**defaults, **labels}, path, template) for address in addresses]
    return tuple(found)


def _target(address: str, labels: Mapping[str, str], path: Path, template: Target) -> Target:
    prefix = "__param_"
    query = urlencode({k.removeprefix(prefix): v for k, v in labels.items() if k.startswith(prefix)})
    url = f"{labels['__scheme__']}://{address}{labels['__metrics_path__']}"
    shown = {k: v for k, v in labels.items() if not k.startswith("__") and k not in ("job", "instance")}
    try:
        interval = parse_duration(labels.get("__scrape_interval__", template.interval_seconds))
        timeout = parse_duration(labels.get("__scrape_timeout__", template.timeout_seconds))
    except ValueError as error:
        raise ConfigError(f"{path}: target {address!r}: {error}") from None
    if interval < 1 or "/" in address:
        wrong = "an interval is at least 1 s" if interval < 1 else "a target is host:port, without scheme and path"
        raise ConfigError(f"{path}: target {address!r}: {wrong}")
    target = replace(
        template,
        job=labels.get("job", template.job),
        instance=labels.get("instance", address),
        url=f"{url}?{query}" if query else url,
        interval_seconds=interval,
        timeout_seconds=min(timeout, interval),
        labels=labels_of({**dict(template.labels), **shown}),
    )
    _ = target.address  # refused here, where the file can be named
    return target


class PortDiscovery:
    """Engines that listen on usual ports of one host and expose what a known engine exposes.

    ``paths``, the most usual first, are tried one after the other, as long as somebody answers at that port.
    An engine that was found stays a target when it falls silent, which is when watching it matters, until it has been
    gone for ``forget_after_seconds``. ``template`` is a target without address.
    """

    problems: tuple[str, ...] = ()

    def __init__(
        self,
        *,
        host: str,
        ports: Sequence[int],
        template: Target,
        fetcher: Fetcher,
        make_reader: Callable[[Target], Reader],
        recognise: Recognise,
        clock: Clock,
        paths: Sequence[str] = ("/metrics",),
        poll_seconds: float = 10.0,
        forget_after_seconds: float = 3600.0,
    ) -> None:
        self.poll_seconds = poll_seconds
        self._candidates = [[_at_port(template, host, port, path) for path in paths] for port in ports]
        self._fetcher = fetcher
        self._make_reader = make_reader
        self._recognise = recognise
        self._clock = clock
        self._forget_after_ms = forget_after_seconds * 1000
        self._known: dict[Target, int] = {}
        """Target → when it was last known to live."""

    async def refresh(self, last_good_ms: LastGood, /) -> Sequence[Target]:
        now = self._clock.now_ms()
        self._known = {target: max(seen, last_good_ms(target) or 0) for target, seen in self._known.items()}
        known = {target.instance for target in self._known}
        unknown = [candidates for candidates in self._candidates if candidates[0].instance not in known]
        for target in await asyncio.gather(*(self._engine_among(candidates) for candidates in unknown)):
            if target is not None:
                self._known[target] = now
        for target, seen in list(self._known.items()):
            if now - seen > self._forget_after_ms:
                _log.info("%s has been silent for %g s and is forgotten", target.address.shown, (now - seen) / 1000)
                del self._known[target]
        return list(self._known)

    async def _engine_among(self, candidates: Sequence[Target]) -> Target | None:
        """The paths of one port → the one where an engine answers; None for silence and for what is none."""
        for candidate in candidates:
            try:
                response = await self._fetcher.fetch(candidate, min(2.0, candidate.timeout_seconds))
                exposition = self._make_reader(candidate).read(response.body, response.content_type)
            except ExpositionError:
                continue
            except TargetError as error:
                if error.reason != "http":  # another status is an answer, and another path may do better
                    return None
                continue
            engine = self._recognise(frozenset(exposition.shape.types) | frozenset(exposition.shape.names))
            if engine:
                _log.info("found %s at %s", engine, candidate.address.shown)
                return candidate
        return None


def _at_port(template: Target, host: str, port: int, path: str) -> Target:
    name = f"[{host}]" if ":" in host else host
    return replace(template, instance=f"{name}:{port}", url=f"http://{name}:{port}{path}", discovered_by="ports")
