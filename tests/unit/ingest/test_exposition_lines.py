from __future__ import annotations

import pytest

from loms.core.model import Labels
from loms.ingest.exposition_lines import Comment, Limits, MalformedLineError, parse_comment, parse_head, parse_tail

LIMITS = Limits()


@pytest.mark.parametrize(
    ("line", "name", "labels"),
    [
        ("a 1", "a", ()),
        ("vllm:x_total{} 1", "vllm:x_total", ()),
        ('a{b="c"} 1', "a", (("b", "c"),)),
        ('a{z="1",b="2",} 1', "a", (("b", "2"), ("z", "1"))),
        ('a{b=""} 1', "a", ()),
        (r'a{b="x\"y\\z\nw\d"} 1', "a", (("b", 'x"y\\z\nw\\d'),)),
        ('a{b="},{# \\" 1"} 1', "a", (("b", '},{# " 1'),)),
        ('a{b="Grüße 🚀"} 1', "a", (("b", "Grüße 🚀"),)),
        ('{"my.metric"} 1', "my.metric", ()),
        ('{"my.metric", "a.b"="c", d="e"} 1', "my.metric", (("a.b", "c"), ("d", "e"))),
        (r'{"with \"quotes\""} 1', 'with "quotes"', ()),
    ],
)
def test_head(line: str, name: str, labels: Labels) -> None:
    head, end = parse_head(line, LIMITS)
    assert (head.name, head.labels) == (name, labels)
    assert line[end:] == " 1"


@pytest.mark.parametrize(
    "line",
    [
        *("1a 1", "{} 1", '{a="1"} 1', '{"a","b"} 1', 'a{"b"} 1', "a{b} 1", 'a{b="1"c="2"} 1', "a{,} 1", "a{b=1} 1"),
        *('a{b="1",,} 1', 'a{1b="1"} 1', 'a{b="1"', '{""} 1', "ä 1"),
    ],
)
def test_broken_heads(line: str) -> None:
    with pytest.raises(MalformedLineError):
        parse_head(line, LIMITS)


def test_a_timestamp_that_is_no_integer_belongs_to_openmetrics() -> None:
    assert parse_tail("a 1 2.5", 1, True, LIMITS).timestamp_ms == 2500
    with pytest.raises(MalformedLineError):
        parse_tail("a 1 2.5", 1, False, LIMITS)


@pytest.mark.parametrize(
    ("line", "comment"),
    [
        ("# TYPE a counter", Comment("TYPE", "a", "counter")),
        ("#\tTYPE  a\tcounter ", Comment("TYPE", "a", "counter")),
        ('# TYPE "a.b" gauge', Comment("TYPE", "a.b", "gauge")),
        ("# HELP a", Comment("HELP", "a", "")),
        (r"# HELP a b\\c\nd \"e", Comment("HELP", "a", 'b\\c\nd \\"e')),
        ("# UNIT a seconds", Comment("UNIT", "a", "seconds")),
        ("# anything else", None),
        ("#TYPE a nonsense", None),
        ("", None),
    ],
)
def test_comments(line: str, comment: Comment | None) -> None:
    assert parse_comment(line, openmetrics=False) == comment
