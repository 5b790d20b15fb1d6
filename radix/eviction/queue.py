"""The leaves that may give up pages, donors first, then by the policy's rank.

A lazy heap: a node's entry may be out of date, mostly too low, since uses raise ranks; the head is corrected when it is
looked at. A rank that falls because a wish to be kept has run out is entered anew. O(log n) per page or better, no scan
and no rebuild.
"""

from __future__ import annotations

from heapq import heappop, heappush, heapreplace

from radix.node import Node

from .policy import Policy

KEEP_WEIGHT = 4.0
"""What a wish to be kept weighs until its time has come, in units of priority."""

_DONOR = -1e18
"""Partly filled pages go before all others: they serve one fork, and few tokens of it."""


def is_candidate(node: Node) -> bool:
    """Tell whether the last page of `node` may be evicted now."""
    return not node.children and not node.is_detached and node.pinned_pages < len(node.pages)


class EvictionQueue:
    """Leaves with pages to give, the first to go at the head; `now_s` is the time that wishes are measured against.

    >>> from .lru import Lru
    >>> from radix.pages import pages_of
    >>> queue = EvictionQueue(Lru(8))
    >>> old = Node(None, 0, bytearray(4), pages_of([0]), used_at=1)
    >>> new = Node(None, 0, bytearray(4), pages_of([1]), used_at=2)
    >>> queue.add(new); queue.add(old); queue.head() is old
    True
    >>> old.used_at = 3
    >>> queue.head() is new
    True
    """

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self.now_s = 0.0
        self.head_rank = 0.0
        self._heap: list[tuple[float, int, Node]] = []
        self._wishes: list[tuple[float, int, Node]] = []
        self._serial = 0

    def add(self, node: Node) -> None:
        """Enter a node unless it's in already or has no page to give."""
        if not (node.queued_as or node.children) and is_candidate(node):
            heappush(self._heap, self._entry(node))

    def head(self) -> Node | None:
        """Find the leaf whose last page goes next; it stays, with its rank in `head_rank`. None when no page may go."""
        if self._wishes:
            self._drop_wishes()
        heap = self._heap
        while heap:
            rank, serial, node = heap[0]
            if node.queued_as != serial:
                heappop(heap)
            elif not is_candidate(node):
                heappop(heap)
                node.queued_as = 0
            elif self.rank(node) > rank:
                heapreplace(heap, self._entry(node))
            else:
                self.head_rank = rank
                return node
        return None

    def rank(self, node: Node) -> float:
        """Where `node` stands in the order."""
        if node.is_donor:
            return _DONOR + node.used_at
        weight = node.priority
        if node.keep_until_s > self.now_s:
            return self.policy.rank(node, weight + KEEP_WEIGHT)
        return self.policy.rank(node, weight)

    def clear(self) -> None:
        """Forget all nodes: those of a tree that was detached."""
        self._heap.clear()
        self._wishes.clear()

    def nodes(self) -> list[Node]:
        """List the nodes that stand in the queue, in no order."""
        return [node for _, serial, node in self._heap if node.queued_as == serial]

    def _entry(self, node: Node) -> tuple[float, int, Node]:
        self._serial += 1
        node.queued_as = self._serial
        if node.keep_until_s > self.now_s:
            heappush(self._wishes, (node.keep_until_s, self._serial, node))
        return self.rank(node), self._serial, node

    def _drop_wishes(self) -> None:
        while self._wishes and self._wishes[0][0] <= self.now_s:
            _, serial, node = heappop(self._wishes)
            if node.queued_as == serial:
                heappush(self._heap, self._entry(node))
