"""Two trees side by side, the compiled one and the one in Python: every operation must have the same result in both."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TypeVar

import pytest

from radix.cache import OutOfPages, PrefixCache
from radix.core import Core, Ledger, Times
from radix.lease import Hints, Lease, Place
from radix.native.core import NativeCore
from radix.node import Namespace, Node
from radix.observer import Observer
from radix.outline import Column, Limits, Outline, Run
from radix.pages import NO_PAGES, Owner, PageId, Pages
from radix.picture import Picture
from radix.waiters import Waiters

Result = TypeVar("Result")


class Twins:
    """A `Core` that asks two and compares."""

    def __init__(self, one: Core, other: Core) -> None:
        self.one, self.other = one, other
        self.leases: dict[Lease, Lease] = {}

    @property
    def page_tokens(self) -> int:
        return self.one.page_tokens

    @property
    def ledger(self) -> Ledger:
        return self.one.ledger

    def compare(self) -> None:
        """Compare all that both know."""
        ours, theirs = self.one.ledger, self.other.ledger
        assert ours.owners().tolist() == theirs.owners().tolist()
        assert ours.free_ids == theirs.free_ids
        assert [ours.num_owned(owner) for owner in Owner] == [theirs.num_owned(owner) for owner in Owner]
        roots, their_roots = self.one.picture().roots, self.other.picture().roots
        assert {name: shape(root) for name, root in roots.items()} == {
            name: shape(root) for name, root in their_roots.items()
        }

    @property
    def waiters(self) -> Waiters:
        return self.one.waiters

    @property
    def evicted_pages_total(self) -> int:
        return self._both(lambda core: core.evicted_pages_total)

    @property
    def free_pages(self) -> int:
        return self._both(lambda core: core.free_pages)

    @property
    def evictable_pages(self) -> int:
        return self._both(lambda core: core.evictable_pages)

    @property
    def version(self) -> int:
        return self._both(lambda core: core.version)

    @property
    def generation(self) -> int:
        return self._both(lambda core: core.generation)

    def observe(self, observer: Observer) -> None:
        self.one.observe(observer)

    def tell_time(self, now_s: float) -> None:
        self._both(lambda core: core.tell_time(now_s))

    def find(self, namespace: Namespace, query: bytes) -> tuple[int, int]:
        return self._both(lambda core: core.find(namespace, query))

    def lease(self, namespace: Namespace, query: bytes, hints: Hints) -> Lease:
        lease, twin = self.one.lease(namespace, query, hints), self.other.lease(namespace, query, hints)
        self.leases[lease] = twin
        self._compare(lease)
        return lease

    def beyond(self, namespace: Namespace, place: Place, num_tokens: int) -> tuple[PageId | None, bytes]:
        return self._both(lambda core: core.beyond(namespace, place, num_tokens))

    def next_victim(self) -> PageId | None:
        return self._both(lambda core: core.next_victim())

    def copied(self, lease: Lease) -> None:
        self.one.copied(lease)
        self.other.copied(self._twin_of(lease))
        self._compare(lease)

    def allocate(self, num_pages: int) -> Pages:
        return self._both(lambda core: core.allocate(num_pages))

    def commit(self, lease: Lease, rest: bytes) -> None:
        twin = self._twin_of(lease)
        self.one.commit(lease, rest)
        self.other.commit(twin, rest)
        self._compare(lease)

    def release(self, lease: Lease, rest: bytes) -> None:
        twin = self._twin_of(lease)
        self.one.release(lease, rest)
        self.other.release(twin, rest)
        lease.duplicates = twin.duplicates = NO_PAGES  # they are free, whether they were listed or not
        self._compare(lease)
        del self.leases[lease]

    def own_pages(self, lease: Lease) -> int:
        ours, theirs = self.one.own_pages(lease), self.other.own_pages(self._twin_of(lease))
        assert ours == theirs
        return ours

    def unpinned_pages(self, place: Place) -> int:
        return self._both(lambda core: core.unpinned_pages(place))

    def evict(self, num_pages: int) -> int:
        return self._both(lambda core: core.evict(num_pages))

    def flush(self) -> int:
        return self._both(lambda core: core.flush())

    def forget(self, page: PageId) -> None:
        self._both(lambda core: core.forget(page))

    def held(self, first: int, stop: int) -> Times:
        ours, theirs = self.one.held(first, stop), self.other.held(first, stop)
        assert ours.tolist() == theirs.tolist()
        return ours

    def follow(self, namespace: Namespace, place: Place, key: bytes, start: int) -> Place:
        return self._both(lambda core: core.follow(namespace, place, key, start))

    def continued(self, namespace: Namespace, place: Place, first_pages: Collection[bytes]) -> list[bytes]:
        return self._both(lambda core: core.continued(namespace, place, first_pages))

    def outline(self, limits: Limits) -> Outline:
        ours, theirs = self.one.outline(limits), self.other.outline(limits)
        for name in set(Column) - {Column.NAMESPACE, Column.DIGEST}:
            assert ours.entries[:, name].tolist() == theirs.entries[:, name].tolist(), name
        assert _names_of(ours) == _names_of(theirs)
        return ours

    def run_of(self, page: PageId, max_tokens: int) -> Run | None:
        ours, theirs = self.one.run_of(page, max_tokens), self.other.run_of(page, max_tokens)
        assert (ours and ours[:3]) == (theirs and theirs[:3])
        return ours

    def picture(self) -> Picture:
        return self.one.picture()

    def _both(self, ask: Callable[[Core], Result]) -> Result:
        try:
            ours = ask(self.one)
        except OutOfPages as error:
            with pytest.raises(OutOfPages, match=str(error)):
                ask(self.other)
            raise
        assert ours == ask(self.other)
        return ours

    def _twin_of(self, lease: Lease) -> Lease:
        """The other's lease, with what a cache has changed in its own since."""
        twin = self.leases[lease]
        twin.page_ids = lease.page_ids[:]
        for name in ("cached_tokens", "copied_tokens", "copy", "duplicates"):
            setattr(twin, name, getattr(lease, name))
        return twin

    def _compare(self, lease: Lease) -> None:
        twin = self.leases[lease]
        for name in Lease.__slots__:
            assert getattr(lease, name) == getattr(twin, name), name


def _names_of(outline: Outline) -> list[Namespace | None]:
    """The namespace of each root; the order of those that don't occur says nothing."""
    return [None if i < 0 else outline.namespaces[i] for i in outline.entries[:, Column.NAMESPACE].tolist()]


def shape(node: Node) -> tuple[object, ...]:
    """All that a node knows, and its children in their order."""
    return (
        node.start, bytes(node.key), node.pages.tolist(), node.used_at, node.hits, node.priority, node.keep_until_s,
        node.is_donor, node.ends, node.pinned_children, node.pinned_pages, bool(node.queued_as),
        [shape(child) for child in node.children.values()],
        {token: [bytes(child.key) for child in siblings] for token, siblings in node.forks.items()},
    )  # fmt: skip


def twin(cache: PrefixCache) -> PrefixCache:
    """Put a tree in Python beside the compiled one of a cache that is still empty."""
    assert isinstance(cache.core, NativeCore), "there is no compiler on this machine"
    plain = PrefixCache(num_pages=cache.num_pages, page_tokens=cache.page_tokens, is_compiled=False)
    cache.core = Twins(plain.core, cache.core)
    return cache
