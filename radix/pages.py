"""The pool of pages and its ledger: who owns each page, and what last happened to it.

Every page has exactly one owner at any time. A page whose ledger entry contradicts what is asked of it is set
aside (quarantined), logged and counted; the pool goes on with the others. Knows no tokens and no tree.
"""

from __future__ import annotations

import logging
from array import array
from collections import deque
from collections.abc import Iterable, Mapping
from enum import IntEnum
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

log = logging.getLogger(__name__)

PageId: TypeAlias = int
Pages: TypeAlias = "array[PageId]"
"""Page ids in a row: four bytes each, and numpy reads them in place."""

RING_EVENTS = 768

_NUMPY_FROM_PAGES = 24
"""With fewer pages a loop is faster than numpy's fixed cost."""


def pages_of(page_ids: Iterable[PageId] = ()) -> Pages:
    """Make a row of pages."""
    return array("i", page_ids)


NO_PAGES = pages_of()
"""Shared, so never to be added to in place."""


class Owner(IntEnum):
    """Who holds a page."""

    FREE = 0
    REQUEST = 1
    TREE = 2
    QUARANTINED = 3


FREE, REQUEST, TREE, QUARANTINED = map(int, Owner)
"""The same as plain numbers: an enum's member costs a call to look up."""


class OutOfPages(Exception):
    """Fewer pages are free or evictable than were asked for; nothing was changed.

    >>> str(OutOfPages(needed=3, available=1))
    '3 pages needed, 1 free or evictable'
    """

    def __init__(self, *, needed: int, available: int) -> None:
        super().__init__(f"{needed} pages needed, {available} free or evictable")
        self.needed = needed
        self.available = available


_FREED_BY = ["free by " + owner.name.lower() for owner in Owner]


def log_quarantine(page: PageId, owner: Owner, reason: str, events: list[str]) -> None:
    """Tell of a page that is set aside."""
    log.error(
        "page quarantined page=%d owner=%s reason=%r events=%s",
        page, owner.name.lower(), reason, ",".join(events) or "none",
    )  # fmt: skip


class PagePool:
    """All pages with their owners; O(1) per page moved.

    >>> pool = PagePool(4)
    >>> pages = pool.allocate(3)
    >>> pool.adopt(pages[:2]).tolist()
    [0, 1]
    >>> pool.free(pages[2:], Owner.REQUEST)
    >>> pool.num_owned(Owner.FREE), pool.num_owned(Owner.REQUEST), pool.num_owned(Owner.TREE)
    (2, 0, 2)
    """

    def __init__(self, num_pages: int) -> None:
        self.num_pages = num_pages
        self.mismatches_total = 0
        self.free_ids = pages_of(range(num_pages - 1, -1, -1))
        self._owners = bytearray(num_pages)
        self._ledger = np.frombuffer(self._owners, np.uint8)
        self._counts = [num_pages, 0, 0, 0]
        self._events: deque[tuple[int, str, Pages]] = deque(maxlen=RING_EVENTS)
        self._num_events = 0

    def num_owned(self, owner: int) -> int:
        """Count the pages that `owner` holds."""
        return self._counts[owner]

    def owner_of(self, page: PageId) -> Owner:
        """Look up the owner of one page."""
        return Owner(self._owners[page])

    def owners(self) -> npt.NDArray[np.uint8]:
        """Give the whole ledger, one `Owner` a page; a view that changes with it."""
        return self._ledger

    def events_of(self, page: PageId) -> list[str]:
        """List what the shared ring still holds about one page, oldest first, as `serial:event`."""
        return [f"{serial}:{event}" for serial, event, pages in self._events if page in pages]

    def allocate(self, num_pages: int) -> Pages:
        """Hand free pages to a request.

        Raises:
            OutOfPages: fewer are free; nothing was changed.
        """
        free_ids = self.free_ids
        if num_pages > len(free_ids):
            raise OutOfPages(needed=num_pages, available=len(free_ids))
        pages = free_ids[: -num_pages - 1 : -1]
        del free_ids[-num_pages:]
        taken = self._move(pages, FREE, REQUEST, "allocate")
        if len(taken) == num_pages:
            return taken
        try:
            return taken + self.allocate(num_pages - len(taken))
        except OutOfPages as error:
            self.free(taken, REQUEST)
            raise OutOfPages(needed=num_pages, available=len(taken) + error.available) from None

    def adopt(self, pages: Pages) -> Pages:
        """Move pages from a request to the tree, up to the first that is not the request's to give; returns those."""
        if not self._belong_to(pages, REQUEST):
            count = 0
            while self._owners[pages[count]] == REQUEST:
                count += 1
            self._sift(pages[count : count + 1], REQUEST, "adopt")
            pages = pages[:count]
        self._enter(pages, REQUEST, TREE, "adopt")
        return pages

    def free(self, pages: Pages, owner: int) -> None:
        """Take pages back from `owner`; a quarantined one stays where it is."""
        if pages:
            self.free_ids += self._move(pages, owner, FREE, _FREED_BY[owner])[::-1]

    def quarantine(self, page: PageId, reason: str) -> None:
        """Set one page aside for good, log its last events, count a mismatch. Doesn't search the free list."""
        owner = self.owner_of(page)
        log_quarantine(page, owner, reason, self.events_of(page))
        self.mismatches_total += 1
        self._counts[owner] -= 1
        self._counts[Owner.QUARANTINED] += 1
        self._owners[page] = Owner.QUARANTINED
        self._events.append((self._num_events, "quarantine", pages_of((page,))))
        self._num_events += 1

    def set_aside(self, reasons: Mapping[PageId, str]) -> None:
        """Quarantine pages, take them off the free list, and count all owners anew. O(pages)."""
        for page, reason in reasons.items():
            self.quarantine(page, reason)
        self.free_ids = pages_of(page for page in self.free_ids if page not in reasons)
        self._counts = [self._owners.count(owner) for owner in Owner]

    def _move(self, pages: Pages, source: int, target: int, event: str) -> Pages:
        """Change the owner of those `pages` that are `source`'s, and set aside the others; returns those moved."""
        if not self._belong_to(pages, source):
            pages = self._sift(pages, source, event)
        self._enter(pages, source, target, event)
        return pages

    def _belong_to(self, pages: Pages, owner: int) -> bool:
        if len(pages) < _NUMPY_FROM_PAGES:
            owners = bytes(map(self._owners.__getitem__, pages))
        else:
            owners = self._ledger[np.frombuffer(pages, np.int32)].tobytes()
        return owners.count(owner) == len(pages)

    def _enter(self, pages: Pages, source: int, target: int, event: str) -> None:
        """Write a change of owner down, and enter it in the ring: one event, however many pages it is about."""
        num_pages = len(pages)
        if num_pages >= _NUMPY_FROM_PAGES:
            self._ledger[np.frombuffer(pages, np.int32)] = target
        else:
            owners = self._owners
            for page in pages:
                owners[page] = target
        self._counts[source] -= num_pages
        self._counts[target] += num_pages
        self._events.append((self._num_events, event, pages[:]))
        self._num_events += 1

    def _sift(self, pages: Pages, source: int, event: str) -> Pages:
        rightful = pages_of()
        for page in pages:
            if self._owners[page] == source:
                rightful.append(page)
            elif self._owners[page] != QUARANTINED:
                self.quarantine(page, f"{event}, but its owner is not {Owner(source).name.lower()}")
        return rightful
