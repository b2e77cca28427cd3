from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from loms.collect.required import Required, lacking
from loms.collect.targets import Target

GOOD = Target(job="j", instance="a:1", url="http://a:1/metrics", labels=(("env", "prod"), ("team", "x")))
BAD = Target(job="j", instance="b:1", url="http://b:1/metrics", labels=(("team", "x"),))


class Finds:
    poll_seconds = 7.0
    problems = ("a file is broken",)

    def __init__(self) -> None:
        self.targets: Sequence[Target] = (GOOD, BAD)

    async def refresh(self, last_good_ms: Callable[[Target], int | None], /) -> Sequence[Target]:
        return self.targets


def test_labels_of_every_target_count_job_and_instance_among_them() -> None:
    assert lacking(GOOD, ["job", "instance", "env"]) == ""
    assert lacking(BAD, ["team", "env", "zone"]) == "env"


def test_a_target_without_a_label_is_left_out_and_told_until_it_has_it() -> None:
    finds = Finds()
    discovery = Required(finds, ["env"])
    assert asyncio.run(discovery.refresh(lambda _: None)) == [GOOD]
    assert discovery.problems == (
        "a file is broken",
        "b:1 (job j) has no label 'env', which labels.required asks for: it is not scraped",
    )
    assert discovery.poll_seconds == 7.0
    finds.targets = (GOOD,)
    assert asyncio.run(discovery.refresh(lambda _: None)) == [GOOD]
    assert discovery.problems == ("a file is broken",)


def test_without_required_labels_nothing_is_left_out() -> None:
    discovery = Required(Finds(), ())
    assert asyncio.run(discovery.refresh(lambda _: None)) == [GOOD, BAD]
