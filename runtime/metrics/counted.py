"""What one tokenizer counts: times and lengths of requests in buckets, answers, and gauges. Knows no series' names.

The library's own histograms take a lock and compare with every bound, for each token; these are for one thread.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Protocol

from msgspec import Struct

from wire.messages.to_tokenizer import Reuse

from .histograms import HISTOGRAMS, REUSE_CLASSES, ReuseClass

HIT_SHARE, MISS_SHARE = 0.9, 0.1


def reuse_class(reuse: Reuse | None) -> ReuseClass:
    """Of which kind a request is: at least 0.9 of its prompt's tokens were cached, less than 0.1, or between.

    One whose reuse isn't known is a miss. A beginning that all prompts share, such as a first special token, makes
    nothing better than a miss.
    """
    share = reuse.cached_tokens / reuse.prompt_tokens if reuse is not None and reuse.prompt_tokens else 0.0
    if share >= HIT_SHARE:
        return "hit"
    return "miss" if share < MISS_SHARE else "partial"


class RequestMetrics(Protocol):
    """Where the times of a request are noted."""

    def scheduled(self, reuse: Reuse) -> None:
        """A request has got its row, and this was cached of its prompt."""

    def missed(self, cause: str, num_tokens: int) -> None:
        """So many tokens of a prompt were not found cached, the first of them for this cause."""

    def time_to_first_token_s(self, value: float, reuse: Reuse | None) -> None:
        """From a request's arrival to its first token."""

    def inter_token_latency_s(self, value: float, num_tokens: int) -> None:
        """`num_tokens` tokens have come `value` seconds after the one before."""

    def ended(self, latency_s: float, output_tokens: int) -> None:
        """A request's answer is complete, so long after its arrival."""


class Buckets(Struct, frozen=True):
    """Values in buckets: `counts[i]` were at most the i-th bound, and more than the one before."""

    counts: list[int]
    sums: list[float]

    def observe(self, bounds: tuple[float, ...], value: float, times: int) -> None:
        """Count `value` as often as it was seen."""
        self.counts[bisect_left(bounds, value)] += times
        self.sums[0] += value * times


class Figures(Struct, frozen=True):
    """What one tokenizer has counted.

    `histograms` are by name and by the value of their label, which is empty for those without. `answers` are by route,
    method and status, `normalised` by what was changed in prompts, `misses` by cause: how many requests, and
    how many of their tokens.
    """

    histograms: dict[str, dict[str, Buckets]]
    gauges: dict[str, float]
    answers: list[tuple[str, str, int, int]]
    normalised: dict[str, int] = {}
    misses: dict[str, tuple[int, int]] = {}


class Metrics:
    """What one tokenizer counts; each of `gauges` is asked whenever somebody reads."""

    def __init__(self, gauges: Mapping[str, Callable[[], float]]) -> None:
        self._gauges = gauges
        self._histograms = {
            each.source: {label: Buckets([0] * (len(each.bounds) + 1), [0.0]) for label in each.label_values}
            for each in HISTOGRAMS
        }
        self._observe_first = {label: self._observer("time_to_first_token_s", label) for label in REUSE_CLASSES}
        self._observe_token = self._observer("inter_token_latency_s")
        self._observe_end = self._observer("request_latency_s")
        self._observe_queue = self._observer("queue_s")
        self._observe_prompt = self._observer("prompt_tokens")
        self._observe_uncached = self._observer("uncached_tokens")
        self._observe_output = self._observer("output_tokens")
        self._answers: Counter[tuple[str, str, int]] = Counter()
        self._normalised: Counter[str] = Counter()
        self._misses: dict[str, tuple[int, int]] = {}

    def scheduled(self, reuse: Reuse) -> None:
        """A request has got its row, and this was cached of its prompt."""
        self._observe_queue(reuse.queue_s, 1)
        self._observe_prompt(reuse.prompt_tokens, 1)
        self._observe_uncached(reuse.prompt_tokens - reuse.cached_tokens, 1)

    def missed(self, cause: str, num_tokens: int) -> None:
        """So many tokens of a prompt were not found cached, the first of them for this cause."""
        num_requests, before = self._misses.get(cause, (0, 0))
        self._misses[cause] = num_requests + 1, before + num_tokens

    def time_to_first_token_s(self, value: float, reuse: Reuse | None) -> None:
        """From a request's arrival to its first token."""
        self._observe_first[reuse_class(reuse)](value, 1)

    def inter_token_latency_s(self, value: float, num_tokens: int) -> None:
        """`num_tokens` tokens have come `value` seconds after the one before; each counts with its share."""
        self._observe_token(value / num_tokens, num_tokens)

    def ended(self, latency_s: float, output_tokens: int) -> None:
        """A request's answer is complete, so long after its arrival."""
        self._observe_end(latency_s, 1)
        self._observe_output(output_tokens, 1)

    def answered(self, route: str, method: str, status: int) -> None:
        """A request of `route` has been answered."""
        self._answers[route, method, status] += 1

    def normalised(self, changes: Iterable[str]) -> None:
        """These things were changed in a prompt."""
        self._normalised.update(changes)

    def figures(self) -> Figures:
        """Everything that this tokenizer has counted."""
        return Figures(
            histograms=self._histograms,
            gauges={name: float(value()) for name, value in self._gauges.items()},
            answers=[(*key, count) for key, count in self._answers.items()],
            normalised=dict(self._normalised),
            misses=self._misses,
        )

    def _observer(self, name: str, label: str = "") -> Callable[[float, int], None]:
        (bounds,) = (each.bounds for each in HISTOGRAMS if each.source == name)
        return partial(self._histograms[name][label].observe, bounds)
