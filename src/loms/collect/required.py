"""Labels that every target must have."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from loms.collect.protocols import Discovery
from loms.collect.targets import Target

_log = logging.getLogger("loms.discovery")


def lacking(target: Target, labels: Sequence[str]) -> str:
    """The first of ``labels`` that the target does not have; empty when it has them all."""
    has = dict(target.identity)
    return next((name for name in labels if name not in has), "")


class Required:
    """The targets of another discovery that have these labels; the others are not scraped, and are a problem."""

    def __init__(self, discovery: Discovery, labels: Sequence[str]) -> None:
        self._discovery = discovery
        self._labels = labels
        self._refused: tuple[str, ...] = ()

    @property
    def poll_seconds(self) -> float:
        return self._discovery.poll_seconds

    @property
    def problems(self) -> Sequence[str]:
        return (*self._discovery.problems, *self._refused)

    async def refresh(self, last_good_ms: Callable[[Target], int | None], /) -> Sequence[Target]:
        found = await self._discovery.refresh(last_good_ms)
        missing = {target: lacking(target, self._labels) for target in found}
        refused = tuple(
            f"{target.instance} (job {target.job}) has no label {name!r}, which labels.required asks for: it is not "
            "scraped"
            for target, name in missing.items()
            if name
        )
        for problem in refused:
            if problem not in self._refused:
                _log.warning("%s", problem)
        self._refused = refused
        return [target for target in found if not missing[target]]
