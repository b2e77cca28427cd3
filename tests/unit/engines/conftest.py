"""Expositions for the engines' tests: recorded ones, and small ones written by hand."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from loms.core.model import Exposition, Ids, Labels, Series, labels_of
from loms.engines.engine import Identity
from loms.engines.plan import Plan
from loms.engines.translate import Translator
from loms.ingest.exposition import ExpositionReader

DATA = Path(__file__).parents[2] / "data"
TARGET = labels_of({"job": "engines", "instance": "10.0.0.7:8000", "deployment_zone": "lab"})


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--regenerate-goldens", action="store_true", help="write the canonical goldens anew")


@dataclass
class Scraped:
    """One target as the scrape loop sees it: reader, ids and translator together."""

    translator: Translator
    target: Labels = TARGET

    def __post_init__(self) -> None:
        self._reader = ExpositionReader()
        self._ids: dict[int, tuple[Exposition, Ids]] = {}

    def read(self, text: str | bytes, content_type: str = "text/plain; version=0.0.4") -> tuple[Exposition, Plan]:
        """Parse and plan, without deriving."""
        exposition = self._reader.read(text.encode() if isinstance(text, str) else text, content_type)
        _, ids = self._ids.setdefault(id(exposition.shape), (exposition, self.raw_ids(exposition)))
        return exposition, self.translator.plan(exposition.shape, ids)

    def scrape(self, text: str | bytes, content_type: str = "text/plain; version=0.0.4") -> Exposition:
        """What a scrape stores becomes readable in `values`."""
        exposition, plan = self.read(text, content_type)
        self.plan = plan
        ids = self.raw_ids(exposition)
        raw = dict(zip(ids.tolist(), exposition.values.tolist(), strict=True))
        derived = plan.derive(exposition.values)
        self.values = {(s.name, s.labels): raw[s.id] for s in plan.aliases}
        self.values |= {(s.name, s.labels): v for s, v in zip(plan.derived, derived.tolist(), strict=True)}
        self.stored = {s.id: v for s, v in zip(plan.derived, derived.tolist(), strict=True)} | raw
        return exposition

    def raw_ids(self, exposition: Exposition) -> Ids:
        shape, own = exposition.shape, dict(self.target)
        labels = [labels_of({**dict(ls), **own}) for ls in shape.labels]
        return np.array([Series.of(n, ls).id for n, ls in zip(shape.names, labels, strict=True)], dtype=np.uint64)

    def value(self, name: str, **labels: str) -> float:
        """The one canonical value of this name whose labels include these."""
        return one([v for (n, ls), v in self.values.items() if n == name and labels.items() <= dict(ls).items()])

    def names(self) -> set[str]:
        return {name for name, _ in self.values}


def one(found: Sequence[float]) -> float:
    assert len(found) == 1, found
    return found[0]


@pytest.fixture
def scraped() -> Callable[..., Scraped]:
    """Makes a target: ``scraped(Identity("0.32.0"))``."""

    def make(identity: Identity | None = None, **options: object) -> Scraped:
        translator = Translator(TARGET, **options)  # type: ignore[arg-type]
        if identity is not None:
            translator.identified(identity)
        return Scraped(translator)

    return make


@pytest.fixture
def data() -> Path:
    """Folder of the recordings."""
    return DATA
