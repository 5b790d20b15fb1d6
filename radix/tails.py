"""Tails: the partly filled last pages of running requests, from which others may copy before those requests end.

A finished request's tail is a donor in the tree. A running one's is its own page, which it goes on to fill, so the tree
can't have it. Here stands which tokens of it are computed, and who has still to copy it. Knows no pool and no tree.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from itertools import islice
from typing import NamedTuple

from .edges import FORK_LOOK
from .lease import Lease, Place
from .node import TOKEN_BYTES, Namespace, common_tokens
from .pages import PageId, Pages, pages_of


class Tail(NamedTuple):
    """`tokens` stand at the start of `page`; `key` is where they begin, and their first token."""

    key: tuple[Hashable, bytes]
    page: PageId
    tokens: bytes


class Tails:
    """The tails of all leases, by where they begin. While `is_idle`, nothing is offered and nothing is to be copied.

    >>> from .lease import NO_HINTS, ROOT
    >>> namespace, tails = Namespace("m", None, ""), Tails()
    >>> lease = Lease(namespace, ROOT, pages_of([7]), NO_HINTS, 4, 0)
    >>> tails.offer(lease, b"aaaabbbb")
    >>> tails.longest(namespace, ROOT, b"aaaacccc"), tails.longest(namespace, ROOT, b"dddd")
    ((7, 1), None)
    """

    def __init__(self) -> None:
        self.version = 0
        self._tails: dict[Lease, Tail] = {}
        self._at: dict[tuple[Hashable, bytes], dict[Lease, Tail]] = {}
        self._takers: dict[PageId, dict[Lease, None]] = {}
        self.is_idle = True

    # --- offering

    def offer(self, lease: Lease, tokens: bytes) -> None:
        """Let others copy `tokens`, computed and behind the lease's depth, instead of what it has offered before."""
        key = _key(lease.namespace, lease.place, tokens)
        before = self._tails.get(lease)
        if before is not None and before.key[0] == key[0] and before.tokens.startswith(tokens):
            return
        self.withdraw(lease)
        if tokens:
            tail = Tail(key, lease.page_ids[lease.depth // lease.page_tokens], tokens)
            self._tails[lease] = tail
            self._at.setdefault(key, {})[lease] = tail
            self.version += 1
            self.is_idle = False

    def withdraw(self, lease: Lease) -> None:
        """End what the lease offers; copies that are to be made from it still are."""
        tail = self._tails.pop(lease, None)
        if tail is not None:
            others = self._at[tail.key]
            del others[lease]
            if not others:
                del self._at[tail.key]
            self.version += 1
            self._rest()

    def withdraw_all(self) -> None:
        """End all offers."""
        self._tails.clear()
        self._at.clear()
        self.version += 1
        self._rest()

    def longest(self, namespace: Namespace, place: Place, wanted: bytes) -> tuple[PageId, int] | None:
        """Find the page behind `place` that shares most first tokens with `wanted`, among the latest eight."""
        tails = self._at.get(_key(namespace, place, wanted)) if wanted else None
        if tails is None:
            return None
        most, longest = 0, None
        for tail in islice(reversed(tails.values()), FORK_LOOK):
            num_tokens = common_tokens(tail.tokens, wanted)
            if num_tokens > most:
                most, longest = num_tokens, tail
        return None if longest is None else (longest.page, most)

    def of_page(self, page: PageId) -> tuple[Lease, Tail]:
        """Look up the tail that stands in a page, and whose it is. O(tails)."""
        return next((lease, tail) for lease, tail in self._tails.items() if tail.page == page)

    # --- copying

    def promise(self, page: PageId, taker: Lease) -> None:
        """Note that `taker` is to copy `page`: until `taken`, whoever owns it must not give it up."""
        self._takers.setdefault(page, {})[taker] = None
        self.is_idle = False

    def taken(self, taker: Lease) -> None:
        """Note that the copy has been made, or is not wanted any more; once it was, or without one, does nothing."""
        if not self._takers or taker.copy is None:
            return
        page = taker.copy[0]
        takers = self._takers.get(page, {})
        if taker in takers:
            del takers[taker]
            if not takers:
                del self._takers[page]
                self._rest()

    def is_promised(self, owner: Lease) -> bool:
        """Tell whether somebody has still to copy a page of `owner`'s."""
        return bool(self._takers) and not self._takers.keys().isdisjoint(owner.own_page_ids)

    def bequeath(self, owner: Lease) -> None:
        """Hand each of `owner`'s pages that somebody has still to copy to the first who has, as one more of its own."""
        for page in self._takers.keys() & set(owner.own_page_ids):
            heir = next(iter(self._takers[page]))
            owner.page_ids = _without(owner.page_ids, page)
            owner.duplicates = _without(owner.duplicates, page)
            heir.duplicates = heir.duplicates + pages_of((page,))

    def _rest(self) -> None:
        self.is_idle = not self._tails and not self._takers

    def check(self, leases: Iterable[Lease]) -> None:
        """Restate what must hold, for tests.

        Raises:
            AssertionError: it doesn't.
        """
        live = set(leases)
        assert self.is_idle == (not self._tails and not self._takers)
        for lease, tail in self._tails.items():
            assert lease in live and tail.page in lease.own_page_ids, f"page {tail.page}: offered, but not the lease's"
            assert self._at[tail.key][lease] is tail
        assert sum(map(len, self._at.values())) == len(self._tails)
        for page, takers in self._takers.items():
            assert takers and takers.keys() <= live, f"page {page}: promised to nobody who could take it"
            assert any(page in lease.own_page_ids for lease in live), f"page {page}: promised, but not kept"


def _key(namespace: Namespace, place: Place, tokens: bytes) -> tuple[Hashable, bytes]:
    return namespace if place.page is None else place.page, tokens[:TOKEN_BYTES]


def _without(pages: Pages, page: PageId) -> Pages:
    return pages_of(each for each in pages if each != page)
