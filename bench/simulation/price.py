"""What a step costs in virtual seconds: a + b x prefill + c x context + d x decode rows, or measured tables.

Context tokens are those whose KV the step reads: the length of every row in it. Knows no plans.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt

from bench.command import CannotMeasure

Seconds = npt.NDArray[np.float64]


class Price(Protocol):
    """Seconds of one step."""

    def seconds(self, *, prefill_tokens: int, context_tokens: int, decode_rows: int) -> float:
        """What the step takes."""

    def decode_seconds(self, *, context_tokens: npt.NDArray[np.int64], decode_rows: int) -> Seconds:
        """What steps without prefill take, to the last bit what `seconds` says of each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LinearPrice:
    """Every token and every row at a fixed price; the defaults are about those of an 8B model on one large GPU.

    >>> round(LinearPrice().seconds(prefill_tokens=1000, context_tokens=50_000, decode_rows=16), 4)
    0.0482
    """

    base_s: float = 6e-3
    prefill_token_s: float = 40e-6
    context_token_s: float = 0.04e-6
    decode_row_s: float = 10e-6

    def seconds(self, *, prefill_tokens: int, context_tokens: int, decode_rows: int) -> float:
        """What the step takes."""
        return (
            self.base_s
            + self.prefill_token_s * prefill_tokens
            + self.context_token_s * context_tokens
            + self.decode_row_s * decode_rows
        )

    def decode_seconds(self, *, context_tokens: npt.NDArray[np.int64], decode_rows: int) -> Seconds:
        """What steps without prefill take."""
        seconds = self.base_s + self.context_token_s * context_tokens + self.decode_row_s * decode_rows
        return np.asarray(seconds, np.float64)


@dataclass(frozen=True, slots=True)
class Curve:
    """Measured points (count, seconds), straight lines between them and beyond the last two."""

    counts: tuple[float, ...]
    seconds: tuple[float, ...]

    def at(self, count: float) -> float:
        """Seconds for `count`; nothing costs nothing."""
        if count <= 0:
            return 0.0
        right = min(max(bisect_right(self.counts, count), 1), len(self.counts) - 1)
        x0, x1 = self.counts[right - 1], self.counts[right]
        y0, y1 = self.seconds[right - 1], self.seconds[right]
        return max(0.0, y0 + (y1 - y0) * (count - x0) / (x1 - x0))


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredPrice:
    """A base, and what prefill tokens, context tokens and decode rows were measured to add to it."""

    base_s: float
    prefill: Curve
    context: Curve
    decode: Curve

    def seconds(self, *, prefill_tokens: int, context_tokens: int, decode_rows: int) -> float:
        """What the step takes."""
        return (
            self.base_s
            + self.prefill.at(prefill_tokens)
            + self.context.at(context_tokens)
            + self.decode.at(decode_rows)
        )

    def decode_seconds(self, *, context_tokens: npt.NDArray[np.int64], decode_rows: int) -> Seconds:
        """What steps without prefill take."""
        each = [
            self.seconds(prefill_tokens=0, context_tokens=tokens, decode_rows=decode_rows)
            for tokens in context_tokens.tolist()
        ]
        return np.array(each)


def read_prices(path: Path) -> MeasuredPrice:
    """Measured tables from a JSON file.

    {"base_s": 0.006, "prefill_tokens": [[0, 0], [512, 0.02], [8192, 0.33]], "context_tokens": [[0, 0], [1e6, 0.04]],
    "decode_rows": [[0, 0], [64, 0.001]]}: each point is a count and the seconds that it adds to the base.

    Raises:
        CannotMeasure: the file can't be read or holds something else; the message says what.
    """
    try:
        table = json.loads(path.read_text())
        return MeasuredPrice(
            base_s=float(table["base_s"]),
            prefill=_curve(table["prefill_tokens"]),
            context=_curve(table["context_tokens"]),
            decode=_curve(table["decode_rows"]),
        )
    except OSError as error:
        raise CannotMeasure(f"--step-table: {path} can't be read: {error.strerror}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise CannotMeasure(f"--step-table: {path} holds no step table: {error!r}") from error


def _curve(points: Sequence[Sequence[float]]) -> Curve:
    counts, seconds = zip(*((float(count), float(value)) for count, value in points), strict=True)
    if len(counts) < 2 or any(b <= a for a, b in pairwise(counts)):
        raise ValueError(f"a table needs at least two points in rising order, got {points}")
    return Curve(counts, seconds)
