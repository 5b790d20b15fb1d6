"""The series of misses by their causes, and of the belt: how long unused pages stay. Beside the others in `table`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from msgspec.structs import asdict

from wire.messages.to_tokenizer import Stats

from .series import Readings, Sample, Series


def _by_cause(index: int) -> Callable[[Readings], list[Sample]]:
    """One number of each cause, of all tokenizers together."""

    def samples(readings: Readings) -> list[Sample]:
        sums: Counter[str] = Counter()
        for figures in readings.figures:
            for cause, counts in figures.misses.items():
                sums[cause] += counts[index]
        return [({"cause": cause}, count) for cause, count in sorted(sums.items())]

    return samples


def _belt(name: str, text: str, read: Callable[[Stats], float | None]) -> Series:
    def samples(readings: Readings) -> list[Sample]:
        value = read(readings.stats)
        return [] if value is None else [({}, value)]

    return Series(name=name, kind="gauge", text=text, samples=samples)


def _sessions(readings: Readings) -> list[Sample]:
    counts = readings.stats.sessions
    return [] if counts is None else [({"survival": name}, count) for name, count in asdict(counts).items()]


MISSES: tuple[Series, ...] = (
    Series(
        name="axil_cache_misses_total",
        kind="counter",
        text="Requests of whose prompt something was not cached, by the cause of the first missing token "
        "(docs/explain.md). Needs --explain-misses, as do the following.",
        samples=_by_cause(0),
        labels=("cause",),
    ),
    Series(
        name="axil_missed_tokens_total",
        kind="counter",
        text="Their prompt tokens from the first that was missing on, by the cause of that one.",
        samples=_by_cause(1),
        labels=("cause",),
    ),
    _belt(
        "axil_belt_seconds",
        "How long an unused page stays cached: the pool over the rate of new pages, of the last 5 minutes.",
        lambda stats: stats.belt_s,
    ),
    _belt(
        "axil_next_victim_age_seconds",
        "How long ago the page was used that would be evicted next.",
        lambda stats: stats.next_victim_s,
    ),
    _belt(
        "axil_expected_return_seconds",
        "Half of the sessions that return do so within this time.",
        lambda stats: stats.expected_return_s,
    ),
    _belt(
        "axil_session_survival_ratio",
        "Part of the returning sessions that come back before the belt has carried their pages off.",
        lambda stats: stats.survival,
    ),
    Series(
        name="axil_idle_sessions",
        kind="gauge",
        text="Sessions between two requests, of the last 512, by each one's chance to find all its pages when it comes "
        "back: gone (0), unlikely (below 0.5), likely (below 0.9), safe, unknown.",
        samples=_sessions,
        labels=("survival",),
    ),
)
