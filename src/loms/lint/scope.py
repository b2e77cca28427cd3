"""What every check sees: the target, and the recording rules that stand in the same files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from loms.lint.query import Query, names, walk
from loms.lint.target import Series, Target
from loms.promql.syntax import NAME, Node, Selector


@dataclass(frozen=True, slots=True)
class Scope:
    target: Target
    recordings: Mapping[str, Sequence[Query]] = field(default_factory=dict)
    """Name of a recording rule, or of a metric that an adapter serves → what it is computed from, rule by rule."""

    def series(self, selector: Selector, query: Query) -> tuple[Series, ...]:
        """The target's series that a selector means; none for recording rules and other jobs' metrics."""
        found = (self.target.meant(name) for name in names(selector, query) if name not in self.recordings)
        return tuple(series for series in found if series is not None)

    def recorded(self, selector: Selector, query: Query) -> Query | None:
        """The rule that makes the series of a selector, if it is one alone."""
        found = [rule for name in names(selector, query) for rule in self.recordings.get(name, ())]
        return found[0] if len(found) == 1 and found[0].node is not None else None


def selectors(query: Query) -> Iterator[tuple[Selector, tuple[Node, ...]]]:
    """Each selector of a query with the nodes around it, outermost first."""
    if query.node is not None:
        yield from ((node, above) for node, above in walk(query.node) if isinstance(node, Selector))


def metric(selector: Selector) -> str:
    """The selector's metric as it is written."""
    return next((matcher.value for matcher in selector.matchers if matcher.name == NAME), "")
