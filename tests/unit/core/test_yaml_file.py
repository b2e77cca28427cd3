from __future__ import annotations

from pathlib import Path

import pytest

from loms.core.errors import ConfigError
from loms.core.yaml_file import files_of, parse, read_mapping

TEXT = """\
# comment
a: &base
  word: yes
  number: 1.10
list:
- x
- <<: *base
  number: 2
nothing:
"""


def test_what_stands_where() -> None:
    top = dict(parse(TEXT, "f.yaml").pairs())
    assert {name: (node.line, node.shape) for name, node in top.items()} == {
        "a": (2, "mapping"),
        "list": (5, "list"),
        "nothing": (9, "null"),
    }
    assert {name: node.text() for name, node in top["a"].pairs()} == {"word": "yes", "number": "1.10"}
    assert top["a"].data() == {"word": True, "number": 1.1}
    first, second = top["list"].items()
    assert (first.text(), first.line, second.line, second.key) == ("x", 6, 7, ("list", 1))
    assert {name: (node.text(), node.line) for name, node in second.pairs()} == {"word": ("yes", 3), "number": ("2", 8)}
    assert (list(top["nothing"].pairs()), list(top["nothing"].items())) == ([], [])
    assert parse("# nothing\n", "f.yaml").shape == "null"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: {b: 1, b: 2}", "f.yaml:1: key 'b' stands there twice"),
        ("a:\n  [1]: 2", "f.yaml:2: a key must be a plain word"),
        ("a: 1\nb: {<<: 3}", "f.yaml:2: not valid YAML: expected a mapping"),
        ("a: \x01", "f.yaml: not valid YAML: unacceptable character"),
        ("a: 1\n---\nb: 2", "f.yaml:2: not valid YAML: but found another document"),
        ("[" * 5000, "f.yaml: nested too deeply"),
        ("a: 2024-13-45", "f.yaml:1: cannot be read: month must be in 1..12"),
        ("a: 1\nb: !!python/tuple [1]", "f.yaml:2: not valid YAML: could not determine a constructor"),
    ],
)
def test_what_is_not_yaml_is_one_sentence(text: str, message: str) -> None:
    with pytest.raises(ConfigError) as raised:
        parse(text, "f.yaml").data()
    assert raised.value.message.startswith(message)
    assert "\n" not in raised.value.message


def test_a_node_says_what_it_is_not() -> None:
    top = parse(TEXT, "f.yaml").keys(("a", "list", "nothing"))
    for read, message in [
        (top["a"].text, "f.yaml:2: a: must be a text, not a mapping"),
        (top["nothing"].text, "f.yaml:9: nothing: must be a text, not a null"),
        (lambda: list(top["list"].pairs()), "f.yaml:5: list: must be a mapping, not a list"),
        (lambda: list(top["a"].items()), "f.yaml:2: a: must be a list, not a mapping"),
        (lambda: top["a"].keys(("words", "number")), "f.yaml:3: a: unknown key 'word'; did you mean 'words'?"),
        (lambda: top["a"].keys(("word", "number"), ("x",)), "f.yaml:2: a: key 'x' is required"),
        (lambda: next(top["list"].items()).convert(int), "f.yaml:6: list[0]: invalid literal for int()"),
    ]:
        with pytest.raises(ConfigError) as raised:
            read()
        assert raised.value.message.startswith(message)


def test_lines_of_a_whole_file(tmp_path: Path) -> None:
    path = tmp_path / "f.yaml"
    path.write_text("a:\n  b: [x, {c: 1}]\n", encoding="utf-8")
    data, lines = read_mapping(path)
    assert data == {"a": {"b": ["x", {"c": 1}]}}
    assert lines == {
        ("a",): 1,
        ("a", "b"): 2,
        ("a", "b", 0): 2,
        ("a", "b", 1): 2,
        ("a", "b", 1, "c"): 2,
    }


def test_files_of_globs(tmp_path: Path) -> None:
    for name in ("b.yaml", "a.yaml", "c.txt"):
        (tmp_path / name).touch()
    assert [path.name for path in files_of([f"{tmp_path}/*.yaml", f"{tmp_path}/c.txt"], "x")] == [
        "a.yaml",
        "b.yaml",
        "c.txt",
    ]
    assert list(files_of([f"{tmp_path}/*.json"], "x")) == []
    with pytest.raises(ConfigError, match=r"rules\.files: .*gone does not exist"):
        list(files_of([f"{tmp_path}/gone"], "rules.files"))
