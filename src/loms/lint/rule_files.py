"""Prometheus rule files and their manifests (PrometheusRule, VMRule, ConfigMap); Grafana's provisioned alert rules."""

from __future__ import annotations

from collections.abc import Iterator

from loms.lint.document import Node, yaml_documents
from loms.lint.expression import Expression
from loms.lint.place import Place


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
                yield _rule(group, rule)


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


def _grafana_rule(group: Node, rule: Node) -> Iterator[Expression]:
    for query in rule.each("data"):
        if not query.word("model", "expr") or query.word("datasourceUid") == "__expr__":
            continue
        expr = query.get("model")
        assert expr is not None
        text = expr.text("expr").excerpt
        where = f"{group.word('name')} / alert {rule.word('title')} query {query.word('refId')}"
        yield Expression(text.text, Place(text.source.file, text.line, where), "alert", text, "grafana")
