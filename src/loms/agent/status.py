"""What is known of one engine from its exposition, as the page and the API show it."""

from __future__ import annotations

from collections.abc import Sequence

from loms.collect.scrape import Scraper
from loms.core.model import EngineStatus, Finding
from loms.engines.engine import engines
from loms.engines.translate import Translator


def engine_status(scraper: Scraper, translator: Translator, contract: Sequence[Finding] = ()) -> EngineStatus | None:
    """The row of a target that is, or was at its last good scrape, a known engine; None for another."""
    plan, target = translator.newest, scraper.target
    if plan is None or not plan.engine or engines[plan.engine].device:
        return None
    labels = dict(plan.labels)
    return EngineStatus(
        instance=target.instance,
        job=target.job,
        engine=plan.engine,
        model=plan.model,
        version=plan.version,
        zone=labels.get("deployment_zone", ""),
        simulated=labels.get("simulated") == "true",
        up=bool(scraper.last and scraper.last.ok),
        unavailable=plan.unavailable,
        unmapped=plan.unmapped,
        contract=contract,
    )
