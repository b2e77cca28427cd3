"""Matchers mean the same in SQL as in memory, and no text gets out of its quotes."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from promql.embedded import Embedded

from loms.core.clock import ManualClock
from loms.core.errors import QueryError
from loms.core.model import Series, labels_of
from loms.promql.memory import MemorySource
from loms.promql.source import Budget, Limits
from loms.promql.syntax import NAME, Matcher

NAMES = count()
text = st.text(st.characters(exclude_categories=("Cs",)), max_size=6)
nasty = st.sampled_from(
    ["", "'", "\\", "\\'", "a'b", "\0", "%s", "{x:String}", "a\nb", "') OR 1=1 --", "a", "ab", "A|b"]
)
value = nasty | text
pattern = st.lists(
    st.sampled_from(["a", "b", ".", "*", "+", "|", "(", ")", "[ab]", "\\w", "'", "\\\\", "(?i)", "\n"]), max_size=6
)
matcher = st.one_of(
    st.builds(Matcher, st.sampled_from(["x", "y", "z'"]), st.sampled_from(["=", "!="]), value),
    st.builds(Matcher, st.sampled_from(["x", "y"]), st.sampled_from(["=~", "!~"]), pattern.map("".join)),
)


@pytest.fixture(scope="module")
def embedded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Embedded]:
    embedded = Embedded(tmp_path_factory.mktemp("matchers"))
    yield embedded
    embedded.close()


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    labels=st.lists(st.dictionaries(st.sampled_from(["x", "y", "z'"]), value), min_size=1, max_size=5), asked=matcher
)
def test_matchers_in_sql_equal_matchers_in_memory(
    embedded: Embedded, labels: list[dict[str, str]], asked: Matcher
) -> None:
    name, memory = f"m{next(NAMES)}", MemorySource()
    series = {Series.of(name, labels_of(pairs)) for pairs in labels}
    nothing = np.empty(0, np.int64), np.empty(0)
    embedded.write((one, *nothing) for one in series)
    for one in series:
        memory.add(labels_of({NAME: name, **dict(one.labels)}), *nothing)
    matchers = (Matcher(NAME, "=", name), asked)
    found = []
    for source in (embedded.source, memory):
        try:
            found.append(sorted(source.series(matchers, None, None, Budget(Limits(), ManualClock()))))
        except QueryError as error:
            found.append([error.message])
    assert found[0] == found[1]
