"""KEDA's ScaledObject and ScaledJob manifests: the queries of their Prometheus triggers."""

from __future__ import annotations

from collections.abc import Iterator

from loms.lint.document import Node
from loms.lint.expression import Expression
from loms.lint.place import Place


def scaled_objects(document: Node) -> Iterator[Expression] | None:
    """The queries; None where the document is no such manifest. Raises `ConfigError`."""
    return _triggers(document) if document.word("kind") in ("ScaledObject", "ScaledJob") else None


def _triggers(document: Node) -> Iterator[Expression]:
    name = f"{document.word('kind')} {document.word('metadata', 'name')}"
    for i, trigger in enumerate(document.each("spec", "triggers")):
        if trigger.word("type") != "prometheus":
            continue
        metadata = trigger.get("metadata")
        query = (metadata or trigger).text("query").excerpt
        yield Expression(query.text, Place(query.source.file, query.line, f"{name} trigger {i}"), "scaler", query)
