"""What the answers of a run amount to: latencies, throughput, and how much of what could be reused was reused.

What is shareable is what an ideal cache would have held of each prompt (`bench/reuse.py`): exact where prompts go as
token ids, estimated by characters where they go as text. Hits count up to what is shareable of each request and no
further, so a run before it can't flatter the figure beyond 100 %. Knows no sockets and no files.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from bench.reuse import Exchange, shareable_shares

PERCENTILES = (50, 95, 99)
REUSE_FIGURES = ("cached_share_percent", "shareable_share_percent", "shareable_hit_percent", "prefill_over_ideal_ratio")


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """One request that was answered in full; `gaps_s` lie between successive `pieces` of its text.

    `token_ids` and `cached_tokens` are None where the server does not tell them.
    """

    pieces: tuple[str, ...]
    token_ids: tuple[int, ...] | None
    ttft_s: float | None
    gaps_s: tuple[float, ...]
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int | None

    @property
    def text(self) -> str:
        """All of its text."""
        return "".join(self.pieces)


@dataclass(frozen=True, slots=True)
class Failure:
    """One request that was not; failures are counted by `kind`."""

    kind: str
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """One request of a run and what became of it; `exchange` is None when it was not sent.

    `is_json` says whether the answer is JSON where that was asked for.
    """

    label: str
    result: Answer | Failure
    exchange: Exchange | None
    is_json: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """Everything that one run of a workload brought; its warm-up counts only as what a cache could know.

    `server_figures` are what the server's own counters say.
    """

    sent: Sequence[Sent]
    duration_s: float
    warmup: Sequence[Sent] = ()
    server_figures: Mapping[str, float] = field(default_factory=dict)

    @property
    def answered(self) -> list[tuple[Sent, Answer]]:
        """The requests with an answer."""
        return [(sent, sent.result) for sent in self.sent if isinstance(sent.result, Answer)]

    @property
    def failures(self) -> list[Failure]:
        """What the other requests ended with, those of the warm-up too."""
        return [sent.result for sent in (*self.warmup, *self.sent) if isinstance(sent.result, Failure)]


def percentile(values: Sequence[float], percent: float) -> float:
    """The value below which `percent` of the values lie, interpolated between neighbours.

    Raises:
        ValueError: there are no values, or `percent` is not in [0, 100].
    """
    if not values or not 0 <= percent <= 100:
        raise ValueError(f"no {percent}th percentile of {len(values)} values")
    ordered = sorted(values)
    position = (len(ordered) - 1) * percent / 100
    low, high = math.floor(position), math.ceil(position)
    return ordered[low] + (ordered[high] - ordered[low]) * (position - low)


def shareable_tokens(run: Run) -> list[float]:
    """For each answered request, how many of its prompt's tokens an ideal cache would have held."""
    exchanges = [sent.exchange for sent in (*run.warmup, *run.sent) if sent.exchange is not None]
    share_of = dict(zip(map(id, exchanges), shareable_shares(exchanges), strict=True))
    return [share_of.get(id(sent.exchange), 0.0) * answer.prompt_tokens for sent, answer in run.answered]


def summarise(run: Run) -> dict[str, float]:
    """The figures of one run; a figure that the answers do not carry is left out."""
    answers = [answer for _, answer in run.answered]
    figures: dict[str, float] = {
        "requests_ok_count": len(answers),
        "requests_failed_count": len(run.failures),
        "duration_s": run.duration_s,
    }
    figures |= _percentiles("ttft", [answer.ttft_s for answer in answers])
    for label in sorted({sent.label for sent in run.sent if sent.label}):
        figures |= _percentiles(
            f"ttft_{label}", [answer.ttft_s for sent, answer in run.answered if sent.label == label]
        )
    figures |= _percentiles("itl", [gap for answer in answers for gap in answer.gaps_s])
    if run.duration_s > 0:
        figures["input_tokens_per_s"] = sum(answer.prompt_tokens for answer in answers) / run.duration_s
        figures["output_tokens_per_s"] = sum(answer.completion_tokens for answer in answers) / run.duration_s
    asked_for_json = [sent.is_json for sent in run.sent if sent.is_json is not None]
    if asked_for_json:
        figures["valid_json_percent"] = 100 * sum(asked_for_json) / len(asked_for_json)
    return figures | _reuse(run, answers) | dict(run.server_figures)


def merged(runs: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """One set of figures for several repeats: counts are summed, of everything else the median is taken."""
    rows = list(runs)
    names = dict.fromkeys(name for row in rows for name in row)
    values = {name: [row[name] for row in rows if name in row] for name in names}
    return {name: sum(values[name]) if name.endswith("_count") else statistics.median(values[name]) for name in names}


def table(columns: Mapping[str, Mapping[str, float]]) -> str:
    """Figures as text, one row a figure and one column a set of them; a figure that a set lacks is a dash."""
    names = list(dict.fromkeys(name for figures in columns.values() for name in figures))
    rows = {name: [_shown(figures.get(name)) for figures in columns.values()] for name in names}
    return text_table(list(columns), rows)


def text_table(head: Sequence[str], rows: Mapping[str, Sequence[str]]) -> str:
    """Rows of cells under a head, in columns."""
    lines = [["", *head], *([label, *cells] for label, cells in rows.items())]
    widths = [max(len(line[i]) for line in lines) for i in range(len(head) + 1)]
    texts = []
    for label, *cells in lines:
        padded = [cell.rjust(width) for cell, width in zip(cells, widths[1:], strict=True)]
        texts.append("  ".join([label.ljust(widths[0]), *padded]).rstrip())
    return "\n".join(texts)


def shown(value: float) -> str:
    """A number as a person reads it."""
    return f"{value:,.0f}" if value == int(value) or abs(value) >= 1000 else f"{value:,.2f}"


def failures_by_kind(failures: Iterable[Failure]) -> str:
    """One line for each kind of failure: how often it came, and the first one's own words."""
    failed = list(failures)
    examples = {failure.kind: failure.detail for failure in reversed(failed)}
    counts = Counter(failure.kind for failure in failed)
    return "\n".join(f"{count} x {kind}: {examples[kind]}" for kind, count in counts.most_common())


def _percentiles(name: str, values_s: Iterable[float | None]) -> dict[str, float]:
    values_ms = [1e3 * value for value in values_s if value is not None]
    if not values_ms:
        return {}
    return {f"{name}_p{percent}_ms": percentile(values_ms, percent) for percent in PERCENTILES}


def _reuse(run: Run, answers: Sequence[Answer]) -> dict[str, float]:
    cached = [answer.cached_tokens for answer in answers if answer.cached_tokens is not None]
    prompt_tokens = sum(answer.prompt_tokens for answer in answers)
    if len(cached) < len(answers) or not prompt_tokens:
        return {}
    figures = {"cached_share_percent": 100 * sum(cached) / prompt_tokens}
    shareable = shareable_tokens(run)
    if sum(shareable):
        hits = sum(min(hit, room) for hit, room in zip(cached, shareable, strict=True))
        figures["shareable_share_percent"] = 100 * sum(shareable) / prompt_tokens
        figures["shareable_hit_percent"] = 100 * hits / sum(shareable)
    if sum(shareable) < prompt_tokens:
        figures["prefill_over_ideal_ratio"] = (prompt_tokens - sum(cached)) / (prompt_tokens - sum(shareable))
    return figures


def _shown(value: float | None) -> str:
    return "-" if value is None else shown(value)
