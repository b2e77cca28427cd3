"""Grafana dashboards: panels in rows of any depth, variables, annotations.

Read as the file has them, as the HTTP API wraps them (``{"dashboard": …}``), as a Kubernetes resource, as JSON inside a
ConfigMap or a GrafanaDashboard manifest, and in the newer schema with ``elements``.
"""

from __future__ import annotations

from collections.abc import Iterator

from loms.lint.document import Node, json_document
from loms.lint.expression import Expression, Purpose
from loms.lint.place import Place

_PROMETHEUS = ("prom", "victoriametrics", "mixed", "datasource")
"""Parts of the types of data sources that speak PromQL, or leave it to each query."""
_OTHERS = (
    "loki",
    "elastic",
    "opensearch",
    "influx",
    "graphite",
    "sql",
    "postgres",
    "clickhouse",
    "cloudwatch",
    "tempo",
)
"""Parts of the names of data sources that do not; any other name may stand for a Prometheus."""


def dashboards(document: Node) -> Iterator[Expression] | None:
    """The expressions of the dashboards; None where the document holds none. Raises `ConfigError`."""
    found = list(_dashboards(document))
    if not found:
        return None
    read = [_elements(board) if board.get("elements") is not None else _classic(board) for board in found]
    return (expression for expressions in read for expression in expressions)


def _dashboards(document: Node) -> Iterator[Node]:
    kind = document.word("kind")
    if kind == "ConfigMap":
        texts = [text for name, text in document.entries("data") if name.endswith(".json")]
    else:
        texts = [json for json in (document.get("spec", "json"),) if json is not None and kind == "GrafanaDashboard"]
    inner = [json_document(text.source, text.excerpt) for text in texts if isinstance(text.value, str)]
    for root in (document, *inner):
        for holder in (root, root.get("dashboard"), root.get("spec") if root.word("kind") == "Dashboard" else None):
            if holder is not None and any(holder.get(key) is not None for key in ("panels", "rows", "elements")):
                yield holder


def _classic(dashboard: Node) -> Iterator[Expression]:
    title = f"dashboard {dashboard.word('title')!r}"
    yield from _panels(dashboard, title)
    for variable in dashboard.each("templating", "list"):
        if variable.word("type") == "query" and _speaks_promql(variable):
            query = variable.get("query") if variable.word("query") else variable.get("query", "query")
            yield from _variable(query, variable.get("definition"), f"{title} variable ${variable.word('name')}")
    for note in dashboard.each("annotations", "list"):
        if _speaks_promql(note):
            expr = note.get("expr") if note.word("expr") else note.get("target", "expr")
            yield from _written(expr, "panel", f"{title} annotation {note.word('name')!r}")


def _panels(holder: Node, title: str) -> Iterator[Expression]:
    for panel in (*holder.each("panels"), *holder.each("rows")):
        yield from _panels(panel, title)
        for target in panel.each("targets"):
            if _speaks_promql(target if target.get("datasource") is not None else panel):
                where = f"{title} panel {panel.word('title')!r} query {target.word('refId') or '?'}"
                yield from _written(target.get("expr"), "panel", where)


def _elements(dashboard: Node) -> Iterator[Expression]:
    """The newer schema wraps every query in kinds and specs."""
    title = f"dashboard {dashboard.word('title')!r}"
    for _, element in dashboard.entries("elements"):
        where = f"{title} panel {element.word('spec', 'title')!r}"
        for entry in element.each("spec", "data", "spec", "queries"):
            query = entry.get("spec", "query")
            if query is not None and _speaks_promql(query):
                yield from _written(
                    query.get("spec", "expr"), "panel", f"{where} query {entry.word('spec', 'refId') or '?'}"
                )
    for variable in dashboard.each("variables"):
        query = variable.get("spec", "query")
        if query is not None and _speaks_promql(query):
            key = "query" if query.word("spec", "query") else "__legacyStringValue"
            where = f"{title} variable ${variable.word('spec', 'name')}"
            yield from _variable(query.get("spec", key), variable.get("spec", "definition"), where)
    for note in dashboard.each("annotations"):
        query = note.get("spec", "query")
        if query is not None and _speaks_promql(query):
            yield from _written(query.get("spec", "expr"), "panel", f"{title} annotation {note.word('spec', 'name')!r}")


def _written(text: Node | None, purpose: Purpose, where: str) -> Iterator[Expression]:
    if text is not None and isinstance(text.value, str) and text.value.strip():
        excerpt = text.excerpt
        yield Expression(excerpt.text, Place(excerpt.source.file, excerpt.line, where), purpose, excerpt, "grafana")


def _variable(query: Node | None, definition: Node | None, where: str) -> Iterator[Expression]:
    """Grafana keeps the text of a variable's query twice; what it shows must change with what it asks."""
    if query is not None and isinstance(query.value, str) and query.value.strip():
        text = query.excerpt
        twin = definition is not None and definition.value == query.value
        twins = (definition.excerpt,) if definition is not None and twin else ()
        place = Place(text.source.file, text.line, where)
        yield Expression(text.text, place, "variable", text, "variable", twins=twins)


def _speaks_promql(holder: Node) -> bool:
    """Whether the data source is one for PromQL, as far as the file says."""
    kind = holder.word("kind").replace("DataQuery", "")
    type_ = (holder.word("datasource", "type") or holder.word("group") or kind).lower()
    if type_:
        return any(part in type_ for part in _PROMETHEUS)
    return not any(part in holder.word("datasource").lower() for part in _OTHERS)
