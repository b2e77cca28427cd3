"""Tokens → syntax tree, by recursive descent; wrong types are refused on the way, in Prometheus's words."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from loms.promql.arguments import (
    check_aggregation,
    check_binary,
    check_call,
    check_matchers,
    check_operand,
    matches_everything,
)
from loms.promql.cursor import MAX_DEPTH
from loms.promql.durations import Durations
from loms.promql.lexer import Token, unquoted, wrong
from loms.promql.signatures import AGGREGATIONS, WITH_PARAMETER
from loms.promql.syntax import (
    COMPARISONS,
    NAME,
    SET_OPERATORS,
    Aggregation,
    At,
    Binary,
    Call,
    Cardinality,
    Extension,
    Matcher,
    Matching,
    MatchOp,
    Negation,
    Node,
    Number,
    Range,
    Selector,
    Subquery,
    Text,
    children,
    value_type,
)

_BINDING: Mapping[str, int] = {
    "or": 1,
    **dict.fromkeys(("and", "unless"), 2),
    **dict.fromkeys(COMPARISONS, 3),
    **dict.fromkeys(("+", "-"), 4),
    **dict.fromkeys(("*", "/", "%", "atan2"), 5),
    "^": 6,
}
_SIGN = 5
"""A sign binds as a product does: ``-1 ^ 2`` is ``-(1 ^ 2)``."""
_RESERVED = frozenset({"atan2", "bool", "on", "ignoring", "group_left", "group_right"})
_MATCH_OPS: Mapping[str, MatchOp] = {"=": "=", "!=": "!=", "=~": "=~", "!~": "!~"}
_GROUPED: Mapping[str, Cardinality] = {"group_left": "many-to-one", "group_right": "one-to-many"}
_EXTENSIONS: Mapping[str, Extension] = {"anchored": "anchored", "smoothed": "smoothed"}


class Parser(Durations):
    """Parses one expression; ``step`` and ``span`` are the query's step and range, which durations may name."""

    def parse(self) -> Node:
        """The tree of the whole text. Raises `QueryError`."""
        if self._ended():
            self._fail("no expression found in input")
        node = self._expression(0)
        if not self._ended():
            self._unexpected("")
        self._check(node)
        return node

    def _check(self, node: Node) -> None:
        """What needs the whole tree: its depth, and that no selector selects everything (``info``'s second may)."""
        layer: list[Node] = [node]
        for _ in range(MAX_DEPTH):
            for one in layer:
                if isinstance(one, Selector) and matches_everything(one.matchers):
                    self._wrong(one, "vector selector must contain at least one non-empty matcher")
            layer = [
                child
                for one in layer
                for child in (one.args[:1] if isinstance(one, Call) and one.function == "info" else children(one))
            ]
        if layer:
            self._too_deep()

    def _expression(self, weakest: int) -> Node:
        """Operators that bind at least as ``weakest``, with their operands."""
        self._depth += 1
        if self._depth > MAX_DEPTH:
            self._too_deep()
        left, chained = self._operand(), 0
        while True:
            op = self._token.text if self._token.kind == "operator" else self._token.keyword
            binding = _BINDING.get(op, -1)
            if binding < weakest:
                if op in ("</", ">/"):
                    self._fail(f"the operator {op} is one of native histograms, which are not supported")
                break
            sign = self._advance()
            matching, returns_bool = self._matching()
            right = self._expression(binding if op == "^" else binding + 1)
            left = self._binary(op, sign, left, right, matching, returns_bool)
            chained += 1
            if chained > MAX_DEPTH:
                self._too_deep()
        self._depth -= 1
        return left

    def _binary(self, op: str, sign: Token, left: Node, right: Node, matching: Matching, returns_bool: bool) -> Binary:
        node = Binary(op, left, right, matching, returns_bool, left.place)
        problem, at_operator = check_binary(node)
        if problem:
            wrong(self._text, self._place(sign) if at_operator else node.place, problem)
        if value_type(left) != "vector" or value_type(right) != "vector":
            return replace(node, matching=Matching())
        if op in SET_OPERATORS:
            return replace(node, matching=replace(matching, cardinality="many-to-many"))
        return node

    def _operand(self) -> Node:
        signs: list[Token] = []
        while self._is("+", "-"):
            signs.append(self._advance())
        if not signs:
            return self._primary()
        node = self._expression(_SIGN + 1)
        if problem := check_operand(node):
            wrong(self._text, self._place(signs[-1]), problem)
        negations = [sign for sign in signs if sign.text == "-"]
        if isinstance(node, Number):
            return Number(-node.value if len(negations) % 2 else node.value, self._place(signs[0]))
        if negations and len(negations) % 2 == 0:  # an even number is the value again, but without its name
            node = Negation(node, self._place(negations[-1]))
        return replace(Negation(node) if negations else node, place=self._place(signs[0]))

    def _matching(self) -> tuple[Matching, bool]:
        returns_bool, on = self._take("bool"), False
        labels: tuple[str, ...] = ()
        cardinality: Cardinality = "one-to-one"
        include: tuple[str, ...] = ()
        if self._is("on", "ignoring"):
            on = self._advance().keyword == "on"
            labels = self._labels()
            if self._is("group_left", "group_right"):
                cardinality = _GROUPED[self._advance().keyword]
                include = self._labels() if self._is("(") else ()
        fills: dict[str, float] = {}
        while self._is("fill", "fill_left", "fill_right") and self._follows("("):
            keyword = self._advance().keyword
            self._expect("(", "fill modifier")
            sign = -1.0 if self._is("-") else 1.0
            self._next += self._is("-", "+")
            fills[keyword] = sign * self._number("fill modifier")
            self._expect(")", "fill modifier")
        both = fills.get("fill")
        left, right = fills.get("fill_left", both), fills.get("fill_right", both)
        return Matching(cardinality, on, labels, include, left, right), returns_bool

    def _labels(self) -> tuple[str, ...]:
        self._expect("(", "grouping opts")
        labels = []
        while not self._take(")"):
            token = self._advance()
            if token.kind not in ("word", "string") or (":" in token.text and token.kind == "word"):
                self._next -= token.kind != "end"
                self._unexpected("grouping opts", "label")
            labels.append(token.text if token.kind == "word" else self._string(token))
            if not self._is(")"):
                self._expect(",", "grouping opts")
        return tuple(labels)

    def _primary(self) -> Node:
        token, bare = self._token, True
        at = self._place(token)
        if token.kind in ("number", "duration") or token.keyword in ("inf", "nan"):
            return Number(self._number(""), at)
        if token.kind == "string":
            return Text(unquoted(self._text, self._advance()), at)
        if self._take("("):
            bare = False
            node = replace(self._expression(0), place=at)
            self._expect(")", "paren expression")
        elif self._is("{"):
            node = Selector(self._matchers(None), place=at)
        elif token.kind == "word" and token.keyword in AGGREGATIONS and self._follows("(", "by", "without"):
            node, bare = self._aggregation(), False
        elif token.kind == "word" and self._follows("("):
            node, bare = self._call(), False
        elif token.kind == "word" and token.keyword not in _RESERVED:
            self._advance()
            node = Selector(
                self._matchers(token.text) if self._is("{") else (Matcher(NAME, "=", token.text),), place=at
            )
        else:
            self._unexpected("")
        return self._modified(node, bare)

    def _aggregation(self) -> Node:
        token = self._advance()
        op, by = token.keyword, self._grouping()
        args = self._arguments("aggregation")
        by = by or self._grouping()
        wanted = 1 + (op in WITH_PARAMETER)
        if not args:
            self._fail("no arguments for aggregate expression provided", token)
        if len(args) != wanted:
            message = f"wrong number of arguments for aggregate expression provided, expected {wanted}, got {len(args)}"
            self._fail(message, token)
        without, labels = by or (False, ())
        param = args[0] if wanted == 2 else None
        node = Aggregation(op, args[-1], labels, without, param, self._place(token))
        if problem := check_aggregation(node):
            self._wrong(*problem)
        return node

    def _grouping(self) -> tuple[bool, tuple[str, ...]] | None:
        if not self._is("by", "without"):
            return None
        return self._advance().keyword == "without", self._labels()

    def _arguments(self, context: str) -> tuple[Node, ...]:
        self._expect("(", context)
        args: list[Node] = []
        while not self._take(")"):
            args.append(self._expression(0))
            if not self._is(")"):
                self._expect(",", "function call")
                if self._is(")"):
                    self._fail("trailing commas not allowed in function call args")
        return tuple(args)

    def _call(self) -> Node:
        token = self._advance()
        name = token.keyword if token.keyword in ("start", "end", "step", "range", "min_of", "max_of") else token.text
        node = check_call(name, self._arguments("function call"), self._place(token))
        if isinstance(node, tuple):
            wrong(self._text, *node)
        return node

    def _matchers(self, name: str | None) -> tuple[Matcher, ...]:
        opening = self._expect("{", "label matching")
        found: list[Matcher] = []
        while not self._take("}"):
            token = self._advance()
            if token.kind == "string" and not self._is(*_MATCH_OPS):
                found.append(Matcher(NAME, "=", self._string(token)))
            elif token.kind in ("word", "string"):
                if not self._is(*_MATCH_OPS):
                    self._unexpected("label matching", "label matching operator")
                op = _MATCH_OPS[self._advance().text]
                value = self._advance()
                if value.kind != "string":
                    self._next -= value.kind != "end"
                    self._unexpected("label matching", "string")
                label = token.text if token.kind == "word" else self._string(token)
                found.append(Matcher(label, op, self._string(value)))
            else:
                self._next -= token.kind != "end"
                self._unexpected("label matching", 'identifier or "}"')
            if not self._is("}"):
                if self._is("or"):
                    self._fail("'or' between label matchers is not PromQL; join two selectors by 'or'")
                self._expect(",", "label matching")
        problem = check_matchers(name, found)
        if problem:
            self._fail(problem, opening if name is None else self._tokens[max(self._tokens.index(opening) - 1, 0)])
        return (*([Matcher(NAME, "=", name)] if name else []), *found)

    def _modified(self, node: Node, bare: bool) -> Node:
        """The node with what may follow it: a range, ``offset``, ``@``, ``anchored``, ``smoothed``."""
        while True:
            if self._is("["):
                node, bare = self._ranged(node, bare), True
            elif self._is("offset"):
                token = self._advance()
                node = self._anchored(node, bare, token, offset_ms=self._offset())
            elif self._is("@"):
                token = self._advance()
                node = self._anchored(node, bare, token, at=self._at())
            elif self._is("anchored", "smoothed") and bare and isinstance(node, Selector | Range):
                extension = _EXTENSIONS[self._advance().keyword]
                selector = node.selector if isinstance(node, Range) else node
                if selector.extension:
                    self._wrong(node, f"{extension} modifier is set beside {selector.extension}")
                if extension == "anchored" and isinstance(node, Selector):
                    self._wrong(node, "anchored modifier can only be used with range vectors")
                extended = replace(selector, extension=extension)
                node = replace(node, selector=extended) if isinstance(node, Range) else extended
            else:
                return node

    def _ranged(self, node: Node, bare: bool) -> Node:
        self._advance()
        token = self._token
        range_ms = self._positive_ms(self._duration(0), token)
        if self._take(":"):
            token = self._token
            step_ms = None if self._is("]") else self._positive_ms(self._duration(0), token)
            self._expect("]", "subquery selector")
            if value_type(node) != "vector":
                self._wrong(node, f"subquery is only allowed on instant vector, got {value_type(node)} instead")
            return Subquery(node, range_ms, step_ms, place=node.place)
        self._expect("]", "subquery or range selector")
        if not (isinstance(node, Selector) and bare):
            self._wrong(node, "ranges only allowed for vector selectors")
        if node.offset_ms or node.at is not None:
            self._wrong(node, f"no {'offset' if node.offset_ms else '@'} modifiers allowed before range")
        return Range(node, range_ms, node.place)

    def _anchored(self, node: Node, bare: bool, token: Token, offset_ms: int = 0, at: At | None = None) -> Node:
        what = "@ modifier" if token.text == "@" else "offset modifier"
        target = node.selector if isinstance(node, Range) else node
        if not isinstance(target, Selector | Subquery) or not bare:
            kinds = "an instant vector selector or range vector selector or a subquery"
            self._wrong(node, f"{what} must be preceded by {kinds}")
        if (target.at is not None) if at is not None else target.offset_ms:
            self._wrong(node, f"{what if at is not None else 'offset'} may not be set multiple times")
        target = replace(target, at=at) if at is not None else replace(target, offset_ms=offset_ms)
        if isinstance(node, Range):
            assert isinstance(target, Selector)
            return replace(node, selector=target)
        return target
