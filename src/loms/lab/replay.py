"""Run the engine model on a list of arrivals, as fast as the machine can."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from loms.lab.scheduler import Outcome, Request, Scheduler


def replay(scheduler: Scheduler, requests: Iterable[Request]) -> Iterator[Outcome]:
    """Feed requests at their ``arrived`` times (seconds, ascending) and yield what each step brings.

    A request that arrives during a step is seen when the next one is decided, as in the live engine. Ends when every
    request has ended, or when nothing can go on because leaked blocks have used up the pool.
    """
    arrivals = iter(requests)
    upcoming = next(arrivals, None)
    now = upcoming.arrived if upcoming else 0.0
    while True:
        while upcoming is not None and upcoming.arrived <= now:
            scheduler.submit(upcoming, now)
            upcoming = next(arrivals, None)
        step = scheduler.begin(now)
        if step is not None:
            now += step.seconds
            yield scheduler.complete(step, now)
        elif upcoming is not None:
            now = upcoming.arrived
        else:
            return
