"""Which pages leases keep from eviction: pins on paths, and the count of the pages that nobody pins.

A pin at a position holds every page from the root to it. Knows nodes, not how the tree matches or grows.
"""

from __future__ import annotations

from .eviction import EvictionQueue
from .node import TOKEN_BYTES, Node
from .pages import Owner, PagePool


class Pins:
    """Pins of one tree; a node with pages that came free of pins is entered in `queue`."""

    def __init__(self, *, page_tokens: int, pool: PagePool, queue: EvictionQueue) -> None:
        self.page_tokens = page_tokens
        self.pool = pool
        self.queue = queue
        self.evictable_pages = 0

    def pin(self, node: Node, depth: int) -> None:
        """Keep the path to `depth` tokens, in `node`, from eviction. O(nodes that nobody had pinned yet)."""
        was_pinned = node.is_pinned
        node.ends[depth] = node.ends.get(depth, 0) + 1
        self._changed(node, was_pinned)

    def unpin(self, node: Node, depth: int) -> Node | None:
        """Undo one `pin`; returns the root when nothing under it is pinned any more.

        A detached page that nobody pins any more is freed.
        """
        was_pinned = node.is_pinned
        if node.ends[depth] > 1:
            node.ends[depth] -= 1
        else:
            del node.ends[depth]
        return self._changed(node, was_pinned)

    def pages_held_by_one(self, node: Node, depth: int) -> int:
        """Count the pages on the path to `depth` that only one pin, the one there, keeps from eviction."""
        if node.pinned_children or node.ends.get(depth) != 1:
            return 0
        num_pages = 0
        others = [end for end in node.ends if end != depth]
        while True:
            shared = max(others, default=node.start)
            num_pages += max(depth - shared, 0) // self.page_tokens
            if others or node.parent is None or node.parent.pinned_children > 1:
                return num_pages
            node = node.parent
            depth, others = node.end, list(node.ends)

    def _changed(self, node: Node, was_pinned: bool) -> Node | None:
        """Carry a change of `node.ends` up the path; returns the root when it came to it."""
        current: Node | None = node
        while current is not None:
            if current.pinned_children:
                pinned = len(current.pages)
            else:
                tokens = max(current.ends, default=current.start) - current.start
                pinned = -(-tokens // self.page_tokens)
            growth, current.pinned_pages = pinned - current.pinned_pages, pinned
            if current.is_detached:
                self.pool.free(current.pages[pinned:], Owner.TREE)
                del current.pages[pinned:], current.key[pinned * self.page_tokens * TOKEN_BYTES :]
            else:
                self.evictable_pages -= growth
                self.queue.add(current)
            parent = current.parent
            if current.is_pinned == was_pinned:
                return None
            if parent is None:
                return current
            was_pinned = parent.is_pinned
            parent.pinned_children += 1 if current.is_pinned else -1
            current = parent
        return None
