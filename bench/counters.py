"""What axil's own counters say of a run: evictions, retractions, the scheduler's time. Others do not have them."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from prometheus_client.parser import text_string_to_metric_families

from bench.client import Client
from bench.command import CannotMeasure

FRESH_AFTER_S = 1.2
"""The server renews its counters every second."""

EVICTED, RETRACTED = "axil_evicted_pages_total", "axil_retractions_total"
STEPS, BUSY = "axil_steps_total", "axil_scheduler_busy_seconds_total"
NAMES = (EVICTED, RETRACTED, STEPS, BUSY)

Counters = Mapping[str, float]


async def counters(client: Client) -> Counters | None:
    """The counters as they stand, up to `FRESH_AFTER_S` old; None when the server does not have them all."""
    try:
        text = await client.metrics()
    except CannotMeasure:
        return None
    found = {
        sample.name: sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name in NAMES
    }
    return found if len(found) == len(NAMES) else None


async def since(client: Client, before: Counters | None) -> dict[str, float]:
    """Figures of what has happened since `before`; none without."""
    if before is None:
        return {}
    await asyncio.sleep(FRESH_AFTER_S)
    after = await counters(client)
    if after is None:
        return {}
    grown = {name: after[name] - before[name] for name in NAMES}
    figures = {"evicted_pages_count": grown[EVICTED], "retractions_count": grown[RETRACTED]}
    if grown[STEPS] > 0:
        figures["scheduler_per_step_us"] = 1e6 * grown[BUSY] / grown[STEPS]
    return figures
