"""The journal against the tree: after any history, and by its events alone."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis.stateful import invariant
from xxhash import xxh3_64_intdigest

from radix.cache import PrefixCache
from radix.journal import (
    Cleared,
    Event,
    Journal,
    PageHash,
    Removed,
    Stored,
    TailRemoved,
    Used,
    chained,
    hash_of_namespace,
)
from tests.radix.serving import CHAT, OTHER, ids, serve, start
from tests.radix.test_cache_model import CacheMachine


class Replica:
    """A set of hashes that is kept by events alone, as an index in another process would."""

    def __init__(self) -> None:
        self.hashes: set[PageHash] = set()

    def hear(self, event: Event) -> None:
        match event:
            case Stored():
                assert event.parent_hash is None or event.parent_hash in self.hashes, "a page came before its parent"
                assert self.hashes.isdisjoint(event.hashes), "a page was told twice"
                self.hashes.update(event.hashes)
            case Removed():
                assert self.hashes.issuperset(event.hashes)
                self.hashes.difference_update(event.hashes)
            case Cleared():
                self.hashes.clear()


def hashes_in_tree(cache: PrefixCache) -> list[PageHash]:
    """Computed from the tree's own picture, from its roots down."""
    hashes = []
    for namespace, root in cache.core.picture().roots.items():
        stack = [(root, hash_of_namespace(namespace))]
        while stack:
            node, before = stack.pop()
            own = [] if node.is_donor else chained(before, bytes(node.key), page_tokens=cache.page_tokens)
            hashes += own
            stack += [(child, own[-1] if own else before) for child in node.children.values()]
    return sorted(hashes)


class JournalMachine(CacheMachine):
    is_compiled = True

    def make_cache(self, num_pages: int, page_tokens: int) -> PrefixCache:
        cache = PrefixCache(num_pages=num_pages, page_tokens=page_tokens, is_compiled=self.is_compiled)
        self.replica = Replica()
        self.journal = Journal(cache)
        self.journal.subscribe(self.replica.hear)
        return cache

    @invariant()
    def the_journal_equals_the_tree(self) -> None:
        if hasattr(self, "cache"):
            assert sorted(self.journal.hashes()) == hashes_in_tree(self.cache)
            assert sorted(self.replica.hashes) == hashes_in_tree(self.cache)


class PlainJournalMachine(JournalMachine):
    is_compiled = False


JournalMachine.TestCase.settings = PlainJournalMachine.TestCase.settings = CacheMachine.TestCase.settings
TestJournalOfTheCompiledTree = JournalMachine.TestCase
TestJournalOfTheTreeInPython = PlainJournalMachine.TestCase


def watched(*, num_pages: int = 8, now_s: list[float] | None = None) -> tuple[PrefixCache, Journal, list[Event]]:
    cache = PrefixCache(num_pages=num_pages, page_tokens=2)
    events: list[Event] = []
    clock = now_s or [0.0]
    journal = Journal(cache, clock=lambda: clock[0])
    journal.subscribe(lambda event: None if isinstance(event, Used) else events.append(event))
    return cache, journal, events


@pytest.mark.usefixtures("each_core")
def test_a_hash_is_what_the_documentation_says() -> None:
    cache, _, events = watched()
    serve(cache, [1, 2, 3, 4, 5])
    (event,) = events
    assert isinstance(event, Stored)
    root = xxh3_64_intdigest(b'["model",null,""]')
    first = xxh3_64_intdigest(np.array([1, 2], "<i4").tobytes(), root)
    assert event.hashes == [first, xxh3_64_intdigest(np.array([3, 4], "<i4").tobytes(), first)]
    assert (event.parent_hash, event.token_ids) == (None, ids([1, 2, 3, 4]).tobytes())


@pytest.mark.usefixtures("each_core")
def test_equal_tokens_of_two_namespaces_have_different_hashes() -> None:
    cache, journal, _ = watched()
    serve(cache, [1, 2], CHAT)
    serve(cache, [1, 2], OTHER)
    assert len(set(journal.hashes())) == 2


