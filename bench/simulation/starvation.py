"""W13: do cold requests starve among hot ones, and what does it cost the hot ones that they do not?

Compared are first come first served, and longest prefix first without any bound on waiting.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from bench.command import CannotMeasure
from bench.shapes import make_workload
from bench.simulation.price import Price
from bench.simulation.spoken import sessions_of
from bench.simulation.workload import Session, Workload
from bench.simulation.world import World, make_world
from bench.summary import percentile
from scheduler.config import SchedulerConfig

POOL_TOKENS = 500_000
UTILISATION = 0.9
BURST = 1.5
BURST_S = 10.0
OVERLOAD = 1.2
GROUPS = 8
CALIBRATION_REQUESTS = 1200
OVERTAKE_TOKENS = (0, 4096, 16_384, 65_536, 262_144)


@dataclass(frozen=True, slots=True)
class Mix:
    """W13: 95 % hot requests, of whose prompts 96 % is shared, and 5 % cold ones; drawn by a seed."""

    price: Price
    seed: int
    horizon_s: float = 90.0
    first_burst_s: float = 30.0

    def sessions(self, num_requests: int) -> list[Session]:
        """Requests in random order, all at once; the hot ones have one of eight prefixes."""
        spoken = make_workload(
            "w13", {"groups": GROUPS, "per_group": math.ceil(num_requests / GROUPS)}, scale=1.0, seed=self.seed
        )
        return sessions_of(spoken.conversations, seed=self.seed)

    def capacity_per_s(self, config: SchedulerConfig) -> float:
        """Requests answered a second while there are always more, first come first served."""
        world = self.run(replace(config, policy="fcfs"), self.sessions(CALIBRATION_REQUESTS))
        return len(world.account.outcomes) / world.now_s

    def burst_arrivals(self, capacity_per_s: float) -> list[Session]:
        """Poisson arrivals at 0.9 of the capacity, and for ten seconds at 1.5 times it."""
        stop_s = self.first_burst_s + BURST_S

        def rate(now_s: float) -> float:
            return capacity_per_s * (BURST if self.first_burst_s <= now_s < stop_s else UTILISATION)

        return self._timed(rate, capacity_per_s * BURST)

    def overload_arrivals(self, capacity_per_s: float) -> list[Session]:
        """Poisson arrivals at 1.2 times the capacity."""
        return self._timed(lambda now_s: capacity_per_s * OVERLOAD, capacity_per_s * OVERLOAD)

    def run(self, config: SchedulerConfig, sessions: Sequence[Session]) -> World:
        """One run to its end."""
        world = make_world(Workload(sessions), config, self.price, pool_tokens=POOL_TOKENS)
        world.run()
        return world

    def _timed(self, rate: Callable[[float], float], highest: float) -> list[Session]:
        draw = np.random.default_rng(self.seed)
        times, now_s = [], 0.0
        while (now_s := now_s + draw.exponential(1 / highest)) < self.horizon_s:
            if draw.random() * highest < rate(now_s):
                times.append(now_s)
        sessions = self.sessions(len(times))
        return [replace(session, start_s=at_s) for session, at_s in zip(sessions, times, strict=False)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """What a run meant for cold requests and for hot ones."""

    cold_p99_ms: float
    cold_p50_ms: float
    hot_p99_ms: float
    hot_per_s: float
    times_ms: Mapping[str, Sequence[float]]


def waiting_of(world: World, *, horizon_s: float) -> Waiting:
    """Times to the first token, and the hot requests that were answered a second while requests came.

    Raises:
        CannotMeasure: one kind is missing.
    """
    outcomes = world.account.outcomes
    hot = [1e3 * (each.ttft_s or 0.0) for each in outcomes if each.is_hot]
    cold = [1e3 * (each.ttft_s or 0.0) for each in outcomes if not each.is_hot]
    if not hot or not cold:
        raise CannotMeasure("W13 needs hot and cold requests; take a longer horizon")
    in_time = sum(each.is_hot and each.ended_s is not None and each.ended_s <= horizon_s for each in outcomes)
    return Waiting(
        cold_p99_ms=percentile(cold, 99),
        cold_p50_ms=percentile(cold, 50),
        hot_p99_ms=percentile(hot, 99),
        hot_per_s=in_time / horizon_s,
        times_ms={"hot": hot, "cold": cold},
    )


def variants(config: SchedulerConfig) -> dict[str, SchedulerConfig]:
    """The order under test, and the two that it is measured by."""
    return {
        "as configured": config,
        "fcfs": replace(config, policy="fcfs"),
        "no bound": unbounded(config),
    }


def frontier(config: SchedulerConfig) -> dict[str, SchedulerConfig]:
    """The same order with the bounds on overtaking from none at all to no limit."""
    bounded = {
        f"overtake {tokens:,}": replace(config, policy="longest-prefix", overtake_tokens=tokens)
        for tokens in OVERTAKE_TOKENS
    }
    return {**variants(config), **bounded}


def unbounded(config: SchedulerConfig) -> SchedulerConfig:
    """Longest prefix first, whoever waits."""
    return replace(
        config, policy="longest-prefix", overtake_tokens=2**40, overtake_seconds=math.inf, overtake_share=2.0**40
    )
