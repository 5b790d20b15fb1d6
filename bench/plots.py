"""Draws the figures of several servers into files. Knows no servers; needs matplotlib."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from bench.command import CannotMeasure
from bench.comparison import Rows, Spread, spreads

NOT_TOLD = Spread(0.0, 0.0, 0.0)
PANELS = {
    "time to first token, median (ms)": "ttft_p50_ms",
    "time to first token, 95 of 100 (ms)": "ttft_p95_ms",
    "between pieces of text, median (ms)": "itl_p50_ms",
    "output tokens a second": "output_tokens_per_s",
    "prompt tokens found cached (%)": "cached_share_percent",
    "prefilled, as a multiple of the ideal": "prefill_over_ideal_ratio",
}


def require_matplotlib() -> None:
    """Check that plots can be drawn.

    Raises:
        CannotMeasure: matplotlib is not installed.
    """
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise CannotMeasure("--plots needs matplotlib: pip install -c constraints.txt matplotlib") from error


def draw(directory: Path, workload: str, servers: Mapping[str, Rows]) -> Path:
    """Write `workload`.png: for each figure a bar a server, its median, with a line from lowest to highest."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 6), layout="constrained")
    figure.suptitle(workload)
    found = {name: spreads(rows) for name, rows in servers.items()}
    for axes, (title, name) in zip(figure.subplots(2, 3).flat, PANELS.items(), strict=True):
        spread_of = [each.get(name, NOT_TOLD) for each in found.values()]
        below = [spread.median - spread.low for spread in spread_of]
        above = [spread.high - spread.median for spread in spread_of]
        axes.bar(list(found), [spread.median for spread in spread_of], yerr=[below, above], capsize=4)
        axes.set_title(title, fontsize="medium")
        axes.tick_params(axis="x", rotation=30)
        for position, spread in enumerate(spread_of):
            if spread is NOT_TOLD:
                axes.annotate("not told", (position, 0), ha="center", va="bottom")
    path = directory / f"{workload}.png"
    figure.savefig(path, dpi=120)
    return path
