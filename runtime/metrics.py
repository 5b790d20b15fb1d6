"""What Prometheus reads: the scheduler's `Stats` as they are, and the times that requests took.

The only module that knows Prometheus. Every series has the one label `model_name` (routes add `route` and `status`),
so that a hit rate is `axil_cached_tokens_total / axil_prompt_tokens_total`.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable, Iterator
from itertools import accumulate
from typing import Protocol

import msgspec
from prometheus_client import CollectorRegistry, Counter, Gauge, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from wire.messages import Stats

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_TTFT_S = (0.01, 0.02, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1, 2, 4, 6, 8, 10, 20, 40, 60, 80, 100, 200, 400)
_INTER_TOKEN_S = (0.002, 0.004, 0.006, 0.008, 0.01, 0.015, 0.02, 0.03, 0.04, 0.06, 0.08, 0.1, 0.2, 0.4, 0.8, 2, 4, 8)
_END_TO_END_S = (0.1, 0.2, 0.4, 0.8, 1, 2, 5, 10, 20, 40, 60, 100, 200, 400, 800, 1200, 2400)

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


class Metrics:
    """One registry per server; `stats` gives the scheduler's latest figures."""

    def __init__(self, stats: Callable[[], Stats], *, model_name: str) -> None:
        self._model_name = model_name
        self._registry = CollectorRegistry()
        self._registry.register(_StatsCollector(stats, model_name))
        self._time_to_first = self._histogram("time_to_first_token_seconds", "Arrival to first token.", _TTFT_S)
        self._inter_token = self._histogram("inter_token_latency_seconds", "Between two tokens.", _INTER_TOKEN_S)
        self._end_to_end = self._histogram("e2e_request_latency_seconds", "Arrival to last token.", _END_TO_END_S)
        self._answers = Counter(
            "axil_http_responses",
            "HTTP answers; status 499 is a client that went away.",
            ("model_name", "route", "status"),
            registry=self._registry,
        )

    def time_to_first_token_s(self, value: float) -> None:
        """From a request's arrival to its first token."""
        self._time_to_first.observe(value, 1)

    def inter_token_latency_s(self, value: float, num_tokens: int) -> None:
        """`num_tokens` tokens have come `value` seconds after the one before; each counts with its share."""
        self._inter_token.observe(value / num_tokens, num_tokens)

    def request_latency_s(self, value: float) -> None:
        """From a request's arrival to its end."""
        self._end_to_end.observe(value, 1)

    def answered(self, route: str, status: int) -> None:
        """A request of `route` has been answered."""
        self._answers.labels(self._model_name, route, status).inc()

    def add_gauge(self, name: str, text: str, value: Callable[[], float]) -> None:
        """Show `value()` whenever somebody reads."""
        gauge = Gauge(f"axil_{name}", text, ("model_name",), registry=self._registry)
        gauge.labels(self._model_name).set_function(value)

    def exposition(self) -> bytes:
        """Everything, in Prometheus' text format."""
        return generate_latest(self._registry)

    def _histogram(self, name: str, text: str, bounds: tuple[float, ...]) -> _Histogram:
        histogram = _Histogram(f"axil_{name}", text, bounds, self._model_name)
        self._registry.register(histogram)
        return histogram


class _Histogram(Collector):
    """A histogram for one thread: the library's takes a lock and compares with every bound, for each token."""

    def __init__(self, name: str, text: str, bounds: tuple[float, ...], model_name: str) -> None:
        self._name = name
        self._text = text
        self._bounds = bounds
        self._model_name = model_name
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float, times: int) -> None:
        """Count `value` as often as it was seen."""
        self._counts[bisect_left(self._bounds, value)] += times
        self._sum += value * times

    def collect(self) -> Iterator[HistogramMetricFamily]:
        family = HistogramMetricFamily(self._name, self._text, labels=("model_name",))
        names = [*map(floatToGoString, self._bounds), "+Inf"]
        buckets = list(zip(names, accumulate(self._counts), strict=True))
        family.add_metric([self._model_name], buckets, self._sum)
        yield family


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
