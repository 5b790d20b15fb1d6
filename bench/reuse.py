"""How much of each prompt an ideal cache would have held: one that forgets nothing and knows a prompt once it is sent.

Counts the longest beginning that a prompt shares with any prompt sent before it, or with any answered one and its
answer but for the answer's last token, which is never computed. Knows no servers.
"""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from dataclasses import dataclass
from typing import AnyStr


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """A prompt when it was sent, and what was known of its branch when it was answered (None: it was not)."""

    prompt: str
    sent_s: float
    known: str | None
    ended_s: float


def shareable_shares(exchanges: Sequence[Exchange]) -> list[float]:
    """For each prompt the share of it, from 0 to 1, that an ideal cache would have held."""
    events: list[tuple[float, int, int]] = []
    for index, exchange in enumerate(exchanges):
        events.append((exchange.sent_s, 1, index))
        if exchange.known is not None:
            events.append((exchange.ended_s, 0, index))
    seen: list[str] = []
    shares = [0.0] * len(exchanges)
    for _, is_prompt, index in sorted(events):
        exchange = exchanges[index]
        if is_prompt:
            prompt = exchange.prompt
            shares[index] = _longest(seen, prompt) / len(prompt) if prompt else 0.0
            bisect.insort(seen, prompt)
        elif exchange.known is not None:
            bisect.insort(seen, exchange.known)
    return shares


def _longest(ordered: Sequence[str], text: str) -> int:
    """Of ordered strings, a neighbour shares the longest beginning with `text`."""
    position = bisect.bisect_left(ordered, text)
    return max((common_length(text, other) for other in ordered[max(0, position - 1) : position + 1]), default=0)


def common_length(left: AnyStr, right: AnyStr) -> int:
    """Length of the longest common beginning. O(length · log length), by comparing whole slices."""
    low, high = 0, min(len(left), len(right))
    while low < high:
        middle = (low + high + 1) // 2
        if left[low:middle] == right[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
