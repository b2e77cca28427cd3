from __future__ import annotations

import pytest

from loms.core.errors import ConfigError
from loms.engines.contracts.contract import contract_of
from loms.engines.contracts.read import read_contract

FILE = """
title: Acme
own: ['acme:']
flag: --metrics
show_hidden: --show={{previous}}
releases: [1.0.0, 1.2.0, 1.4.0]
label_sets:
  rank: [model, rank]
bucket_sets:
  latency: [0.1, 1, 10]
conditions:
  lora: {{when: with adapters, flag: --lora, from: 1.2.0}}
families:
  acme:thing: {line}
"""


def test_a_line_with_everything() -> None:
    line = """{type: histogram, types: {1.0.0: gauge, 1.2.0: histogram}, labels: [$rank, kind], since: 1.2.0,
      until: 1.2.0, hidden: 1.2.0, needs: lora, lazy: true, successors: ['acme:other'], instead: something,
      meaning: half of it, changes: {1.2.0: counts twice}, buckets: latency}"""
    contract = read_contract("acme", FILE.format(line=line))
    assert (contract.engine, contract.title, contract.own, contract.flag) == ("acme", "Acme", ("acme:",), "--metrics")
    assert contract.releases == ("1.0.0", "1.2.0", "1.4.0")
    family = contract.families["acme:thing"]
    assert family.type == "histogram"
    assert family.types == (("1.0.0", "gauge"), ("1.2.0", "histogram"))
    assert family.labels == ("model", "rank", "kind")
    assert (family.after, family.since, family.until, family.gone) == ("1.0.0", "1.2.0", "1.2.0", "1.4.0")
    assert (family.hidden, family.flag) == ("1.2.0", "--show=1.1")
    assert (family.when, family.when_from, family.when_to, family.lazy) == ("with adapters", "1.2.0", "", True)
    assert (family.successors, family.instead, family.meaning) == (("acme:other",), "something", "half of it")
    assert family.changes == (("1.2.0", "counts twice"),)
    assert family.buckets == (0.1, 1.0, 10.0, float("inf"))


def test_a_line_with_next_to_nothing() -> None:
    family = read_contract("acme", FILE.format(line="{type: gauge}")).families["acme:thing"]
    assert (family.labels, family.since, family.after, family.until, family.gone) == ((), "", "", "", "")
    assert (family.when, family.flag, family.lazy, family.buckets) == ("", "", False, ())


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("{type: gauge, since: 1.1.0}", "acme:thing names the release 1.1.0, which is not in the list"),
        ("{type: gauge, needs: luck}", "acme:thing refers to luck, which is not defined"),
        ("{type: gauge, labels: [$nobody]}", "acme:thing refers to nobody, which is not defined"),
        ("{type: histogram, buckets: round}", "acme:thing refers to round, which is not defined"),
        ("{type: gauge, colour: red}", "acme:thing has a key that is not known"),
    ],
)
def test_a_wrong_line_is_named(line: str, complaint: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read_contract("acme", FILE.format(line=line))
    assert caught.value.message.startswith(f"contracts/acme.yaml: {complaint}")


def test_a_contract_is_read_once() -> None:
    assert contract_of("vllm") is contract_of("vllm")
    assert contract_of("nobody") is None
