"""How much was computed for requests that came later than a given one. Knows arrival numbers only."""

from __future__ import annotations


class Overtaking:
    """Tokens admitted, summed by arrival number in a Fenwick tree that starts at the oldest arrival of interest.

    >>> overtaking = Overtaking()
    >>> overtaking.add(3, 100, oldest=1); overtaking.add(2, 10, oldest=1)
    >>> overtaking.later_than(1), overtaking.later_than(2), overtaking.later_than(3)
    (110, 100, 0)
    """

    def __init__(self) -> None:
        self._first = 0
        self._total = 0
        self._sums = [0] * 64

    def add(self, arrival: int, num_tokens: int, *, oldest: int) -> None:
        """Note tokens admitted for the request with this arrival; `oldest` is the lowest that will be asked for.

        O(log n), n being the number of arrivals since the oldest; at times O(n).
        """
        index = arrival - self._first
        if index >= len(self._sums):
            self._start_at(min(oldest, arrival), arrival)
            index = arrival - self._first
        if index < 0:
            return
        self._total += num_tokens
        while index < len(self._sums):
            self._sums[index] += num_tokens
            index |= index + 1

    def later_than(self, arrival: int) -> int:
        """Sum the tokens admitted for requests that came after this arrival."""
        index = min(arrival - self._first, len(self._sums) - 1)
        until = 0
        while index >= 0:
            until += self._sums[index]
            index = (index & (index + 1)) - 1
        return self._total - until

    def _start_at(self, oldest: int, newest: int) -> None:
        counts = [self.later_than(arrival - 1) - self.later_than(arrival) for arrival in range(oldest, self._end)]
        self._first, self._total = oldest, 0
        self._sums = [0] * max(64, 2 * (newest + 1 - oldest))
        for offset, num_tokens in enumerate(counts):
            if num_tokens:
                self.add(oldest + offset, num_tokens, oldest=oldest)

    @property
    def _end(self) -> int:
        return self._first + len(self._sums)
