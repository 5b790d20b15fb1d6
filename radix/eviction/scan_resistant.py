"""Least recently used, but what was found again stays longer: a burst of one-off prompts goes before hot prefixes.

The idea of 2Q (T. Johnson and D. Shasha, "2Q: A Low Overhead High Performance Buffer Management Replacement Algorithm",
VLDB 1994): pages enter on probation and are promoted on their second use. Here a promotion counts for a stated part
of the pool's turnover, so that what was hot once and is not any more goes in the end.
"""

from __future__ import annotations

from radix.node import Node

from .lru import Lru

PROTECTED_TURNOVERS = 0.5


class ScanResistant(Lru):
    """Ranks by the last use, half a turnover of the pool later for what was found again.

    >>> policy = ScanResistant(100)
    >>> policy.protection
    50.0
    """

    def __init__(self, num_pages: int) -> None:
        super().__init__(num_pages)
        self.protection = PROTECTED_TURNOVERS * num_pages

    def rank(self, node: Node, weight: float) -> float:
        """The last use, later for what was found again and by the weight."""
        rank = super().rank(node, weight)
        return rank + self.protection if node.hits else rank
