"""Prometheus' text of one scrape: every series of the tables under each of its names."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import accumulate

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from .counted import Buckets
from .histograms import HISTOGRAMS, Histogram
from .series import Alias, Readings, Series, total
from .table import SERIES

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


def exposition(readings: Readings, *, model_name: str) -> bytes:
    """Everything, in Prometheus' text format."""
    registry = CollectorRegistry()
    registry.register(_Tables(readings, model_name))
    return generate_latest(registry)


class _Tables(Collector):
    def __init__(self, readings: Readings, model_name: str) -> None:
        self._readings = readings
        self._model = {"model_name": model_name}

    def collect(self) -> Iterator[Metric]:
        families: dict[str, Metric] = {}  # several series may be one of somebody else's, under different labels
        for series in SERIES:
            samples = list(series.samples(self._readings))
            for alias in (Alias(series.name), *series.also):
                family = families.get(alias.name) or _family(series, alias.name)
                families[alias.name] = family
                for labels, value in samples:
                    family.add_sample(alias.name, self._model | dict(alias.labels(labels)), value)
        yield from families.values()
        for histogram in HISTOGRAMS:
            yield from self._histogram(histogram)

    def _histogram(self, histogram: Histogram) -> Iterator[Metric]:
        by_label = self._readings.buckets(histogram.source)
        bounds = [*map(floatToGoString, histogram.bounds), "+Inf"]
        split = {value: buckets for value, buckets in by_label.items() if histogram.label is not None}
        whole = total(by_label.values())
        yield self._buckets(histogram, histogram.name, bounds, split or {"": whole})
        for name in histogram.also:
            yield self._buckets(histogram, name, bounds, {"": whole})

    def _buckets(
        self, histogram: Histogram, name: str, bounds: list[str], by_label: Mapping[str, Buckets]
    ) -> HistogramMetricFamily:
        keys = [*self._model, *([histogram.label] if histogram.label is not None and "" not in by_label else [])]
        family = HistogramMetricFamily(name, histogram.text, labels=keys)
        for value, buckets in by_label.items():
            values = [*self._model.values(), *([value] if value else [])]
            counts = list(zip(bounds, accumulate(buckets.counts), strict=True))
            family.add_metric(values, counts, buckets.sums[0])
        return family


def _family(series: Series, name: str) -> Metric:
    kind = CounterMetricFamily if series.kind == "counter" else GaugeMetricFamily
    return kind(name, series.text)
