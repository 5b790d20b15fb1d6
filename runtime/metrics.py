"""What Prometheus reads: the scheduler's `Stats` as they are, and the times that requests took.

The only module that knows Prometheus. Every series has the one label `model_name` (routes add `route` and `status`),
so that a hit rate is `axil_cached_tokens_total / axil_prompt_tokens_total`.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import accumulate
from typing import Protocol

import msgspec
from msgspec import Struct
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from wire.messages import Stats

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_TTFT_S = (0.01, 0.02, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1, 2, 4, 6, 8, 10, 20, 40, 60, 80, 100, 200, 400)
_INTER_TOKEN_S = (0.002, 0.004, 0.006, 0.008, 0.01, 0.015, 0.02, 0.03, 0.04, 0.06, 0.08, 0.1, 0.2, 0.4, 0.8, 2, 4, 8)
_END_TO_END_S = (0.1, 0.2, 0.4, 0.8, 1, 2, 5, 10, 20, 40, 60, 100, 200, 400, 800, 1200, 2400)

_TIMES = {
    "time_to_first_token_seconds": ("Arrival to first token.", _TTFT_S),
    "inter_token_latency_seconds": ("Between two tokens.", _INTER_TOKEN_S),
    "e2e_request_latency_seconds": ("Arrival to last token.", _END_TO_END_S),
}

_NAMES = {
    "num_running": "running_requests",
    "num_waiting": "waiting_requests",
    "num_pages": "pages",
    "max_running": "max_running_requests",
}

_HELP = {
    "prompt_tokens_total": "Prompt tokens at first scheduling, all of them: the denominator of the hit rate.",
    "cached_tokens_total": "Those of the prompt tokens that were found cached at first scheduling.",
    "copied_tokens_total": "Those of the cached tokens that came by copying a forked page.",
    "bypassed_tokens_total": "Prompt tokens found cached but computed anew, because their logprobs were asked for.",
    "ledger_mismatches_total": "Pages whose owner was not the expected one; they are quarantined.",
    "worst_displacement_tokens": "Most prompt tokens of later requests that were computed before a waiting one.",
    "runner_busy_s_total": "Time the model runner has computed.",
    "runner_idle_s_total": "Time the model runner has waited for a plan.",
}


class RequestMetrics(Protocol):
    """Where the times of a request are noted."""

    def time_to_first_token_s(self, value: float) -> None:
        """From a request's arrival to its first token."""

    def inter_token_latency_s(self, value: float, num_tokens: int) -> None:
        """`num_tokens` tokens have come `value` seconds after the one before."""

    def request_latency_s(self, value: float) -> None:
        """From a request's arrival to its end."""


class Times(Struct, frozen=True):
    """Seconds in buckets: `counts[i]` were at most the i-th bound, and more than the one before."""

    counts: list[int]
    sums: list[float]

    def observe(self, bounds: tuple[float, ...], value: float, times: int) -> None:
        """Count `value` as often as it was seen."""
        self.counts[bisect_left(bounds, value)] += times
        self.sums[0] += value * times


class Figures(Struct, frozen=True):
    """What one tokenizer has counted: times and gauges by their names, answers by route and status."""

    times: dict[str, Times]
    gauges: dict[str, float]
    answers: list[tuple[str, int, int]]


