"""The least recently used leaf first."""

from __future__ import annotations

from radix.node import Node

_TICK = 2**-10


class Lru:
    """Ranks by the last use, on a clock that counts the pages that entered the pool's tree.

    A weight of 1 counts as one turnover of the pool: such a page stands as if it had been used that much later.

    >>> policy = Lru(100)
    >>> first, second = policy.moment(4), policy.moment(4)
    >>> first < second < first + 100
    True
    """

    def __init__(self, num_pages: int) -> None:
        self.num_pages = num_pages
        self._clock = 0.0

    def moment(self, num_pages: int) -> float:
        """Advance the clock by the pages, or by a tick where none came."""
        self._clock += num_pages or _TICK
        return self._clock

    def rank(self, node: Node, weight: float) -> float:
        """The last use, later by a pool's turnover for each unit of weight."""
        return node.used_at + weight * self.num_pages

    def evicted(self, rank: float) -> None:
        """Nothing is learned from it."""
