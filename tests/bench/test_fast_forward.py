"""A run with fast-forward ends as one whose steps are all planned and settled."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict

import numpy as np
import pytest

from bench.simulation.price import LinearPrice
from bench.simulation.workload import Session, Turn, Workload, one_by_one, to_bytes
from bench.simulation.world import World, make_world
from radix.cache import Namespace
from scheduler.config import SchedulerConfig


def conversations(seed: int, *, count: int, output_tokens: int) -> list[Session]:
    """Conversations of two turns that share their beginnings and come at random times."""
    draw = np.random.default_rng(seed)
    shared = [draw.integers(0, 9, 70, dtype=np.int32) for _ in range(3)]

    def turns() -> Iterator[Turn]:
        said = np.concatenate([shared[draw.integers(3)], draw.integers(0, 9, draw.integers(1, 40), dtype=np.int32)])
        for _ in range(2):
            answer = draw.integers(0, 9, draw.integers(1, output_tokens), dtype=np.int32)
            yield Turn(to_bytes(said), answer, float(draw.exponential(0.3)))
            said = np.concatenate([said, answer, draw.integers(0, 9, 20, dtype=np.int32)])

    starts_s = np.cumsum(draw.exponential(0.2, count))
    begun = [one_by_one(turns(), start_s=float(start_s)) for start_s in starts_s]
    return [session for session in begun if session is not None]


def run(*, seed: int, is_fast: bool, pool_tokens: int, output_tokens: int = 60, **flags: object) -> World:
    config = SchedulerConfig(max_running=6, **flags)  # type: ignore[arg-type]
    workload = Workload(conversations(seed, count=20, output_tokens=output_tokens))
    world = make_world(workload, config, LinearPrice(), pool_tokens=pool_tokens, page_tokens=4, is_fast=is_fast)
    world.run()
    return world


@pytest.mark.parametrize("pool_tokens", [400, 1200, 100_000])
@pytest.mark.parametrize("overlap", [True, False])
@pytest.mark.parametrize("policy", ["longest-prefix", "fcfs"])
@pytest.mark.parametrize("seed", range(2))
def test_fast_forward_changes_no_time_no_hit_and_no_page(
    seed: int, policy: str, overlap: bool, pool_tokens: int
) -> None:
    fast, slow = (
        run(seed=seed, is_fast=is_fast, pool_tokens=pool_tokens, policy=policy, overlap=overlap)
        for is_fast in (True, False)
    )
    assert fast.cpu.skipped_steps > 0 and slow.cpu.skipped_steps == 0
    assert fast.account.outcomes == slow.account.outcomes
    assert asdict(fast.state.counters) == asdict(slow.state.counters)
    assert fast.now_s == slow.now_s
    assert _cache(fast) == _cache(slow)
    fast.state.cache.check()


def test_a_long_run_is_skipped_in_one_go() -> None:
    prompt = np.arange(10, dtype=np.int32)
    session = Session((Turn(to_bytes(prompt), np.arange(5000, dtype=np.int32)),))
    world = make_world(Workload([session]), SchedulerConfig(), LinearPrice(), pool_tokens=8000)
    world.run()
    assert world.cpu.planned_steps < 20
    assert world.account.outcomes[0].ended_s is not None
    assert world.state.counters.output_tokens_total == 5000


def _cache(world: World) -> list[object]:
    cache = world.state.cache
    namespace = Namespace("simulated", None, "")
    draw = np.random.default_rng(0)
    lookups = [draw.integers(0, 9, 6, dtype=np.int32) for _ in range(200)]
    return [
        cache.free_pages,
        cache.cached_pages,
        cache.evicted_pages_total,
        [cache.match(namespace, token_ids) for token_ids in lookups],
    ]
