"""Draws hit rates over pool sizes, and waiting times. Knows no simulation; needs matplotlib."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any


def hit_rates(path: Path, title: str, lines: Mapping[str, Sequence[tuple[float, float]]]) -> Path:
    """Write one line a policy: (pool in tokens, hit rate in percent)."""
    axes = _axes()
    for name, points in lines.items():
        axes.plot([pool for pool, _ in points], [percent for _, percent in points], marker="o", label=name)
    axes.set_xscale("log")
    axes.set_ylim(0, 100)
    axes.set_xlabel("pool (tokens)")
    axes.set_ylabel("prompt tokens found cached (%)")
    return _written(path, axes, title)


def waiting_times(path: Path, title: str, times_ms: Mapping[str, Sequence[float]]) -> Path:
    """Write for each name the share of requests that had their first token within a time."""
    axes = _axes()
    for name, values in times_ms.items():
        ordered = sorted(values)
        shares = [100 * (rank + 1) / len(ordered) for rank in range(len(ordered))]
        axes.step(ordered, shares, where="post", label=name)
    axes.set_xscale("log")
    axes.set_xlabel("time to first token (ms)")
    axes.set_ylabel("requests (%)")
    return _written(path, axes, title)


def _axes() -> Any:  # noqa: ANN401 - matplotlib has no types here
    from matplotlib.figure import Figure

    return Figure(figsize=(7, 4.5), layout="constrained").subplots()


def _written(path: Path, axes: Any, title: str) -> Path:  # noqa: ANN401 - as above
    axes.set_title(title)
    axes.grid(alpha=0.3)
    axes.legend()
    axes.figure.savefig(path, dpi=120)
    return path
