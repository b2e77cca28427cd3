from __future__ import annotations

import pytest

from loms.core.errors import ExpositionError
from loms.core.model import Metadata
from loms.ingest.dump import read_dump


def read(text: str) -> dict[str, list[tuple[int, float]]]:
    found = read_dump(text.splitlines(keepends=True), "x.om").series
    return {
        f"{dict(labels)['__name__']} {dict(labels).get('a', '')}".strip(): list(
            zip(times.tolist(), values.tolist(), strict=True)
        )
        for labels, (times, values) in found.items()
    }


def test_samples_of_a_series_come_together_by_time() -> None:
    text = '# TYPE x gauge\nx{a="}"} 2 20.5\nx{a="}"} 1 10\ny 3 1\nx{a="}"} 9 10\n# EOF\n'
    assert read(text) == {"x }": [(10_000, 1.0), (20_500, 2.0)], "y": [(1000, 3.0)]}


def test_types_and_exemplars() -> None:
    text = '# TYPE x counter\n# HELP x words\nx_total{a="1"} 2 20 # {trace_id="abc"} 1\n\n# EOF\n'
    assert read(text) == {"x_total 1": [(20_000, 2.0)]}
    assert read_dump(text.splitlines(), "x.om").metadata == {"x": Metadata("x", "counter")}


@pytest.mark.parametrize(
    ("line", "error"),
    [
        ("x 1", "x.om: line 1: the sample has no timestamp: 'x 1'"),
        ("x{a=1} 1 1", "x.om: line 1: "),
        ("x abc 1", "x.om: line 1: "),
        ("}", "x.om: line 1: "),
    ],
)
def test_a_wrong_line_is_named(line: str, error: str) -> None:
    with pytest.raises(ExpositionError) as caught:
        read(line + "\n")
    assert caught.value.message.startswith(error)
