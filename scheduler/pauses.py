"""How long sessions pause before they come back: a histogram that forgets slowly. Knows no sessions and no cache."""

from __future__ import annotations

from itertools import accumulate
from math import ceil, log2

_SHORTEST_S = 0.125
_NUM_BUCKETS = 24
_MOST_PAUSES = 4096
"""With more pauses than that all count half: what sessions do changes."""


class Pauses:
    """Pauses in buckets: the i-th ends at an eighth of a second times 2 to the i; the last one has no end.

    >>> pauses = Pauses()
    >>> for pause_s in (0.5, 0.5, 0.5, 2.0):
    ...     pauses.add(pause_s)
    >>> pauses.share_within(1.0), pauses.shortest_of(0.5)
    (0.75, 0.5)
    """

    def __init__(self) -> None:
        self._counts = [0.0] * _NUM_BUCKETS
        self._total = 0.0
        self._below: list[float] | None = None

    def add(self, pause_s: float) -> None:
        """Count one more."""
        self._counts[_bucket(pause_s)] += 1
        self._total += 1
        if self._total > _MOST_PAUSES:
            self._counts = [count / 2 for count in self._counts]
            self._total /= 2
        self._below = None

    def share_within(self, limit_s: float) -> float | None:
        """The share of them that is no longer than a limit; None before the first. O(1) between changes."""
        if not self._total:
            return None
        bucket = _bucket(limit_s)
        lower = 0.0 if bucket == 0 else _SHORTEST_S * 2.0 ** (bucket - 1)
        width = _SHORTEST_S if bucket == 0 else lower
        within = min(1.0, (limit_s - lower) / width)
        return (self._sums()[bucket] + self._counts[bucket] * within) / self._total

    def shortest_of(self, share: float) -> float | None:
        """The time within which so large a share of them is, rounded up to a bucket's end; None before the first."""
        wanted = share * self._total
        for bucket, (below, count) in enumerate(zip(self._sums(), self._counts, strict=True)):
            if count and below + count >= wanted:
                return _SHORTEST_S * 2.0**bucket
        return None

    def _sums(self) -> list[float]:
        """What is below each bucket."""
        if self._below is None:
            self._below = [0.0, *accumulate(self._counts[:-1])]
        return self._below


def _bucket(seconds: float) -> int:
    return 0 if seconds <= _SHORTEST_S else min(_NUM_BUCKETS - 1, ceil(log2(seconds / _SHORTEST_S)))
