from __future__ import annotations

import pytest

from loms.core.families import family_of, suffixes

TYPES = {
    "h": "histogram",
    "s": "summary",
    "g": "gauge",
    "c": "counter",
    "c_total": "counter",
    "gh": "gaugehistogram",
    "h_count": "gauge",
    "h_created": "gauge",
}


@pytest.mark.parametrize(
    ("name", "family", "part"),
    [
        ("h_bucket", "h", "_bucket"),
        ("h_sum", "h", "_sum"),
        ("h_count", "h_count", ""),  # has a TYPE line of its own
        ("h_created", "h", "_created"),  # this one always has
        ("s_count", "s", "_count"),
        ("s_bucket", "s_bucket", ""),
        ("g_sum", "g_sum", ""),
        ("g_created", "g_created", ""),
        ("gh_gsum", "gh", "_gsum"),
        ("gh_bucket", "gh", "_bucket"),
        ("c_total", "c_total", ""),
        ("c_created", "c_total", "_created"),
        ("up", "up", ""),
    ],
)
def test_the_family_of_a_series(name: str, family: str, part: str) -> None:
    assert family_of(name, TYPES) == (family, part)


def test_a_part_of_a_histogram_comes_from_a_plain_family() -> None:
    duration = "llm.engine.request.queue.duration"
    assert suffixes(duration) == (("_bucket", "_bucket"), ("_sum", "_sum"), ("_count", "_count"))
    assert suffixes(duration, "_sum") == (("", "_sum"),)
    assert suffixes("llm.engine.requests.running") == (("", ""),)
