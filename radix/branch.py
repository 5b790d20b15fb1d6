"""The trie of prefixes that somebody waits for: its branches, its waiters, and who in a branch comes first.

Knows no cached pages; `waiters` lays the trie over the tree.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from itertools import count
from typing import NamedTuple

from .lease import ROOT, Place
from .node import TOKEN_BYTES, Namespace
from .pages import PageId

RANK, AGE = VIEWS = (0, 1)
"""The two orders in which waiters are listed."""

Key = tuple[tuple[int, ...] | int, ...]

_serials = count()


class Entry(NamedTuple):
    """A line in a list: `listed`, a waiter or the branch that it is the first of, competes with `key`."""

    key: Key
    serial: int
    listed: Waiter | Branch
    first: Waiter


class Listing:
    """A lazy heap: the entry of a waiter or a branch counts as long as it is the one that `entries` there holds."""

    __slots__ = ("_heap", "_limit", "_view")

    def __init__(self, view: int) -> None:
        self._view = view
        self._heap: list[Entry] = []
        self._limit = 32

    def add(self, key: Key, listed: Waiter | Branch, first: Waiter) -> None:
        """List `listed` with `key`, instead of its earlier entry if it has one."""
        entry = Entry(key, next(_serials), listed, first)
        listed.entries[self._view] = entry
        heappush(self._heap, entry)
        if len(self._heap) > self._limit:
            self._heap = [entry for entry in self._heap if self._counts(entry)]
            heapify(self._heap)
            self._limit = 2 * len(self._heap) + 32

    def best(self) -> Entry | None:
        """Find the entry with the lowest key."""
        heap, view = self._heap, self._view
        while heap:
            entry = heap[0]
            if entry.listed.entries[view] is entry:
                return entry
            heappop(heap)
        return None

    def at(self, index: int) -> tuple[Entry, bool] | None:
        """Look at one place of the heap and whether its entry counts; those at 2 index + 1 and + 2 come after it."""
        heap = self._heap
        return (heap[index], self._counts(heap[index])) if index < len(heap) else None

    def _counts(self, entry: Entry) -> bool:
        return entry.listed.entries[self._view] is entry


def _no_entries() -> list[Entry | None]:
    return [None, None]


@dataclass(slots=True, eq=False)
class Waiter:
    """Somebody with a place in the trie; made by its owner, used once.

    By rank, the lower `rank[0]` goes first, then who finds more cached, then the lower `rank[1]`. `age` is the other
    order. A leader doesn't wait: it computes the pages up to its place.
    """

    rank: tuple[tuple[int, ...], int]
    age: tuple[int, ...]
    is_leader: bool = False
    branch: Branch | None = None
    entries: list[Entry | None] = field(default_factory=_no_entries)


@dataclass(slots=True, eq=False)
class Branch:
    """A run of whole pages below `parent` that all waiters in and below it want: the tokens [start, end) of their keys.

    key:  [ cached in the tree | nobody has computed it, or only without retiring )
          start              cached                                       end

    `page` is the last cached page of it, where it is reached. `num_leaders` counts those in and below this branch.
    `contests` list the members that wait and the branches below of which nothing is cached.
    """

    namespace: Namespace
    parent: Branch | None
    start: int
    key: bytes
    cached: int
    page: PageId | None = None
    children: dict[bytes, Branch] = field(default_factory=dict)
    members: dict[Waiter, None] = field(default_factory=dict)
    num_leaders: int = 0
    contests: tuple[Listing, Listing] = field(default_factory=lambda: (Listing(RANK), Listing(AGE)))
    entries: list[Entry | None] = field(default_factory=_no_entries)
    end: int = field(init=False)

    def __post_init__(self) -> None:
        self.span(self.start, self.key)

    def span(self, start: int, key: bytes) -> None:
        """Let the branch hold `key`, behind `start` tokens."""
        self.start, self.key, self.end = start, key, start + len(key) // TOKEN_BYTES

    @property
    def is_covered(self) -> bool:
        """Whether the tree holds the whole of it."""
        return self.cached == self.end

    @property
    def is_reached(self) -> bool:
        """Whether the tree holds some of it; nothing is cached below a branch that is not covered."""
        return self.parent is None or self.cached > self.start

    @property
    def place(self) -> Place:
        """Where the cached part ends; of a branch that is not reached, where its parent ends."""
        if self.cached > self.start:
            return Place(self.page, self.cached)
        return ROOT if self.parent is None else Place(self.parent.page, self.start)

    @property
    def is_open(self) -> bool:
        """Whether one of its waiters may be tried: nobody is computing the page that all of them need next."""
        return not self.num_leaders or self.is_covered

    def up(self) -> Iterator[Branch]:
        """Visit this branch and those above it."""
        branch: Branch | None = self
        while branch is not None:
            yield branch
            branch = branch.parent

    def walk(self) -> Iterator[Branch]:
        """Visit this branch and all below it, parents first."""
        stack = [self]
        while stack:
            branch = stack.pop()
            yield branch
            stack.extend(branch.children.values())
