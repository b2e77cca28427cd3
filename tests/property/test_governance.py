"""Random histories of a target with a folded and a refused label, beside a model that only adds up what grew.

A tenant's counters grow, disappear, come back where they were, or begin anew; new ones come; windows end, so that
tenants change places; LOMS is restarted, or killed after it has stored its memory and before the samples that show why
("lost"); the target is restarted. Values are whole numbers, so sums are exact.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping

from hypothesis import given, settings
from hypothesis import strategies as st

from loms.core.clock import ManualClock
from loms.core.settings import Fold, Labels
from loms.ingest.admission import WINDOW_SECONDS
from loms.ingest.exposition import ExpositionReader
from loms.ingest.governance import Governed

TOP = 3
POLICY = Labels(refuse=("user_id",), fold={"tenant": Fold(top=TOP)})
TENANTS = [f"t{i}" for i in range(9)]
NAMES = ("orders_total", "bytes_total")
Child = tuple[str, str, str]
"""Metric, tenant, user."""

children = st.tuples(st.sampled_from(NAMES), st.sampled_from(TENANTS), st.sampled_from(["u1", "u2"]))
growth = st.dictionaries(children, st.integers(0, 1000), max_size=12)
steps = st.lists(
    st.tuples(
        st.sampled_from(
            [
                "grow",
                "grow",
                "grow",
                "window",
                "hide",
                "show",
                "anew",
                "loms",
                "loms, show",
                "target",
                "lost",
                "lost, hide",
                "lost, show",
            ]
        ),
        growth,
        st.lists(children, max_size=4),
    ),
    min_size=1,
    max_size=25,
)


class Target:
    """The counters of a process, and how much each metric has counted in all."""

    def __init__(self) -> None:
        self.counters: dict[Child, int] = {}
        self.hidden: set[Child] = set()
        self.started = 1
        self.total = dict.fromkeys(NAMES, 0)
        """Of this life of the process."""

    def grow(self, by: Mapping[Child, int]) -> None:
        for child, amount in by.items():
            if child not in self.hidden:
                self.counters[child] = self.counters.get(child, 0) + amount
                self.total[child[0]] += amount

    def anew(self, child: Child) -> None:
        """The client library has dropped the child's series and made it again: it is lower than it was."""
        if self.counters.get(child, 0) > 0 and child not in self.hidden:
            self.counters[child] = self.counters[child] // 2
            self.total[child[0]] += self.counters[child]

    def act(self, act: str, some: Iterable[Child]) -> None:
        """What of an act is the target's."""
        if act in ("hide", "lost, hide"):
            self.hidden |= {child for child in some if child in self.counters}
        elif act in ("show", "loms, show", "lost, show"):
            self.hidden.clear()
        elif act == "anew":
            for child in set(some):
                self.anew(child)
        elif act == "target":
            self.restart()

    def restart(self) -> None:
        self.counters, self.hidden, self.total = {}, set(), dict.fromkeys(NAMES, 0)
        self.started += 1

    def text(self, order: random.Random) -> bytes:
        lines = [
            f'{name}{{tenant="{tenant}",user_id="{user}"}} {value}'
            for (name, tenant, user), value in self.counters.items()
            if (name, tenant, user) not in self.hidden
        ]
        order.shuffle(lines)
        types = [f"# TYPE {name} counter" for name in NAMES]
        return "\n".join([f"process_start_time_seconds {self.started}", *types, *lines, ""]).encode()


class Follower:
    """What somebody who stores the governed series knows of them: the last value of each, gone ones included."""

    def __init__(self, clock: ManualClock, seed: int) -> None:
        self.clock = clock
        self.stage = Governed(ExpositionReader(), POLICY, clock)
        self.order = random.Random(seed)
        self.last: dict[tuple[str, str], float] = {}

    def restart(self) -> None:
        self.stage = Governed(ExpositionReader(), POLICY, self.clock, memory=self.stage.memory())

    def lose(self, target: Target) -> None:
        """Somebody who stores the governed series never saw these."""
        self.stage.read(target.text(self.order), "text/plain")
        self.restart()

    def scrape(self, target: Target, *, anew: bool) -> dict[tuple[str, str], float]:
        if anew:
            self.last.clear()
        exposition = self.stage.read(target.text(self.order), "text/plain")
        shown: dict[tuple[str, str], float] = {}
        for name, labels, value in zip(exposition.shape.names, exposition.shape.labels, exposition.values, strict=True):
            assert "user_id" not in dict(labels)
            if name in NAMES:
                key = (name, dict(labels)["tenant"])
                assert key not in shown
                assert value >= self.last.get(key, 0.0)
                shown[key] = float(value)
        self.last |= shown
        for name in NAMES:
            assert sum(key[0] == name for key in shown) <= TOP + 1
            assert sum(value for key, value in self.last.items() if key[0] == name) == target.total[name]
        return shown


@settings(max_examples=300, deadline=None)
@given(first=growth, history=steps)
def test_nothing_is_lost_or_counted_twice_and_nothing_goes_back(first: dict[Child, int], history: list[object]) -> None:
    clock, target = ManualClock(), Target()
    followers = [Follower(clock, seed) for seed in range(2)]
    target.grow(first)
    assert len({str(sorted(f.scrape(target, anew=False).items())) for f in followers}) == 1
    for act, by, some in history:  # type: ignore[misc]
        if act == "window":
            clock.advance(WINDOW_SECONDS)
        target.act(act, some)
        if act in ("loms", "loms, show"):
            for follower in followers:
                follower.restart()
        if act == "lost":
            clock.advance(WINDOW_SECONDS)
            target.grow(by)
        if act in ("lost", "lost, hide", "lost, show"):
            for follower in followers:
                follower.lose(target)
        # After these it is not known which value a series would have begun at.
        if act not in ("hide", "show", "anew", "lost, hide"):
            target.grow(by)
        shown = [follower.scrape(target, anew=act == "target") for follower in followers]
        assert shown[0] == shown[1]  # the order of the lines does not matter
