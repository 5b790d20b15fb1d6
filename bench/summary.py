"""What the answers of a run amount to: latencies, throughput, and how much of what could be reused was reused.

What is shareable follows from the workload and from the token counts that the server reports:
- Requests of one group share their prefix: all but one of them can find it, the one with the fewest cached tokens
  being taken for the one that computed it. How long the prefix is, the server is asked after the run.
- A chat turn can find the turn before it, prompt and answer, but for the answer's last token, which was never computed.
Hits count up to what is shareable of each request and no further, so a run before it can't flatter the figure beyond
100 %. Knows no sockets and no files.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """One request that was answered in full; `gaps_s` lie between successive pieces of its text."""

    text: str
    ttft_s: float | None
    gaps_s: tuple[float, ...]
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int | None


@dataclass(frozen=True, slots=True)
class Failure:
    """One request that was not; failures are counted by `kind`."""

    kind: str
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """One request of a run and what became of it."""

    conversation: int
    turn: int
    group: int
    result: Answer | Failure


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """Everything that one run of a workload brought; `prefix_tokens` has the length of each group's prefix."""

    sent: Sequence[Sent]
    duration_s: float
    prefix_tokens: Mapping[int, int] = field(default_factory=dict)

    @property
    def answered(self) -> list[tuple[Sent, Answer]]:
        """The requests with an answer."""
        return [(sent, sent.result) for sent in self.sent if isinstance(sent.result, Answer)]

    @property
    def failures(self) -> list[Failure]:
        """What the other requests ended with."""
        return [sent.result for sent in self.sent if isinstance(sent.result, Failure)]


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


def shareable_tokens(run: Run) -> list[int]:
    """For each answered request, how many of its prompt's tokens an ideal cache would have held."""
    answered = run.answered
    by_turn = {(sent.conversation, sent.turn): answer for sent, answer in answered}
    computed_it: dict[int, tuple[int, int]] = {}
    for index, (sent, answer) in enumerate(answered):
        candidate = (answer.cached_tokens or 0, index)
        computed_it[sent.group] = min(computed_it.get(sent.group, candidate), candidate)
    shareable = []
    for index, (sent, answer) in enumerate(answered):
        before = by_turn.get((sent.conversation, sent.turn - 1))
        if before is not None:
            known = before.prompt_tokens + max(0, before.completion_tokens - 1)
        elif computed_it[sent.group][1] != index:
            known = run.prefix_tokens.get(sent.group, 0)
        else:
            known = 0
        shareable.append(min(known, answer.prompt_tokens))
    return shareable


def summarise(run: Run) -> dict[str, float]:
    """The figures of one run; a figure that the answers do not carry is left out."""
    answers = [answer for _, answer in run.answered]
    figures: dict[str, float] = {
        "requests_ok_count": len(answers),
        "requests_failed_count": len(run.failures),
        "duration_s": run.duration_s,
    }
    ttfts_ms = [1e3 * answer.ttft_s for answer in answers if answer.ttft_s is not None]
    gaps_ms = [1e3 * gap for answer in answers for gap in answer.gaps_s]
    for name, values in (("ttft", ttfts_ms), ("itl", gaps_ms)):
        if values:
            figures |= {f"{name}_p{percent}_ms": percentile(values, percent) for percent in (50, 95)}
    if run.duration_s > 0:
        figures["input_tokens_per_s"] = sum(answer.prompt_tokens for answer in answers) / run.duration_s
        figures["output_tokens_per_s"] = sum(answer.completion_tokens for answer in answers) / run.duration_s
    return figures | _reuse(run, answers)


def merged(runs: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """One set of figures for several repeats: counts are summed, of everything else the median is taken."""
    rows = list(runs)
    names = dict.fromkeys(name for row in rows for name in row)
    values = {name: [row[name] for row in rows if name in row] for name in names}
    return {name: sum(values[name]) if name.endswith("_count") else statistics.median(values[name]) for name in names}


def table(columns: Mapping[str, Mapping[str, float]]) -> str:
    """Figures as text, one row a figure and one column a set of them; a figure that a set lacks is a dash."""
    names = list(dict.fromkeys(name for figures in columns.values() for name in figures))
    head = ["", *columns]
    rows = [[name, *(_shown(figures.get(name)) for figures in columns.values())] for name in names]
    widths = [max(len(row[i]) for row in [head, *rows]) for i in range(len(head))]
    lines = []
    for label, *cells in [head, *rows]:
        padded = [cell.rjust(width) for cell, width in zip(cells, widths[1:], strict=True)]
        lines.append("  ".join([label.ljust(widths[0]), *padded]))
    return "\n".join(lines)


def failures_by_kind(failures: Iterable[Failure]) -> str:
    """One line for each kind of failure: how often it came, and the first one's own words."""
    failed = list(failures)
    examples = {failure.kind: failure.detail for failure in reversed(failed)}
    counts = Counter(failure.kind for failure in failed)
    return "\n".join(f"{count} x {kind}: {examples[kind]}" for kind, count in counts.most_common())


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
    return figures


def _shown(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f}" if value == int(value) or abs(value) >= 1000 else f"{value:,.2f}"
