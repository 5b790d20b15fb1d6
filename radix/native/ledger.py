"""Who owns each page, in memory that the compiled tree shares. Knows no tokens and no tree."""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from enum import IntEnum
from typing import Protocol

import numpy as np
import numpy.typing as npt

from radix.pages import Owner, PageId, Pages, log_quarantine


class Figure(IntEnum):
    """Where the figures of `csrc/core.cpp` stand: what is counted, then the results of the last operation."""

    FREE = 0
    OWNED = 1
    EVICTABLE = 5
    VERSION = 6
    EVICTED_TOTAL = 7
    GENERATION = 8
    TOLD = 9
    PLACE = 10
    DEPTH = 11
    COUNT = 12
    COPIED = 13
    COPY_SOURCE = 14
    COPY_DEPTH = 15
    GROWN_PAGE = 16
    GROWN_OFFSET = 17
    ROOT = 18
    WATCHED = 19


EVENTS = ("allocate", "adopt", "free by request", "free by tree", "quarantine")


class Ring(Protocol):
    """What the ledger asks of the compiled pool."""

    def events_of(self, page: PageId) -> list[str]:
        """List what is still known to have happened to one page, oldest first."""

    def quarantine(self, page: PageId) -> None:
        """Write down that a page is set aside."""


class SharedLedger:
    """A `Ledger` whose entries, free list and counts the compiled tree writes."""

    def __init__(self, num_pages: int, ring: Ring) -> None:
        self.num_pages = num_pages
        self.mismatches_total = 0
        self.figures = array("q", bytes(8 * (max(Figure) + 1)))
        self.free_table = array("i", bytes(4 * num_pages))
        self._owners = bytearray(num_pages)
        self._ledger = np.frombuffer(self._owners, np.uint8)
        self._ring = ring

    @property
    def free_ids(self) -> Pages:
        """The pages that are free, those to be given out next at the end; a copy."""
        return self.free_table[: self.figures[Figure.FREE]]

    def num_owned(self, owner: int) -> int:
        """Count the pages that `owner` holds."""
        return self.figures[Figure.OWNED + owner]

    def owner_of(self, page: PageId) -> Owner:
        """Look up the owner of one page."""
        return Owner(self._owners[page])

    def owners(self) -> npt.NDArray[np.uint8]:
        """Give the whole ledger, one `Owner` a page; a view that changes with it."""
        return self._ledger

    def events_of(self, page: PageId) -> list[str]:
        """List what the shared ring still holds about one page, oldest first, as `serial:event`."""
        return self._ring.events_of(page)

    def quarantine(self, page: PageId, reason: str) -> None:
        """Set one page aside for good, log its last events, count a mismatch. Doesn't search the free list."""
        log_quarantine(page, self.owner_of(page), reason, self.events_of(page))
        self.mismatches_total += 1
        self._ring.quarantine(page)

    def set_aside(self, reasons: Mapping[PageId, str]) -> None:
        """Quarantine pages, log why, take them off the free list, and count all owners anew. O(pages)."""
        for page, reason in reasons.items():
            self.quarantine(page, reason)
        left = array("i", (page for page in self.free_ids if page not in reasons))
        self.free_table[: len(left)] = left
        self.figures[Figure.FREE] = len(left)
        for owner in Owner:
            self.figures[Figure.OWNED + owner] = self._owners.count(owner)
