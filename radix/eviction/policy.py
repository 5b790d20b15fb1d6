"""What a policy answers: the order in which unpinned leaves give up their pages. Knows nodes, no queue and no pool."""

from __future__ import annotations

from typing import Protocol

from radix.node import Node


class Policy(Protocol):
    """Ranks leaves; the lowest rank goes first. A rank may change when the node is used, grows or gives up pages.

    `weight` is what requests have asked for by hints, 0 where nothing was asked. A policy must let a rank be overtaken
    in the end whatever its weight: hints weigh, they never pin.
    """

    def moment(self, num_pages: int) -> float:
        """What the clock says now, to be kept as `Node.used_at`, for a use that brings `num_pages` new pages."""

    def rank(self, node: Node, weight: float) -> float:
        """Where `node` stands in the order."""

    def evicted(self, rank: float) -> None:
        """Take notice that a leaf of this rank has given up pages."""
