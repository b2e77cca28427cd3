"""``dead_metric``: the target does not expose what an expression reads, so a panel is empty and an alert never fires.

``changed_meaning``: it is exposed, but a release gave it another unit or meaning.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from loms.core.errors import QueryError
from loms.core.families import HISTOGRAM
from loms.core.semconv import BY_PROMETHEUS
from loms.engines.contracts.release import parse_release
from loms.lint.mentions import Mention
from loms.lint.problem import Problem, Severity, dead, problem, renamed
from loms.lint.query import Query, names, series_name, walk
from loms.lint.scope import Scope
from loms.lint.target import Target
from loms.promql.syntax import Binary, Node, Selector


def dead_metrics(query: Query, scope: Scope) -> Iterator[Problem]:
    """One problem a family, whatever the tree: an expression that does not parse is looked at as well."""
    target, places = scope.target, _by_name(query)
    verdicts = {name: target.verdict(name) for name in places if name not in scope.recordings}
    found = {
        name: verdict
        for name, verdict in verdicts.items()
        if verdict is not None and not (verdict.spelling and query.expression.dialect == "name")
    }
    beside = {name: _beside(query, name, target) for name in found}
    # Two names that became one would count it twice.
    taken = [target.spell(name) for name in (*places, *(verdict.new for verdict in found.values()))]
    new = {n: v.new for n, v in found.items() if v.new and taken.count(target.spell(v.new)) == 1 and not beside[n]}
    together: dict[tuple[str, Severity, bool], list[Mention]] = {}
    for name, verdict in found.items():
        severity, text = verdict.severity, verdict.text
        if _is_canonical(query.expression.defines):
            severity = "info"  # such a rule is written for all releases at once
        if beside[name]:
            severity = "info"
            text = f"{name} never answers at {target.title}; {beside[name][0]}, which stands beside it, does"
        elif verdict.new in places:
            text += " and stands here already: drop the old"
        elif verdict.meaning:
            text += f". Mind the meaning: {verdict.meaning}"
        together.setdefault((text, severity, name in new), []).extend(places[name])
    for (text, severity, safe), mentioned in together.items():
        one = dead(query, severity, text, mentioned)
        yield renamed(one, query, mentioned, new) if safe else one
    for mention in query.mentions if query.node is not None else ():
        try:
            missed = target.pattern(mention.name) if mention.pattern else None
        except QueryError as error:
            yield problem(query, "parse_error", "error", error.message.replace("parse error: ", ""))
            continue
        if missed is not None:
            yield dead(query, missed.severity, missed.text, [mention])


def changed_meanings(query: Query, scope: Scope) -> Iterator[Problem]:
    """One problem a family."""
    target, seen = scope.target, set()
    for name in _by_name(query):
        there = name not in scope.recordings and target.belongs(name) and target.exposed(name) is not None
        promise = target.promised(name) if there else None
        if promise is None or promise.family.name in seen:
            continue
        family = promise.family
        seen.add(family.name)
        said = [*family.changes, *((since, f"is a {kind}") for since, kind in family.types[1:])]
        changes = [f"since {since} it {says}" for since, says in said if _reached(since, promise.version)]
        if changes:
            yield problem(query, "changed_meaning", "info", f"{family.name} changed: {'; '.join(changes)}")


def _reached(since: str, version: str) -> bool:
    """Whether a version is at least this release; true also for a version that cannot be read."""
    now, then = parse_release(version), parse_release(since)
    return now is None or then is None or then <= now


def _by_name(query: Query) -> dict[str, list[Mention]]:
    """The names that an expression reads, each with its places; what a variable stands for included."""
    found: dict[str, list[Mention]] = {}
    for mention in query.mentions:
        if not mention.pattern and series_name(mention.name, query) == mention.name:
            found.setdefault(mention.name, []).append(mention)
    return found


def _beside(query: Query, name: str, target: Target) -> list[str]:
    """Live names of the same signal that answer in this one's place: on the other side of an ``or``, or of a regex."""
    numbers = {mention.choice for mention in query.mentions if mention.name == name} - {-1}
    found = [m.name for m in query.mentions if m.choice in numbers and m.name != name]
    for node, _ in walk(query.node) if query.node is not None else ():
        if isinstance(node, Binary) and node.op == "or":
            left, right = (_answering(side, query) for side in (node.left, node.right))
            found += sorted(right - left if name in left else left - right if name in right else ())
    return [
        other
        for other in found
        if target.exposed(other) and (target.succeeds(other, name) or target.succeeds(name, other))
    ]


def _answering(node: Node, query: Query) -> set[str]:
    """The names whose values a part of the tree may give; what only decides whether it does is left out."""
    found: set[str] = set()
    for inner, above in walk(node):
        path = (*above, inner)
        decides = any(isinstance(a, Binary) and a.op in ("and", "unless") and b is a.right for a, b in pairwise(path))
        if isinstance(inner, Selector) and not decides:
            found.update(names(inner, query))
    return found


def _is_canonical(name: str) -> bool:
    return any(name.removesuffix(part) in BY_PROMETHEUS for part in HISTOGRAM)
