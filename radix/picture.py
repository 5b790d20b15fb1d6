"""A tree as nodes, for checks: the one in Python as it is, the compiled one as it was when it was asked."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from .node import Namespace, Node
from .pages import PageId


class Picture(NamedTuple):
    """All that can be checked of a tree.

    `home_of` finds the node that holds a page, also one that is forgotten but leased; `queued` stand in the queue of
    eviction; `evictable_pages` is as it was counted.
    """

    page_tokens: int
    roots: dict[Namespace, Node]
    home_of: Callable[[PageId], Node | None]
    queued: list[Node]
    evictable_pages: int
