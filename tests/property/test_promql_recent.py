"""The sliding store of a replay answers as the plain one does, whatever was appended and let go of."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from loms.core.clock import SystemClock
from loms.promql.memory import MemorySource
from loms.promql.parse import parse_selector
from loms.promql.recent import RecentSource
from loms.promql.source import Budget, Limits

LABELS = [(("__name__", name), ("job", job)) for name in ("a", "ab", "c") for job in ("x", "y")]
SELECTORS = ['{__name__=~"a.*"}', "a", 'c{job!="x"}', '{job=~"x|z"}', '{__name__!~"a", job="y"}', '{job="none"}']
Appended = st.lists(
    st.tuples(
        st.sampled_from(LABELS),
        st.lists(st.integers(0, 500), min_size=1, max_size=80, unique=True).map(sorted),
    ),
    max_size=12,
)


@settings(deadline=None)
@given(Appended, st.integers(0, 600), st.integers(-1, 600), st.integers(0, 600), st.booleans())
def test_it_answers_as_the_plain_source_does(
    appended: list[tuple[tuple[tuple[str, str], ...], list[int]]], forget: int, start: int, length: int, asked: bool
) -> None:
    recent, plain, newest = RecentSource(), MemorySource(), dict[object, int]()
    budget = Budget(Limits(), SystemClock())
    for labels, times in appended:
        at = np.array(times, dtype=np.int64)
        recent.append(labels, at, at * 1.5)
        later = at[at > newest.get(labels, -1)]
        newest[labels] = max(newest.get(labels, -1), times[-1])
        kept = later[later >= forget]
        if len(kept):
            plain.add(labels, kept, kept * 1.5)
        if asked:  # what is remembered of a selector must not outlive a new series
            recent.series(parse_selector(SELECTORS[0]), None, None, budget)
    recent.forget(forget)
    for text in SELECTORS:
        matchers = parse_selector(text)
        assert list(recent.series(matchers, None, None, budget)) == list(plain.series(matchers, None, None, budget))
        span = (start, start + length)
        assert list(recent.series(matchers, *span, budget)) == list(plain.series(matchers, *span, budget))
        ours, theirs = recent.samples(matchers, *span, budget), plain.samples(matchers, *span, budget)
        assert ours.labels == theirs.labels
        for one, other in ((ours.offsets, theirs.offsets), (ours.times_ms, theirs.times_ms)):
            assert one.tolist() == other.tolist()
        assert ours.values.tolist() == theirs.values.tolist()
