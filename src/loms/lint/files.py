"""Files, globs and directories → the expressions in them.

A file that is named must hold something of its kind, and be fit to be read. In a directory or behind a glob, files of
other kinds are passed over, and one that cannot be read is a problem.
"""

from __future__ import annotations

import glob
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from loms.core.errors import ConfigError
from loms.lint.adapter import adapter_rules
from loms.lint.document import Node, json_document, yaml_documents
from loms.lint.expression import Expression
from loms.lint.grafana import dashboards
from loms.lint.hpa import autoscalers
from loms.lint.keda import scaled_objects
from loms.lint.place import Place, Source
from loms.lint.problem import Problem
from loms.lint.rule_files import rules

Reader = Callable[[Node], Iterator[Expression | Problem] | None]
"""The expressions of one document, and what in it cannot be checked; None where the document is of another kind."""

_YAML = (".yaml", ".yml")
_PLACE = re.compile(r"(?::(\d+))?: ")
"""What stands between the file and the reason in an error of the readers."""
_HELM = re.compile(r"\{\{-?\s*[^{}]*?(?:\.(?:Values|Release|Chart|Capabilities|Files)\b|\b(?:toYaml|tpl|nindent)\b)")


@dataclass(frozen=True, slots=True)
class FileKind:
    """Files that are read alike."""

    content: str
    """What must be in one that is named."""
    readers: tuple[Reader, ...]
    endings: tuple[str, ...] = _YAML
    """What a directory is searched for; a file that is named may end in anything."""


KINDS: Mapping[str, FileKind] = {
    # Prometheus rule files, PrometheusRule manifests, Grafana's own alert rules
    "rules": FileKind("rule groups", (rules,)),
    # dashboards, also inside a ConfigMap
    "grafana": FileKind("dashboard", (dashboards,), (*_YAML, ".json")),
    "keda": FileKind("ScaledObject or ScaledJob", (scaled_objects,)),
    "hpa": FileKind("HorizontalPodAutoscaler and no prometheus-adapter rules", (autoscalers, adapter_rules)),
}
"""One line a kind; beside it `loms.core.config.UsedBy` has a field of this name, and ``loms doctor`` an option."""

Sources = dict[str, Sequence[str]]
"""Kind of file → paths of files and directories, and globs."""


@dataclass(frozen=True, slots=True)
class Written:
    """Everything that was read."""

    expressions: tuple[Expression, ...]
    files: tuple[str, ...]
    problems: tuple[Problem, ...]
    """``unreadable_file`` and ``not_checked``: what was not read."""


def read(sources: Sources) -> Written:
    """The expressions in all these files.

    Raises `ConfigError`, which names the file, the line and the key, for a file that is named itself.
    """
    expressions: list[Expression] = []
    problems: list[Problem] = []
    files: list[str] = []
    for name, patterns in sources.items():
        kind = KINDS[name]
        for path, named in _paths(patterns, kind.endings):
            try:
                found = _read_file(path, kind.readers)
            except ConfigError as error:
                if named:
                    raise
                problems.append(_unreadable(path, error))
                continue
            if found is None:
                if named:
                    raise ConfigError(f"{path}: holds no {kind.content}")
                continue
            files.append(path)
            expressions += (item for item in found if isinstance(item, Expression))
            problems += (item for item in found if isinstance(item, Problem))
    return Written(tuple(expressions), tuple(dict.fromkeys(files)), tuple(dict.fromkeys(problems)))


def _unreadable(path: str, error: ConfigError) -> Problem:
    reason = error.message.removeprefix(path)
    place = _PLACE.match(reason)
    line = int(place[1] or 1) if place else 1
    text = f"not looked at: {reason[place.end() :] if place else reason}" + (f"; {error.hint}" if error.hint else "")
    return Problem("unreadable_file", "warning", Place(path, line, "the whole file"), "", text)


def _paths(patterns: Sequence[str], endings: tuple[str, ...]) -> Iterator[tuple[str, bool]]:
    """Each file once, and whether it was named as it is."""
    seen: set[str] = set()
    for pattern in patterns:
        path = Path(pattern).expanduser()
        if path.is_dir():
            found = [str(file) for file in sorted(path.rglob("*")) if _is_looked_at(file, path, endings)]
        elif path.exists():
            found = [str(path)]
        else:
            found = [file for file in sorted(glob.glob(str(path), recursive=True)) if Path(file).is_file()]
        if not found:
            missing = f"holds no file that ends in {' or '.join(endings)}" if path.is_dir() else "does not exist"
            raise ConfigError(f"{pattern}: {'matches no file' if glob.has_magic(pattern) else missing}")
        for file in found:
            if file not in seen:
                seen.add(file)
                yield file, file == str(path)


def _is_looked_at(file: Path, folder: Path, endings: tuple[str, ...]) -> bool:
    hidden = any(part.startswith(".") for part in file.relative_to(folder).parts)
    return file.suffix in endings and not hidden and file.is_file()


def _read_file(path: str, readers: tuple[Reader, ...]) -> list[Expression | Problem] | None:
    """What the readers find in the file; None where no document in it is of the readers' kinds."""
    try:
        text = Path(path).read_bytes().decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read: {error}") from None
    source = Source.of(path, text)
    if template := _HELM.search(text):
        line = source.line(template.start())
        raise ConfigError(
            f"{path}:{line}: is a Helm template, which is no YAML yet", hint="render it first: helm template CHART"
        )
    documents = (json_document(source),) if path.endswith(".json") else yaml_documents(source)
    found: list[Expression | Problem] | None = None
    for document in documents:
        for item in document.each("items") if document.word("kind").endswith("List") else (document,):
            for reader in readers:
                expressions = reader(item)
                if expressions is not None:
                    found = (found or []) + list(expressions)
    return found
