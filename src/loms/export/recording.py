"""An engine's table as recording rules: the canonical series that `loms.engines.read` makes, worked out by Prometheus.

Every rule does what that module does: of a row's alternatives it takes the first that a target has wholly, adds terms
where their labels are equal, and counts once what is told several times. A target is what has one ``job`` and
``instance``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from loms.core.errors import ConfigError
from loms.core.families import suffixes
from loms.core.semconv import CATALOGUE
from loms.engines.custom import declare
from loms.engines.draft import OF_DEVICES
from loms.engines.engine import Engine, Lookup, Row, engines
from loms.engines.source import Matcher, Term, parse_source
from loms.export.expression import Step, aggregated, around, copy, joined, literal, quoted, replaced, selector
from loms.export.table import Rule, Table, agreeable, tables_of
from loms.export.targets import ON_TARGET, agreed, target, target_rules

ON_MODEL = "on (job, instance, model)"
_PLAIN = Matcher("le", "=~", "[0-9.]+|[+]Inf")
"""Bounds whose decimal point can be moved: not those with an exponent."""


@dataclass(frozen=True, slots=True)
class Group:
    """The rules of one engine, in the order in which they are to be evaluated."""

    engine: str
    rules: tuple[Rule, ...]
    left_out: Mapping[str, str]
    """Canonical Prometheus family → why no rule gives it, or not all of it."""


def exportable(names: Sequence[str], files: Sequence[Path]) -> list[str]:
    """The engines named, and those that these files declare; all that there are if there are no such.

    Raises `ConfigError` for an unknown name, a wrong file, and an engine that Prometheus cannot scrape.
    """
    declared = declare(map(str, files))
    known = engines.load()
    for name in names:
        if known[name].expose is not Engine.expose:
            raise ConfigError(f"{name} answers in JSON, which Prometheus cannot scrape", hint="LOMS itself can read it")
    chosen = [*names, *declared] or [name for name, e in known.items() if e.expose is Engine.expose]
    return list(dict.fromkeys(chosen))


def group_of(name: str) -> Group:
    """The rules that give the canonical series of this engine. Raises `ConfigError` for an unknown name."""
    return rules_for(name, engines.load()[name])


def rules_for(name: str, engine: type[Engine]) -> Group:
    """The same for a class that need not be registered."""
    tables = tables_of(name, engine)
    agreeing, left_out = agreeable(tables), _not_in_tables(engine)
    carried = [(table, row) for table in tables if table.carried for row in table.engine.table]
    rules: list[Rule] = []
    for table in tables:
        for row in table.engine.table:
            rivals = [] if table.carried else [other for other in carried if _same(other[1], row)]
            for raw, suffix in suffixes(row.canonical, row.part):
                recipe = Recipe(table, row, raw, [] if row.canonical.startswith(OF_DEVICES) else agreeing)
                record = CATALOGUE[row.canonical].prometheus + suffix
                if recipe.expressible:
                    expr = recipe.expr()
                    for of in rivals:
                        expr = _without(
                            expr, recipe.constants, Recipe(*of, suffixes(of[1].canonical, of[1].part)[0][0], [])
                        )
                    rules.append(Rule(record, expr, recipe.constants, CATALOGUE[row.canonical].meaning))
                else:
                    left_out[record] = "PromQL cannot multiply its bounds by the factor between the units"
    needed = any(target(name) in rule.expr for rule in rules)
    return Group(name, (*(target_rules(name, engine, tables) if needed else ()), *_merged(rules)), left_out)


def _not_in_tables(engine: type[Engine]) -> dict[str, str]:
    by_code = "LOMS works it out from labels' values or from the engine's version, which PromQL cannot"
    carried = {metric: f"of {other}: {by_code}" for other in engine.carries for metric in engines[other].computed}
    reasons = {**carried, **dict.fromkeys(engine.computed, by_code)}
    if not engine.device:
        reasons["llm.engine.info"] = "the engine's version comes from its API, not from its metrics"
    return {CATALOGUE[metric].prometheus: reasons[metric] for metric in sorted(reasons)}


def _merged(rules: Iterable[Rule]) -> Iterator[Rule]:
    """Rules for the same name and labels made one, in which the first one that has a series gives it."""
    found: dict[tuple[str, tuple[tuple[str, str], ...]], list[Rule]] = {}
    for rule in rules:
        found.setdefault((rule.record, tuple(rule.labels.items())), []).append(rule)
    for same in found.values():
        yield replace(same[0], expr=joined("or", [rule.expr for rule in same]))


def _same(row: Row, other: Row) -> bool:
    """Whether both speak of the same metric at the same hop."""
    return (row.canonical, row.fixed.get("hop", "engine")) == (other.canonical, other.fixed.get("hop", "engine"))


def _without(expr: str, constants: Mapping[str, str], rival: Recipe) -> str:
    """The expression's series where the rival, a carried row, gives none for the same model."""
    if rival.constants.items() <= constants.items():  # what the rival records looks like what this rule does
        return joined(f"unless {ON_TARGET}", [expr, *map(rival.present, rival.sources)])
    metric = CATALOGUE[rival.row.canonical].prometheus + (rival.row.part or ("_count" if rival.suffix else ""))
    which = ", ".join(f"{label}={quoted(value)}" for label, value in rival.constants.items())
    return joined(f"unless {ON_MODEL}", [expr, f"{metric}{{{which}}}"])


