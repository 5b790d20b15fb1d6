"""W14: 64 simultaneous questions on one new document, behind a cached system text. How much is computed twice?"""

from __future__ import annotations

from dataclasses import replace

from bench.shapes import make_workload
from bench.simulation import report
from bench.simulation.price import Price
from bench.simulation.spoken import sessions_of
from bench.simulation.workload import Workload
from bench.simulation.world import make_world
from scheduler.config import SchedulerConfig

POOL_TOKENS = 500_000
HERD_S = 10.0


def redundant_prefill(config: SchedulerConfig, price: Price, *, seed: int, scale: float = 1.0) -> float:
    """W14: prefill tokens that are computed although another request had them, of 64 with one new document."""
    spoken = make_workload("w14", {}, scale=scale, seed=seed)
    known, *herd = sessions_of([*spoken.warmup, *spoken.conversations], seed=seed)
    sessions = [known, *(replace(session, start_s=HERD_S) for session in herd)]
    world = make_world(Workload(sessions), config, price, pool_tokens=POOL_TOKENS)
    world.run()
    return world.state.counters.computed_tokens_total - report.optimum_tokens(world.account.outcomes)
