"""What the scheduler's counters say of the last minute, where their sums since the start would hide it."""

from __future__ import annotations

from collections import deque

from wire.messages.to_tokenizer import Stats

WINDOW_S = 60.0
_STEP_S = 0.5


class RecentHits:
    """The hit rate of the requests that were scheduled within the last minute or so."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, int, int]] = deque([(0.0, 0, 0)])

    def take(self, stats: Stats, *, now_s: float) -> None:
        """Note the counters as they stand; of those that follow fast only the last is kept."""
        if len(self._seen) > 2 and now_s - self._seen[-2][0] < _STEP_S:
            self._seen.pop()
        self._seen.append((now_s, stats.prompt_tokens_total, stats.cached_tokens_total))
        while len(self._seen) > 2 and self._seen[1][0] <= now_s - WINDOW_S:
            self._seen.popleft()

    @property
    def rate(self) -> float | None:
        """Cached tokens over all prompt tokens; None when no prompt was scheduled."""
        _, prompt_before, cached_before = self._seen[0]
        _, prompt, cached = self._seen[-1]
        return (cached - cached_before) / (prompt - prompt_before) if prompt > prompt_before else None
