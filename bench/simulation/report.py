"""The figures of one simulated run, under names that end in their units. Knows no files."""

from __future__ import annotations

from collections.abc import Sequence

from bench.simulation.account import Outcome
from bench.simulation.world import World
from bench.summary import percentile

PERCENTILES = (50, 95, 99)
CAUSES = {
    "never_seen": "unseen_tokens",
    "evicted": "evicted_tokens",
    "page_rounding": "rounded_tokens",
    "in_flight": "in_flight_tokens",
    "namespace": "foreign_tokens",
}


def figures_of(world: World) -> dict[str, float]:
    """Everything that a run tells; percents are of all prompt tokens."""
    outcomes = world.account.outcomes
    prompt_tokens = sum(outcome.prompt_tokens for outcome in outcomes)
    figures: dict[str, float] = {
        "requests_count": len(outcomes),
        "hit_percent": hit_percent(outcomes),
        "shareable_percent": 100 * sum(outcome.shareable_tokens for outcome in outcomes) / prompt_tokens,
    }
    for cause, name in CAUSES.items():
        missed = sum(getattr(outcome, name) for outcome in outcomes)
        figures[f"missed_{cause}_percent"] = 100 * missed / prompt_tokens
    figures["prefill_over_optimum_ratio"] = world.state.counters.computed_tokens_total / optimum_tokens(outcomes)
    for kind, is_hot in (("hot", True), ("cold", False)):
        figures |= latencies(kind, [outcome for outcome in outcomes if outcome.is_hot == is_hot])
    return figures | {
        "worst_wait_s": max(outcome.queue_s or 0.0 for outcome in outcomes),
        "evicted_pages_count": world.state.cache.evicted_pages_total,
        "retractions_count": world.state.counters.retractions_total,
        "simulated_s": world.now_s,
        "steps_count": world.cpu.planned_steps + world.cpu.skipped_steps,
        "planned_steps_count": world.cpu.planned_steps,
        "scheduler_cpu_per_planned_step_ms": 1e3 * world.cpu.step_s / max(1, world.cpu.planned_steps),
    }


def hit_percent(outcomes: Sequence[Outcome]) -> float:
    """The share of all prompt tokens that was found cached."""
    prompt_tokens = sum(outcome.prompt_tokens for outcome in outcomes)
    return 100 * sum(outcome.cached_tokens for outcome in outcomes) / prompt_tokens


def optimum_tokens(outcomes: Sequence[Outcome]) -> int:
    """Prefill tokens that remain when everything that came before a request is cached for it."""
    return sum(outcome.prompt_tokens - outcome.shareable_tokens for outcome in outcomes)


def latencies(kind: str, outcomes: Sequence[Outcome]) -> dict[str, float]:
    """Percentiles of the time to the first token, nothing where nobody has one."""
    times_ms = [1e3 * outcome.ttft_s for outcome in outcomes if outcome.ttft_s is not None]
    if not times_ms:
        return {}
    return {f"ttft_{kind}_p{percent}_ms": percentile(times_ms, percent) for percent in PERCENTILES}
