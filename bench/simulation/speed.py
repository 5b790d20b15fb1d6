"""How many requests are simulated in a second of wall time, on short prompts, all of whose steps are planned."""

from __future__ import annotations

import statistics
import time

from bench.shapes import make_workload
from bench.simulation.price import Price
from bench.simulation.spoken import sessions_of
from bench.simulation.workload import Workload
from bench.simulation.world import make_world
from scheduler.config import SchedulerConfig

POOL_TOKENS = 500_000
CONCURRENCY = 256
SHORT = {"groups": 64, "per_group": 16, "prefix_tokens": 512, "question_tokens": 128, "output_tokens": 16}
"""W9 with short prompts."""


def requests_per_s(config: SchedulerConfig, price: Price, *, seed: int, repeats: int = 5) -> float:
    """The median of several runs, without the making of the requests."""
    spoken = make_workload("w9", SHORT, scale=1.0, seed=seed)
    return statistics.median(
        _requests_per_s(Workload(sessions_of(spoken.conversations, seed=seed), CONCURRENCY), config, price)
        for _ in range(repeats)
    )


def _requests_per_s(workload: Workload, config: SchedulerConfig, price: Price) -> float:
    world = make_world(workload, config, price, pool_tokens=POOL_TOKENS)
    began_s = time.perf_counter()
    world.run()
    return len(world.account.outcomes) / (time.perf_counter() - began_s)
