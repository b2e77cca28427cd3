"""Words of a text and where the file writes them, for every way that YAML and JSON have of writing a text."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loms.lint.document import json_document, yaml_documents
from loms.lint.place import Source

WORD = "vllm:gpu_cache_usage_perc"
WRITINGS = {
    "plain": "expr: @W > 1",
    "plain over lines": "expr: sum(\n    @W\n  ) > 1  # W",
    "single": "expr: 'a{b=\"it''s\"} + @W'",
    "double": 'expr: "a{b=\\"c\\"}\\n+\\t@W \\u003E 1"',
    "double over lines": 'expr: "a +\n   @W\\\n   > 1"',
    "literal": "expr: |  # W in the header\n  a\n\n    + @W\n",
    "literal, indented by number": "expr: |2-\n    a +\n    @W\n",
    "folded": "expr: >-\n  a\n  +\n\n  @W\n  > 1\nother: 1",
    "anchored": "expr: &W !!str @W > 1",
    "anchored block": "expr: &x |\n  @W\n",
    "with CRLF": "a: 1\r\nexpr: |\r\n  a +\r\n  @W\r\n",
    "after a byte order mark and letters of four bytes": "\ufeff# 😀\nexpr: @W > 1",
}
"""``@`` stands before the place that is looked for; an anchor's name cannot have a colon."""


@pytest.mark.parametrize("marked", WRITINGS.values(), ids=WRITINGS.keys())
def test_a_word_is_found_where_yaml_writes_it(marked: str) -> None:
    marked = marked.replace("&W", "&vllm_gpu_cache_usage_perc").replace("W", WORD)
    text = marked.replace("@", "")
    (document,) = yaml_documents(Source.of("f.yaml", text))
    excerpt = document.text("expr").excerpt
    assert excerpt.offset(excerpt.text.index(WORD)) == marked.index("@")
    assert text[marked.index("@") :].startswith(WORD)


def test_a_word_is_found_where_json_writes_it() -> None:
    text = '\ufeff{"a\\"": ["x", 1, {"expr": "sum(\\n' + WORD + '\\u003e1)"}], "expr": "' + WORD + '"}'
    root = json_document(Source.of("f.json", text))
    (_, _, inner) = root.each('a"')
    excerpt = inner.text("expr").excerpt
    assert excerpt.text == f"sum(\n{WORD}>1)"
    assert excerpt.offset(excerpt.text.index(WORD)) == text.index(WORD)
    second = root.text("expr").excerpt
    assert second.offset(0) == text.rindex(WORD)


def test_a_file_in_a_file() -> None:
    text = f'data:\n  d.json: |\n    {{\n      "expr": "a\\n+ {WORD}"\n    }}\n'
    (root,) = yaml_documents(Source.of("f.yaml", text))
    holder = root.get("data", "d.json")
    assert holder is not None
    excerpt = json_document(holder.source, holder.excerpt).text("expr").excerpt
    assert excerpt.offset(excerpt.text.index(WORD)) == text.index(WORD)
    assert excerpt.line == 4


def test_no_place_is_certain_where_an_escape_makes_a_letter() -> None:
    (root,) = yaml_documents(Source.of("f.yaml", 'expr: "\\x76llm:up > 1"'))
    excerpt = root.text("expr").excerpt
    assert excerpt.text == "vllm:up > 1"
    assert excerpt.offset(0) is None


def test_a_place_between_words_is_on_its_line_if_that_has_a_word() -> None:
    (root,) = yaml_documents(Source.of("f.yaml", "expr: |\n  a\n  (\n  b\n"))
    excerpt = root.text("expr").excerpt
    assert (excerpt.text, excerpt.offset(1), excerpt.offset(2)) == ("a\n(\nb\n", 11, 18)


@settings(deadline=None)
@given(
    st.lists(
        st.sampled_from(["vllm:a", "b_2", " ", "\n", '"', "'", "\\", "{", "}", "é", "\t", "> 1", "#", ":"]), min_size=1
    ),
    st.sampled_from(["json", "double", "single", "block"]),
)
def test_every_word_of_any_text(parts: list[str], style: str) -> None:
    """Texts are written by hand-made rules of each style, so that neither library's dumper is trusted."""
    text = "".join(parts)
    if style in ("json", "double"):
        written = '"' + "".join(_escaped(sign) for sign in text) + '"'
    elif style == "single":
        text = text.replace("\n", " ").replace("\t", " ")
        written = "'" + text.replace("'", "''") + "'"
    else:
        text = text.replace("\t", " ").lstrip(" ").lstrip("\n") + "\n"
        written = "|2+\n" + "".join(f"    {line}\n" for line in text.split("\n")[:-1])
        if not text.strip():
            return
    file = f'{{"expr": {written}}}' if style == "json" else f"a:\n  expr: {written}\n"
    root = json_document(Source.of("f", file)) if style == "json" else yaml_documents(Source.of("f", file))[0].get("a")
    assert root is not None
    excerpt = root.text("expr").excerpt
    assert excerpt.text.rstrip("\n") == text.rstrip("\n")
    for at, sign in enumerate(excerpt.text):
        if sign.isascii() and (sign.isalnum() or sign in "_:"):
            offset = excerpt.offset(at)
            assert offset is not None
            assert file[offset] == sign


def _escaped(sign: str) -> str:
    return {"\n": "\\n", "\t": "\\t", '"': '\\"', "\\": "\\\\", ">": "\\u003e"}.get(sign, sign)
