"""Who uses a metric: the rules, dashboards and scalers that LOMS has been told of."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path

from loms.core.clock import Clock
from loms.core.config import Config
from loms.core.errors import ConfigError
from loms.engines.contract import contract_of
from loms.engines.engine import engines
from loms.lint.expression import Expression
from loms.lint.files import Sources, read
from loms.lint.place import Place
from loms.lint.references import references

_log = logging.getLogger("loms.contracts")

REREAD_SECONDS = 60.0


class UsersOfMetrics:
    """Reads the files anew when it is asked and a minute has passed.

    A file that cannot be read is told in the log, once, and in `problem`; the others count all the same.
    """

    def __init__(self, config: Config, clock: Clock) -> None:
        used_by = config.contracts.used_by
        self._sources = [
            *(Sources(rules=[path]) for path in (*config.rules.files, *used_by.rules)),
            *(Sources(grafana=[path]) for path in used_by.grafana),
            *(Sources(keda=[path]) for path in used_by.keda),
            *(Sources(hpa=[path]) for path in used_by.hpa),
        ]
        self._clock = clock
        self._read_at: float | None = None
        self._places: dict[str, Mapping[str, tuple[Place, ...]]] = {}
        self.problem = ""
        """The first file that could not be read, in one sentence."""

    def __call__(self, engine: str, family: str) -> Sequence[str]:
        """Places in words, in the order of the files."""
        now = self._clock.monotonic()
        if self._read_at is None or now - self._read_at >= REREAD_SECONDS:
            self._read_at, self._places = now, {}
        if engine not in self._places:
            self._places[engine] = self._references(engine)
        return [
            f"{place.where} ({Path(place.file).name}:{place.line})" for place in self._places[engine].get(family, ())
        ]

    def _references(self, engine: str) -> Mapping[str, tuple[Place, ...]]:
        expressions: list[Expression] = []
        problem = ""
        for source in self._sources:
            try:
                expressions += read(source).expressions
            except ConfigError as error:
                problem = problem or error.message
        if problem and problem != self.problem:
            _log.warning("what uses a metric is not wholly known: %s", problem)
        self.problem = problem
        contract = contract_of(engine)
        return references(
            expressions, spell=engines[engine].spell, families=tuple(contract.families) if contract else ()
        )
