"""Rules that tell whose target a target is, and which labels hold for all of its series.

Where all series of a target that have the label ``model`` (or another one in ``AGREEABLE``) say the same, that holds
for those that leave it out, too.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from loms.engines.custom import Declared
from loms.engines.engine import Engine, engines
from loms.export.expression import around, copy, joined, quoted, replaced
from loms.export.table import Rule, Table, agreeable, rivals

ON_TARGET = "on (job, instance)"


def target_rules(name: str, engine: type[Engine], tables: Sequence[Table]) -> list[Rule]:
    """Rules for ``loms:target:agreed{engine=name}``: one series for each target of this engine."""
    labels, own = agreeable(tables), {"engine": name}
    if not labels:
        return [Rule("loms:target:agreed", _targets(name, engine, tables, ""), own, "One series for each target")]
    each = [
        Rule(
            f"loms:target:{label}",
            _targets(name, engine, tables, label),
            own,
            f"Each {label} that a target's series name, and one series without for those that name none",
        )
        for label in labels
    ]
    expr = _unique(name, labels[0])
    for label in labels[1:]:
        expr = joined(f"* {ON_TARGET} group_left ({agreed(label)})", [expr, _unique(name, label)])
    together = "One series for each target, with the labels of which all its series say the same"
    return [*each, Rule("loms:target:agreed", expr, own, together)]


def agreed(label: str) -> str:
    """The label under which `target_rules` keeps what a target agrees on."""
    return f"agreed_{label}"


def target(name: str) -> str:
    """The selector of an engine's targets."""
    return f"loms:target:agreed{{engine={quoted(name)}}}"


def _targets(name: str, engine: type[Engine], tables: Sequence[Table], label: str) -> str:
    """One series for each target, and for each value that the label has there."""
    series, by = _named(begin for table in tables for begin in _begins(table.engine)), "job, instance"
    if label:
        sources = dict.fromkeys(source for table in tables for source in table.sources(label))
        series = replaced(series, [copy(agreed(label), source) for source in sources])
        by += f", {agreed(label)}"
    values = [around(f"group by ({by}) ", series)]
    if engine.carries:  # the families that it passes on are others' as well
        values.append(_named(_begins(engine)))
    if issubclass(engine, Declared):
        values += [_named([_family(family)]) for family in sorted(engine.families)]
    others = [begin for other in rivals(name, engine) for begin in _begins(engines[other])]
    return joined(f"unless {ON_TARGET}", [joined(f"and {ON_TARGET}", values), *([_named(others)] if others else [])])


def _unique(name: str, label: str) -> str:
    """One series for each target: with the label where there is one value of it only."""
    own = f"loms:target:{label}{{engine={quoted(name)}"
    named = f'{own}, {agreed(label)}!=""}}'
    single = joined(f"and {ON_TARGET}", [named, f"count by (job, instance) ({named}) == 1"])
    return joined(f"or {ON_TARGET}", [single, f"group by (job, instance) ({own}}})"])


def _begins(engine: type[Engine]) -> list[str]:
    """Patterns of the names that an engine is known by."""
    if issubclass(engine, Declared) and engine.families:
        return [_family(family) for family in sorted(engine.families)]
    return [f"{engine.prefix}.+"]


def _family(name: str) -> str:
    return f"{name}(?:_total|_count)?"


def _named(patterns: Iterable[str]) -> str:
    """Series with such names; buckets, of which there are many, tell nothing that a count does not."""
    return f'{{__name__=~{quoted("|".join(dict.fromkeys(patterns)))}, le=""}}'
