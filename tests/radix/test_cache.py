from __future__ import annotations

import gc
import logging

import pytest

from radix.cache import PrefixCache
from radix.node import Node
from radix.pages import Owner
from tests.radix.serving import CHAT, ids, put_on_free_list, serve, start

pytestmark = pytest.mark.usefixtures("each_core")


@pytest.fixture
def cache(each_core: str) -> PrefixCache:
    return PrefixCache(num_pages=16, page_tokens=4)


def test_computed_pages_are_shared_while_their_request_still_runs(cache: PrefixCache) -> None:
    first = start(cache, range(13))
    cache.commit(first, ids(range(8)))
    second = start(cache, range(13))
    assert second.cached_tokens == 8
    assert second.page_ids[:2] == first.page_ids[:2]
    cache.commit(first, ids(range(13)))
    assert cache.match(CHAT, ids(range(13))) == 13
    cache.check()


def test_committing_the_same_tokens_again_changes_nothing(cache: PrefixCache) -> None:
    lease = start(cache, range(12))
    cache.commit(lease, ids(range(9)))
    version, pages = cache.version, cache.cached_pages
    cache.commit(lease, ids(range(9)))
    cache.commit(lease, ids(range(4)))
    assert (cache.version, cache.cached_pages) == (version, pages)


def test_two_requests_that_computed_the_same_keep_their_tables_and_the_later_copy_is_freed(cache: PrefixCache) -> None:
    first, second = start(cache, range(12)), start(cache, range(12))
    table = second.page_ids[:]
    cache.commit(first, ids(range(8)))
    cache.commit(second, ids(range(12)))
    cache.check()
    assert second.page_ids == table
    assert cache.cached_pages == 3, "the third page enters below the two that were there"
    assert cache.match(CHAT, ids(range(12))) == 12
    cache.release(second, ids(range(12)))
    cache.release(first, ids(range(12)))
    cache.check()
    assert (cache.free_pages, cache.cached_pages) == (13, 3)


def test_releasing_twice_is_releasing_once(cache: PrefixCache) -> None:
    lease = start(cache, range(10))
    cache.release(lease, ids(range(10)))
    other = start(cache, range(50, 60))
    free = cache.free_pages
    cache.release(lease, ids(range(10)))
    assert cache.free_pages == free
    assert cache.own_pages(other) == 3
    cache.check()


def test_only_tokens_that_were_computed_enter(cache: PrefixCache) -> None:
    lease = start(cache, range(16))
    cache.release(lease, ids(range(6)))
    assert cache.match(CHAT, ids(range(16))) == 6
    assert (cache.free_pages, cache.cached_pages) == (14, 2)


def test_more_tokens_than_the_lease_has_pages_for_are_refused(cache: PrefixCache) -> None:
    lease = start(cache, range(8))
    with pytest.raises(ValueError, match="9 tokens"):
        cache.commit(lease, ids(range(9)))


def test_the_source_of_a_copy_stays_until_the_copy_was_sent() -> None:
    cache = PrefixCache(num_pages=3, page_tokens=4)
    serve(cache, range(6))
    lease = cache.lease(CHAT, ids([0, 1, 2, 3, 4, 5, 6]), max_reuse_tokens=6)
    assert (lease.cached_tokens, lease.copied_tokens) == (6, 2)
    assert lease.copy is not None
    assert lease.copy[1] == lease.page_ids[-1]
    assert cache.evictable_pages == 0
    cache.copied(lease)
    cache.copied(lease)
    assert cache.evictable_pages == 1
    cache.check()


def test_a_tail_that_is_being_copied_stays_when_a_page_that_goes_on_from_it_enters(cache: PrefixCache) -> None:
    serve(cache, range(2))
    copying = cache.lease(CHAT, ids([0, 1, 50]), max_reuse_tokens=2)
    assert copying.copy is not None
    serve(cache, range(4))
    assert cache.core.ledger.owner_of(copying.copy[0]) == Owner.TREE
    cache.copied(copying)
    cache.check()


