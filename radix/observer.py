"""What the prefix cache tells to whoever wants to know which pages it holds: the seam. Knows no hashes and no clock."""

from __future__ import annotations

from typing import Protocol

from .node import Namespace
from .pages import PageId, Pages


class Observer(Protocol):
    """Hears of every change to the set of whole cached pages, during the operation that makes it.

    It must not call the cache. Pages are named by id; an id stands for the same page from `stored` to `removed`.
    """

    def acting(self, holder: str) -> None:
        """Take notice that what follows is done for the lease of `holder`, until somebody else is named."""

    def stored(self, namespace: Namespace, parent_page: PageId | None, page_ids: Pages, token_ids: bytes) -> None:
        """Take notice that whole pages have entered, one behind the other, the first behind `parent_page` or a root.

        `token_ids` are theirs, little-endian int32.
        """

    def removed(self, page_ids: Pages) -> None:
        """Take notice that pages have left: evicted, or set aside.

        A partly filled page, which was never told as stored, may be among them.
        """

    def used(self, namespace: Namespace, page_ids: Pages, tail: bytes) -> None:
        """Take notice that a lease with these pages has ended; `tail` are the tokens of the last one if it isn't full.

        Where the tree has them already, the partly filled page itself may not have entered it.
        """

    def cleared(self) -> None:
        """Take notice that everything is forgotten."""
