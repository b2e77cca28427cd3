"""Which rules, dashboards and scalers use a metric."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping

from loms.core.errors import QueryError
from loms.core.families import HISTOGRAM
from loms.lint.expression import Expression
from loms.lint.place import Place
from loms.lint.query import Query, read, series_name
from loms.promql.regexes import matches


def references(
    expressions: Iterable[Expression], *, spell: Callable[[str], str] = str, families: Collection[str] = ()
) -> Mapping[str, tuple[Place, ...]]:
    """Family → the places that use it, directly or through a recording rule or an adapter among the same expressions.

    ``spell`` brings a name into the spelling of the keys. A name that ends like a part of a histogram counts for itself
    and for the histogram. Regular expressions over names count for those of ``families`` that they match.
    """
    queries = [read(expression) for expression in expressions]
    used = [_names(query, spell, families) for query in queries]
    makers: dict[str, set[int]] = {}
    for i, query in enumerate(queries):
        if query.expression.defines:
            makers.setdefault(query.expression.defines, set()).add(i)
    found: dict[str, list[Place]] = {}
    for i, query in enumerate(queries):
        for name in sorted(_all(i, used, makers)):
            found.setdefault(name, []).append(query.expression.place)
    return {name: tuple(dict.fromkeys(places)) for name, places in found.items()}


def _names(query: Query, spell: Callable[[str], str], families: Collection[str]) -> set[str]:
    names: set[str] = set()
    for mention in query.mentions:
        if not mention.pattern:
            name = series_name(mention.name, query)
            names |= {name, spell(name)} if name else set()
            continue
        series = [(family, family + part) for family in families for part in ("", *HISTOGRAM)]
        try:
            hits = matches(mention.name, [name for _, name in series])
        except QueryError:
            continue
        names |= {family for (family, _), hit in zip(series, hits, strict=True) if hit}
    return names | {name.removesuffix(part) for name in names for part in HISTOGRAM}


def _all(start: int, used: list[set[str]], makers: Mapping[str, set[int]]) -> set[str]:
    """The names that an expression uses, and those that the rules behind these names use."""
    seen, waiting, names = {start}, [start], set[str]()
    while waiting:
        here = used[waiting.pop()]
        names |= here
        behind = {i for name in here for i in makers.get(name, ())} - seen
        seen |= behind
        waiting += behind
    return names
