"""The order in which unpinned leaves give up their pages: donors first, then the least recently used.

A lazy heap: a node stands in it at most once and with a rank that may be out of date, but never too high, because
ranks only grow; the head is corrected when it is looked at. O(log n) per page, no scan and no rebuild.
"""

from __future__ import annotations

from heapq import heappop, heappush, heapreplace

from .node import Node


def is_candidate(node: Node) -> bool:
    """Tell whether the last page of `node` may be evicted now."""
    return not node.children and not node.is_detached and node.pinned_pages < len(node.pages)


class EvictionQueue:
    """Leaves with pages to give, the first to go at the head.

    >>> queue = EvictionQueue()
    >>> old = Node(None, 0, bytearray(4), [0], last_used=1)
    >>> new = Node(None, 0, bytearray(4), [1], last_used=2)
    >>> queue.add(new); queue.add(old); queue.head() is old
    True
    >>> old.last_used = 3
    >>> queue.head() is new
    True
    """

    def __init__(self) -> None:
        self._heap: list[tuple[bool, int, int, Node]] = []
        self._serial = 0

    def __len__(self) -> int:
        return len(self._heap)

    def add(self, node: Node) -> None:
        """Enter a node unless it's in already or has no page to give."""
        if not node.is_queued and is_candidate(node):
            node.is_queued = True
            heappush(self._heap, self._entry(node))

    def head(self) -> Node | None:
        """Find the leaf whose last page goes next; it stays in the queue. None when no page may go."""
        heap = self._heap
        while heap:
            _, rank, _, node = heap[0]
            if not is_candidate(node):
                heappop(heap)
                node.is_queued = False
            elif rank < node.last_used:
                heapreplace(heap, self._entry(node))
            else:
                return node
        return None

    def clear(self) -> None:
        """Forget all nodes: those of a tree that was detached."""
        self._heap.clear()

    def nodes(self) -> list[Node]:
        """List the nodes that stand in the queue, in no order."""
        return [node for _, _, _, node in self._heap]

    def _entry(self, node: Node) -> tuple[bool, int, int, Node]:
        self._serial += 1
        return (not node.is_donor, node.last_used, self._serial, node)