Labelled = tuple[str, set[str]]
"""An expression, and the labels that its series should not have in the end."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """How one kind of series of a row (``suffix``: the raw ones) is made."""

    table: Table
    row: Row
    suffix: str
    agreeing: Sequence[str]
    """Canonical labels that may come from the target as a whole."""

    @property
    def constants(self) -> dict[str, str]:
        """Labels that all its series have."""
        hop = {} if self.row.canonical.startswith(OF_DEVICES) else {"hop": "engine"}
        runtime = {"runtime": self.table.owner} if self.table.carried else {}
        return {"engine": self.table.group, **hop, **runtime, **self.row.fixed}

    @property
    def sources(self) -> list[tuple[Term, ...]]:
        return [parse_source(source) for source in self.row.sources]

    @property
    def expressible(self) -> bool:
        terms = [term for source in self.sources for term in source]
        return self.suffix != "_bucket" or all(term.factor == 1.0 or _places(term.factor) for term in terms)

    def expr(self) -> str:
        """The first source that a target has wholly, with canonical labels."""
        sources = self.sources
        alike = self.suffix != "_bucket" or len({source[0].factor for source in sources}) == 1
        if alike and all(len(source) == 1 and source[0].scale is None for source in sources):
            raw = joined("or", self._first([self._raw(source[0]) for source in sources]))
            return self._summed([self._labelled(raw, [source[0] for source in sources])])
        return joined("or", self._first([self._source(source) for source in sources]))

    def _source(self, terms: tuple[Term, ...]) -> str:
        """The terms added, and multiplied by another family where they are."""
        total = self._summed([self._canonical(term) for term in terms])
        scale = terms[0].scale
        if scale is None:
            return total
        op, by = "/" if terms[0].inverse else "*", self._summed([self._canonical(scale)])
        if self.table.knows(terms[0].family) and self.table.knows(scale.family):  # and both have the same labels
            return joined(op, [total, by])
        picked = {m.label for term in terms for m in term.matchers} - {m.label for m in scale.matchers}
        alike = f"{op} ignoring ({', '.join(sorted(picked))}) group_left ()" if picked else op
        single = joined(f"and {ON_MODEL}", [by, f"{around('count by (job, instance, model) ', by)} == 1"])
        return joined("or", [joined(alike, [total, by]), joined(f"{op} {ON_MODEL} group_left ()", [total, single])])

    def _canonical(self, term: Term) -> Labelled:
        return self._labelled(self._raw(term), [term])

    def _first(self, exprs: Sequence[str]) -> list[str]:
        """One expression for each source, without the targets that have a better one."""
        present = [self.present(source) for source in self.sources]
        return [joined(f"unless {ON_TARGET}", [expr, *present[:i]]) for i, expr in enumerate(exprs)]

    def present(self, source: Sequence[Term]) -> str:
        """Something of each target that has this source wholly."""
        witness = "_count" if self.suffix else ""  # a histogram has it, even where it has no buckets
        scale = source[0].scale
        series = [selector(term, witness) for term in source] + ([selector(scale)] if scale is not None else [])
        return joined(f"and {ON_TARGET}", series)

    def _raw(self, term: Term) -> str:
        """The term's series in the canonical unit, bounds apart."""
        if term.factor == 1.0 or self.suffix == "_count":
            return selector(term, self.suffix)
        if self.suffix == "_bucket":
            return selector(term, self.suffix, [_PLAIN])
        return joined("*", [selector(term, self.suffix), repr(term.factor)])

    def _labelled(self, raw: str, terms: Sequence[Term]) -> Labelled:
        """These series with canonical labels."""
        steps: list[Step] = []
        missing = [label for label in self.agreeing if not all(self.table.says(t.family, label) for t in terms)]
        if missing:
            labels = ", ".join(map(agreed, missing))
            raw = joined(f"* {ON_TARGET} group_left ({labels})", [raw, target(self.table.group)])
            for label in missing:  # what a series says itself comes first
                steps += [copy(agreed(label), label), copy(label, agreed(label))]
        elif any(self.table.foreign(term) for term in terms):
            raw = joined(f"and {ON_TARGET}", [raw, target(self.table.group)])
        renames, renamed = self.table.renames(self.row)
        steps += [*_looked_up(self.row.lookup), *renames]
        if self.suffix == "_bucket" and terms[0].factor != 1.0:
            steps += _moved(terms[0].factor)
        return replaced(raw, steps), renamed.union(map(agreed, missing), self.row.without)

    def _summed(self, terms: Sequence[Labelled]) -> str:
        """The terms without raw labels, added; of several tellings the largest."""
        replicas = self.table.replicas
        if replicas and len(terms) == 1 and not self.row.without:  # nothing to add up: one step will do
            return aggregated("max", terms[0][0], terms[0][1] | replicas)
        total = joined("+", [aggregated("sum", expr, gone) for expr, gone in terms])
        return aggregated("max", total, replicas)


