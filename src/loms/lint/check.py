"""The front: files and a target in, a report out."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import reduce

from loms.core.errors import ConfigError, QueryError
from loms.engines.contracts.contract import Contract, Observed
from loms.engines.engine import engines
from loms.lint.cumulative import cumulative
from loms.lint.dead_metric import changed_meanings, dead_metrics
from loms.lint.doubles import doubles
from loms.lint.expression import Expression
from loms.lint.files import Sources, read
from loms.lint.labels import unknown_labels
from loms.lint.misleading import misleading_metrics
from loms.lint.problem import Problem, Report, problem
from loms.lint.quantiles import averaged_quantiles, lost_bounds
from loms.lint.query import Query
from loms.lint.query import read as read_query
from loms.lint.replicas import added_replicas
from loms.lint.scope import Scope
from loms.lint.target import Target
from loms.promql.regexes import check as check_regex

Check = Callable[[Query, Scope], Iterator[Problem]]

CHECKS: tuple[Check, ...] = (
    dead_metrics,
    changed_meanings,
    cumulative,
    averaged_quantiles,
    lost_bounds,
    unknown_labels,
    doubles,
    added_replicas,
    misleading_metrics,
)


def check(
    files: Sources,
    observed: Observed,
    known: Contract | None,
    *,
    others: Iterable[Contract] = (),
    extra_labels: Collection[str] = (),
    values: Mapping[tuple[str, str], frozenset[str]] | None = None,
    ignore: Collection[str] = (),
) -> Report:
    """Everything that does not fit the target in these files.

    ``known`` is the contract of the target's engine, ``others`` those of further engines, ``extra_labels``
    what scraping adds beside `loms.lint.target.TARGET_LABELS`, ``values`` the known values of (family, label), and
    ``ignore`` regular expressions for whole names that are another job's although they look like the engine's.
    Raises `ConfigError` for files that cannot be read, and for what is no regular expression.
    """
    target = target_of(observed, known, others=others, extra_labels=extra_labels, values=values, ignore=ignore)
    written = read(files)
    problems = [*written.problems, *problems_in(written.expressions, target)]
    problems.sort(key=lambda p: (p.place.file, p.place.line, p.kind))
    return Report(tuple(problems), len(written.expressions), written.files)


def target_of(
    observed: Observed,
    known: Contract | None,
    *,
    others: Iterable[Contract] = (),
    extra_labels: Collection[str] = (),
    values: Mapping[tuple[str, str], frozenset[str]] | None = None,
    ignore: Collection[str] = (),
) -> Target:
    """A target whose names are spelled as its engine spells them.

    Of ``others``, those whose families the target exposes are what it passes on. Contracts of devices are left out:
    their exporters are jobs of their own. Raises `ConfigError` where ``ignore`` has what is no regular expression.
    """
    for pattern in ignore:
        try:
            check_regex(pattern)
        except QueryError as error:
            raise ConfigError(f"--ignore {pattern}: {error.message.replace('parse error: ', '')}") from None
    registered = dict(engines.load().items())
    engine = registered.get(observed.engine)
    others = [
        other
        for other in others
        if other.engine != observed.engine and not (other.engine in registered and registered[other.engine].device)
    ]
    carried = [other for other in others if any(map(other.owns, observed.families))]
    speaking = [registered[n] for n in (observed.engine, *(c.engine for c in carried)) if n in registered]
    return Target(
        observed,
        known,
        tuple(carried),
        tuple(other for other in others if other not in carried),
        (engine.prefix,) if engine and engine.prefix else (),
        lambda name: reduce(lambda spelled, one: one.spell(spelled), speaking, name),
        frozenset(extra_labels),
        values or {},
        frozenset().union(*(one.replicas for one in speaking)),
        {pattern: reason for one in speaking for pattern, reason in one.aside.items()},
        tuple(ignore),
    )


def problems_in(expressions: Iterable[Expression], target: Target) -> Iterator[Problem]:
    """Expression by expression. Recording rules among them are known to all."""
    queries = [read_query(expression) for expression in expressions]
    recordings: dict[str, list[Query]] = {}
    for query in queries:
        if query.expression.defines:
            recordings.setdefault(query.expression.defines, []).append(query)
    scope = Scope(target, recordings)
    for query in queries:
        if query.error and not query.guessed:
            yield problem(query, "parse_error", "error", f"not PromQL: {query.error}")
        elif query.error:
            text = f"its variables leave open whether it is PromQL ({query.error}); only its metrics are looked at"
            yield problem(query, "parse_error", "info", text)
        for one in CHECKS:
            yield from one(query, scope)