def test_without_a_page_for_the_copy_whole_pages_are_reused_all_the_same() -> None:
    cache = PrefixCache(num_pages=3, page_tokens=4)
    serve(cache, range(8))
    start(cache, [90, 91])
    lease = cache.lease(CHAT, ids([0, 1, 2, 3, 4, 5, 60]), max_reuse_tokens=6)
    assert (lease.cached_tokens, lease.copied_tokens, lease.copy) == (4, 0, None)
    cache.check()


def test_own_pages_counts_what_a_retraction_would_give_back(cache: PrefixCache) -> None:
    serve(cache, range(8))
    lease = start(cache, [*range(8), *range(20, 30)])
    assert cache.own_pages(lease) == 2 + 3
    cache.commit(lease, ids([*range(8), *range(20, 30)]))
    assert cache.own_pages(lease) == 2 + 3
    sharing = start(cache, [*range(8), 40])
    assert cache.own_pages(lease) == 3
    free, evictable = cache.free_pages, cache.evictable_pages
    cache.release(lease, ids([*range(8), *range(20, 30)]))
    assert cache.free_pages + cache.evictable_pages == free + evictable + 3
    assert cache.own_pages(lease) == 0
    assert cache.own_pages(sharing) == 2 + 1


def test_own_pages_ends_where_another_lease_ends_and_counts_nothing_above(cache: PrefixCache) -> None:
    serve(cache, [*range(8), *range(20, 28)])
    serve(cache, [*range(8), *range(30, 38)])
    lease = start(cache, [*range(8), *range(20, 28), 60])
    other = cache.lease(CHAT, ids([*range(8), *range(20, 28)]), max_reuse_tokens=12)
    above = cache.lease(CHAT, ids(range(9)), max_reuse_tokens=8)
    assert (cache.own_pages(lease), cache.own_pages(above)) == (2, 0)
    cache.release(above, ids(range(8)))
    free, evictable = cache.free_pages, cache.evictable_pages
    cache.release(lease, ids([*range(8), *range(20, 28)]))
    assert cache.free_pages + cache.evictable_pages == free + evictable + 2
    assert cache.own_pages(other) == 3


def test_a_flush_frees_what_nobody_leases_and_the_rest_with_its_last_lease(cache: PrefixCache) -> None:
    serve(cache, range(16))
    serve(cache, range(50, 58))
    first = start(cache, [*range(8), 40])
    second = start(cache, [*range(4), 41])
    assert cache.flush() == 4
    cache.check()
    assert (cache.cached_pages, cache.evictable_pages) == (2, 0)
    assert cache.match(CHAT, ids(range(16))) == 0
    cache.commit(first, ids([*range(8), 40]))
    cache.release(first, ids([*range(8), 40]))
    cache.check()
    assert cache.cached_pages == 1
    cache.release(second, ids([*range(4), 41]))
    cache.check()
    assert (cache.free_pages, cache.cached_pages) == (16, 0)


def test_what_was_leased_before_a_flush_never_enters_the_new_tree(cache: PrefixCache) -> None:
    old = start(cache, range(8))
    cache.flush()
    new = start(cache, range(8))
    cache.commit(new, ids(range(4)))
    cache.release(old, ids(range(8)))
    cache.check()
    assert cache.match(CHAT, ids(range(8))) == 4
    cache.flush()
    cache.release(new, ids(range(8)))
    assert cache.free_pages == 16


def test_a_cached_page_that_is_also_on_the_free_list_is_set_aside_and_serving_goes_on(
    cache: PrefixCache, caplog: pytest.LogCaptureFixture
) -> None:
    lease = serve(cache, range(16))
    page = lease.page_ids[2]
    put_on_free_list(cache, [page])
    with caplog.at_level(logging.ERROR):
        assert cache.audit() == 1
    assert f"page={page}" in caplog.text
    assert "adopt" in caplog.text
    cache.check()
    assert (cache.quarantined_pages, cache.mismatches_total) == (1, 1)
    assert cache.match(CHAT, ids(range(16))) == 8, "nothing is found below the page that was set aside"
    assert serve(cache, range(16)).cached_tokens == 8
    assert cache.audit() == 0


