"""What the prefix cache needs of a tree with its pages: the seam between one in Python and one that is compiled."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import numpy as np
import numpy.typing as npt

from .lease import Hints, Lease, Place
from .node import Namespace
from .observer import Observer
from .outline import Limits, Outline, Run
from .pages import Owner, PageId, Pages
from .picture import Picture
from .waiters import Cached, Waiters

Times = npt.NDArray[np.intp]
"""How often each page of a range is held."""


class Ledger(Protocol):
    """Who owns each page, and what last happened to it."""

    @property
    def num_pages(self) -> int:
        """The size of the pool."""

    @property
    def free_ids(self) -> Pages:
        """The pages that are free, those to be given out next at the end."""

    @property
    def mismatches_total(self) -> int:
        """How often the ledger contradicted itself."""

    def num_owned(self, owner: int) -> int:
        """Count the pages that `owner` holds."""

    def owner_of(self, page: PageId) -> Owner:
        """Look up the owner of one page."""

    def owners(self) -> npt.NDArray[np.uint8]:
        """Give the whole ledger, one `Owner` a page; a view that changes with it."""

    def events_of(self, page: PageId) -> list[str]:
        """List what is still known to have happened to one page, oldest first, as `serial:event`."""

    def set_aside(self, reasons: Mapping[PageId, str]) -> None:
        """Quarantine pages, log why, take them off the free list, and count all owners anew. O(pages of the pool)."""


class Core(Cached, Protocol):
    """A pool of pages and the tree over it. Where a page is needed and none is free, eviction makes room."""

    @property
    def ledger(self) -> Ledger:
        """Who owns each page."""

    @property
    def waiters(self) -> Waiters:
        """Who waits for which prefix."""

    @property
    def evicted_pages_total(self) -> int:
        """How many pages were evicted."""

    @property
    def free_pages(self) -> int:
        """Pages that hold nothing."""

    @property
    def evictable_pages(self) -> int:
        """Pages of the tree that nobody pins."""

    @property
    def version(self) -> int:
        """A number that has grown whenever the result of a match could have changed."""

    @property
    def generation(self) -> int:
        """The number of flushes: what was leased before the last one enters no more."""

    def observe(self, observer: Observer) -> None:
        """Tell `observer` of whole pages that enter and leave; of a flush and of use the caller tells."""

    def tell_time(self, now_s: float) -> None:
        """Say what time it is, for wishes to keep pages."""

    def find(self, namespace: Namespace, query: bytes) -> tuple[int, int]:
        """Count the tokens in whole cached pages at the start of `query`, and those that a copied page would add."""

    def lease(self, namespace: Namespace, query: bytes, hints: Hints) -> Lease:
        """Pin what `find` finds, with a page for the copy where there is one."""

    def beyond(self, namespace: Namespace, place: Place, num_tokens: int) -> tuple[PageId | None, bytes]:
        """Give the tokens that are cached behind a place, which may lie in a page, and the page of the first.

        Where branches part, the youngest one is followed. Read-only.
        """

    def next_victim(self) -> PageId | None:
        """Find the page that would be evicted first."""

    def copied(self, lease: Lease) -> None:
        """Unpin the source of the lease's copy."""

    def allocate(self, num_pages: int) -> Pages:
        """Hand pages to a request.

        Raises:
            OutOfPages: fewer are free or evictable; nothing was changed.
        """

    def commit(self, lease: Lease, rest: bytes) -> None:
        """Enter whole pages: `rest` are the tokens behind the lease's depth."""

    def release(self, lease: Lease, rest: bytes) -> None:
        """Enter the whole pages of `rest`, keep its tail for copying, free the lease's other pages, and unpin."""

    def own_pages(self, lease: Lease) -> int:
        """Count the pages that releasing the lease would make free or evictable."""

    def unpinned_pages(self, place: Place) -> int:
        """Count the pages up to a cached place that nobody pins."""

    def evict(self, num_pages: int) -> int:
        """Free up to `num_pages` of the tree's pages that nobody pins; returns how many."""

    def flush(self) -> int:
        """Forget the whole tree; returns how many pages came free."""

    def forget(self, page: PageId) -> None:
        """Take a page and all below it out of the tree, if it's there."""

    def held(self, first: int, stop: int) -> Times:
        """Count how often the tree, flushed parts that leases hold included, holds each page of [first, stop)."""

    def outline(self, limits: Limits) -> Outline:
        """Show the largest parts of the tree, what is small folded into the rest of its parent. O(nodes)."""

    def run_of(self, page: PageId, max_tokens: int) -> Run | None:
        """Read the first tokens of the node that holds a page; None when the tree doesn't hold it."""

    def picture(self) -> Picture:
        """Show the tree for checks and examples. O(everything)."""
