"""The prefix cache as the scheduler sees it: match, lease, extend, commit, release, flush.

Decides which pages a request may reuse and which it gets; evicts when needed. Knows token ids and pages, but no
requests, no steps and no tensors.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from . import invariants
from .eviction.lru import Lru
from .eviction.policy import Policy
from .lease import NO_HINTS, Hints, Lease
from .node import TOKEN_BYTES, Namespace, token_bytes
from .pages import QUARANTINED, REQUEST, TREE, OutOfPages, PageId, PagePool, Pages, pages_of
from .tree import Fork, Position, RadixTree

__all__ = ["NO_HINTS", "Hints", "Lease", "Namespace", "OutOfPages", "PageId", "Pages", "PrefixCache"]


LOW_WATER_DIVISOR = 256
"""One page in so many is kept free between steps, once the pool has filled up."""


class PrefixCache:
    """All pages of a KV pool: free, leased to requests, or cached under the tokens that they hold.

    >>> cache = PrefixCache(num_pages=8, page_tokens=2)
    >>> chat = Namespace("model", None, "")
    >>> prompt = np.array([1, 2, 3, 4, 5], np.int32)
    >>> lease = cache.lease(chat, prompt, max_reuse_tokens=4)
    >>> lease.cached_tokens, cache.extend(lease, 5).tolist()
    (0, [0, 1, 2])
    >>> cache.release(lease, prompt)
    >>> cache.match(chat, prompt), cache.match(Namespace("model", None, "other"), prompt)
    (5, 0)
    >>> cache.free_pages, cache.cached_pages, cache.evictable_pages
    (5, 3, 3)
    """

    def __init__(self, *, num_pages: int, page_tokens: int, policy: Policy | None = None) -> None:
        if num_pages < 1 or page_tokens < 1:
            raise ValueError(f"num_pages and page_tokens must be >= 1, got {num_pages} and {page_tokens}")
        self.num_pages = num_pages
        self.page_tokens = page_tokens
        self.low_water_pages = num_pages // LOW_WATER_DIVISOR
        self.pool = PagePool(num_pages)
        self.tree = RadixTree(page_tokens=page_tokens, pool=self.pool, policy=policy or Lru(num_pages))
        self.leases: set[Lease] = set()
        self.evicted_pages_total = 0

    @property
    def free_pages(self) -> int:
        """Pages that hold nothing."""
        return len(self.pool.free_ids)

    @property
    def cached_pages(self) -> int:
        """Pages of the tree, also those of a flushed tree that leases still hold."""
        return self.pool.num_owned(TREE)

    @property
    def evictable_pages(self) -> int:
        """Pages of the tree that no lease holds."""
        return self.tree.evictable_pages

    @property
    def quarantined_pages(self) -> int:
        """Pages set aside because the ledger contradicted itself about them."""
        return self.pool.num_owned(QUARANTINED)

    @property
    def mismatches_total(self) -> int:
        """How often the ledger contradicted itself."""
        return self.pool.mismatches_total

    @property
    def version(self) -> int:
        """A number that has grown whenever the result of a match could have changed."""
        return self.tree.version

    def match(self, namespace: Namespace, token_ids: np.ndarray) -> int:
        """Count the tokens that `lease` could reuse, to the token. Read-only: no split, no recency.

        O(len(token_ids)), whatever the number of edges, plus a look at eight forks at most.
        """
        position, fork = self._find(namespace, token_bytes(token_ids))
        return (position.depth if position else 0) + (fork.num_tokens if fork else 0)

    def match_pages(self, namespace: Namespace, token_ids: np.ndarray) -> int:
        """Count the tokens in whole cached pages at the start of `token_ids`. Read-only."""
        position = self.tree.match(namespace, token_bytes(token_ids))
        return position.depth if position else 0

    def tell_time(self, now_s: float) -> None:
        """Say what time it is, on any clock that doesn't go back: wishes to keep pages run out by it."""
        self.tree.queue.now_s = now_s

    def lease(
        self, namespace: Namespace, token_ids: np.ndarray, *, max_reuse_tokens: int, hints: Hints = NO_HINTS
    ) -> Lease:
        """Pin the longest cached prefix of `token_ids`, at most `max_reuse_tokens` of it, until `release`.

        When a cached page shares further tokens, the lease gets a page of its own (which may evict) and names the copy
        to make; its source stays pinned until `copied`. Without a page for it there is no copy and no error.
        """
        position, fork = self._find(namespace, token_bytes(token_ids[: max(max_reuse_tokens, 0)]))
        if position is None:
            position = Position(self.tree.root(namespace), 0)
        self.tree.pin(position)
        lease = Lease(self.tree, position, self.tree.pages_to(position), hints)
        self.leases.add(lease)
        if fork is not None:
            self._take_copy(lease, fork)
        return lease

    def copied(self, lease: Lease) -> None:
        """Unpin the source of the lease's copy: the plan that names it has been sent, and plans run in order."""
        if lease.copy_source is not None:
            self.tree.unpin(lease.copy_source)
            lease.copy_source = None

    def extend(self, lease: Lease, num_tokens: int) -> Pages:
        """Append own pages to the lease until it holds `num_tokens` tokens; returns those appended. May evict.

        Raises:
            OutOfPages: fewer than the needed pages are free or evictable; nothing was changed.
        """
        assert not lease.is_released
        missing = -(-num_tokens // self.page_tokens) - len(lease.page_ids)
        if missing <= 0:
            return pages_of()
        pages = self._allocate(missing)
        lease.page_ids += pages
        return pages

    def extend_each(self, leases: Sequence[Lease]) -> Sequence[PageId]:
        """Append one own page to each lease; returns them in the same order. May evict.

        Raises:
            OutOfPages: fewer pages are free or evictable; nothing was changed.
        """
        pages = self._allocate(len(leases))
        for lease, page in zip(leases, pages, strict=True):
            lease.page_ids.append(page)
        return pages

    def commit(self, lease: Lease, token_ids: np.ndarray) -> None:
        """Enter the whole pages of `token_ids`, all computed by retired steps, into the tree.

        Only what is new since the last commit is walked. Where the tree already has an equal page, the lease's own
        stays its own until `release`. After a flush nothing enters.
        """
        old = self._enter(lease, token_ids)
        if old is not None:
            self.tree.pin(lease.position)
            self.tree.unpin(old)

    def release(self, lease: Lease, token_ids: np.ndarray) -> None:
        """Commit `token_ids`, keep a partly filled last page for copying, free the lease's other own pages, and unpin.

        A second call does nothing.
        """
        if lease.is_released:
            return
        tree = self.tree
        version = tree.version
        held = self._enter(lease, token_ids)
        if tree.version == version:
            tree.touch(tree.settle(lease.position).node)
        if found := lease.cached_tokens - lease.copied_tokens:
            tree.settle(Position(lease.position.node, found)).node.hits += 1
        if lease.hints is not NO_HINTS:
            self._remember(lease)
        self.copied(lease)
        own = lease.own_page_ids
        if len(token_ids) % self.page_tokens and self._keep_donor(lease, token_ids):
            own.remove(lease.page_ids[lease.position.depth // self.page_tokens])
        lease.is_released = True
        self.leases.remove(lease)
        self.pool.free(own, REQUEST)
        tree.unpin(held or lease.position)

    def evict_ahead(self) -> int:
        """Evict up to the low-water mark of free pages; returns how many went.

        For the time after a plan was sent, so that the next one finds pages without evicting while it is awaited.
        """
        shortfall = min(self.low_water_pages - len(self.pool.free_ids), self.evictable_pages)
        if shortfall <= 0:
            return 0
        evicted = self.tree.evict(shortfall)
        self.evicted_pages_total += evicted
        return evicted

    def flush(self) -> int:
        """Forget everything cached; returns how many pages came free. Leased ones follow with their last lease."""
        return self.tree.detach_all()

    def check(self) -> None:
        """Restate every invariant, for tests. O(everything).

        Raises:
            AssertionError: one doesn't hold; the message says which, and where.
        """
        invariants.check(self.pool, self.tree, self.leases)

    def audit(self) -> int:
        """Quarantine every page whose owner is not exactly the one that the ledger names; returns how many.

        Each is logged with its last events and counted. Live leases keep their pages; serving goes on. O(everything).
        """
        return invariants.quarantine_mismatches(self.pool, self.tree, self.leases)

    def _enter(self, lease: Lease, token_ids: np.ndarray) -> Position | None:
        """Move the lease to the end of what it has computed; returns where it was, still pinned, if it moved."""
        num_tokens = len(token_ids)
        if num_tokens > len(lease.page_ids) * self.page_tokens:
            raise ValueError(f"{num_tokens} tokens can't have been computed in {len(lease.page_ids)} pages")
        old = self.tree.settle(lease.position)
        if lease.is_released or old.node.is_detached:
            return None
        if num_tokens > lease.cached_tokens:
            self.copied(lease)
        first, stop = old.depth // self.page_tokens, num_tokens // self.page_tokens
        if stop <= first:
            return None
        query = token_bytes(token_ids[old.depth : stop * self.page_tokens])
        lease.position, duplicates = self.tree.insert(old, query, lease.page_ids[first:stop])
        lease.duplicates += duplicates
        return old

    def _find(self, namespace: Namespace, query: bytes) -> tuple[Position | None, Fork | None]:
        position = self.tree.match(namespace, query)
        if position is None:
            return None, None
        offset = position.depth * TOKEN_BYTES
        return position, self.tree.look_for_fork(position, query[offset : offset + self.tree.page_bytes])

    def _take_copy(self, lease: Lease, fork: Fork) -> None:
        self.tree.pin(fork.position)
        try:
            (page,) = self._allocate(1)
        except OutOfPages:
            self.tree.unpin(fork.position)
            return
        lease.page_ids.append(page)
        lease.cached_tokens += fork.num_tokens
        lease.copied_tokens = fork.num_tokens
        lease.copy = (fork.page, page)
        lease.copy_source = fork.position

    def _allocate(self, num_pages: int) -> Pages:
        shortfall = num_pages - len(self.pool.free_ids)
        if shortfall > 0:
            if shortfall > self.tree.pins.evictable_pages:
                raise OutOfPages(needed=num_pages, available=self.free_pages + self.evictable_pages)
            self.evicted_pages_total += self.tree.evict(shortfall)
        return self.pool.allocate(num_pages)

    def _remember(self, lease: Lease) -> None:
        """Write a lease's wishes down where it ends; what is above can't go before it and inherits them."""
        node = self.tree.settle(lease.position).node
        node.priority = max(node.priority, lease.hints.priority)
        node.keep_until_s = max(node.keep_until_s, self.tree.queue.now_s + lease.hints.keep_s)

    def _keep_donor(self, lease: Lease, token_ids: np.ndarray) -> bool:
        depth = lease.position.depth
        is_tail = depth < len(token_ids) < depth + self.page_tokens
        if not is_tail or lease.is_stale or len(token_ids) <= lease.cached_tokens:
            return False
        page = lease.page_ids[depth // self.page_tokens]
        return self.tree.insert_donor(self.tree.settle(lease.position), token_bytes(token_ids[depth:]), page)