def test_a_wrong_ledger_entry_under_live_leases_costs_one_page_and_no_request(cache: PrefixCache) -> None:
    serve(cache, range(12))
    lease = start(cache, [*range(12), 50, 51])
    own, shared = lease.page_ids[3], lease.page_ids[1]
    cache.core.ledger.owners()[own] = Owner.TREE
    cache.core.ledger.owners()[shared] = Owner.FREE
    assert cache.audit() == 2
    cache.check()
    assert cache.match(CHAT, ids(range(12))) == 4
    cache.release(lease, ids([*range(12), 50, 51]))
    cache.check()
    assert cache.quarantined_pages == 2
    assert cache.free_pages + cache.cached_pages == 14
    serve(cache, range(16))
    assert cache.match(CHAT, ids(range(16))) == 16


def test_nothing_enters_from_an_own_page_on_that_was_set_aside(cache: PrefixCache) -> None:
    lease = start(cache, range(16))
    cache.core.ledger.owners()[lease.page_ids[1]] = Owner.FREE
    assert cache.audit() == 1
    cache.commit(lease, ids(range(16)))
    cache.check()
    assert cache.match(CHAT, ids(range(16))) == 4
    cache.release(lease, ids(range(16)))
    cache.check()
    assert (cache.free_pages, cache.cached_pages, cache.quarantined_pages) == (14, 1, 1)


def test_a_page_that_nobody_holds_is_set_aside(cache: PrefixCache) -> None:
    lease = start(cache, range(8))
    lease.page_ids.pop()
    assert cache.audit() == 1
    cache.release(lease, ids(range(4)))
    cache.check()
    assert (cache.quarantined_pages, cache.cached_pages, cache.free_pages) == (1, 1, 14)


def test_an_audit_looks_at_some_pages_at_a_time_and_at_all_of_them_in_turn(cache: PrefixCache) -> None:
    lease = start(cache, range(64))
    lease.page_ids.pop()
    lost = 15
    assert [cache.audit(6) for _ in range(2)] == [0, 0]
    assert cache.audit(6) == 1
    assert cache.core.ledger.owner_of(lost) == Owner.QUARANTINED
    assert [cache.audit(6) for _ in range(3)] == [0, 0, 0]
    cache.check()


def test_all_of_a_namespace_can_be_set_aside(cache: PrefixCache) -> None:
    lease = serve(cache, range(8))
    put_on_free_list(cache, lease.page_ids)
    assert cache.audit() == 2
    cache.check()
    assert not cache.core.picture().roots


def test_room_is_made_ahead_once_the_pool_is_full_so_that_the_next_pages_need_no_eviction() -> None:
    cache = PrefixCache(num_pages=1024, page_tokens=4)
    assert cache.evict_ahead() == 0
    serve(cache, range(4096))
    assert cache.evict_ahead() == cache.free_pages == 4
    cache.check()
    assert cache.evict_ahead() == 0
    evicted = cache.evicted_pages_total
    start(cache, range(5000, 5016))
    assert cache.evicted_pages_total == evicted


def test_room_is_not_made_ahead_of_what_leases_hold() -> None:
    cache = PrefixCache(num_pages=1024, page_tokens=4)
    lease = start(cache, range(4096))
    cache.commit(lease, ids(range(4096)))
    assert cache.evict_ahead() == 0
    cache.check()


def test_nothing_that_was_served_leaves_a_reference_cycle_behind() -> None:
    cache = PrefixCache(num_pages=12, page_tokens=4)
    gc.collect()
    gc.disable()
    try:
        for start_at in range(0, 500, 5):
            tokens = [*range(8), *range(start_at, start_at + 14)]
            cache.release(start(cache, tokens), ids(tokens))
        cache.flush()
        live = sum(type(each) is Node for each in gc.get_objects())  # isinstance would ask proxies
    finally:
        gc.enable()
    assert live == 0
