from __future__ import annotations

import struct

import numpy as np

from loms.core.model import STALE_NAN, Series, is_stale, labels_of, series_id


def test_the_staleness_marker_has_prometheus_bits() -> None:
    assert struct.pack(">d", STALE_NAN) == bytes.fromhex("7ff0000000000002")


def test_only_the_marker_is_stale() -> None:
    values = np.array([1.0, np.nan, STALE_NAN, np.inf])
    assert is_stale(values).tolist() == [False, False, True, False]


def test_labels_are_sorted_and_empty_values_are_no_labels() -> None:
    assert labels_of({"b": "2", "a": "1", "c": ""}) == (("a", "1"), ("b", "2"))


def test_series_of_one_metric_are_neighbours() -> None:
    ids = [series_id("vllm:num_requests_running", (("instance", str(i)),)) for i in range(50)]
    assert len(set(ids)) == 50
    assert len({i >> 48 for i in ids}) == 1
    assert series_id("up", ()) >> 48 != ids[0] >> 48


def test_ids_do_not_depend_on_the_process() -> None:
    """Stored ids must mean the same after a restart, so the hash is pinned."""
    assert Series.of("up", (("instance", "a:1"), ("job", "j"))).id == 0x58724132DD9793D1