@pytest.mark.usefixtures("each_core")
def test_only_what_was_not_there_is_told_and_behind_the_page_that_was() -> None:
    cache, _, events = watched()
    one, twin = start(cache, [1, 2, 3, 4]), start(cache, [1, 2, 5, 6])
    cache.release(one, ids([1, 2, 3, 4]))
    cache.release(twin, ids([1, 2, 5, 6]))  # has a page of its own that holds [1, 2]
    stored, forked = events
    assert isinstance(stored, Stored)
    assert isinstance(forked, Stored)
    assert (forked.parent_hash, len(forked.hashes)) == (stored.hashes[0], 1)
    assert forked.token_ids == ids([5, 6]).tobytes()


@pytest.mark.usefixtures("each_core")
def test_an_eviction_tells_who_needed_room_and_when_each_page_was_last_used() -> None:
    now_s = [10.0]
    cache, _, events = watched(num_pages=4, now_s=now_s)
    serve(cache, [1, 2, 3, 4])
    now_s[0] = 20.0
    serve(cache, [1, 2])
    now_s[0] = 30.0
    cache.extend(cache.lease(CHAT, ids([7]), max_reuse_tokens=0, holder="big"), 8)
    stored, removed = events[0], [event for event in events if isinstance(event, Removed)]
    assert isinstance(stored, Stored)
    used_s = {page: at for event in removed for page, at in zip(event.hashes, event.used_s, strict=True)}
    assert used_s == dict(zip(stored.hashes, [20.0, 10.0], strict=True))
    assert {(event.holder, event.time_s) for event in removed} == {("big", 30.0)}


@pytest.mark.usefixtures("each_core")
def test_a_page_that_is_set_aside_is_told_as_removed_with_all_behind_it() -> None:
    cache, journal, _ = watched()
    serve(cache, [1, 2, 3, 4, 5, 6])
    cache.core.forget(1)
    assert sorted(journal.hashes()) == hashes_in_tree(cache)
    assert len(journal.hashes()) == 1


@pytest.mark.usefixtures("each_core")
def test_after_a_flush_nothing_is_held_and_leases_from_before_tell_of_nothing() -> None:
    cache, journal, events = watched()
    serve(cache, [1, 2])
    held = start(cache, [1, 2, 3, 4])
    cache.flush()
    cache.release(held, ids([1, 2, 3, 4]))
    assert isinstance(events[-1], Cleared)
    assert not journal.hashes()


def test_a_partly_filled_page_is_told_when_it_goes_with_what_it_held_and_what_it_followed() -> None:
    cache, journal, events = watched(num_pages=4)
    serve(cache, [1, 2, 3])
    serve(cache, [7])
    serve(cache, [4] * 4)
    gone = [event for event in events if isinstance(event, TailRemoved)]
    (before,) = chained(hash_of_namespace(CHAT), ids([1, 2]).tobytes(), page_tokens=2)
    assert [(event.before, event.tail) for event in gone] == [(before, ids([3]).tobytes())]
    cache.flush()
    last = events[-2]
    assert isinstance(last, TailRemoved)
    assert (last.before, last.tail, last.holder) == (hash_of_namespace(CHAT), ids([7]).tobytes(), None)
    assert not list(journal.hashes())


def test_the_end_of_a_lease_is_told_with_its_path() -> None:
    cache, journal, _ = watched()
    events: list[Event] = []
    journal.subscribe(events.append)
    serve(cache, [1, 2, 3, 4, 5])
    serve(cache, [1, 2, 3, 4, 6])
    first, second = (event for event in events if isinstance(event, Used))
    assert [*first.page_ids[:2]] == [*second.page_ids[:2]], "the second's pages are those that the first has cached"
    assert journal.hashes_of(second.page_ids).tolist()[:2] == journal.hashes_of(first.page_ids).tolist()[:2]
