"""Several servers' figures side by side: medians, spreads, and ratios to the first. Knows no servers and no files."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bench.summary import REUSE_FIGURES, shown, text_table

Rows = Sequence[Mapping[str, float]]
"""The figures of one server, a set for each repeat."""


@dataclass(frozen=True, slots=True)
class Spread:
    """A figure over all repeats."""

    median: float
    low: float
    high: float

    def __str__(self) -> str:
        """The median, with the lowest and the highest behind it where they differ."""
        if self.low == self.high:
            return shown(self.median)
        return f"{shown(self.median)} ({shown(self.low)} to {shown(self.high)})"


def spreads(rows: Rows) -> dict[str, Spread]:
    """Each figure's spread over the repeats that have it; counts are summed instead."""
    names = dict.fromkeys(name for row in rows for name in row)
    return {name: _spread(name, [row[name] for row in rows if name in row]) for name in names}


def ratios(servers: Mapping[str, Rows]) -> dict[str, dict[str, float]]:
    """For each server but the first: its medians as multiples of the first's, where the first's is not 0.

    Counts have no ratios.
    """
    (first, base), *others = ((name, spreads(rows)) for name, rows in servers.items())
    return {
        name: {
            figure: spread.median / base[figure].median
            for figure, spread in found.items()
            if not figure.endswith("_count") and figure in base and base[figure].median
        }
        for name, found in others
        if name != first
    }


def table(servers: Mapping[str, Rows]) -> str:
    """One row a figure, and for each server a column with its spread and one with the ratio to the first."""
    found = {name: spreads(rows) for name, rows in servers.items()}
    ratio_of = ratios(servers)
    head = []
    for name in servers:
        head += [name] if name not in ratio_of else [name, "x"]
    rows = {}
    for figure in dict.fromkeys(figure for each in found.values() for figure in each):
        cells = []
        for name, figures in found.items():
            cells.append(str(figures[figure]) if figure in figures else _missing(figure))
            if name in ratio_of:
                ratio = ratio_of[name].get(figure)
                cells.append("" if ratio is None else f"{ratio:.2f}")
        rows[figure] = cells
    return text_table(head, rows)


def named_figures(workload: str, servers: Mapping[str, Rows]) -> dict[str, float]:
    """The medians, spreads (in percent of the median) and ratios, each under a name that says whose it is."""
    figures = {}
    for name, rows in servers.items():
        for figure, spread in spreads(rows).items():
            figures[f"{name}_{workload}_{figure}"] = spread.median
            if spread.low != spread.high and spread.median:
                figures[f"{name}_{workload}_{figure}_spread_percent"] = 100 * (spread.high - spread.low) / spread.median
    first = next(iter(servers))
    for name, ratio_of in ratios(servers).items():
        figures |= {f"{name}_over_{first}_{workload}_{figure}_ratio": ratio for figure, ratio in ratio_of.items()}
    return figures


def _spread(name: str, values: Sequence[float]) -> Spread:
    if name.endswith("_count"):
        return Spread(sum(values), sum(values), sum(values))
    return Spread(statistics.median(values), min(values), max(values))


def _missing(figure: str) -> str:
    return "not told" if figure in REUSE_FIGURES else "-"
