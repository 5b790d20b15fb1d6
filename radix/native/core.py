"""The tree with its pages, compiled: what `PureCore` does, operation by operation, in a fraction of the time.

Each operation of a lease is one call into `csrc`. Its results are figures in memory that both share; what waiters must
hear, and contradictions in the ledger, are asked for after the call.
"""

from __future__ import annotations

import secrets
import struct
from array import array
from collections.abc import Collection
from ctypes import byref, c_int64
from typing import Final

import numpy as np

from radix.core import Times
from radix.edges import FORK_LOOK
from radix.eviction.cost_aware import CostAware
from radix.eviction.lru import Lru
from radix.eviction.policy import Policy
from radix.eviction.scan_resistant import ScanResistant
from radix.lease import NO_HINTS, ROOT, Hints, Lease, Place
from radix.node import TOKEN_BYTES, Namespace
from radix.observer import Observer
from radix.outline import Column, Limits, Outline, Run, namespaces_by_root
from radix.pages import OutOfPages, Owner, PageId, Pages
from radix.picture import Picture
from radix.waiters import Waiters

from .ledger import EVENTS, Figure, SharedLedger
from .library import Library, array_at, values_at
from .picture import pictured

# The same as plain numbers: an enum's member costs a call to look up.
_FREE: Final = int(Figure.FREE)
_EVICTABLE: Final = int(Figure.EVICTABLE)
_GENERATION: Final = int(Figure.GENERATION)
_TOLD: Final = int(Figure.TOLD)
_PLACE: Final = int(Figure.PLACE)
_DEPTH: Final = int(Figure.DEPTH)
_COUNT: Final = int(Figure.COUNT)
_COPIED: Final = int(Figure.COPIED)
_GROWN_OFFSET: Final = int(Figure.GROWN_OFFSET)
_ROOT: Final = int(Figure.ROOT)
_WATCHED: Final = int(Figure.WATCHED)

_LOST, _DROPPED, _CONTRADICTION, _REMOVED = range(4)
_NONE = -1

_HELD = struct.Struct("@14qd")
"""A lease as `Held` in `csrc/core.cpp` has it."""


def formula_of(policy: Policy) -> tuple[int, float, float, float] | None:
    """Give a policy's kind and numbers as the compiled queue knows them; None when it can't rank by that policy."""
    if type(policy) is Lru:
        return 0, policy.num_pages, 0.0, 1.0
    if type(policy) is ScanResistant:
        return 0, policy.num_pages, policy.protection, 1.0
    if type(policy) is CostAware:
        return 1, policy.num_pages, 0.0, policy.attention_tokens
    return None


