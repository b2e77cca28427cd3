"""prometheus-adapter's configuration: which series become which metrics of Kubernetes, and by which query.

Read as the adapter reads it (``rules``, ``externalRules``), inside a ConfigMap, and as the values of its Helm chart.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from loms.lint.document import Node, yaml_documents
from loms.lint.expression import Expression
from loms.lint.place import Place

_PLAIN = re.compile(r"\s*([A-Za-z_:][A-Za-z0-9_:]*)\s*(?:\{|$)|\{\s*__name__\s*=~?\s*[\"']\^?([A-Za-z0-9_:]+)\$?[\"']")


def adapter_rules(document: Node) -> Iterator[Expression] | None:
    """The series and the queries of all rules; None where the document has no such rules. Raises `ConfigError`."""
    if document.word("kind") == "ConfigMap":
        texts = [text for name, text in document.entries("data") if name.endswith((".yaml", ".yml"))]
        roots = [
            root for text in texts if isinstance(text.value, str) for root in yaml_documents(text.source, text.excerpt)
        ]
    else:
        roots = [document]
    found = [rule for root in roots for rule in _rules(root)]
    return (expression for i, rule in enumerate(found) for expression in _rule(i, rule)) if found else None


def _rules(root: Node) -> Iterator[Node]:
    chart = root.get("rules")
    if chart is not None and isinstance(chart.value, dict):
        found = [*chart.each("custom"), *chart.each("external")]
    else:
        found = [*root.each("rules"), *root.each("externalRules")]
    yield from (rule for rule in found if rule.get("seriesQuery") is not None)


def _rule(number: int, rule: Node) -> Iterator[Expression]:
    where = f"prometheus-adapter rule {number}"
    series = rule.text("seriesQuery").excerpt
    place = Place(series.source.file, series.line, f"{where} seriesQuery")
    plain = _PLAIN.match(series.text)
    name = (plain[1] or plain[2]) if plain else ""
    # A list of series, not a value: whether a counter is in it is the query's business.
    yield Expression(series.text, place, "variable", series)
    if rule.get("metricsQuery") is not None:
        query = rule.text("metricsQuery").excerpt
        place = Place(query.source.file, query.line, f"{where} metricsQuery")
        served = _served(rule, name)
        yield Expression(query.text, place, "scaler", query, "adapter", defines=served, series=name)


def _served(rule: Node, series: str) -> str:
    """The name under which Kubernetes sees the metric; ``""`` where that depends on the series."""
    pattern = rule.word("name", "matches") or ".*"
    try:
        match = re.match(pattern, series)
    except re.error:
        rule.fail(f"name.matches is not a regular expression: {pattern!r}")
    template = rule.word("name", "as") or ("$1" if match and match.re.groups else "$0")
    if "$" not in template:
        return template
    if not match or not series:
        return ""
    whole = (match[0], *match.groups(""))
    return re.sub(r"\$\{?(\d+)\}?", lambda sign: whole[int(sign[1])] if int(sign[1]) < len(whole) else "", template)
