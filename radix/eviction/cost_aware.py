"""First the leaf whose loss costs least: recompute cost times the chance that it is wanted again.

GreedyDual-Size-Frequency (L. Cherkasova, "Improving WWW Proxies Performance with Greedy-Dual-Size-Frequency Caching
Policy", HP Labs HPL-98-69, 1998; after P. Cao and S. Irani, "Cost-Aware WWW Proxy Caching Algorithms", USITS 1997) on
pages of one size: rank = clock + uses x cost, and the clock is the highest rank that was evicted so far, so that what
was once popular ages.
"""

from __future__ import annotations

from radix.node import Node

ATTENTION_TOKENS = 16384
"""A prompt depth at which attention over what came before costs about as much as the rest of a token's layers."""


class CostAware:
    """Ranks by clock + uses x cost; a weight of 1 counts like as many uses again.

    >>> policy = CostAware(100)
    >>> policy.evicted(3.0)
    >>> policy.moment(1), policy.cost(0), policy.cost(16384)
    (3.0, 1.0, 2.0)
    """

    def __init__(self, num_pages: int, *, attention_tokens: float = ATTENTION_TOKENS) -> None:
        self.num_pages = num_pages
        self.attention_tokens = attention_tokens
        self._clock = 0.0

    def moment(self, num_pages: int) -> float:
        """The clock; it advances by evictions only."""
        return self._clock

    def rank(self, node: Node, weight: float) -> float:
        """What losing the last page of `node` costs, on top of the clock at its last use."""
        return node.used_at + (1 + node.hits) * (1 + weight) * self.cost(node.end)

    def evicted(self, rank: float) -> None:
        """Advance the clock."""
        self._clock = max(self._clock, rank)

    def cost(self, depth: int) -> float:
        """What computing a token at `depth` costs again, in tokens at depth 0: linear, and attention over the rest."""
        return 1 + depth / self.attention_tokens
