from __future__ import annotations

import pytest

from radix.cache import Hints, OutOfPages, PrefixCache
from radix.eviction.cost_aware import CostAware
from radix.eviction.scan_resistant import ScanResistant
from tests.radix.serving import CHAT, ids, serve, start

SYSTEM = range(100, 108)

pytestmark = pytest.mark.usefixtures("each_core")


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


def test_a_shared_start_is_as_recent_as_the_branch_that_it_lost_last() -> None:
    cache = PrefixCache(num_pages=20, page_tokens=4)
    serve(cache, [*SYSTEM, *range(8)])
    serve(cache, range(200, 208))
    serve(cache, [*SYSTEM, *range(20, 28)])
    serve(cache, range(300, 308))
    take(cache, 6)
    assert cached(cache, range(200, 208)) == 0
    assert (cached(cache, SYSTEM), cached(cache, range(300, 308))) == (8, 8)


def burst(cache: PrefixCache, num_prompts: int) -> None:
    """One-off prompts of two pages each."""
    for start_at in range(1000, 1000 + 10 * num_prompts, 10):
        serve(cache, range(start_at, start_at + 8))


def is_hot_prefix_kept(cache: PrefixCache) -> bool:
    for branch in (10, 20, 30):
        serve(cache, [*SYSTEM, branch])
    burst(cache, 12)
    return cached(cache, SYSTEM) == 8


def test_a_burst_of_one_off_prompts_flushes_a_hot_prefix_under_lru_but_not_where_scans_are_resisted() -> None:
    assert not is_hot_prefix_kept(PrefixCache(num_pages=20, page_tokens=4))
    assert is_hot_prefix_kept(PrefixCache(num_pages=20, page_tokens=4, policy=ScanResistant(20)))
    assert is_hot_prefix_kept(PrefixCache(num_pages=20, page_tokens=4, policy=CostAware(20)))


@pytest.mark.parametrize("policy", [ScanResistant, CostAware])
def test_what_was_hot_once_goes_in_the_end(policy: type[ScanResistant] | type[CostAware]) -> None:
    cache = PrefixCache(num_pages=20, page_tokens=4, policy=policy(20))
    serve(cache, SYSTEM)
    serve(cache, [*SYSTEM, 1])
    burst(cache, 60)
    assert cached(cache, SYSTEM) == 0


def test_cost_aware_eviction_gives_up_what_is_cheap_to_compute_again() -> None:
    deep, shallow = range(40000), range(50000, 50016)
    cache = PrefixCache(num_pages=2520, page_tokens=16, policy=CostAware(2520))
    serve(cache, deep)
    serve(cache, shallow)
    take(cache, 1)
    assert (cached(cache, deep), cached(cache, shallow)) == (40000, 0)


def serve_with(cache: PrefixCache, tokens: range, hints: Hints) -> None:
    lease = cache.lease(CHAT, ids(tokens), max_reuse_tokens=len(tokens) - 1, hints=hints)
    cache.extend(lease, len(tokens))
    cache.release(lease, ids(tokens))
    cache.check()


def test_a_higher_priority_is_kept_longer_and_its_start_with_it_but_not_for_ever() -> None:
    cache = PrefixCache(num_pages=20, page_tokens=4)
    serve_with(cache, SYSTEM, Hints(priority=1))
    burst(cache, 15)
    assert cached(cache, SYSTEM) == 8
    burst(cache, 40)
    assert cached(cache, SYSTEM) == 0


def test_a_prompt_is_kept_until_its_time_has_come_and_goes_then_as_if_it_had_never_been_asked_for() -> None:
    cache = PrefixCache(num_pages=20, page_tokens=4)
    cache.tell_time(100.0)
    serve_with(cache, SYSTEM, Hints(keep_s=30.0))
    burst(cache, 15)
    assert cached(cache, SYSTEM) == 8
    cache.tell_time(129.0)
    burst(cache, 5)
    assert cached(cache, SYSTEM) == 8
    cache.tell_time(130.0)
    take(cache, 1)
    assert cached(cache, SYSTEM) == 4


def test_when_everything_is_to_be_kept_the_pool_still_serves() -> None:
    cache = PrefixCache(num_pages=20, page_tokens=4)
    for start_at in range(0, 400, 10):
        serve_with(cache, range(start_at, start_at + 8), Hints(priority=10, keep_s=1e9))
    assert cached(cache, range(390, 398)) == 8
    assert cached(cache, range(8)) == 0
