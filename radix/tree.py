"""The radix tree of cached prefixes: how it takes pages in and gives them up.

Its shape is in `edges`, its pins in `pins`, the order of eviction in `eviction`. Knows no requests.
"""

from __future__ import annotations

from itertools import islice

from .edges import FORK_LOOK, Edges, Position
from .eviction.policy import Policy
from .eviction.queue import EvictionQueue
from .lease import Place
from .node import TOKEN_BYTES, Node, common_run
from .observer import Observer
from .pages import TREE, PageId, PagePool, Pages, pages_of
from .pins import Pins
from .waiters import Waiters


class RadixTree:
    """Pages by the tokens before and in them, taken from a pool and given back to it.

    >>> from .eviction.lru import Lru
    >>> from .node import Namespace
    >>> pool = PagePool(8)
    >>> tree = RadixTree(page_tokens=1, pool=pool, policy=Lru(8))
    >>> namespace = Namespace("m", None, "")
    >>> position, duplicates = tree.insert(Position(tree.edges.root(namespace), 0), b"aaaabbbb", pool.allocate(2))
    >>> tree.evict(1), tree.edges.match(namespace, b"aaaabbbb").depth
    (1, 1)
    """

    def __init__(self, *, page_tokens: int, pool: PagePool, policy: Policy) -> None:
        self.edges = Edges(page_tokens=page_tokens, num_pages=pool.num_pages)
        self.pool = pool
        self.version = 0
        self.generation = 0
        self.queue = EvictionQueue(policy)
        self.pins = Pins(page_tokens=page_tokens, pool=pool, queue=self.queue, home=self.edges.home)
        self.waiters = Waiters(self.edges, page_tokens=page_tokens)
        self.observer: Observer | None = None

    # --- growing

    def insert(self, position: Position, query: bytes, pages: Pages) -> tuple[Position, Pages]:
        """Enter the whole pages of `query` below `position`; returns where they end and the pages that were not taken.

        Pages that the tree already holds are not taken, nor is anything from the first page on that the ledger says is
        not the request's. The caller pins the new position.
        """
        node, depth = position
        duplicates = pages_of()
        offset, stop = 0, len(query)
        while offset < stop:
            if depth == node.start + len(node.key) // TOKEN_BYTES:
                child = node.children.get(query[offset : offset + self.edges.page_bytes])
                if child is None:
                    break
                node = child
            run = self.edges.whole_pages(common_run(node.key, (depth - node.start) * TOKEN_BYTES, query, offset))
            first = offset // self.edges.page_bytes
            duplicates += pages[first : first + run // self.edges.page_bytes]
            offset += run
            depth += run // TOKEN_BYTES
            if offset < stop and depth < node.end:
                node = self.edges.split(node, depth)
        if offset < stop:
            node = self._append(node, query[offset:], pages[offset // self.edges.page_bytes :])
            depth = node.end
            self.edges.drop_root_if_empty(node)
        return Position(node, depth), duplicates

    def insert_donor(self, position: Position, tail: bytes, page: PageId) -> bool:
        """Keep a partly filled page with its tokens `tail` below `position`, unless what is there begins with them."""
        node, depth = position
        fork = self.edges.look_for_fork(position, tail)
        is_there = fork is not None and fork.num_tokens * TOKEN_BYTES == len(tail)
        # The look is at a few children only; the very same tail must not take an older one's place.
        if is_there or (depth == node.end and tail in node.children):
            return False
        pages = self.pool.adopt(pages_of((page,)))
        if not pages:
            self.edges.drop_root_if_empty(node)
            return False
        if depth < node.end:
            node = self.edges.split(node, depth)
        self._drop_superseded(node, tail)
        moment = self.queue.policy.moment(1)
        donor = Node(node, depth, bytearray(tail), pages, used_at=moment, used_s=self.queue.now_s, is_donor=True)
        self._add_child(donor)
        return True

    def touch(self, node: Node) -> None:
        """Make `node` the most recently used. Its ancestors need no touch, since they can't go before it."""
        node.used_at = self.queue.policy.moment(0)
        node.used_s = self.queue.now_s

    def _append(self, node: Node, key: bytes, pages: Pages) -> Node:
        adopted = self.pool.adopt(pages)
        if len(adopted) < len(pages):
            key = key[: len(adopted) * self.edges.page_bytes]
        if not adopted:
            return node
        end = self.edges.place_of(Position(node, node.end))
        grown = self._grow(node, key, adopted)
        self.waiters.grown(node.namespace, end.page, key[: self.edges.page_bytes])
        return grown

    def _grow(self, node: Node, key: bytes, pages: Pages) -> Node:
        if node.forks:
            self._drop_superseded(node, key[: self.edges.page_bytes])
        moment = self.queue.policy.moment(len(pages))
        if node.parent is None or node.children or node.pinned_children:
            child = Node(node, node.end, bytearray(key), pages, used_at=moment, used_s=self.queue.now_s)
            self._add_child(child)
            return child
        node.key += key
        node.pages += pages
        self.edges.settle(node, pages)
        node.used_at = moment
        node.used_s = self.queue.now_s
        self.version += 1
        self.pins.evictable_pages += len(pages)
        self.queue.add(node)
        return node

    def _add_child(self, child: Node) -> None:
        assert child.parent is not None
        self.edges.link(child)
        self.edges.settle(child, child.pages)
        self.version += 1
        self.pins.evictable_pages += len(child.pages)
        self.queue.add(child)

    def _drop_superseded(self, node: Node, page_key: bytes) -> None:
        """Free the unpinned donors below `node` whose tokens are the start of a page that is about to enter."""
        siblings = node.forks.get(page_key[:TOKEN_BYTES])
        if siblings is None:
            return
        for child in list(islice(reversed(siblings), FORK_LOOK)):
            if child.is_donor and not child.is_pinned and page_key.startswith(child.key):
                self._free(child.pages)
                self.pins.evictable_pages -= 1
                self._remove(child)

    # --- pinning

    def pin(self, place: Place) -> None:
        """Keep the path to `place` from eviction. O(nodes on the path that nobody had pinned yet)."""
        if place.page is not None:
            self.pins.pin(self.edges.node_of(place.page), place.depth)

    def unpin(self, place: Place) -> None:
        """Undo one `pin`. A detached page that nobody pins any more is freed."""
        if place.page is not None:
            root = self.pins.unpin(self.edges.node_of(place.page), place.depth)
            if root is not None:
                self.edges.drop_root_if_empty(root)

    def pages_held_by_one(self, place: Place) -> int:
        """Count the pages on the path to `place` that only one pin, the one at `place`, keeps from eviction."""
        return 0 if place.page is None else self.pins.pages_held_by_one(self.edges.node_of(place.page), place.depth)

    def unpinned_pages(self, place: Place) -> int:
        """Count the pages on the path to `place` that no pin keeps from eviction."""
        return 0 if place.page is None else self.pins.unpinned_pages(self.edges.node_of(place.page), place.depth)

    # --- shrinking

    def evict(self, num_pages: int) -> int:
        """Free up to `num_pages` unpinned pages, each from the end of the branch that goes first; returns how many."""
        queue, policy, pins = self.queue, self.queue.policy, self.pins
        freed = pages_of()
        missing = num_pages
        while missing and (node := queue.head()) is not None:
            count = min(missing, len(node.pages) - node.pinned_pages)
            taken = node.pages[: -count - 1 : -1]
            freed += taken
            missing -= count
            pins.evictable_pages -= count
            if not node.is_donor:
                policy.evicted(queue.head_rank)
            if count == len(node.pages):
                parent = node.parent
                self._remove(node)
                assert parent is not None
                if len(parent.children) == 1:
                    self.edges.join_only_child(parent)
                self.edges.drop_root_if_empty(parent)
            else:
                del node.pages[-count:], node.key[-count * self.edges.page_bytes :]
                self._tell_lost(taken, node)
        if freed:
            self._free(freed)
            self.version += 1
        return len(freed)

    def detach_all(self) -> int:
        """Forget every root; returns how many pages came free. Pinned ones are freed with their last pin."""
        roots = list(self.edges.roots.values())
        self.edges.roots.clear()
        self.version += 1
        self.generation += 1
        self.waiters.lost_all()
        freed = sum(self._detach(root) for root in roots)
        self.queue.clear()
        return freed

    def detach_page(self, page: PageId) -> None:
        """Forget one page of the tree and everything below it."""
        node = self.edges.node_of(page)
        index = node.pages.index(page)
        if index:
            self.edges.split(node, node.start + index * self.edges.page_tokens)
        self.edges.unlink(node)
        parent = node.parent
        assert parent is not None
        for each in node.walk():
            self._tell_lost(each.pages, parent)
        self._detach(node)
        self.version += 1
        self.queue.add(parent)
        self.edges.drop_root_if_empty(parent)
        self.waiters.dismiss_leaders()

    def _detach(self, top: Node) -> int:
        freed = 0
        for node in list(top.walk()):
            node.is_detached = True
            unpinned = node.pages[node.pinned_pages :]
            self.pins.evictable_pages -= len(unpinned)
            freed += len(unpinned)
            self._free(unpinned)
            del node.pages[node.pinned_pages :], node.key[node.pinned_pages * self.edges.page_bytes :]
            node.children.clear()
            node.forks.clear()
        return freed

    def _remove(self, node: Node) -> None:
        """Take a leaf without pins out of the tree."""
        parent = node.parent
        assert parent is not None
        self.edges.unlink(node)
        self._tell_lost(node.pages, parent)
        node.pages = pages_of()
        if not node.is_donor:
            parent.inherit(node)
        self.queue.add(parent)

    def _free(self, pages: Pages) -> None:
        self.edges.settle(None, pages)
        self.pool.free(pages, TREE)

    def _tell_lost(self, pages: Pages, above: Node) -> None:
        if self.observer is not None:
            self.observer.removed(pages)
        if self.waiters.halts:
            self.waiters.lost(pages, self.edges.place_of(Position(above, above.end)))