class Metrics:
    """What one tokenizer counts; `stats` gives the scheduler's latest figures, which are everybody's.

    The library's own histograms take a lock and compare with every bound, for each token; these are for one thread.
    """

    def __init__(self, stats: Callable[[], Stats], *, model_name: str) -> None:
        self._model_name = model_name
        self._stats = stats
        self._times = {name: Times([0] * (len(bounds) + 1), [0.0]) for name, (_, bounds) in _TIMES.items()}
        self._observe_first = partial(self._times["time_to_first_token_seconds"].observe, _TTFT_S)
        self._observe_token = partial(self._times["inter_token_latency_seconds"].observe, _INTER_TOKEN_S)
        self._observe_end = partial(self._times["e2e_request_latency_seconds"].observe, _END_TO_END_S)
        self._answers: Counter[tuple[str, int]] = Counter()
        self._gauges: dict[str, tuple[str, Callable[[], float]]] = {}

    def time_to_first_token_s(self, value: float) -> None:
        """From a request's arrival to its first token."""
        self._observe_first(value, 1)

    def inter_token_latency_s(self, value: float, num_tokens: int) -> None:
        """`num_tokens` tokens have come `value` seconds after the one before; each counts with its share."""
        self._observe_token(value / num_tokens, num_tokens)

    def request_latency_s(self, value: float) -> None:
        """From a request's arrival to its end."""
        self._observe_end(value, 1)

    def answered(self, route: str, status: int) -> None:
        """A request of `route` has been answered."""
        self._answers[route, status] += 1

    def add_gauge(self, name: str, text: str, value: Callable[[], float]) -> None:
        """Show `value()` whenever somebody reads; of several tokenizers, the sum."""
        self._gauges[name] = text, value

    def figures(self) -> Figures:
        """Everything that this tokenizer has counted."""
        return Figures(
            times=self._times,
            gauges={name: float(value()) for name, (_, value) in self._gauges.items()},
            answers=[(route, status, count) for (route, status), count in self._answers.items()],
        )

    def exposition(self, figures: Sequence[Figures]) -> bytes:
        """The scheduler's figures and the sums of all tokenizers', in Prometheus' text format."""
        registry = CollectorRegistry()
        registry.register(_StatsCollector(self._stats, self._model_name))
        texts = {name: text for name, (text, _) in self._gauges.items()}
        registry.register(_FiguresCollector(figures, texts, self._model_name))
        return generate_latest(registry)


class _FiguresCollector(Collector):
    """The sums of what several tokenizers have counted."""

    def __init__(self, figures: Sequence[Figures], gauge_texts: Mapping[str, str], model_name: str) -> None:
        self._figures = figures
        self._gauge_texts = gauge_texts
        self._model_name = model_name

    def collect(self) -> Iterator[Metric]:
        for name, (text, bounds) in _TIMES.items():
            all_times = [figures.times[name] for figures in self._figures]
            counts = map(sum, zip(*(times.counts for times in all_times), strict=True))
            names = [*map(floatToGoString, bounds), "+Inf"]
            histogram = HistogramMetricFamily(f"axil_{name}", text, labels=("model_name",))
            total_s = sum(times.sums[0] for times in all_times)
            histogram.add_metric([self._model_name], list(zip(names, accumulate(counts), strict=True)), total_s)
            yield histogram
        for name, text in self._gauge_texts.items():
            gauge = GaugeMetricFamily(f"axil_{name}", text, labels=("model_name",))
            gauge.add_metric([self._model_name], sum(figures.gauges[name] for figures in self._figures))
            yield gauge
        answers: Counter[tuple[str, int]] = Counter()
        for figures in self._figures:
            answers.update({(route, status): count for route, status, count in figures.answers})
        labels = ("model_name", "route", "status")
        text = "HTTP answers; status 499 is a client that went away."
        responses = CounterMetricFamily("axil_http_responses", text, labels=labels)
        for (route, status), count in answers.items():
            responses.add_metric([self._model_name, route, str(status)], count)
        yield responses


class _StatsCollector(Collector):
    """Every number in `Stats` as a series."""

    def __init__(self, stats: Callable[[], Stats], model_name: str) -> None:
        self._stats = stats
        self._labels = [model_name]

    def collect(self) -> Iterator[CounterMetricFamily | GaugeMetricFamily]:
        for name, value in msgspec.structs.asdict(self._stats()).items():
            if not isinstance(value, int | float):
                continue
            text = _HELP.get(name, f"The scheduler's {name.removesuffix('_total').replace('_', ' ')}.")
            family = CounterMetricFamily if name.endswith("_total") else GaugeMetricFamily
            metric = family(_series(name), text, labels=["model_name"])
            metric.add_metric(self._labels, value)
            yield metric


def _series(name: str) -> str:
    """A figure's name for Prometheus, which spells units out and puts what is counted last."""
    return "axil_" + re.sub(r"_s(_total)?$", r"_seconds\1", _NAMES.get(name, name))
