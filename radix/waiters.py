"""Who waits for which prefix, laid over the tree: what of it is cached, who comes first, who follows whom.

A trie of its own holds the prefixes that are waited for. Where the cached part of a branch ends, the page is known (a
*halt*), and the tree reports what comes behind it or goes. So a commit costs O(branches that it reaches), however many
wait behind them, and nothing is matched twice. Knows no nodes, no requests and no clock.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from heapq import heappop, heappush
from itertools import count
from typing import Protocol

from .branch import AGE, RANK, VIEWS, Branch, Key, Listing, Waiter
from .lease import ROOT, Place
from .node import TOKEN_BYTES, Namespace, common_run
from .pages import PageId, Pages, pages_of

__all__ = ["AGE", "RANK", "Cached", "Waiter", "Waiters"]


class Cached(Protocol):
    """What waiters ask of the tree."""

    def follow(self, namespace: Namespace, place: Place, key: bytes, start: int) -> Place:
        """Go on from a cached place along the whole pages of `key` behind its first `start` tokens.

        Returns where the run of equal pages ends. O(the run, and the edge of the tree in which it ends).
        """

    def continued(self, namespace: Namespace, place: Place, first_pages: Collection[bytes]) -> list[bytes]:
        """Pick those of `first_pages` that go on from a cached place."""


class Waiters:
    """The trie of prefixes that are waited for, one root per namespace.

    `pending_tokens` counts the tokens of whole pages that are to be computed before all have what they wait for: what
    several want counts once, and also what leaders are computing.

    >>> from radix.cache import PrefixCache
    >>> waiters = PrefixCache(num_pages=4, page_tokens=1).waiters
    >>> namespace, first, second = Namespace("m", None, ""), Waiter(((), 1), (1,)), Waiter(((), 2), (2,))
    >>> waiters.enter(namespace, b"aaaabbbb", first); waiters.enter(namespace, b"aaaacccc", second)
    >>> list(waiters.in_order(RANK)) == [first, second], waiters.cached_tokens(second)
    (True, 0)
    """

    def __init__(self, tree: Cached, *, page_tokens: int) -> None:
        self.page_tokens = page_tokens
        self.roots: dict[Namespace, Branch] = {}
        self.halts: dict[PageId, Branch] = {}
        self._tree = tree
        self.pending_tokens = 0
        self._contests = (Listing(RANK), Listing(AGE))

    # --- asking

    def in_order(self, view: int) -> Iterator[Waiter]:
        """Give the waiters by `RANK` or by `AGE`, without those whose next page a leader computes.

        O(log n) for each taken; nothing may change in between.
        """
        serials = count()
        ahead: list[tuple[Key, int, Listing, int, Branch | None]] = []

        def look(listing: Listing, index: int, halt: Branch | None) -> None:
            found = listing.at(index)
            if found is not None:
                key = found[0].key if halt is None else _key_at(halt, view, found[0].key)
                heappush(ahead, (key, next(serials), listing, index, halt))

        def begin(listing: Listing, halt: Branch | None) -> None:
            # What is out of date at the top goes now: looked over, it would bring both of its children each time.
            if listing.best() is not None:
                look(listing, 0, halt)

        begin(self._contests[view], None)
        while ahead:
            _, _, listing, index, halt = heappop(ahead)
            found = listing.at(index)
            assert found is not None
            entry, counts = found
            if counts:
                if isinstance(entry.listed, Waiter):
                    yield entry.listed
                else:
                    begin(entry.listed.contests[view], halt or entry.listed)
            # Nobody behind an entry comes before it, and most who ask take the first only.
            look(listing, 2 * index + 1, halt)
            look(listing, 2 * index + 2, halt)

    def cached_tokens(self, waiter: Waiter) -> int:
        """Count the tokens in whole cached pages at the start of what `waiter` waits for. O(branches above it)."""
        return self.place(waiter).depth

    def place(self, waiter: Waiter) -> Place:
        """Find where the whole cached pages of what `waiter` waits for end. O(branches above it)."""
        assert waiter.branch is not None
        return next(branch.place for branch in waiter.branch.up() if branch.is_reached)

    def shared_tokens(self, waiter: Waiter) -> int | None:
        """Count the tokens up to the end of the page that a leader computes for `waiter`; None without a leader."""
        assert waiter.branch is not None
        for branch in waiter.branch.up():
            if branch.is_covered:
                return None
            if branch.is_reached or (branch.parent is not None and branch.parent.is_covered):
                return branch.cached + self.page_tokens if branch.num_leaders else None
        return None

    # --- coming and going

    def enter(self, namespace: Namespace, key: bytes, waiter: Waiter) -> None:
        """Give `waiter` a place at the end of `key`: whole pages that it wants or, as a leader, computes.

        O(len(key)).
        """
        root = self.roots.get(namespace)
        if root is None:
            root = self.roots[namespace] = Branch(namespace, None, 0, b"", 0)
        branch, depth = self._descend(root, key)
        if depth < branch.end:
            branch = self._split(branch, depth)
        if depth * TOKEN_BYTES < len(key):
            branch = self._grow(branch, key[depth * TOKEN_BYTES :])
        branch.members[waiter] = None
        waiter.branch = branch
        if waiter.is_leader:
            for each in branch.up():
                each.num_leaders += 1
        else:
            self._list(waiter)
        self._announce(branch)

    def leave(self, waiter: Waiter) -> None:
        """Take `waiter` out; once it has left this does nothing. The followers of a leader may be tried at once."""
        branch = waiter.branch
        if branch is None:
            return
        waiter.branch = None
        waiter.entries = [None, None]
        del branch.members[waiter]
        if waiter.is_leader:
            for each in branch.up():
                each.num_leaders -= 1
        self._announce(self._pruned(branch))

    # --- what the tree reports

    def grown(self, namespace: Namespace | None, page: PageId | None, first_page: bytes) -> None:
        """Take notice of pages behind `page`, or at the root of `namespace`; the first has the tokens `first_page`."""
        if page is not None:
            branch = self.halts.get(page)
        else:
            branch = self.roots.get(namespace) if namespace is not None else None
        if branch is None:
            return
        if not branch.is_covered:
            self._reach(branch)
        elif (child := branch.children.get(first_page)) is not None:
            self._reach(child)

    def lost(self, pages: Pages, above: Place) -> None:
        """Take notice that `pages`, all behind `above`, are going."""
        halts = self.halts
        if halts.keys().isdisjoint(pages):
            return
        branches = [halts.pop(page) for page in pages if page in halts]
        for branch in branches:
            if branch.start < above.depth:
                self._place(branch, above)
            else:
                self._unplace(branch)
        for branch in branches:
            self._announce(branch)

    def lost_all(self) -> None:
        """Take notice that the whole tree is going; nobody leads any more, since leases are stale."""
        self.lost(pages_of(self.halts), ROOT)
        self.dismiss_leaders()

    def dismiss_leaders(self) -> None:
        """Let nobody lead any more: what they compute may not enter the tree where they began."""
        for root in list(self.roots.values()):
            if root.num_leaders:
                for leader in [each for branch in root.walk() for each in branch.members if each.is_leader]:
                    self.leave(leader)

    # --- how far the cached part reaches

    def _reach(self, top: Branch) -> None:
        """Look how far the tree holds `top`, and the branches below that it comes to."""
        reached = [top]
        stack = [top]
        while stack:
            branch = stack.pop()
            place = self._followed(branch)
            if place.depth == branch.cached:
                continue
            self._place(branch, place)
            reached.append(branch)
            if branch.is_covered:
                stack += self._next_children(branch)
        for branch in reversed(reached):
            self._announce(branch)
        if top.parent is not None:
            self._announce(top.parent)

    def _followed(self, branch: Branch) -> Place:
        """Where the part of `branch` that the tree holds ends now. O(what is new), whatever the length of the rest."""
        place = branch.place
        return self._tree.follow(branch.namespace, place, branch.key, place.depth - branch.start)

    def _next_children(self, branch: Branch) -> list[Branch]:
        """Find the children of a covered branch whose first page the tree holds."""
        children = branch.children
        if not children:
            return []
        return [children[key] for key in self._tree.continued(branch.namespace, branch.place, children.keys())]

    def _place(self, branch: Branch, place: Place) -> None:
        """Note that the cached part of `branch`, which is some, ends at `place`."""
        self._lift(branch)
        page, depth = place
        assert page is not None
        if depth != branch.cached:
            branch.entries = [None, None]
        self.pending_tokens -= depth - branch.cached
        branch.cached, branch.page = depth, page
        self.halts[page] = branch

    def _unplace(self, branch: Branch) -> None:
        """Note that nothing of `branch` is cached."""
        self._lift(branch)
        branch.entries = [None, None]
        self.pending_tokens += branch.cached - branch.start
        branch.cached = branch.start

    def _lift(self, branch: Branch) -> None:
        if branch.page is not None and self.halts.get(branch.page) is branch:
            del self.halts[branch.page]
        branch.page = None

    # --- the shape of the trie

    def _descend(self, root: Branch, key: bytes) -> tuple[Branch, int]:
        """Find the branch in which the part of `key` that others want too ends, and where."""
        branch, depth = root, 0
        page_bytes = self.page_tokens * TOKEN_BYTES
        while depth == branch.end:
            offset = depth * TOKEN_BYTES
            child = branch.children.get(key[offset : offset + page_bytes])
            if child is None:
                break
            branch = child
            run = common_run(branch.key, 0, key, offset) // TOKEN_BYTES
            depth += run - run % self.page_tokens
        return branch, depth

    def _grow(self, parent: Branch, key: bytes) -> Branch:
        branch = Branch(parent.namespace, parent, parent.end, key, parent.end)
        parent.children[key[: self.page_tokens * TOKEN_BYTES]] = branch
        self.pending_tokens += branch.end - branch.start
        if parent.is_covered:
            self._reach(branch)
        return branch

    def _split(self, lower: Branch, depth: int) -> Branch:
        """Cut `lower` at `depth`: a new branch takes what is above; returns it."""
        parent, cached, page, pending_tokens = lower.parent, lower.cached, lower.page, self.pending_tokens
        assert parent is not None
        num_bytes = (depth - lower.start) * TOKEN_BYTES
        upper = Branch(
            lower.namespace, parent, lower.start, lower.key[:num_bytes], lower.start, num_leaders=lower.num_leaders
        )
        parent.children[self._first_page(upper)] = upper
        if cached <= depth:
            self._unplace(lower)
        lower.parent = upper
        lower.span(depth, lower.key[num_bytes:])
        lower.cached = max(cached, depth)
        lower.entries = [None, None]
        upper.children[self._first_page(lower)] = lower
        if page is not None:
            end = Place(page, cached)
            if cached > depth:
                end = self._tree.follow(upper.namespace, upper.place, upper.key, 0)
            self._place(upper, end)
        self.pending_tokens = pending_tokens
        self._announce(lower)
        return upper

    def _pruned(self, branch: Branch) -> Branch:
        """Drop `branch` and those above it as far as nobody is left in them; returns the lowest one that stays."""
        while branch.parent is not None and not branch.members and not branch.children:
            parent = branch.parent
            del parent.children[self._first_page(branch)]
            self._unplace(branch)
            self.pending_tokens -= branch.end - branch.start
            branch = parent
        if branch.parent is None:
            if not branch.members and not branch.children:
                branch.entries = [None, None]
                self.roots = {namespace: root for namespace, root in self.roots.items() if root is not branch}
        elif not branch.members and len(branch.children) == 1:
            return self._join(branch)
        return branch

    def _join(self, upper: Branch) -> Branch:
        """Undo a split: the one child of `upper` takes in what is above it; returns that child."""
        (lower,) = upper.children.values()
        parent, pending_tokens = upper.parent, self.pending_tokens
        end = lower.place if lower.is_reached else upper.place if upper.is_reached else None
        assert parent is not None
        self._unplace(upper)
        self._unplace(lower)
        lower.parent = parent
        lower.span(upper.start, upper.key + lower.key)
        lower.cached = lower.start
        parent.children[self._first_page(lower)] = lower
        if end is not None:
            self._place(lower, end)
        self.pending_tokens = pending_tokens
        return lower

    def _first_page(self, branch: Branch) -> bytes:
        return branch.key[: self.page_tokens * TOKEN_BYTES]

    # --- who comes first

    def _list(self, waiter: Waiter) -> None:
        assert waiter.branch is not None
        waiter.branch.contests[RANK].add(waiter.rank, waiter, waiter)
        waiter.branch.contests[AGE].add(waiter.age, waiter, waiter)

    def _announce(self, branch: Branch) -> None:
        """Carry who is first in `branch` up to where it competes: at the first branch with a cached part."""
        # The busiest loop of a queue: everything that arrives, starts or is computed comes through here.
        each: Branch | None = branch
        while each is not None:
            is_open, entries = each.is_open, each.entries
            for view in VIEWS:
                best = each.contests[view].best() if is_open else None
                if best is None:
                    entries[view] = None
                elif (told := entries[view]) is None or told.first is not best.first:
                    self._tell(each, view, best.first)
            if each.is_reached:
                return
            each = each.parent

    def _tell(self, branch: Branch, view: int, first: Waiter) -> None:
        key: Key = first.age if view == AGE else first.rank
        if branch.is_reached:
            self._contests[view].add(_key_at(branch, view, key), branch, first)
        else:
            assert branch.parent is not None
            branch.parent.contests[view].add(key, branch, first)


def _key_at(halt: Branch, view: int, key: Key) -> Key:
    """Turn a key among those with equally much cached into one among all."""
    return key if view == AGE else (key[0], -halt.cached, key[1])
