"""W15: what does the tree cost where nothing is ever reused, in percent of the time of the steps?

The same random prompts run twice: with the cache as it serves, and with one that gives out pages and remembers nothing
(`Forgetful`). The difference in the scheduler's processor time, over the virtual time of all steps, is the tree's.
Every step is planned and settled; both runs make the same steps.
"""

from __future__ import annotations

import statistics
from typing import Any, cast

import numpy as np

from bench.shapes import make_workload
from bench.simulation.price import Price
from bench.simulation.spoken import sessions_of
from bench.simulation.workload import Workload
from bench.simulation.world import World, make_world
from radix.cache import Lease, Namespace, PrefixCache
from scheduler.config import SchedulerConfig

POOL_TOKENS = 100_000
CONCURRENCY = 64


class Forgetful:
    """A cache's pages without its tree: nothing is entered, so nothing is found and nothing is evicted."""

    def __init__(self, cache: PrefixCache) -> None:
        self._cache = cache

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - everything else is the cache's own
        return getattr(self._cache, name)

    def match(self, namespace: Namespace, token_ids: np.ndarray) -> int:
        """Find nothing."""
        return 0

    def lease(self, namespace: Namespace, token_ids: np.ndarray, **wishes: Any) -> Lease:  # noqa: ANN401
        """Hold nothing."""
        return self._cache.lease(namespace, token_ids[:0], **{**wishes, "max_reuse_tokens": 0})

    def commit(self, lease: Lease, token_ids: np.ndarray) -> None:
        """Enter nothing."""

    def release(self, lease: Lease, token_ids: np.ndarray) -> None:
        """Free all pages."""
        self._cache.release(lease, token_ids[:0])


def overhead_percent(
    config: SchedulerConfig, price: Price, *, seed: int, num_requests: int = 512, repeats: int = 5
) -> dict[str, float]:
    """Medians over pairs of runs: processor time of the scheduler with and without the tree, and the tree's share."""
    pairs = [
        (_run(config, price, seed, num_requests), _run(config, price, seed, num_requests, is_forgetful=True))
        for _ in range(repeats)
    ]
    shares = [100 * (_cpu_s(on) - _cpu_s(off)) / on.state.counters.runner_busy_s_total for on, off in pairs]
    return {
        "w15_overhead_percent": statistics.median(shares),
        "w15_scheduler_percent": statistics.median(
            100 * _cpu_s(on) / on.state.counters.runner_busy_s_total for on, _ in pairs
        ),
    }


def _run(config: SchedulerConfig, price: Price, seed: int, num_requests: int, *, is_forgetful: bool = False) -> World:
    spoken = make_workload("w15", {"groups": num_requests}, scale=1.0, seed=seed)
    workload = Workload(sessions_of(spoken.conversations, seed=seed), concurrency=CONCURRENCY)
    world = make_world(workload, config, price, pool_tokens=POOL_TOKENS, is_fast=False)
    if is_forgetful:
        world.state.cache = cast(PrefixCache, Forgetful(world.state.cache))
    world.run()
    return world


def _cpu_s(world: World) -> float:
    return world.cpu.step_s + world.cpu.submit_s
