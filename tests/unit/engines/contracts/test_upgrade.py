from __future__ import annotations

import pytest

from loms.engines.contracts.contract import Exposed, Observed, contract_of
from loms.engines.contracts.upgrade import Record, decode, encode, follow, gone

T0, DAY = 1_790_000_000_000, 86_400_000
GAUGE, COUNTER = Exposed("gauge", frozenset({"model_name"})), Exposed("counter")
HISTOGRAM = Exposed("histogram", frozenset({"model_name"}), (0.1, 1.0, float("inf")))


def seen(version: str, *names: str, engine: str = "vllm") -> Observed:
    return Observed(engine, version, dict.fromkeys(names, GAUGE))


def known(version: str) -> tuple[str, str]:
    return version, version


def test_what_comes_under_one_version_adds_up() -> None:
    first = follow(None, seen("0.9.0", "vllm:a"), known("0.9.0"), T0, DAY)
    second = follow(first, seen("0.9.0", "vllm:b"), known("0.9.0"), T0 + 1000, DAY)
    assert set(second.now.families) == {"vllm:a", "vllm:b"}
    assert (second.since_ms, second.before) == (T0, None)
    assert follow(second, seen("0.9.0", "vllm:a"), known("0.9.0"), T0 + 2000, DAY) is second, (
        "no news is the same object"
    )


def test_another_version_keeps_what_was_there_before() -> None:
    record = follow(None, seen("0.9.0", "vllm:a", "vllm:b"), known("0.9.0"), T0, DAY)
    record = follow(record, seen("0.12.0", "vllm:b"), known("0.12.0"), T0 + 5000, DAY)
    assert record.before is not None
    assert set(record.before.families) == {"vllm:a", "vllm:b"}
    assert (record.before.version, record.now.version, record.since_ms) == ("0.9.0", "0.12.0", T0 + 5000)


def test_two_upgrades_in_a_row_lose_nothing() -> None:
    record = follow(None, seen("0.9.0", "vllm:a"), known("0.9.0"), T0, DAY)
    record = follow(record, seen("0.10.0", "vllm:b"), known("0.10.0"), T0 + 1000, DAY)
    record = follow(record, seen("0.12.0", "vllm:c"), known("0.12.0"), T0 + 2000, DAY)
    assert record.before is not None
    assert set(record.before.families) == {"vllm:a", "vllm:b"}
    late = follow(record, seen("0.13.0", "vllm:c"), known("0.13.0"), T0 + 2000 + 2 * DAY, DAY)
    assert late.before is not None
    assert set(late.before.families) == {"vllm:c"}, "an upgrade of long ago is forgotten"


def test_the_memory_of_an_upgrade_ends() -> None:
    record = follow(None, seen("0.9.0", "vllm:a"), known("0.9.0"), T0, DAY)
    record = follow(record, seen("0.12.0", "vllm:b"), known("0.12.0"), T0, DAY)
    same = seen("0.12.0", "vllm:b")
    assert follow(record, same, known("0.12.0"), T0 + DAY, DAY).before is not None
    assert follow(record, same, known("0.12.0"), T0 + DAY + 1, DAY).before is None


@pytest.mark.parametrize(
    ("before", "now", "upgraded"),
    [
        (("0.9.2", "0.10.0"), ("0.10.0", "0.11.0"), False),  # both may be 0.10.0
        (("0.9.2", "0.10.0"), ("0.11.0", "0.11.2"), True),
        (("0.11.0", "0.11.2"), ("0.9.0", "0.9.0"), True),  # a rollback is one, too
        (("", ""), ("0.9.0", "0.9.0"), False),  # nothing was known
        (("0.9.0", "0.9.0"), ("", ""), False),
        (("local", "local"), ("other", "other"), True),  # versions that say nothing of their age
        (("local", "local"), ("local", "local"), False),
    ],
)
def test_what_counts_as_another_version(before: tuple[str, str], now: tuple[str, str], upgraded: bool) -> None:
    record = follow(None, seen(before[0], "vllm:a"), before, T0, DAY)
    record = follow(record, seen(now[0], "vllm:b"), now, T0 + 1000, DAY)
    assert (record.before is not None) == upgraded


def test_another_engine_at_the_same_address_begins_anew() -> None:
    record = follow(None, seen("0.9.0", "vllm:a"), known("0.9.0"), T0, DAY)
    record = follow(record, seen("0.5.23", "sglang:a", engine="sglang"), known("0.5.23"), T0 + 1000, DAY)
    assert record.before is None
    assert record.now.engine == "sglang"


def test_what_is_gone_is_held_against_the_versions_before_only() -> None:
    """From vLLM's history: the gauge was renamed in 0.9.2 and its old name is gone in 0.12."""
    contract, names = contract_of("vllm"), ("vllm:gpu_cache_usage_perc", "vllm:num_requests_running")
    record = follow(None, seen("0.9.0", *names), known("0.9.0"), T0, DAY)
    idle = seen("0.9.0", "vllm:num_requests_running")
    assert gone(follow(record, idle, known("0.9.0"), T0 + 1000, DAY), idle, contract) == []
    new = seen("0.12.0", "vllm:kv_cache_usage_perc", "vllm:num_requests_running")
    (change,) = gone(follow(record, new, known("0.12.0"), T0 + 1000, DAY), new, contract)
    assert (change.kind, change.family, change.successor) == ("renamed", names[0], "vllm:kv_cache_usage_perc")
    assert change.certain


def test_a_record_as_text_and_back() -> None:
    now = Observed("vllm", "0.12.0", {"vllm:a": HISTOGRAM, "vllm:b_total": COUNTER})
    for record in (Record(("0.12.0", "0.13.0"), now, T0), Record(known("0.12.0"), now, T0, seen("0.9.0", "vllm:c"))):
        assert decode(encode(record)) == record


def test_the_version_before_last_is_known_again() -> None:
    record = follow(None, seen("0.9.0", "vllm:a"), known("0.9.0"), T0, DAY)
    record = follow(record, seen("0.12.0", "vllm:b"), known("0.12.0"), T0 + 1000, DAY)
    assert (record.releases_before, record.rolled_back) == (known("0.9.0"), False)
    back = follow(record, seen("0.9.0", "vllm:a"), known("0.9.0"), T0 + 2000, DAY)
    assert (back.releases_before, back.rolled_back) == (known("0.12.0"), True)
    assert decode(encode(back)) == back
    other = follow(record, seen("0.13.0", "vllm:a"), known("0.13.0"), T0 + 2000, DAY)
    assert not other.rolled_back


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", "null", '{"engine": "vllm"}', '{"engine":1,"before":2,"releases":[]}']
)
def test_a_text_of_another_kind_is_no_record(text: str) -> None:
    assert decode(text) is None
