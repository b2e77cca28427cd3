from __future__ import annotations

import numpy as np
import pytest

from loms.collect.series import Layout, merge_labels
from loms.core.model import Labels, Shape

TARGET: Labels = (("instance", "h:1"), ("job", "vllm"))


@pytest.mark.parametrize(
    ("own", "merged"),
    [
        ({}, {"job": "vllm", "instance": "h:1"}),
        ({"le": "1"}, {"job": "vllm", "instance": "h:1", "le": "1"}),
        ({"job": "x"}, {"job": "vllm", "instance": "h:1", "exported_job": "x"}),
        (
            {"job": "x", "exported_job": "y"},
            {"job": "vllm", "instance": "h:1", "exported_job": "y", "exported_exported_job": "x"},
        ),
    ],
)
def test_the_targets_labels_win_as_in_prometheus(own: dict[str, str], merged: dict[str, str]) -> None:
    assert merge_labels(tuple(sorted(own.items())), TARGET, honor_labels=False) == tuple(sorted(merged.items()))


def test_honoured_labels_win_over_the_targets() -> None:
    assert merge_labels((("job", "x"), ("le", "1")), TARGET, honor_labels=True) == (
        ("instance", "h:1"),
        ("job", "x"),
        ("le", "1"),
    )


def test_of_two_samples_that_became_one_series_the_first_is_kept() -> None:
    shape = Shape(("a", "b", "a"), ((), (), (("job", "vllm"),)), {})
    layout = Layout.of(shape, np.array([30, 10, 30], np.uint64), None, np.array([1], np.uint64))
    assert layout.keep is not None
    assert layout.keep.tolist() == [0, 1]
    assert layout.ids.tolist() == [30, 10, 1]
    assert layout.lasting.tolist() == [30, 10]
