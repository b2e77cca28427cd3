"""Who uses a metric: the rules, dashboards and scalers that LOMS has been told of."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path

from loms.core.clock import Clock
from loms.core.errors import ConfigError
from loms.core.settings import Config
from loms.engines.contracts.contract import contract_of
from loms.engines.engine import engines
from loms.lint.expression import Expression
from loms.lint.files import Sources, read
from loms.lint.place import Place
from loms.lint.references import references

_log = logging.getLogger("loms.contracts")

REREAD_SECONDS = 60.0


class UsersOfMetrics:
    """Reads the files (`read`), and again when it is asked and a minute has passed.

    A file that cannot be read is told in the log, once, and in `problem`; the others count all the same.
    """

    def __init__(self, config: Config, clock: Clock) -> None:
        self._sources = [
            *(Sources(rules=[path]) for path in config.rules.files),
            *(Sources({kind: [path]}) for kind, paths in config.contracts.used_by for path in paths),
        ]
        self._clock = clock
        self._read_at: float | None = None
        self._expressions: list[Expression] = []
        self._places: dict[str, Mapping[str, tuple[Place, ...]]] = {}
        self.problem = ""
        """The first file that could not be read, in one sentence."""

    def read(self) -> None:
        """Read all files anew."""
        self._read_at, self._places, self._expressions, problem = self._clock.monotonic(), {}, [], ""
        for source in self._sources:
            try:
                found = read(source)
            except ConfigError as error:
                problem = problem or error.message
                continue
            self._expressions += found.expressions
            unread = (f"{p.place.file}: {p.text}" for p in found.problems if p.kind == "unreadable_file")
            problem = problem or next(unread, "")
        if problem and problem != self.problem:
            _log.warning("what uses a metric is not wholly known: %s", problem)
        self.problem = problem

    def __call__(self, engine: str, family: str) -> Sequence[str]:
        """Places in words, in the order of the files."""
        if self._read_at is None or self._clock.monotonic() - self._read_at >= REREAD_SECONDS:
            self.read()
        if engine not in self._places:
            contract = contract_of(engine)
            families = tuple(contract.families) if contract else ()
            self._places[engine] = references(self._expressions, spell=engines[engine].spell, families=families)
        found = self._places[engine].get(family, ())
        # No line: it is part of an alert's identity, and what stands above it may grow.
        told = list(dict.fromkeys(f"{place.where} ({Path(place.file).name})" for place in found))
        return [*told, f"what else is not known: {self.problem}"] if self.problem else told
