"""Rules over history: which samples they can need, and their evaluation in virtual time. Nothing here waits."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from functools import cache

from loms.core.clock import ManualClock
from loms.core.model import Alert
from loms.detect.detector import detectors
from loms.promql import regexes
from loms.promql.parse import parse
from loms.promql.syntax import NAME, Call, Matchers, Node, Range, Selector, Subquery
from loms.rules.evaluate import Evaluator
from loms.rules.rule import Group, Rule

LOOKBACK_MS = 300_000
_RATES = frozenset({"rate", "irate", "increase", "delta", "idelta", "deriv"})
"""Functions that need two samples in their window."""


@dataclass(frozen=True, slots=True)
class Evaluation:
    """One evaluation of the groups that were due."""

    at_ms: int
    alerts: tuple[Alert, ...]
    """Pending and firing ones, and those that it resolved."""
    errors: tuple[str, ...]
    """What rules could not say."""


@dataclass(frozen=True, slots=True)
class Expression:
    """One expression that a rule asks for, itself or through its detector."""

    rule: str
    text: str
    window_ms: int
    """The span that it is asked for over; 0 for one moment."""


@dataclass(frozen=True, slots=True)
class Reach:
    """What a set of rules can look at."""

    expressions: tuple[Expression, ...]
    window_ms: int
    """How far back from the moment of an evaluation."""
    wants: Callable[[str], bool]
    """Whether a metric of this name can be among it."""


def reach(groups: Sequence[Group]) -> Reach:
    """The furthest look back, and the names that any selector matches."""
    expressions = tuple(found for group in groups for rule in group.rules for found in expressions_of(rule))
    trees = [(each, parse(each.text)) for each in expressions]
    selectors = [node.matchers for _, tree in trees for node in _nodes(tree) if isinstance(node, Selector)]
    windows = [each.window_ms + _behind(tree) for each, tree in trees]

    @cache
    def wants(name: str) -> bool:
        return any(_names(matchers, name) for matchers in selectors)

    return Reach(expressions, LOOKBACK_MS + max(windows, default=0), wants)


def expressions_of(rule: Rule) -> Iterator[Expression]:
    """The rule's own expression, or its detector's inputs."""
    if rule.expr:
        yield Expression(rule.name, rule.expr, 0)
    if rule.detector:
        detector = detectors.load()[rule.detector]()
        for wanted in detector.inputs(rule.config or detector.Config()).values():
            yield Expression(rule.name, wanted.expr, round(wanted.window_seconds * 1000))


def too_coarse(expressions: Sequence[Expression], interval_ms: int) -> dict[str, int]:
    """Rule → window in ms that scrapes so far apart do not fill: of a rate, where two samples must lie in it, or of a
    detector's input, where three must."""
    found: dict[str, int] = {}
    for each in expressions:
        if 0 < each.window_ms < 3 * interval_ms:
            found[each.rule] = each.window_ms
        for node in _nodes(parse(each.text)):
            if isinstance(node, Call) and node.function in _RATES and node.args and isinstance(node.args[-1], Range):
                window_ms = node.args[-1].range_ms
                if window_ms < 2 * interval_ms:
                    found[each.rule] = min(window_ms, found.get(each.rule, window_ms))
    return found


def paced(groups: Sequence[Group], least_ms: int) -> tuple[Group, ...]:
    """The groups, none of them evaluated more often than every ``least_ms``."""
    return tuple(replace(group, interval_ms=max(group.interval_ms, least_ms)) for group in groups)


def evaluations(evaluator: Evaluator, clock: ManualClock, until_ms: int) -> Iterator[Evaluation]:
    """Every evaluation that is due from the clock's time up to ``until_ms``; the clock goes on with them."""
    while True:
        at_ms = max(clock.now_ms(), evaluator.next_due_ms() or 0)
        if at_ms > until_ms or not evaluator.groups:
            return
        clock.advance((at_ms - clock.now_ms()) / 1000)
        results = evaluator.evaluate(at_ms)
        resolved = [alert for result in results for alert in result.alerts if alert.state == "resolved"]
        errors = (f"{result.rule.name}: {result.error}" for result in results if result.error)
        yield Evaluation(at_ms, (*evaluator.alerts(), *resolved), tuple(errors))
        clock.advance(0.001)


def _nodes(node: Node) -> Iterator[Node]:
    """The node and all that it is made of."""
    yield node
    for part in _parts(node):
        yield from _nodes(part)


def _parts(node: Node) -> Iterator[Node]:
    for field in fields(node):
        value = getattr(node, field.name)
        yield from (part for part in (value if isinstance(value, tuple) else (value,)) if isinstance(part, Node))


def _behind(node: Node) -> int:
    """How far back a node looks, in ms."""
    own = node.range_ms if isinstance(node, Range | Subquery) else 0
    if isinstance(node, Selector | Subquery):
        own += max(0, node.offset_ms)
    return own + max(map(_behind, _parts(node)), default=0)


def _names(matchers: Matchers, name: str) -> bool:
    """Whether series of this name can match."""
    for matcher in matchers:
        if matcher.name == NAME:
            fits = (
                name == matcher.value if matcher.op in ("=", "!=") else bool(regexes.matches(matcher.value, [name])[0])
            )
            if fits is matcher.op.startswith("!"):
                return False
    return True
