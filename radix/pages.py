"""The pool of pages and its ledger: who owns each page, and what last happened to it.

Every page has exactly one owner at any time. A page whose ledger entry contradicts what is asked of it is set
aside (quarantined), logged and counted; the pool goes on with the others. Knows no tokens and no tree.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Sequence
from enum import IntEnum
from typing import NewType

import numpy as np
import numpy.typing as npt

log = logging.getLogger(__name__)

PageId = NewType("PageId", int)

RING_EVENTS = 2048


class Owner(IntEnum):
    """Who holds a page."""

    FREE = 0
    REQUEST = 1
    TREE = 2
    QUARANTINED = 3


class OutOfPages(Exception):
    """Fewer pages are free or evictable than were asked for; nothing was changed.

    >>> str(OutOfPages(needed=3, available=1))
    '3 pages needed, 1 free or evictable'
    """

    def __init__(self, *, needed: int, available: int) -> None:
        super().__init__(f"{needed} pages needed, {available} free or evictable")
        self.needed = needed
        self.available = available


class PagePool:
    """All pages with their owners; O(1) per page moved.

    >>> pool = PagePool(4)
    >>> pages = pool.allocate(3)
    >>> pool.adopt(pages[:2])
    [0, 1]
    >>> pool.free(pages[2:], Owner.REQUEST)
    >>> pool.num_owned(Owner.FREE), pool.num_owned(Owner.REQUEST), pool.num_owned(Owner.TREE)
    (2, 0, 2)
    """

    def __init__(self, num_pages: int) -> None:
        self.num_pages = num_pages
        self.mismatches_total = 0
        self.free_ids = [PageId(page) for page in reversed(range(num_pages))]
        self._owners = bytearray(num_pages)
        self._counts = [num_pages, 0, 0, 0]
        self._events: deque[tuple[int, str, Sequence[PageId]]] = deque(maxlen=RING_EVENTS)
        self._num_events = 0

    def num_owned(self, owner: Owner) -> int:
        """Count the pages that `owner` holds."""
        return self._counts[owner]

    def owner_of(self, page: PageId) -> Owner:
        """Look up the owner of one page."""
        return Owner(self._owners[page])

    def leading(self, pages: Sequence[PageId], owner: Owner) -> int:
        """Count the pages before the first that `owner` does not hold."""
        owners = bytes(map(self._owners.__getitem__, pages))
        return len(owners) - len(owners.lstrip(bytes((owner,))))

    def owners(self) -> npt.NDArray[np.uint8]:
        """Give the whole ledger, one `Owner` a page; a view that changes with it."""
        return np.frombuffer(self._owners, dtype=np.uint8)

    def events_of(self, page: PageId) -> list[str]:
        """List what the shared ring still holds about one page, oldest first, as `serial:event`."""
        return [f"{serial}:{event}" for serial, event, pages in self._events if page in pages]

    def allocate(self, num_pages: int) -> list[PageId]:
        """Hand free pages to a request.

        Raises:
            OutOfPages: fewer are free; nothing was changed.
        """
        taken: list[PageId] = []
        while len(taken) < num_pages:
            missing = num_pages - len(taken)
            if missing > len(self.free_ids):
                available = len(taken) + len(self.free_ids)
                self.free(taken, Owner.REQUEST)
                raise OutOfPages(needed=num_pages, available=available)
            pages = self.free_ids[-missing:]
            del self.free_ids[-missing:]
            pages.reverse()
            taken += self._move(pages, Owner.FREE, Owner.REQUEST, "allocate")
        return taken

    def adopt(self, pages: Sequence[PageId]) -> list[PageId]:
        """Move pages from a request to the tree; returns those that were the request's to give."""
        return self._move(pages, Owner.REQUEST, Owner.TREE, "adopt")

    def free(self, pages: Sequence[PageId], owner: Owner) -> None:
        """Take pages back from `owner`; a quarantined one stays where it is."""
        returned = self._move(pages, owner, Owner.FREE, "free by " + owner.name.lower())
        returned.reverse()
        self.free_ids += returned

    def quarantine(self, page: PageId, reason: str) -> None:
        """Set one page aside for good, log its last events, count a mismatch. Doesn't search the free list."""
        owner = self.owner_of(page)
        log.error(
            "page quarantined page=%d owner=%s reason=%r events=%s",
            page, owner.name.lower(), reason, ",".join(self.events_of(page)) or "none",
        )  # fmt: skip
        self.mismatches_total += 1
        self._counts[owner] -= 1
        self._counts[Owner.QUARANTINED] += 1
        self._owners[page] = Owner.QUARANTINED
        self._record("quarantine", (page,))

    def recount(self) -> None:
        """Set the counts to what the ledger's entries say. O(pages)."""
        self._counts = [self._owners.count(owner) for owner in Owner]

    def _move(self, pages: Sequence[PageId], source: Owner, target: Owner, event: str) -> list[PageId]:
        if not pages:
            return []
        moved = list(pages) if self.leading(pages, source) == len(pages) else self._sift(pages, source, event)
        owners, owner = self._owners, int(target)
        for page in moved:
            owners[page] = owner
        self._counts[source] -= len(moved)
        self._counts[target] += len(moved)
        self._record(event, tuple(pages))
        return moved

    def _sift(self, pages: Sequence[PageId], source: Owner, event: str) -> list[PageId]:
        rightful = []
        for page in pages:
            if self._owners[page] == source:
                rightful.append(page)
            elif self._owners[page] != Owner.QUARANTINED:
                self.quarantine(page, f"{event}, but its owner is not {source.name.lower()}")
        return rightful

    def _record(self, event: str, pages: Sequence[PageId]) -> None:
        self._events.append((self._num_events, event, pages))
        self._num_events += 1
