"""Contract files → `Contract`. Read when an engine is first asked for, and kept: some 5 ms for the largest."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache
from importlib.resources import files
from typing import Any

import yaml

from loms.core.errors import ConfigError
from loms.engines.contracts.family import Contract, Family
from loms.engines.contracts.release import previous_minor

_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""The C loader is some five times as fast, where libyaml is there."""
_FOLDER = files("loms.engines.contracts")


@cache
def contract_of(engine: str) -> Contract | None:
    """The contract of a registered engine; None for one that has none, such as an engine of one's own."""
    if engine not in contract_names():
        return None
    return read_contract(engine, _FOLDER.joinpath(f"{engine}.yaml").read_text(encoding="utf-8"))


@cache
def contract_names() -> tuple[str, ...]:
    """Engines that have a contract, sorted."""
    return tuple(sorted(f.name.removesuffix(".yaml") for f in _FOLDER.iterdir() if f.name.endswith(".yaml")))


def read_contract(engine: str, text: str) -> Contract:
    """A contract from its file's text (the file's head says what is what). Raises `ConfigError` for a wrong one."""
    data = yaml.load(text, Loader=_LOADER)  # noqa: S506 - both loaders are the safe ones
    releases = tuple(data["releases"])
    reading = _Reading(engine, releases, data)
    return Contract(
        engine=engine,
        title=data["title"],
        releases=releases,
        families={name: reading.family(name, row) for name, row in data["families"].items()},
        own=tuple(data["own"]),
        aside=tuple(data.get("aside", ())),
        flag=data.get("flag", ""),
        show_hidden=data.get("show_hidden", ""),
    )


class _Reading:
    """One file while it is read: the lists to which its lines refer."""

    def __init__(self, engine: str, releases: tuple[str, ...], data: Mapping[str, Any]) -> None:
        self._engine = engine
        self._releases = releases
        self._show_hidden: str = data.get("show_hidden", "")
        self._conditions: Mapping[str, Mapping[str, str]] = data.get("conditions", {})
        self._label_sets: Mapping[str, list[str]] = data.get("label_sets", {})
        self._bucket_sets: Mapping[str, list[float]] = data.get("bucket_sets", {})

    def family(self, name: str, row: Mapping[str, Any]) -> Family:
        row = dict(row)
        condition = self._lookup(name, self._conditions, row.pop("needs")) if "needs" in row else {}
        since, until = row.pop("since", ""), row.pop("until", "")
        hidden = row.pop("hidden", "")
        shown = self._show_hidden.format(previous=previous_minor(hidden)) if hidden else ""
        bounds = row.pop("buckets", ())
        bounds = self._lookup(name, self._bucket_sets, bounds) if isinstance(bounds, str) else bounds
        try:
            return Family(
                name,
                labels=tuple(self._labels(name, row.pop("labels", ()))),
                since=since,
                after=row.pop("after", "") or self._neighbour(name, since, -1),
                until=until,
                gone=row.pop("gone", "") or self._neighbour(name, until, +1),
                types=tuple(row.pop("types", {}).items()),
                changes=tuple(row.pop("changes", {}).items()),
                hidden=hidden,
                successors=tuple(row.pop("successors", ())),
                when=condition.get("when", ""),
                flag=shown or condition.get("flag", ""),
                when_from=condition.get("from", ""),
                when_to=condition.get("to", ""),
                buckets=(*map(float, bounds), float("inf")) if bounds else (),
                **row,
            )
        except TypeError as error:
            raise self._wrong(name, f"has a key that is not known ({error})") from error

    def _labels(self, name: str, labels: Iterable[str]) -> Iterable[str]:
        for label in labels:
            if label.startswith("$"):
                yield from self._lookup(name, self._label_sets, label[1:])
            else:
                yield label

    def _neighbour(self, name: str, release: str, step: int) -> str:
        """The release of the list next to this one; nothing without one or beyond the ends."""
        if not release:
            return ""
        if release not in self._releases:
            raise self._wrong(name, f"names the release {release}, which is not in the list")
        position = self._releases.index(release) + step
        return self._releases[position] if 0 <= position < len(self._releases) else ""

    def _lookup(self, name: str, sets: Mapping[str, Any], key: str) -> Any:
        if key not in sets:
            raise self._wrong(name, f"refers to {key}, which is not defined")
        return sets[key]

    def _wrong(self, name: str, what: str) -> ConfigError:
        return ConfigError(f"contracts/{self._engine}.yaml: {name} {what}")
