"""Which pages leases keep from eviction: pins on paths, and the count of the pages that nobody pins.

A pin at a position holds every page from the root to it. Knows nodes, not how the tree matches or grows.
"""

from __future__ import annotations

from .eviction.queue import EvictionQueue
from .node import NO_ENDS, TOKEN_BYTES, Node
from .pages import TREE, PagePool


class Pins:
    """Pins of one tree; a node with pages that came free of pins is entered in `queue`.

    `home` is the tree's node by page; a detached page that comes free is taken out of it.
    """

    def __init__(self, *, page_tokens: int, pool: PagePool, queue: EvictionQueue, home: list[Node | None]) -> None:
        self.page_tokens = page_tokens
        self.pool = pool
        self.queue = queue
        self.home = home
        self.evictable_pages = 0

    def pin(self, node: Node, depth: int) -> None:
        """Keep the path to `depth` tokens, in `node`, from eviction. O(nodes that nobody had pinned yet)."""
        ends = node.ends
        if depth in ends:
            ends[depth] += 1
            return
        had_ends = bool(ends)
        if had_ends:
            ends[depth] = 1
        else:
            node.ends = {depth: 1}
        if node.pinned_children:
            return
        pinned = -(-(depth - node.start) // self.page_tokens)
        if pinned > node.pinned_pages:
            self.evictable_pages -= pinned - node.pinned_pages
            node.pinned_pages = pinned
        while not had_ends and (parent := node.parent) is not None:
            node = parent
            node.pinned_children += 1
            if node.pinned_children > 1:
                return
            had_ends = bool(node.ends)
            self.evictable_pages -= len(node.pages) - node.pinned_pages
            node.pinned_pages = len(node.pages)

    def unpin(self, node: Node, depth: int) -> Node | None:
        """Undo one `pin`; returns the root when nothing under it is pinned any more.

        A detached page that nobody pins any more is freed.
        """
        ends = node.ends
        if ends[depth] > 1:
            ends[depth] -= 1
            return None
        if len(ends) > 1:
            del ends[depth]
        else:
            node.ends = NO_ENDS
        while not node.pinned_children:
            self._shrink(node)
            if node.ends:
                return None
            parent = node.parent
            if parent is None:
                return node
            parent.pinned_children -= 1
            node = parent
        return None

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

    def unpinned_pages(self, node: Node, depth: int) -> int:
        """Count the pages on the path to `depth` that no pin keeps from eviction."""
        num_pages = 0
        while True:
            num_pages += max(-(-(depth - node.start) // self.page_tokens) - node.pinned_pages, 0)
            if node.is_pinned or node.parent is None:
                return num_pages
            node = node.parent
            depth = node.end

    def _shrink(self, node: Node) -> None:
        """Let go of the pages that no pin in `node` needs any more; none is below it."""
        pinned = -(-(max(node.ends) - node.start) // self.page_tokens) if node.ends else 0
        growth = node.pinned_pages - pinned
        if not growth:
            return
        node.pinned_pages = pinned
        if node.is_detached:
            for page in node.pages[pinned:]:
                self.home[page] = None
            self.pool.free(node.pages[pinned:], TREE)
            del node.pages[pinned:], node.key[pinned * self.page_tokens * TOKEN_BYTES :]
        else:
            self.evictable_pages += growth
            self.queue.add(node)
