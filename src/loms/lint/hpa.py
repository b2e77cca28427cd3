"""Kubernetes HorizontalPodAutoscalers: the names of the pod, object and external metrics that they follow."""

from __future__ import annotations

from collections.abc import Iterator

from loms.lint.document import Node
from loms.lint.expression import Expression
from loms.lint.place import Place


def autoscalers(document: Node) -> Iterator[Expression] | None:
    """The metrics' names; None where the document is no such manifest. Raises `ConfigError`.

    ``autoscaling/v2beta1`` has the name one level higher, and is read as well.
    """
    return _metrics(document) if document.word("kind") == "HorizontalPodAutoscaler" else None


def _metrics(document: Node) -> Iterator[Expression]:
    for i, entry in enumerate(document.each("spec", "metrics")):
        for kind in ("pods", "object", "external"):
            source = entry.get(kind)
            if source is None:
                continue
            metric = source.get("metric")
            name = (source.text("metricName") if metric is None else metric.text("name")).excerpt
            selector = ("metricSelector",) if metric is None else ("metric", "selector")
            where = f"HPA {document.word('metadata', 'name')} metric {i}"
            yield Expression(
                name.text,
                Place(name.source.file, name.line, where),
                "scaler",
                name,
                "name",
                labels=tuple(label for label, _ in source.entries(*selector, "matchLabels")),
            )
