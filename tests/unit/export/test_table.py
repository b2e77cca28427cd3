"""Which labels a table's series get, and which they lose."""

from __future__ import annotations

from loms.engines.engine import Engine, Row, engines
from loms.export.table import Table, agreeable, rivals, tables_of


def table(**rename: str) -> Table:
    return Table("acme", "acme", Engine, rename, frozenset(), shared=False)


def test_a_label_is_copied_and_then_taken_off() -> None:
    steps, gone = table(shard="engine_index").renames(Row("llm.engine.requests.running", ("acme_running",)))
    assert [str(step) for step in steps] == ['"engine_index", "$1", "shard", "(.+)"']
    assert gone == {"shard"}


def test_a_label_whose_place_another_wants_moves_first() -> None:
    """``model`` is what the device is called, ``llm`` is the model: neither may overwrite the other."""
    steps, gone = table(model="device_model", llm="model").renames(Row("hw.power", ("acme_watts",)))
    assert [str(step) for step in steps] == [
        '"device_model", "$1", "model", "(.+)"',
        '"model", "", "", ""',
        '"model", "$1", "llm", "(.+)"',
    ]
    assert gone == {"llm"}


def test_labels_of_devices_are_not_looked_for_at_requests() -> None:
    named = table(gpu_uuid="device_id")
    assert named.renames(Row("llm.engine.requests.running", ("acme_running",))) == ([], set())
    assert named.renames(Row("hw.power", ("acme_watts",)))[1] == {"gpu_uuid"}


def test_who_passes_families_on_keeps_them_from_their_owner() -> None:
    known = engines.load()
    assert set(rivals("vllm", known["vllm"])) >= {"dynamo", "triton"}
    assert rivals("dynamo", known["dynamo"]) == []
    owners = [each.owner for each in tables_of("dynamo", known["dynamo"])]
    assert owners[-1] == "dynamo"
    assert owners[0] == "vllm"


def test_what_a_target_can_agree_on_follows_from_its_families() -> None:
    known = engines.load()
    assert agreeable(tables_of("vllm", known["vllm"])) == ["engine_index", "model"]
    assert agreeable(tables_of("llama.cpp", known["llama.cpp"])) == []
    assert "engine_type" in agreeable(tables_of("sglang", known["sglang"]))
