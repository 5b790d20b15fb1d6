from __future__ import annotations

import pytest

from radix.cache import OutOfPages, PrefixCache
from tests.radix.serving import CHAT, ids, serve, start

SYSTEM = range(100, 108)


def cached(cache: PrefixCache, tokens: range) -> int:
    return cache.match_pages(CHAT, ids(tokens))


def take(cache: PrefixCache, num_pages: int) -> None:
    """Use up what is free and then `num_pages` more."""
    lease = cache.lease(CHAT, ids([9]), max_reuse_tokens=0)
    cache.extend(lease, (cache.free_pages + num_pages) * cache.page_tokens)
    cache.check()


def test_the_least_recently_used_branch_loses_its_newest_pages_and_keeps_its_start() -> None:
    cache = PrefixCache(num_pages=12, page_tokens=4)
    serve(cache, range(16))
    serve(cache, range(100, 116))
    take(cache, 1)
    assert (cached(cache, range(16)), cached(cache, range(100, 116))) == (12, 16)
    assert cache.evicted_pages_total == 1


def test_eviction_goes_on_to_the_next_branch_when_the_first_is_used_up() -> None:
    cache = PrefixCache(num_pages=12, page_tokens=4)
    serve(cache, range(16))
    serve(cache, range(100, 116))
    take(cache, 6)
    assert (cached(cache, range(16)), cached(cache, range(100, 116))) == (0, 8)


def test_a_prefix_used_again_outlives_one_that_was_not() -> None:
    cache = PrefixCache(num_pages=12, page_tokens=4)
    serve(cache, range(16))
    serve(cache, range(100, 116))
    serve(cache, range(16))
    take(cache, 4)
    assert (cached(cache, range(16)), cached(cache, range(100, 116))) == (16, 0)


def test_a_shared_start_goes_after_its_branches_and_counts_as_used_when_they_were() -> None:
    cache = PrefixCache(num_pages=20, page_tokens=4)
    serve(cache, [*SYSTEM, *range(8)])
    serve(cache, range(200, 208))
    serve(cache, [*SYSTEM, *range(20, 28)])
    take(cache, 4)
    assert cached(cache, range(200, 208)) == 0
    assert cached(cache, SYSTEM) == 8
    take(cache, 2)
    assert cached(cache, SYSTEM) == 8
    take(cache, 1)
    assert cached(cache, SYSTEM) == 4


def test_an_unused_branch_stays_old_when_the_edge_it_lies_on_is_forked() -> None:
    cache = PrefixCache(num_pages=20, page_tokens=4)
    serve(cache, [*SYSTEM, *range(8)])
    serve(cache, range(200, 208))
    serve(cache, [*SYSTEM, *range(20, 28)])
    take(cache, 2)
    assert cache.match_pages(CHAT, ids([*SYSTEM, *range(8)])) == 8
    assert cached(cache, range(200, 208)) == 8


def test_partly_filled_pages_go_before_any_whole_one() -> None:
    cache = PrefixCache(num_pages=8, page_tokens=4)
    serve(cache, range(8))
    serve(cache, range(100, 106))
    assert cache.match(CHAT, ids(range(100, 106))) == 6
    take(cache, 1)
    assert cache.match(CHAT, ids(range(100, 106))) == 4
    assert cached(cache, range(8)) == 8


def test_leased_pages_are_never_evicted_and_the_error_counts_only_the_others() -> None:
    cache = PrefixCache(num_pages=8, page_tokens=4)
    serve(cache, range(16))
    lease = cache.lease(CHAT, ids(range(10)), max_reuse_tokens=8)
    assert lease.cached_tokens == 8
    assert (cache.free_pages, cache.evictable_pages) == (4, 2)
    with pytest.raises(OutOfPages) as raised:
        cache.extend(lease, 8 + 7 * 4)
    assert (raised.value.needed, raised.value.available) == (7, 6)
    assert (cache.free_pages, cache.evictable_pages, len(lease.page_ids)) == (4, 2, 2)
    assert len(cache.extend(lease, 8 + 6 * 4)) == 6
    assert cached(cache, range(16)) == 8
    cache.check()


def test_eviction_changes_the_version_so_that_stored_matches_are_looked_up_again() -> None:
    cache = PrefixCache(num_pages=4, page_tokens=4)
    serve(cache, range(16))
    version = cache.version
    start(cache, range(50, 54))
    assert cache.version > version
