from __future__ import annotations

import pytest

from loms.core.errors import ConfigError
from loms.core.model import Alert
from loms.rules.rule import Group, Rule
from loms.rules.shard import Shard
from loms.rules.template import compile_template

GROUPS = [Group(f"g{number}", "/etc/loms/rules.yaml", 1000, (Rule(f"R{number}"),)) for number in range(40)]


def alert(rule: str, **labels: str) -> Alert:
    return Alert(rule, tuple(labels.items()), (), "firing", 1.0, 0)


@pytest.mark.parametrize("count", [1, 2, 3, 7])
def test_each_group_is_one_servers(count: int) -> None:
    shards = [Shard(number + 1, count) for number in range(count)]
    owners = [[shard.number for shard in shards if shard.evaluates(group)] for group in GROUPS]
    assert all(len(found) == 1 for found in owners)
    assert {found[0] for found in owners} == set(range(1, count + 1))


def test_the_folder_of_a_file_does_not_matter() -> None:
    there = [Group(group.name, "/srv/other/rules.yaml", 1000, group.rules) for group in GROUPS]
    shard = Shard(1, 3)
    assert [shard.evaluates(group) for group in GROUPS] == [shard.evaluates(group) for group in there]


def test_the_division_is_the_same_in_every_release() -> None:
    """A server and its neighbour need not be of one version. The names are those for which the last hex digit of
    ``printf 'rules.yaml\\0g10' | b2sum -l 64`` is 0 or 8."""
    assert [group.name for group in GROUPS if Shard(1, 8).evaluates(group)] == ["g10", "g14", "g24", "g32", "g39"]


@pytest.mark.parametrize("text", ["", "1", "0/2", "3/2", "a/b", "1/0", "-1/2", "1/2/3"])
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"--shard .* is not of the form i/n"):
        Shard.parse(text)


def test_an_alert_is_its_rules_servers() -> None:
    shards = [Shard(1, 2), Shard(2, 2)]
    for number, group in enumerate(GROUPS):
        owners = [shard for shard in shards if shard.owns(alert(f"R{number}"), GROUPS)]
        assert owners == [shard for shard in shards if shard.evaluates(group)]


def test_what_no_rule_accounts_for_is_the_first_servers() -> None:
    assert Shard(1, 2).owns(alert("Gone"), GROUPS)
    assert not Shard(2, 2).owns(alert("Gone"), GROUPS)


def test_of_rules_with_one_name_the_labels_decide() -> None:
    def group(name: str, severity: str) -> Group:
        return Group(name, "f", 1000, (Rule("Same", labels=(("severity", compile_template(severity)),)),))

    first, second = Shard(1, 2), Shard(2, 2)
    names = [f"n{number}" for number in range(20)]
    mine = next(name for name in names if first.evaluates(group(name, "")))
    other = next(name for name in names if second.evaluates(group(name, "")))
    groups = [group(mine, "warning"), group(other, "critical")]
    assert first.owns(alert("Same", severity="warning"), groups)
    assert second.owns(alert("Same", severity="critical"), groups)
    assert not first.owns(alert("Same", severity="critical"), groups)
