"""What a series is: its name, its help, where its value comes from, and the other names that it goes by."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from wire.messages.to_tokenizer import Stats

from .counted import Buckets, Figures

Sample = tuple[Mapping[str, str], float]


@dataclass(frozen=True, slots=True)
class Readings:
    """What one scrape shows: the scheduler's latest figures, which are everybody's, and those of each tokenizer."""

    stats: Stats
    figures: Sequence[Figures]
    hit_rate: float | None = None

    def total(self, gauge: str) -> float:
        """The sum of a gauge of all tokenizers."""
        return sum(figures.gauges[gauge] for figures in self.figures)

    def highest(self, gauge: str) -> float:
        """The highest of a gauge of all tokenizers."""
        return max(figures.gauges[gauge] for figures in self.figures)

    def buckets(self, histogram: str) -> Mapping[str, Buckets]:
        """A histogram of all tokenizers together, by the value of its label."""
        first, *others = (figures.histograms[histogram] for figures in self.figures)
        summed = {label: Buckets(list(buckets.counts), list(buckets.sums)) for label, buckets in first.items()}
        for other in others:
            for label, buckets in other.items():
                summed[label] = _sum(summed[label], buckets)
        return summed


@dataclass(frozen=True, slots=True)
class Alias:
    """Another name of a series; its labels are made of the series' by `labels`, and by default are the same."""

    name: str
    labels: Callable[[Mapping[str, str]], Mapping[str, str]] = dict


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """A counter or a gauge, with a sample for each set of labels beside `model_name`; none where nothing is known."""

    name: str
    kind: Literal["counter", "gauge"]
    text: str
    samples: Callable[[Readings], Iterable[Sample]]
    labels: tuple[str, ...] = ()
    also: tuple[Alias, ...] = ()


def total(buckets: Iterable[Buckets]) -> Buckets:
    """Several histograms of the same bounds as one."""
    first, *others = buckets
    for other in others:
        first = _sum(first, other)
    return first


def _sum(one: Buckets, other: Buckets) -> Buckets:
    counts = [a + b for a, b in zip(one.counts, other.counts, strict=True)]
    return Buckets(counts, [one.sums[0] + other.sums[0]])
