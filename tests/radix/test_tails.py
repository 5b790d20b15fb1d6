"""Copies of pages that running requests have begun to fill."""

from __future__ import annotations

import pytest

from radix.cache import Lease, PrefixCache
from radix.edges import FORK_LOOK
from radix.pages import Owner
from tests.radix.serving import CHAT, OTHER, ids, serve, start


@pytest.fixture(params=[True, False], ids=["compiled", "python"])
def cache(request: pytest.FixtureRequest) -> PrefixCache:
    return PrefixCache(num_pages=40, page_tokens=4, is_compiled=request.param)


def lease_of(cache: PrefixCache, tokens: list[int]) -> Lease:
    return cache.lease(CHAT, ids(tokens), max_reuse_tokens=len(tokens) - 1)


def running(cache: PrefixCache, tokens: list[int], *, computed: int) -> Lease:
    """A request that has computed so many of its tokens and goes on."""
    lease = start(cache, tokens)
    cache.commit(lease, ids(tokens[:computed]))
    return lease


def test_the_page_that_a_running_request_is_filling_is_copied_as_far_as_it_is_computed(cache: PrefixCache) -> None:
    leader = running(cache, list(range(12)), computed=7)
    follower = lease_of(cache, [*range(8), 50])
    assert (follower.cached_tokens, follower.copied_tokens) == (7, 3)
    assert follower.copy == (leader.page_ids[1], follower.page_ids[1])
    assert cache.core.ledger.owner_of(leader.page_ids[1]) == Owner.REQUEST
    cache.check()


def test_also_where_nothing_of_the_prompt_fills_a_page(cache: PrefixCache) -> None:
    running(cache, [1, 2, 3], computed=3)
    assert cache.match(CHAT, ids([1, 2, 9])) == 2
    assert lease_of(cache, [1, 2, 9, 9]).cached_tokens == 2
    assert cache.match(OTHER, ids([1, 2, 9])) == 0


def test_the_longer_of_a_donor_and_a_running_requests_page_is_copied(cache: PrefixCache) -> None:
    serve(cache, [0, 1, 2, 3, 4, 5])
    running(cache, [0, 1, 2, 3, 4, 8, 9], computed=7)
    evictable = cache.evictable_pages
    assert lease_of(cache, [0, 1, 2, 3, 4, 5, 60]).copied_tokens == 2
    longer = lease_of(cache, [0, 1, 2, 3, 4, 8, 60])
    assert longer.copied_tokens == 2
    assert cache.evictable_pages == evictable - 1, "the donor is pinned by the copy from it, and by no other"
    cache.check()


def test_what_it_computes_further_is_offered_and_ends_with_the_page(cache: PrefixCache) -> None:
    tokens = list(range(12))
    leader = running(cache, tokens, computed=5)
    assert cache.match(CHAT, ids(tokens)) == 5
    cache.commit(leader, ids(tokens[:6]))
    assert cache.match(CHAT, ids(tokens)) == 6
    cache.commit(leader, ids(tokens[:8]))
    assert cache.match(CHAT, ids(tokens)) == 8
    cache.release(leader, ids(tokens[:8]))
    assert cache.match(CHAT, ids(tokens)) == 8


@pytest.mark.parametrize("computed", [0, 6, 9])
def test_a_page_outlives_its_request_until_it_is_copied(cache: PrefixCache, computed: int) -> None:
    tokens = list(range(12))
    leader = running(cache, tokens, computed=6)
    first, second = lease_of(cache, [*range(6), 50]), lease_of(cache, [*range(6), 60])
    assert first.copy is not None and second.copy is not None
    source = first.copy[0]
    cache.release(leader, ids(tokens[:computed]))
    cache.check()
    for taker in (first, second):
        assert cache.core.ledger.owner_of(source) == Owner.REQUEST
        cache.release(taker, ids([]))
        cache.check()
    assert cache.core.ledger.owner_of(source) == Owner.FREE
    assert cache.free_pages + cache.evictable_pages == cache.num_pages


def test_a_page_that_fills_up_before_it_was_copied_enters_the_tree_afterwards(cache: PrefixCache) -> None:
    tokens = list(range(12))
    leader = running(cache, tokens, computed=6)
    taker = lease_of(cache, [*range(6), 50])
    cache.commit(leader, ids(tokens[:9]))
    assert leader.depth == 4
    cache.copied(taker)
    cache.copied(taker)
    cache.commit(leader, ids(tokens[:9]))
    assert leader.depth == 8
    cache.check()


def test_a_flush_ends_offers_and_keeps_promises(cache: PrefixCache) -> None:
    leader = running(cache, list(range(12)), computed=6)
    taker = lease_of(cache, [*range(6), 50])
    cache.flush()
    assert lease_of(cache, [*range(6), 60]).cached_tokens == 0
    cache.release(leader, ids(range(6)))
    assert taker.copy is not None
    assert cache.core.ledger.owner_of(taker.copy[0]) == Owner.REQUEST
    cache.commit(leader, ids(range(6)))
    assert cache.match(CHAT, ids(range(6))) == 0
    cache.check()


def test_without_a_page_for_the_copy_whole_pages_are_reused_all_the_same() -> None:
    cache = PrefixCache(num_pages=3, page_tokens=4)
    running(cache, list(range(12)), computed=6)
    assert lease_of(cache, [*range(6), 50]).cached_tokens == 4
    cache.check()


def test_the_look_is_bounded(cache: PrefixCache) -> None:
    running(cache, [1, 2, 3], computed=3)
    for other in range(FORK_LOOK):
        running(cache, [1, 10 + other], computed=2)
    assert cache.match(CHAT, ids([1, 2, 3])) == 1
