"""Every kind of file that is held against a target can be named in the configuration and on the command line."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest

from loms.agent.users import UsersOfMetrics
from loms.cli.doctor import doctor
from loms.core.clock import ManualClock
from loms.core.settings import Config, UsedBy
from loms.lint.files import KINDS


def test_the_configuration_has_no_others() -> None:
    assert set(UsedBy.model_fields) == set(KINDS)


@pytest.mark.parametrize("kind", KINDS)
def test_a_kind_is_known_everywhere(kind: str) -> None:
    assert kind in inspect.signature(doctor).parameters
    users = UsersOfMetrics(Config.model_validate({"contracts": {"used_by": {kind: ["no-such-file"]}}}), ManualClock())
    users.read()
    assert users.problem == "no-such-file: does not exist"
    text = (Path(__file__).parents[2] / "docs" / "howto" / "upgrades.md").read_text(encoding="utf-8")
    assert f"`--{kind}`" in text
    assert f"\n    {kind}: [" in text
