"""A request's hold on its cached prefix and the pages of its own. Knows the tree, not the pool."""

from __future__ import annotations

from dataclasses import dataclass, field

from .pages import PageId
from .tree import Position, RadixTree


@dataclass(slots=True, eq=False)
class Lease:
    """The page table of one request; made by `PrefixCache.lease`, ended by `PrefixCache.release`.

    page_ids:  [ on the path in the tree | the request's own )
               0                position.depth       len * page_tokens

    A page below `position.depth` may also be the request's own: a `duplicates` page, computed by it while another
    request's equal page entered the tree first. The table keeps it, since a live row's page table is never repointed.
    """

    tree: RadixTree
    position: Position
    page_ids: list[PageId]
    cached_tokens: int
    copied_tokens: int = 0
    copy: tuple[PageId, PageId] | None = None
    copy_source: Position | None = None
    duplicates: list[PageId] = field(default_factory=list)
    is_released: bool = False

    @property
    def is_stale(self) -> bool:
        """Whether the tree has forgotten the path that this lease holds (a flush): nothing more enters it."""
        return self.tree.settle(self.position).node.is_detached

    @property
    def own_page_ids(self) -> list[PageId]:
        """List the pages that the ledger says are the request's."""
        return self.duplicates + self.page_ids[self.position.depth // self.tree.page_tokens :]

    @property
    def own_pages(self) -> int:
        """Count the pages that releasing this lease would make free or evictable. O(nodes on the path held alone)."""
        if self.is_released:
            return 0
        return len(self.own_page_ids) + self.tree.pages_held_by_one(self.position)
