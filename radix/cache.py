"""The prefix cache as the scheduler sees it: match, lease, extend, commit, release, flush.

Decides which pages a request may reuse and which it gets; evicts when needed. Knows token ids and pages, but no
requests, no steps and no tensors.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from . import invariants
from .core import Core
from .eviction.lru import Lru
from .eviction.policy import Policy
from .lease import NO_HINTS, ROOT, Hints, Lease, Place
from .native.core import NativeCore, formula_of
from .native.library import load_library
from .node import TOKEN_BYTES, Namespace, token_bytes
from .observer import Observer
from .outline import WHOLE, Limits, Outline, Run, nothing_shown
from .pages import QUARANTINED, TREE, OutOfPages, PageId, Pages, pages_of
from .pure import PureCore
from .tails import Tails
from .waiters import Waiters

__all__ = ["NO_HINTS", "Hints", "Lease", "Namespace", "OutOfPages", "PageId", "Pages", "PrefixCache"]


LOW_WATER_DIVISOR = 256
"""One page in so many is kept free between steps, once the pool has filled up."""

AUDIT_PAGES = 4096
"""Pages looked at by one call of `audit`: under a millisecond, beside 256 leases."""


class PrefixCache:
    """All pages of a KV pool: free, leased to requests, or cached under the tokens that they hold.

    Compiled where it can be and where the policy is one of ours, unless that is not wished for; the same otherwise.

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

    def __init__(
        self, *, num_pages: int, page_tokens: int, policy: Policy | None = None, is_compiled: bool = True
    ) -> None:
        if num_pages < 1 or page_tokens < 1:
            raise ValueError(f"num_pages and page_tokens must be >= 1, got {num_pages} and {page_tokens}")
        self.num_pages = num_pages
        self.page_tokens = page_tokens
        self.low_water_pages = num_pages // LOW_WATER_DIVISOR
        self.core = _core(num_pages, page_tokens, policy or Lru(num_pages), is_compiled=is_compiled)
        self.leases: dict[Lease, str] = {}
        self._observer: Observer | None = None
        self._tails = Tails()
        self._audited_pages = 0

    @property
    def free_pages(self) -> int:
        """Pages that hold nothing."""
        return self.core.free_pages

    @property
    def cached_pages(self) -> int:
        """Pages of the tree, also those of a flushed tree that leases still hold."""
        return self.core.ledger.num_owned(TREE)

    @property
    def evictable_pages(self) -> int:
        """Pages of the tree that no lease holds."""
        return self.core.evictable_pages

    @property
    def evicted_pages_total(self) -> int:
        """How many pages were evicted."""
        return self.core.evicted_pages_total

    @property
    def quarantined_pages(self) -> int:
        """Pages set aside because the ledger contradicted itself about them."""
        return self.core.ledger.num_owned(QUARANTINED)

    @property
    def mismatches_total(self) -> int:
        """How often the ledger contradicted itself."""
        return self.core.ledger.mismatches_total

    @property
    def version(self) -> int:
        """A number that has grown whenever the result of a match could have changed."""
        return self.core.version + self._tails.version

    @property
    def waiters(self) -> Waiters:
        """Who waits for which prefix."""
        return self.core.waiters

    def match(self, namespace: Namespace, token_ids: np.ndarray) -> int:
        """Count the tokens that `lease` could reuse, to the token. Read-only: no split, no recency.

        O(len(token_ids)), whatever the number of edges, plus a look at eight forks at most.
        """
        query = token_bytes(token_ids)
        whole_tokens, fork_tokens = self.core.find(namespace, query)
        if not self._tails.is_idle:
            place = self.core.follow(namespace, ROOT, query[: whole_tokens * TOKEN_BYTES], 0)
            fork_tokens = max(fork_tokens, self._longest_tail(namespace, place, query)[1])
        return whole_tokens + fork_tokens

    def match_pages(self, namespace: Namespace, token_ids: np.ndarray) -> int:
        """Count the tokens in whole cached pages at the start of `token_ids`. Read-only."""
        return self.core.find(namespace, token_bytes(token_ids))[0]

    def observe(self, observer: Observer) -> None:
        """Tell `observer` of every whole page that comes and goes, from now on; there is one at most."""
        assert self._observer is None
        self._observer = observer
        self.core.observe(observer)

    def tell_time(self, now_s: float) -> None:
        """Say what time it is, on any clock that doesn't go back: wishes to keep pages run out by it."""
        self.core.tell_time(now_s)

    def lease(
        self,
        namespace: Namespace,
        token_ids: np.ndarray,
        *,
        max_reuse_tokens: int,
        hints: Hints = NO_HINTS,
        holder: str = "",
    ) -> Lease:
        """Pin the longest cached prefix of `token_ids`, at most `max_reuse_tokens` of it, until `release`.

        When a cached page, or the tail of another lease, shares further tokens, the lease gets a page of its own (which
        may evict) and names the copy to make; its source stays until `copied`. Without a page for it there is no copy
        and no error. An observer is told of `holder` when the lease takes or gives pages.
        """
        if self._observer is not None:
            self._observer.acting(holder)
        query = token_bytes(token_ids[: max(max_reuse_tokens, 0)])
        lease = self.core.lease(namespace, query, hints)
        if not self._tails.is_idle:
            self._copy_tail(lease, query)
        self.leases[lease] = holder
        return lease

    def beyond(self, lease: Lease, num_tokens: int) -> tuple[PageId | None, bytes]:
        """Give up to `num_tokens` tokens that are cached where a new lease's ones end, and the page of the first.

        Of several branches it is the one that a page was copied from, or else the youngest. Behind what was copied from
        a running request's page, see `beyond_tail`.
        """
        namespace, place = lease.namespace, lease.place
        if lease.copy is not None and lease.copy_source is None:
            return None, b""
        if lease.copy is not None:
            place = Place(lease.copy[0], place.depth + lease.copied_tokens)
        return self.core.beyond(namespace, place, num_tokens)

    def beyond_tail(self, lease: Lease, num_tokens: int) -> tuple[str, bytes] | None:
        """Name who holds the running request's page that a new lease copies, and up to `num_tokens` tokens behind.

        None where it copies none.
        """
        if lease.copy is None or lease.copy_source is not None:
            return None
        owner, tail = self._tails.of_page(lease.copy[0])
        first = lease.copied_tokens * TOKEN_BYTES
        return self.leases[owner], tail.tokens[first : first + num_tokens * TOKEN_BYTES]

    def next_victim(self) -> PageId | None:
        """Find the page that would be evicted first; None while nothing is evictable."""
        return self.core.next_victim()

    def copied(self, lease: Lease) -> None:
        """Let go of the source of the lease's copy: the plan that names it has been sent, and plans run in order."""
        if lease.copy_source is not None:
            self.core.copied(lease)
        if not self._tails.is_idle:
            self._tails.taken(lease)

    def extend(self, lease: Lease, num_tokens: int) -> Pages:
        """Append own pages to the lease until it holds `num_tokens` tokens; returns those appended. May evict.

        Raises:
            OutOfPages: fewer than the needed pages are free or evictable; nothing was changed.
        """
        assert not lease.is_released
        missing = -(-num_tokens // self.page_tokens) - len(lease.page_ids)
        if missing <= 0:
            return pages_of()
        if self._observer is not None:
            self._observer.acting(self.leases[lease])
        pages = self.core.allocate(missing)
        lease.page_ids += pages
        return pages

    def extend_each(self, leases: Sequence[Lease]) -> Sequence[PageId]:
        """Append one own page to each lease; returns them in the same order. May evict.

        Raises:
            OutOfPages: fewer pages are free or evictable; nothing was changed.
        """
        if self._observer is not None and leases:
            self._observer.acting(self.leases[leases[0]])
        pages = self.core.allocate(len(leases))
        for lease, page in zip(leases, pages, strict=True):
            lease.page_ids.append(page)
        return pages

    def commit(self, lease: Lease, token_ids: np.ndarray) -> None:
        """Enter the whole pages of `token_ids`, all computed by retired steps, into the tree.

        The tokens behind them may be copied by others from now on. Only what is new since the last commit is walked.
        Where the tree already has an equal page, the lease's own stays its own until `release`. After a flush nothing
        enters; while a copy of the lease's page is still to be made, what is new waits for the next commit.
        """
        if lease.is_released:
            return
        rest = self._new_tokens(lease, token_ids)
        if len(token_ids) > lease.cached_tokens:
            self.copied(lease)
        if self._tails.is_promised(lease):
            return
        if self._observer is not None:
            self._observer.acting(self.leases[lease])
        depth = lease.depth
        self.core.commit(lease, rest)
        tail = rest[(lease.depth - depth) * TOKEN_BYTES :]
        is_enterable = lease.generation == self.core.generation and len(tail) < self.page_tokens * TOKEN_BYTES
        self._tails.offer(lease, tail if is_enterable else b"")

    def release(self, lease: Lease, token_ids: np.ndarray) -> None:
        """Commit `token_ids`, keep a partly filled last page for copying, free the lease's other own pages, and unpin.

        A second call does nothing.
        """
        if lease.is_released:
            return
        if self._observer is not None:
            self._observer.acting(self.leases[lease])
        rest = self._new_tokens(lease, token_ids)
        if not self._tails.is_idle:
            self._tails.withdraw(lease)
            self._tails.taken(lease)
            if self._tails.is_promised(lease):
                # What is new would enter with the page that has to outlive this lease.
                self._tails.bequeath(lease)
                token_ids, rest = token_ids[: lease.depth], b""
        self.core.release(lease, rest)
        if self._observer is not None and len(token_ids):
            num_whole = lease.depth // self.page_tokens
            path = lease.page_ids[: max(num_whole, -(-len(token_ids) // self.page_tokens))]
            if lease.place.page is not None:
                path[num_whole - 1] = lease.place.page  # the tree's, where the lease has computed an equal one
            is_enterable = lease.generation == self.core.generation
            tail = token_bytes(token_ids[num_whole * self.page_tokens :]) if is_enterable else b""
            self._observer.used(lease.namespace, path, tail)
        lease.is_released = True
        del self.leases[lease]

    def own_pages(self, lease: Lease) -> int:
        """Count the pages that releasing the lease would make free or evictable. O(nodes on the path held alone)."""
        return 0 if lease.is_released else self.core.own_pages(lease)

    def unpinned_pages(self, place: Place) -> int:
        """Count the pages up to a cached place that a lease which ends there would keep from eviction, and none does.

        O(nodes on the path that no lease holds).
        """
        return self.core.unpinned_pages(place)

    def evict_ahead(self) -> int:
        """Evict up to the low-water mark of free pages; returns how many went.

        For the time after a plan was sent, so that the next one finds pages without evicting while it is awaited.
        """
        shortfall = min(self.low_water_pages - self.free_pages, self.evictable_pages)
        return self.core.evict(shortfall) if shortfall > 0 else 0

    def flush(self) -> int:
        """Forget everything cached; returns how many pages came free. Leased ones follow with their last lease."""
        self._tails.withdraw_all()
        freed = self.core.flush()
        if self._observer is not None:
            self._observer.cleared()
        return freed

    def outline(self, limits: Limits = WHOLE) -> Outline:
        """Show the largest parts of the tree, what is small folded into the rest of its parent. O(nodes).

        Under a page that is not cached, or that the pool doesn't have, there is nothing.
        """
        if limits.under is not None and not 0 <= limits.under < self.num_pages:
            return nothing_shown()
        return self.core.outline(limits)

    def run_of(self, page: PageId, max_tokens: int) -> Run | None:
        """Read the first tokens of the node that holds a page; None when no node does.

        Whoever asks got the page from an outline, and compares digests: a page may have been given out again.
        """
        return self.core.run_of(page, max_tokens) if 0 <= page < self.num_pages else None

    def check(self) -> None:
        """Restate every invariant, for tests. O(everything).

        Raises:
            AssertionError: one doesn't hold; the message says which, and where.
        """
        invariants.check(self.core, self.leases)
        self._tails.check(self.leases)

    def audit(self, num_pages: int = AUDIT_PAGES) -> int:
        """Quarantine every page, of the next `num_pages` in turn, whose owner is not exactly the one in the ledger.

        Returns how many. Each is logged with its last events and counted. Live leases keep their pages; serving goes
        on. O(num_pages) beside one pass in bulk over the free pages and those of requests.
        """
        first = self._audited_pages
        stop = min(first + num_pages, self.num_pages)
        self._audited_pages = stop % self.num_pages
        num_quarantined = invariants.quarantine_mismatches(self.core, self.leases, first, stop)
        if num_quarantined:
            self._tails.withdraw_all()
        return num_quarantined

    def _copy_tail(self, lease: Lease, query: bytes) -> None:
        """Let the lease copy another's tail, where that shares more tokens than what the tree has."""
        source, num_tokens = self._longest_tail(lease.namespace, lease.place, query)
        if num_tokens <= lease.copied_tokens:
            return
        if lease.copy is not None:
            page = lease.copy[1]
            self.core.copied(lease)
        else:
            try:
                (page,) = self.core.allocate(1)
            except OutOfPages:
                return
            lease.page_ids.append(page)
        lease.cached_tokens += num_tokens - lease.copied_tokens
        lease.copied_tokens = num_tokens
        lease.copy = (source, page)
        self._tails.promise(source, lease)

    def _longest_tail(self, namespace: Namespace, place: Place, query: bytes) -> tuple[PageId, int]:
        """The tail behind `place` that shares most tokens with `query`, and how many: 0 where there is none."""
        rest = query[place.depth * TOKEN_BYTES : (place.depth + self.page_tokens) * TOKEN_BYTES]
        return self._tails.longest(namespace, place, rest) or (-1, 0)

    def _new_tokens(self, lease: Lease, token_ids: np.ndarray) -> bytes:
        if len(token_ids) > len(lease.page_ids) * self.page_tokens:
            raise ValueError(f"{len(token_ids)} tokens can't have been computed in {len(lease.page_ids)} pages")
        return token_bytes(token_ids[lease.depth :])


def _core(num_pages: int, page_tokens: int, policy: Policy, *, is_compiled: bool) -> Core:
    library = load_library() if is_compiled and formula_of(policy) is not None else None
    if library is None:
        return PureCore(num_pages=num_pages, page_tokens=page_tokens, policy=policy)
    return NativeCore(library, num_pages=num_pages, page_tokens=page_tokens, policy=policy)
