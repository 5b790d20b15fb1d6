"""A request's hold on its cached prefix and the pages of its own. Knows neither tree nor pool."""

from __future__ import annotations

from typing import NamedTuple

from .node import Namespace
from .pages import NO_PAGES, PageId, Pages


class Hints(NamedTuple):
    """What a request wishes for its pages after its end: they weigh in eviction and never pin.

    A page of `priority` 1 stays one turnover of the pool longer; for `keep_s` seconds a page stays a few longer still.
    """

    priority: int = 0
    keep_s: float = 0.0


NO_HINTS = Hints()


class Place(NamedTuple):
    """Where a path from the root ends: its last page (none at the root) and how many tokens it is long.

    Pages don't move when the tree's edges are split or joined, so a place stays right as long as its page is cached.
    """

    page: PageId | None
    depth: int


ROOT = Place(None, 0)


class Lease:
    """The page table of one request; made by `PrefixCache.lease`, ended by `PrefixCache.release`.

    page_ids:  [ on the path in the tree | the request's own )
               0                         depth       len * page_tokens

    `place` is the end of the path that it pins. A page below `depth` may also be the request's own: a `duplicates`
    page, computed by it while another request's equal page entered the tree first. The table keeps it, since a live
    row's page table is never repointed. `copy_source` is pinned while a copy from it is to be made.

    `generation` counts the flushes before it: after one more, nothing of it enters the tree.
    """

    __slots__ = (
        "cached_tokens", "copied_tokens", "copy", "copy_source", "duplicates", "generation", "hints", "is_released",
        "namespace", "page_ids", "page_tokens", "place",
    )  # fmt: skip

    def __init__(
        self, namespace: Namespace, place: Place, page_ids: Pages, hints: Hints, page_tokens: int, generation: int
    ) -> None:
        self.namespace = namespace
        self.place = place
        self.page_ids = page_ids
        self.hints = hints
        self.page_tokens = page_tokens
        self.generation = generation
        self.cached_tokens = place[1]
        self.copied_tokens = 0
        self.copy: tuple[PageId, PageId] | None = None
        self.copy_source: Place | None = None
        self.duplicates = NO_PAGES
        self.is_released = False

    @property
    def depth(self) -> int:
        """The number of tokens on the path in the tree that it pins."""
        return self.place.depth

    @property
    def own_page_ids(self) -> Pages:
        """List the pages that the ledger says are the request's."""
        return self.duplicates + self.page_ids[self.place.depth // self.page_tokens :]
