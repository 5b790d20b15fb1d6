"""The tree with its pages in plain Python: the reference, and what runs where nothing can be compiled."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from .core import Times
from .edges import Fork, Position
from .eviction.policy import Policy
from .lease import NO_HINTS, ROOT, Hints, Lease, Place
from .node import TOKEN_BYTES, Namespace, Node
from .observer import Observer
from .outline import Limits, Outline, Run, outlined, run_of
from .pages import REQUEST, OutOfPages, PageId, PagePool, Pages, pages_of
from .picture import Picture
from .tree import RadixTree


class PureCore:
    """A `Core` of Python objects: a `RadixTree` over a `PagePool`."""

    def __init__(self, *, num_pages: int, page_tokens: int, policy: Policy) -> None:
        self.page_tokens = page_tokens
        self.ledger = PagePool(num_pages)
        self.tree = RadixTree(page_tokens=page_tokens, pool=self.ledger, policy=policy)
        self.waiters = self.tree.waiters
        self.evicted_pages_total = 0

    @property
    def free_pages(self) -> int:
        """Pages that hold nothing."""
        return len(self.ledger.free_ids)

    @property
    def evictable_pages(self) -> int:
        """Pages of the tree that nobody pins."""
        return self.tree.pins.evictable_pages

    @property
    def version(self) -> int:
        """A number that has grown whenever the result of a match could have changed."""
        return self.tree.version

    @property
    def generation(self) -> int:
        """The number of flushes."""
        return self.tree.generation

    def observe(self, observer: Observer) -> None:
        """Tell `observer` of whole pages that enter and leave."""
        self.tree.observer = observer

    def tell_time(self, now_s: float) -> None:
        """Say what time it is, for wishes to keep pages."""
        self.tree.queue.now_s = now_s

    def find(self, namespace: Namespace, query: bytes) -> tuple[int, int]:
        """Count the tokens in whole cached pages at the start of `query`, and those that a copied page would add."""
        position, fork = self._find(namespace, query)
        return position.depth if position else 0, fork.num_tokens if fork else 0

    def lease(self, namespace: Namespace, query: bytes, hints: Hints) -> Lease:
        """Pin what `find` finds, with a page for the copy where there is one."""
        tree = self.tree
        position, fork = self._find(namespace, query)
        place, pages = (
            (tree.edges.place_of(position), tree.edges.pages_to(position)) if position else (ROOT, pages_of())
        )
        tree.pin(place)
        lease = Lease(namespace, place, pages, hints, self.page_tokens, tree.generation)
        if fork is not None:
            self._take_copy(lease, fork)
        return lease

    def beyond(self, namespace: Namespace, place: Place, num_tokens: int) -> tuple[PageId | None, bytes]:
        """Give the tokens that are cached behind a place, which may lie in a page, and the page of the first."""
        edges = self.tree.edges
        node = edges.roots.get(namespace) if place.page is None else edges.home_of(place.page)
        depth, first, tokens = place.depth, None, b""
        while node is not None and len(tokens) < num_tokens * TOKEN_BYTES:
            if depth == node.end:
                node = next(reversed(node.children.values()), None)
                continue
            if first is None:
                first = node.pages[(depth - node.start) // self.page_tokens]
            tokens += node.key[(depth - node.start) * TOKEN_BYTES :][: num_tokens * TOKEN_BYTES - len(tokens)]
            depth = node.end
        return first, tokens

    def next_victim(self) -> PageId | None:
        """Find the page that would be evicted first."""
        node = self.tree.queue.head()
        return None if node is None else node.pages[-1]

    def copied(self, lease: Lease) -> None:
        """Unpin the source of the lease's copy."""
        if lease.copy_source is not None:
            self.tree.unpin(lease.copy_source)
            lease.copy_source = None

    def allocate(self, num_pages: int) -> Pages:
        """Hand pages to a request; evicts where too few are free."""
        shortfall = num_pages - len(self.ledger.free_ids)
        if shortfall > 0:
            if shortfall > self.tree.pins.evictable_pages:
                raise OutOfPages(needed=num_pages, available=self.free_pages + self.evictable_pages)
            self.evict(shortfall)
        return self.ledger.allocate(num_pages)

    def commit(self, lease: Lease, rest: bytes) -> None:
        """Enter whole pages: `rest` are the tokens behind the lease's depth."""
        old = self._enter(lease, rest)
        if old is not None:
            self.tree.pin(lease.place)
            self.tree.unpin(old)

    def release(self, lease: Lease, rest: bytes) -> None:
        """Enter the whole pages of `rest`, keep its tail for copying, free the lease's other pages, and unpin."""
        tree = self.tree
        version, depth = tree.version, lease.depth
        held = self._enter(lease, rest)
        end = lease.place.page
        if end is not None:
            node = tree.edges.node_of(end)
            if tree.version == version:
                tree.touch(node)
            if found := lease.cached_tokens - lease.copied_tokens:
                self._count_hit(node, found)
            if lease.hints is not NO_HINTS:
                self._remember(node, lease.hints)
        self.copied(lease)
        own = lease.own_page_ids
        tail = rest[(lease.depth - depth) * TOKEN_BYTES :]
        if 0 < len(tail) < tree.edges.page_bytes and self._keep_donor(lease, tail):
            own.remove(lease.page_ids[lease.depth // self.page_tokens])
        self.ledger.free(own, REQUEST)
        tree.unpin(held or lease.place)

    def own_pages(self, lease: Lease) -> int:
        """Count the pages that releasing the lease would make free or evictable. O(nodes on the path held alone)."""
        return len(lease.own_page_ids) + self.tree.pages_held_by_one(lease.place)

    def unpinned_pages(self, place: Place) -> int:
        """Count the pages up to a cached place that nobody pins. O(nodes on the path that nobody pins)."""
        return self.tree.unpinned_pages(place)

    def evict(self, num_pages: int) -> int:
        """Free up to `num_pages` of the tree's pages that nobody pins; returns how many."""
        evicted = self.tree.evict(num_pages)
        self.evicted_pages_total += evicted
        return evicted

    def flush(self) -> int:
        """Forget the whole tree; returns how many pages came free."""
        return self.tree.detach_all()

    def forget(self, page: PageId) -> None:
        """Take a page and all below it out of the tree, if it's there."""
        node = self.tree.edges.home[page]
        if node is not None and not node.is_detached:
            self.tree.detach_page(page)

    def held(self, first: int, stop: int) -> Times:
        """Count how often the tree, flushed parts that leases hold included, holds each page of [first, stop)."""
        times = np.zeros(stop - first, np.intp)
        for node in dict.fromkeys(self.tree.edges.home[first:stop]):
            if node is not None:
                pages = np.frombuffer(node.pages, np.int32) - first
                np.add.at(times, pages[(pages >= 0) & (pages < stop - first)], 1)
        return times

    def follow(self, namespace: Namespace, place: Place, key: bytes, start: int) -> Place:
        """Go on from a cached place along the whole pages of `key` behind its first `start` tokens."""
        return self.tree.edges.follow(namespace, place, key, start)

    def continued(self, namespace: Namespace, place: Place, first_pages: Collection[bytes]) -> list[bytes]:
        """Pick those of `first_pages` that go on from a cached place."""
        return self.tree.edges.continued(namespace, place, first_pages)

    def outline(self, limits: Limits) -> Outline:
        """Show the largest parts of the tree. O(nodes)."""
        edges = self.tree.edges
        home = None if limits.under is None else edges.home_of(limits.under)
        return outlined(edges.roots, self.tree.queue, home, limits, page_tokens=self.page_tokens)

    def run_of(self, page: PageId, max_tokens: int) -> Run | None:
        """Read the first tokens of the node that holds a page; None when the tree doesn't hold it."""
        node = self.tree.edges.home_of(page)
        return None if node is None or node.is_detached else run_of(node, max_tokens, self.page_tokens)

    def picture(self) -> Picture:
        """Show the tree itself."""
        edges = self.tree.edges
        return Picture(edges.page_tokens, edges.roots, edges.home_of, self.tree.queue.nodes(), self.evictable_pages)

    def _find(self, namespace: Namespace, query: bytes) -> tuple[Position | None, Fork | None]:
        position = self.tree.edges.match(namespace, query)
        if position is None:
            return None, None
        offset = position.depth * TOKEN_BYTES
        return position, self.tree.edges.look_for_fork(position, query[offset : offset + self.tree.edges.page_bytes])

    def _take_copy(self, lease: Lease, fork: Fork) -> None:
        source = Place(fork.page, fork.depth)
        self.tree.pin(source)
        try:
            (page,) = self.allocate(1)
        except OutOfPages:
            self.tree.unpin(source)
            return
        lease.page_ids.append(page)
        lease.cached_tokens += fork.num_tokens
        lease.copied_tokens = fork.num_tokens
        lease.copy = (fork.page, page)
        lease.copy_source = source

    def _enter(self, lease: Lease, rest: bytes) -> Place | None:
        """Move the lease to the end of what it has computed; returns where it was, still pinned, if it moved."""
        if self._is_stale(lease):
            return None
        old = lease.place
        if old.depth + len(rest) // TOKEN_BYTES > lease.cached_tokens:
            self.copied(lease)
        num_pages = len(rest) // self.tree.edges.page_bytes
        if not num_pages:
            return None
        first = old.depth // self.page_tokens
        end, duplicates = self.tree.insert(
            self.tree.edges.position_at(lease.namespace, old),
            rest[: num_pages * self.tree.edges.page_bytes],
            lease.page_ids[first : first + num_pages],
        )
        lease.place = self.tree.edges.place_of(end)
        lease.duplicates = lease.duplicates + duplicates
        if self.tree.observer is not None:
            self._tell_stored(self.tree.observer, lease, rest, first=first, num_found=len(duplicates), end=end)
        return old

    def _tell_stored(
        self, observer: Observer, lease: Lease, rest: bytes, *, first: int, num_found: int, end: Position
    ) -> None:
        """Tell of the pages behind the `num_found` that the tree had already, up to `end`."""
        stop = end.depth // self.page_tokens
        entered = first + num_found
        if entered == stop:
            return
        path = self.tree.edges.pages_to(end)
        tokens = rest[num_found * self.tree.edges.page_bytes : (stop - first) * self.tree.edges.page_bytes]
        observer.stored(lease.namespace, path[entered - 1] if entered else None, path[entered:], tokens)

    def _is_stale(self, lease: Lease) -> bool:
        """Tell whether the tree has forgotten the path that the lease holds: nothing more enters it."""
        if lease.generation != self.tree.generation:
            return True
        return lease.place.page is not None and self.tree.edges.node_of(lease.place.page).is_detached

    def _count_hit(self, node: Node, found_tokens: int) -> None:
        while found_tokens <= node.start and node.parent is not None:
            node = node.parent
        node.hits += 1

    def _remember(self, node: Node, hints: Hints) -> None:
        """Write wishes down where a lease ends; what is above can't go before it and inherits them."""
        node.priority = max(node.priority, hints.priority)
        node.keep_until_s = max(node.keep_until_s, self.tree.queue.now_s + hints.keep_s)

    def _keep_donor(self, lease: Lease, tail: bytes) -> bool:
        if self._is_stale(lease) or lease.depth + len(tail) // TOKEN_BYTES <= lease.cached_tokens:
            return False
        page = lease.page_ids[lease.depth // self.page_tokens]
        return self.tree.insert_donor(self.tree.edges.position_at(lease.namespace, lease.place), tail, page)
