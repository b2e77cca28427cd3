from __future__ import annotations

from collections.abc import Callable

import pytest
from unit.lint.world import TARGET, written

from loms.lint.check import problems_in
from loms.lint.expression import Dialect, Expression, Purpose
from loms.lint.problem import Problem

Find = Callable[..., list[Problem]]


@pytest.fixture
def find() -> Find:
    """The problems of one expression, or of several, without the informational ones on changed meanings."""

    def problems(*texts: str | Expression, purpose: Purpose = "alert", dialect: Dialect = "promql") -> list[Problem]:
        expressions = [text if isinstance(text, Expression) else written(text, purpose, dialect) for text in texts]
        return [one for one in problems_in(expressions, TARGET) if one.kind != "changed_meaning"]

    return problems