class NativeCore:
    """A `Core` in a compiled library."""

    def __init__(self, library: Library, *, num_pages: int, page_tokens: int, policy: Policy) -> None:
        formula = formula_of(policy)
        assert formula is not None
        self.page_tokens = page_tokens
        self.ledger = SharedLedger(num_pages, self)
        self.waiters = Waiters(self, page_tokens=page_tokens)
        self._halts = self.waiters.halts
        self._observer: Observer | None = None
        self._library = library
        self._roots: dict[Namespace, int] = {}
        self._namespaces: dict[int, Namespace] = {}
        self._figures = self.ledger.figures
        self._out = array("i", bytes(4 * (num_pages + 1)))
        self._held = bytearray(_HELD.size)
        self._held_at = _address(self._held)
        self._tree: int | None = library.radix_new(
            num_pages, page_tokens, FORK_LOOK, secrets.randbits(64), *formula,
            self.ledger.owners().ctypes.data, _address(self.ledger.free_table), _address(self._figures),
            _address(self._out),
        )  # fmt: skip
        if not self._tree:
            raise MemoryError("no memory for the tree")

    def __del__(self) -> None:
        if tree := getattr(self, "_tree", None):
            self._library.radix_delete(tree)

    @property
    def num_bytes(self) -> int:
        """The memory that the compiled part has taken, in bytes. O(nodes)."""
        return int(self._library.radix_num_bytes(self._tree))

    @property
    def free_pages(self) -> int:
        """Pages that hold nothing."""
        return self._figures[_FREE]

    @property
    def evictable_pages(self) -> int:
        """Pages of the tree that nobody pins."""
        return self._figures[_EVICTABLE]

    @property
    def version(self) -> int:
        """A number that has grown whenever the result of a match could have changed."""
        return self._figures[Figure.VERSION]

    @property
    def evicted_pages_total(self) -> int:
        """How many pages were evicted."""
        return self._figures[Figure.EVICTED_TOTAL]

    @property
    def generation(self) -> int:
        """The number of flushes."""
        return self._figures[_GENERATION]

    def observe(self, observer: Observer) -> None:
        """Tell `observer` of whole pages that enter and leave."""
        self._observer = observer
        self._library.radix_observe(self._tree)

    def tell_time(self, now_s: float) -> None:
        """Say what time it is, for wishes to keep pages."""
        self._library.radix_tell_time(self._tree, now_s)

    def find(self, namespace: Namespace, query: bytes) -> tuple[int, int]:
        """Count the tokens in whole cached pages at the start of `query`, and those that a copied page would add."""
        root = self._roots.get(namespace)
        if root is None:
            return 0, 0
        self._library.radix_find(self._tree, root, query, len(query) // TOKEN_BYTES)
        return self._figures[_DEPTH], self._figures[_COPIED]

    def lease(self, namespace: Namespace, query: bytes, hints: Hints) -> Lease:
        """Pin what `find` finds, with a page for the copy where there is one."""
        figures = self._figures
        figures[_WATCHED] = bool(self._halts)
        root = self._roots.get(namespace, _NONE)
        self._library.radix_lease(self._tree, root, query, len(query) // TOKEN_BYTES)
        depth = figures[_DEPTH]
        place = Place(figures[_PLACE], depth) if depth else ROOT
        pages = self._out[: figures[_COUNT]]
        lease = Lease(namespace, place, pages, hints, self.page_tokens, figures[_GENERATION])
        if copied := figures[_COPIED]:
            lease.cached_tokens += copied
            lease.copied_tokens = copied
            lease.copy_source = Place(figures[Figure.COPY_SOURCE], figures[Figure.COPY_DEPTH])
            lease.copy = (figures[Figure.COPY_SOURCE], pages[-1])
        if figures[_TOLD]:
            self._hear()
        return lease

    def beyond(self, namespace: Namespace, place: Place, num_tokens: int) -> tuple[PageId | None, bytes]:
        """Give the tokens that are cached behind a place, which may lie in a page, and the page of the first."""
        root = self._roots.get(namespace, _NONE)
        if place.page is None and root == _NONE:
            return None, b""
        tokens = bytearray(num_tokens * TOKEN_BYTES)
        page = _NONE if place.page is None else place.page
        count = self._library.radix_beyond(self._tree, root, page, place.depth, _address(tokens), num_tokens)
        return (self._figures[_PLACE], bytes(tokens[: count * TOKEN_BYTES])) if count else (None, b"")

    def next_victim(self) -> PageId | None:
        """Find the page that would be evicted first."""
        page = int(self._library.radix_next_victim(self._tree))
        return None if page < 0 else page

    def copied(self, lease: Lease) -> None:
        """Unpin the source of the lease's copy."""
        if lease.copy_source is not None:
            self._library.radix_unpin(self._tree, *lease.copy_source)
            lease.copy_source = None
            if self._figures[_TOLD]:
                self._hear()

    def allocate(self, num_pages: int) -> Pages:
        """Hand pages to a request; evicts where too few are free."""
        figures = self._figures
        figures[_WATCHED] = bool(self._halts)
        is_done = self._library.radix_allocate(self._tree, num_pages)
        pages = self._out[:num_pages] if is_done else None
        if figures[_TOLD]:
            self._hear()
        if pages is None:
            raise OutOfPages(needed=num_pages, available=figures[_FREE] + figures[_EVICTABLE])
        return pages

    def commit(self, lease: Lease, rest: bytes) -> None:
        """Enter whole pages: `rest` are the tokens behind the lease's depth."""
        self._pack(lease)
        self._library.radix_commit(self._tree, self._held_at, rest, len(rest) // TOKEN_BYTES)
        if count := self._figures[_COUNT]:
            lease.duplicates = lease.duplicates + self._out[:count]
        if self._figures[Figure.COPY_SOURCE] < 0:
            lease.copy_source = None
        self._moved(lease, rest)

    def release(self, lease: Lease, rest: bytes) -> None:
        """Enter the whole pages of `rest`, keep its tail for copying, free the lease's other pages, and unpin."""
        self._pack(lease)
        self._library.radix_release(self._tree, self._held_at, rest, len(rest) // TOKEN_BYTES)
        lease.copy_source = None
        self._moved(lease, rest)

    def own_pages(self, lease: Lease) -> int:
        """Count the pages that releasing the lease would make free or evictable. O(nodes on the path held alone)."""
        page, depth = lease.place
        held = 0 if page is None else self._library.radix_held_by_one(self._tree, page, depth)
        return len(lease.own_page_ids) + int(held)

    def unpinned_pages(self, place: Place) -> int:
        """Count the pages up to a cached place that nobody pins. O(nodes on the path that nobody pins)."""
        page, depth = place
        return 0 if page is None else int(self._library.radix_unpinned(self._tree, page, depth))

    def evict(self, num_pages: int) -> int:
        """Free up to `num_pages` of the tree's pages that nobody pins; returns how many."""
        self._figures[_WATCHED] = bool(self._halts)
        evicted = int(self._library.radix_evict(self._tree, num_pages))
        if self._figures[_TOLD]:
            self._hear()
        return evicted

    def flush(self) -> int:
        """Forget the whole tree; returns how many pages came free."""
        self._roots.clear()
        self._namespaces.clear()
        self.waiters.lost_all()
        freed = int(self._library.radix_flush(self._tree))
        if self._figures[_TOLD]:
            self._hear()
        return freed

    def forget(self, page: PageId) -> None:
        """Take a page and all below it out of the tree, if it's there."""
        self._figures[_WATCHED] = bool(self._halts)
        if self._library.radix_forget(self._tree, page):
            self._hear()
            self.waiters.dismiss_leaders()

    def held(self, first: int, stop: int) -> Times:
        """Count how often the tree, flushed parts that leases hold included, holds each page of [first, stop)."""
        times = np.zeros(stop - first, np.int64)
        self._library.radix_count_held(self._tree, first, stop, times.ctypes.data)
        return times

    def follow(self, namespace: Namespace, place: Place, key: bytes, start: int) -> Place:
        """Go on from a cached place along the whole pages of `key` behind its first `start` tokens."""
        root, page = self._roots.get(namespace, _NONE), place.page
        if page is None and root == _NONE:
            return place
        page = _NONE if page is None else page
        self._library.radix_follow(self._tree, root, page, place.depth, key, start, len(key) // TOKEN_BYTES)
        return self._place()

    def continued(self, namespace: Namespace, place: Place, first_pages: Collection[bytes]) -> list[bytes]:
        """Pick those of `first_pages` that go on from a cached place."""
        root, page = self._roots.get(namespace, _NONE), place.page
        if page is None and root == _NONE:
            return []
        page = _NONE if page is None else page
        goes_on = bytearray(len(first_pages))
        self._library.radix_continued(
            self._tree, root, page, place.depth, b"".join(first_pages), len(first_pages), _address(goes_on)
        )
        return [key for key, is_next in zip(first_pages, goes_on, strict=True) if is_next]

    def outline(self, limits: Limits) -> Outline:
        """Show the largest parts of the tree. O(nodes): 100,000 take a few milliseconds."""
        count = c_int64()
        under, *others = limits
        address = self._library.radix_outline(self._tree, _NONE if under is None else under, *others, byref(count))
        entries = array_at(address, count.value).reshape(-1, len(Column))
        entries[:, Column.NAMESPACE], namespaces = namespaces_by_root(
            entries[:, Column.NAMESPACE].tolist(), self._namespaces
        )
        return Outline(entries, namespaces)

    def run_of(self, page: PageId, max_tokens: int) -> Run | None:
        """Read the first tokens of the node that holds a page; None when the tree doesn't hold it."""
        count = c_int64()
        values = values_at(self._library.radix_run_of(self._tree, page, max_tokens, byref(count)), count.value)
        if not values:
            return None
        start, num_tokens, digest, *token_ids = values
        return Run(start, num_tokens, array("i", token_ids).tobytes(), digest)

    def picture(self) -> Picture:
        """Show the tree as it is now."""
        count = c_int64()
        address = self._library.radix_picture(self._tree, byref(count))
        return pictured(
            values_at(address, count.value),
            self._namespaces,
            page_tokens=self.page_tokens,
            evictable_pages=self.evictable_pages,
        )

    def events_of(self, page: PageId) -> list[str]:
        """List what the ring still holds about one page, oldest first, as `serial:event`."""
        count = c_int64()
        values = values_at(self._library.radix_events_of(self._tree, page, byref(count)), count.value)
        return [f"{serial}:{EVENTS[event]}" for serial, event in zip(values[::2], values[1::2], strict=True)]

    def quarantine(self, page: PageId) -> None:
        """Write down that a page is set aside."""
        self._library.radix_quarantine(self._tree, page)

    def _place(self) -> Place:
        depth = self._figures[_DEPTH]
        return Place(self._figures[_PLACE], depth) if depth else ROOT

    def _pack(self, lease: Lease) -> None:
        page, depth = lease.place
        source, source_depth = lease.copy_source or (_NONE, 0)
        pages, duplicates = lease.page_ids.buffer_info(), lease.duplicates.buffer_info()
        priority, keep_s = lease.hints
        _HELD.pack_into(
            self._held, 0, self._roots.get(lease.namespace, _NONE), _NONE if page is None else page, depth,
            lease.generation, lease.cached_tokens, lease.copied_tokens, source, source_depth, *pages, *duplicates,
            lease.hints is not NO_HINTS, priority, keep_s,
        )  # fmt: skip

    def _moved(self, lease: Lease, rest: bytes) -> None:
        """Take over what entering pages has changed, and tell of it."""
        figures = self._figures
        before, depth = lease.place.depth, figures[_DEPTH]
        lease.place = Place(figures[_PLACE], depth) if depth else ROOT
        if figures[_TOLD]:
            self._hear()
        root = figures[_ROOT]
        if root >= 0 and root not in self._namespaces:
            self._roots[lease.namespace] = root
            self._namespaces[root] = lease.namespace
        offset = figures[_GROWN_OFFSET]
        if offset < 0:
            return
        page = figures[Figure.GROWN_PAGE]
        above = None if page < 0 else page
        if self.waiters.roots:
            first_page = rest[offset * TOKEN_BYTES : (offset + self.page_tokens) * TOKEN_BYTES]
            self.waiters.grown(lease.namespace, above, first_page)
        if self._observer is not None:
            # What entered is the end of the path: the lease's own pages.
            pages = lease.page_ids[(before + offset) // self.page_tokens : depth // self.page_tokens]
            tokens = rest[offset * TOKEN_BYTES : (depth - before) * TOKEN_BYTES]
            self._observer.stored(lease.namespace, above, pages, tokens)

    def _hear(self) -> None:
        """Ask what is to be told after an operation, and pass it on."""
        count = c_int64()
        values = values_at(self._library.radix_told(self._tree, byref(count)), count.value)
        at = 0
        while at < len(values):
            kind, stop = values[at], at + 2 + values[at + 1]
            about = values[at + 2 : stop]
            at = stop
            if kind == _LOST:
                above, depth = about[:2]
                self.waiters.lost(array("i", about[2:]), Place(above, depth) if depth else ROOT)
            elif kind == _REMOVED:
                if self._observer is not None:
                    self._observer.removed(array("i", about))
            elif kind == _DROPPED:
                if (namespace := self._namespaces.pop(about[0], None)) is not None:
                    del self._roots[namespace]
            else:
                self._contradicted(*about)

    def _contradicted(self, page: PageId, owner: int, event: int, expected: int) -> None:
        if self.ledger.owner_of(page) != Owner.QUARANTINED:
            self.ledger.quarantine(page, f"{EVENTS[event]}, but its owner is not {Owner(expected).name.lower()}")


def _address(memory: array[int] | bytearray) -> int:
    return np.frombuffer(memory, np.uint8).ctypes.data
