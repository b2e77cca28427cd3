"""Prometheus rule files and their manifests (PrometheusRule, VMRule, ConfigMap); Grafana's provisioned alert rules."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

from loms.lint.document import Node, yaml_documents
from loms.lint.expression import Dialect, Expression
from loms.lint.place import Excerpt, Place, Style

_STRING = r'("(?:\\.|[^"\\\n])*"|`[^`]*`)'
_QUERY = re.compile(
    rf"\bquery\s+{_STRING}|{_STRING}\s*\|\s*query\b"
    rf"|\bquery\s+\(\s*printf\s+{_STRING}|\bprintf\s+{_STRING}[^{{}}|]*\|\s*query\b"
)
"""A query in a template of Prometheus: as it is, or as the format of a ``printf``."""
_ACTION = re.compile(r"\{\{.*?\}\}(?!\})", re.DOTALL)


def rules(document: Node) -> Iterator[Expression] | None:
    """The expressions of all rules; None where the document has no groups. Raises `ConfigError`."""
    if document.word("kind") == "ConfigMap":
        inner = [
            part
            for name, text in document.entries("data")
            if name.endswith((".yaml", ".yml", ".rules")) and isinstance(text.value, str)
            for part in yaml_documents(text.source, text.excerpt)
            if part.get("groups") is not None
        ]
        return (found for part in inner for found in _groups(part)) if inner else None
    holder = document.get("spec") if document.word("kind") in ("PrometheusRule", "VMRule") else document
    return None if holder is None or holder.get("groups") is None else _groups(holder)


def _groups(holder: Node) -> Iterator[Expression]:
    for group in holder.each("groups"):
        for rule in group.each("rules"):
            if not isinstance(rule.value, dict):
                rule.fail(f"must be a mapping, not a {rule.shape}")
            if rule.get("data") is not None:
                yield from _grafana_rule(group, rule)
            elif rule.get("detector") is None:
                found = _rule(group, rule)
                yield found
                if found.purpose == "alert":
                    yield from _templates(rule, found.place.where)


def _rule(group: Node, rule: Node) -> Expression:
    alert, record = rule.word("alert"), rule.word("record")
    if bool(alert) == bool(record):
        rule.fail("a rule needs either 'alert' or 'record'" + (", not both" if alert else ""))
    expr = rule.text("expr").excerpt
    where = f"{group.word('name')} / {'alert' if alert else 'record'} {alert or record}"
    return Expression(
        expr.text,
        Place(expr.source.file, expr.line, where),
        "alert" if alert else "record",
        expr,
        defines=record,
        adds=tuple(name for name, _ in rule.entries("labels")),
    )


def _templates(rule: Node, where: str) -> Iterator[Expression]:
    """The queries that an alert's annotations and labels ask when it fires."""
    for part in ("annotations", "labels"):
        for name, text in rule.entries(part):
            if isinstance(text.value, str):
                yield from _asked(text.excerpt, f"{where} {part.removesuffix('s')} {name}")


def _asked(text: Excerpt, where: str) -> Iterator[Expression]:
    for action in _ACTION.finditer(text.text):
        for match in _QUERY.finditer(text.text, *action.span()):
            group = match.lastindex or 0
            start, end = match.start(group) + 1, match.end(group) - 1
            style: Style = "json" if match[group].startswith('"') else "plain"
            try:
                asked = json.loads(match[group]) if style == "json" else text.text[start:end]
            except json.JSONDecodeError:
                continue  # an escape that Go has and JSON has not
            dialect: Dialect = "promql" if group <= 2 else "printf"
            inner = Excerpt(asked, text.source, start, end, style, text)
            # Read by whoever is paged, so it is judged as a panel is.
            yield Expression(asked, Place(text.source.file, inner.line, where), "panel", inner, dialect)


def _grafana_rule(group: Node, rule: Node) -> Iterator[Expression]:
    for query in rule.each("data"):
        if not query.word("model", "expr") or query.word("datasourceUid") == "__expr__":
            continue
        expr = query.get("model")
        assert expr is not None
        text = expr.text("expr").excerpt
        where = f"{group.word('name')} / alert {rule.word('title')} query {query.word('refId')}"
        yield Expression(text.text, Place(text.source.file, text.line, where), "alert", text, "grafana")
