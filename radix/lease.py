"""A request's hold on its cached prefix and the pages of its own. Knows the tree, not the pool."""

from __future__ import annotations

from typing import NamedTuple

from .pages import PageId, Pages, pages_of
from .tree import Position, RadixTree


class Hints(NamedTuple):
    """What a request wishes for its pages after its end: they weigh in eviction and never pin.

    A page of `priority` 1 stays one turnover of the pool longer; for `keep_s` seconds a page stays a few longer still.
    """

    priority: int = 0
    keep_s: float = 0.0


NO_HINTS = Hints()


class Lease:
    """The page table of one request; made by `PrefixCache.lease`, ended by `PrefixCache.release`.

    page_ids:  [ on the path in the tree | the request's own )
               0                position.depth       len * page_tokens

    A page below `position.depth` may also be the request's own: a `duplicates` page, computed by it while another
    request's equal page entered the tree first. The table keeps it, since a live row's page table is never repointed.
    """

    __slots__ = (
        "cached_tokens", "copied_tokens", "copy", "copy_source", "duplicates", "hints", "is_released", "page_ids",
        "position", "tree",
    )  # fmt: skip

    def __init__(self, tree: RadixTree, position: Position, page_ids: Pages, hints: Hints) -> None:
        self.tree = tree
        self.position = position
        self.page_ids = page_ids
        self.hints = hints
        self.cached_tokens = position.depth
        self.copied_tokens = 0
        self.copy: tuple[PageId, PageId] | None = None
        self.copy_source: Position | None = None
        self.duplicates = pages_of()
        self.is_released = False

    @property
    def is_stale(self) -> bool:
        """Whether the tree has forgotten the path that this lease holds (a flush): nothing more enters it."""
        return self.tree.settle(self.position).node.is_detached

    @property
    def own_page_ids(self) -> Pages:
        """List the pages that the ledger says are the request's."""
        return self.duplicates + self.page_ids[self.position.depth // self.tree.page_tokens :]

    @property
    def own_pages(self) -> int:
        """Count the pages that releasing this lease would make free or evictable. O(nodes on the path held alone)."""
        if self.is_released:
            return 0
        return len(self.own_page_ids) + self.tree.pages_held_by_one(self.position)
