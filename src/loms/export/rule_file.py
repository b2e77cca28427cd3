"""Groups of recording rules as a rule file for Prometheus (2.42 and 3)."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from textwrap import indent, wrap

from loms.core.units import format_duration
from loms.export.recording import Group
from loms.export.table import Rule

_HEAD = """\
Recording rules that give LOMS's canonical series in Prometheus, written by `loms export prometheus`.

One group for each engine. Its first rules tell which targets are this engine's (loms:target:…), the others make one
canonical series each. Name this file under rule_files and check it with `promtool check rules FILE`.

What differs from the series that LOMS itself stores: they are as old as the evaluation of the rule, not as the scrape;
requests with which LOMS probes an engine are not left out; and where an engine renames a metric while it is running,
a counter does not go on from where it was."""


def rule_file(groups: Sequence[Group], interval_seconds: float) -> str:
    """The text of the file; comments say what each metric means, and what is left out and why."""
    lines = [f"# {line}".rstrip() for line in _HEAD.splitlines()]
    lines.append("groups:")
    for group in groups:
        lines += _group(group, format_duration(interval_seconds))
    return "\n".join(lines) + "\n"


def _group(group: Group, interval: str) -> Iterator[str]:
    yield f"  - name: loms-{group.engine}"
    yield f"    interval: {interval}"
    if group.left_out:
        yield "    # Not here:"
        for name, reason in group.left_out.items():
            yield from (f"    #   {line}" for line in wrap(f"{name}: {reason}", 110, subsequent_indent="  "))
    yield "    rules:"
    comment = ""
    for rule in group.rules:
        if rule.comment != comment:
            yield ""
            yield from (f"      # {line}" for line in wrap(rule.comment, 110))
            comment = rule.comment
        yield from _rule(rule)


def _rule(rule: Rule) -> Iterator[str]:
    yield f"      - record: {rule.record}"
    if "\n" in rule.expr or '"' in rule.expr:
        yield "        expr: |-"
        yield indent(rule.expr, " " * 10)
    else:
        yield f"        expr: {rule.expr}"
    pairs = ", ".join(f"{name}: {json.dumps(value, ensure_ascii=False)}" for name, value in rule.labels.items())
    yield f"        labels: {{{pairs}}}"
