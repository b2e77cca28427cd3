"""Collects ``*.test`` (see `promql.language`): each ``eval`` is a test, once on each source."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from promql.embedded import Embedded
from promql.language import Case, Columns, cases, check, samples_of

from loms.promql.engine import Engine
from loms.promql.memory import MemorySource
from loms.promql.source import Source


def in_memory(item: pytest.Item, columns: Columns) -> Source:
    source = MemorySource()
    for labels, (times, values) in columns.items():
        source.add(labels, times, values)
    return source


STORE = pytest.StashKey[tuple[Embedded, Case]]()


def in_clickhouse(item: pytest.Item, columns: Columns) -> Source:
    """One store for the run of a file; cases that load the same follow one another and find it loaded."""
    file = item.getparent(CorpusFile)
    assert file is not None
    return file.loaded(columns).source


class CorpusFile(pytest.File):
    """One ``*.test``; the store opens with its first case and closes after its last."""

    def collect(self) -> Iterator[pytest.Item]:
        found = list(cases(self.path.read_text()))
        for place, source in (("memory", in_memory), ("clickhouse", in_clickhouse)):
            for case in found:
                yield CorpusCase.from_parent(self, name=f"{place}:{case.line}", case=case, source=source)

    def setup(self) -> None:
        self.embedded: Embedded | None = None
        self.columns: Columns = {}

    def loaded(self, columns: Columns) -> Embedded:
        if self.embedded is None:
            factory = self.session.config._tmp_path_factory  # type: ignore[attr-defined]
            self.embedded = Embedded(factory.mktemp("corpus"))
        if repr(columns) != repr(self.columns):
            self.embedded.clear()
            self.embedded.write_labelled((labels, *column) for labels, column in columns.items())
            self.columns = columns
        return self.embedded

    def teardown(self) -> None:
        if self.embedded is not None:
            self.embedded.close()


class CorpusCase(pytest.Item):
    def __init__(self, *, case: Case, source: Callable[[pytest.Item, Columns], Source], **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.case, self.source = case, source

    def runtest(self) -> None:
        check(self.case, Engine(self.source(self, samples_of(self.case.loads))))

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> str:
        """The line and what is wrong with it, rather than the inside of the runner."""
        return f"{self.path}:{self.case.line}: {self.case.header}\n{excinfo.exconly()}"

    def reportinfo(self) -> tuple[Path, int, str]:
        return self.path, self.case.line - 1, f"{self.name} {self.case.header}"


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> pytest.Collector | None:
    if file_path.suffix == ".test":
        return CorpusFile.from_parent(parent, path=file_path)
    return None