def _looked_up(lookup: Lookup | None) -> list[Step]:
    if lookup is None:
        return []
    found: dict[str, list[str]] = {}
    for raw, value in lookup.values.items():
        found.setdefault(value, []).append(literal(raw))
    default = [Step(lookup.into, lookup.default)] if lookup.default else []
    return default + [Step(lookup.into, value, lookup.source, "|".join(raws)) for value, raws in found.items()]


def _places(factor: float) -> int:
    """By how many places the factor moves the decimal point to the left; 0 if that is not what it does."""
    return next((n for n in range(1, 10) if factor == float(f"1e-{n}")), 0)


def _moved(factor: float) -> list[Step]:
    """Bounds times the factor: zeros before them, then the point set anew, then the zeros taken off on both sides.

    What is less than 0.0001 then gets an exponent, as Prometheus and LOMS write it.
    """
    n = _places(factor)
    return [
        Step("le", "0" * n + "$1", "le", "([0-9.]+)"),
        Step("le", "$1.$2$3", "le", f"([0-9]+)([0-9]{{{n}}})[.]?([0-9]*)"),
        Step("le", "$1", "le", "0*([0-9]+(?:[.][0-9]*[1-9])?)[.]?0*"),
        *(Step("le", f"$1.$2e-{k:02}", "le", f"0[.]0{{{k - 1}}}([1-9])([0-9]*)") for k in range(5, n + 4)),
        Step("le", "$1$2", "le", "([1-9])[.](e-[0-9]+)"),
    ]
