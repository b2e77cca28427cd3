"""Grafana dashboards: panels in rows of any depth, variables, annotations; and library panels.

Read as the file has them, as the HTTP API wraps them (``{"dashboard": …}``), as a Kubernetes resource, as JSON inside a
ConfigMap or a GrafanaDashboard manifest, and in the newer schema with ``elements``. A library panel stands in a file of
its own, as the API gives it, or below ``__elements`` of a dashboard that was exported for sharing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from loms.lint.document import Node, json_document
from loms.lint.expression import Expression, Purpose
from loms.lint.place import Place
from loms.lint.problem import Problem

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


def dashboards(document: Node) -> Iterator[Expression | Problem] | None:
    """The expressions of the dashboards and library panels, and one problem for all library panels that are not there.

    None where the document holds none of them. Raises `ConfigError`.
    """
    library, found = list(_library(document)), list(_dashboards(document))
    if not found and not library:
        return None
    return _read(library, found)


def _read(library: Sequence[Node], boards: Sequence[Node]) -> Iterator[Expression | Problem]:
    for element in library:
        yield from _library_panel(element, "")
    elsewhere: list[Node] = []
    for board in boards:
        if board.get("elements") is not None:
            yield from _elements(board)
            elsewhere += [node for _, node in board.entries("elements") if node.word("kind") == "LibraryPanel"]
        else:
            yield from _classic(board)
            elsewhere += _elsewhere(board, {name for name, _ in board.entries("__elements")})
    if elsewhere:
        names = ", ".join(dict.fromkeys(repr(_name(node)) for node in elsewhere))
        text = f"the queries of {names} are in Grafana's library and not in this file"
        hint = "export the dashboard for sharing externally, or pass what /api/library-elements/UID answers as well"
        place = Place(elsewhere[0].source.file, elsewhere[0].line, "library panels")
        yield Problem("not_checked", "info", place, "", f"{text}: {hint}")


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


def _library(document: Node) -> Iterator[Node]:
    """Library panels as the API gives them, one or a list."""
    answer = document.get("result") or document
    several = answer.get("elements")
    listed = several.value if several is not None and isinstance(several.value, list) else []
    for element in (answer, *listed):
        if element.get("kind") is not None and element.word("uid") and element.word("model", "type"):
            yield element


def _library_panel(element: Node, title: str) -> Iterator[Expression]:
    model = element.get("model")
    if model is not None:
        yield from _queries(model, f"{title}library panel {element.word('name')!r}")


def _elsewhere(holder: Node, here: set[str]) -> Iterator[Node]:
    """Panels of which the file has only the name."""
    for panel in (*holder.each("panels"), *holder.each("rows")):
        yield from _elsewhere(panel, here)
        absent = panel.get("libraryPanel") is not None and panel.get("targets") is None
        if absent and panel.word("libraryPanel", "uid") not in here:
            yield panel


def _name(panel: Node) -> str:
    return (
        panel.word("libraryPanel", "name")
        or panel.word("spec", "libraryPanel", "name")
        or panel.word("spec", "title")
        or panel.word("title")
    )


def _classic(dashboard: Node) -> Iterator[Expression]:
    title = f"dashboard {dashboard.word('title')!r}"
    yield from _panels(dashboard, title)
    for _, element in dashboard.entries("__elements"):
        yield from _library_panel(element, f"{title} ")
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
        yield from _queries(panel, f"{title} panel {panel.word('title')!r}")


def _queries(panel: Node, where: str) -> Iterator[Expression]:
    for target in panel.each("targets"):
        if _speaks_promql(target if target.get("datasource") is not None else panel):
            yield from _written(target.get("expr"), "panel", f"{where} query {target.word('refId') or '?'}")


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
