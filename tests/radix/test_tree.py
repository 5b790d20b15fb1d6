from __future__ import annotations

import numpy as np
import pytest

from radix.cache import PrefixCache
from radix.node import Node
from tests.radix.serving import CHAT, OTHER, ids, serve, start

pytestmark = pytest.mark.usefixtures("each_core")


def nodes(cache: PrefixCache) -> list[Node]:
    return [node for root in cache.core.picture().roots.values() for node in root.walk() if node.parent is not None]


def test_a_session_of_many_turns_is_one_edge() -> None:
    cache = PrefixCache(num_pages=400, page_tokens=4)
    tokens: list[int] = []
    for turn in range(30):
        tokens += range(turn, turn + 10)
        serve(cache, tokens)
    whole = [node for node in nodes(cache) if not node.is_donor]
    assert [len(node.pages) for node in whole] == [len(tokens) // 4]
    assert cache.cached_pages <= len(tokens) // 4 + 1


def test_a_lease_that_ends_inside_an_edge_pins_a_part_of_it_and_splits_nothing() -> None:
    cache = PrefixCache(num_pages=20, page_tokens=4)
    serve(cache, range(32))
    lease = cache.lease(CHAT, ids(range(13)), max_reuse_tokens=12)
    assert len(nodes(cache)) == 1
    assert cache.evictable_pages == 5
    cache.check()
    cache.release(lease, ids(range(12)))
    assert cache.evictable_pages == 8


def test_leases_on_one_edge_stay_where_they_were_when_a_commit_splits_it() -> None:
    cache = PrefixCache(num_pages=30, page_tokens=4)
    serve(cache, range(32))
    short = cache.lease(CHAT, ids(range(32)), max_reuse_tokens=8)
    long = cache.lease(CHAT, ids(range(32)), max_reuse_tokens=28)
    forked = start(cache, [*range(16), *range(60, 70)])
    cache.commit(forked, ids([*range(16), *range(60, 68)]))
    cache.check()
    assert sorted(len(node.pages) for node in nodes(cache)) == [2, 4, 4]
    cache.release(long, ids(range(28)))
    cache.check()
    assert cache.evictable_pages == 4
    cache.release(forked, ids(range(8)))
    assert cache.evictable_pages == 8
    cache.release(short, ids(range(8)))
    assert cache.evictable_pages == cache.cached_pages == 10


@pytest.mark.parametrize("page_tokens", [1, 4, 16])
@pytest.mark.parametrize("num_pages", [1, 2, 5])
@pytest.mark.parametrize("off", [-1, 0, 1])
def test_reuse_is_to_the_token_around_page_boundaries(page_tokens: int, num_pages: int, off: int) -> None:
    cache = PrefixCache(num_pages=30, page_tokens=page_tokens)
    shared = list(range(num_pages * page_tokens + off))
    serve(cache, [*shared, *range(1000, 1000 + 2 * page_tokens)])
    asked = [*shared, *range(2000, 2000 + 2 * page_tokens)]
    assert cache.match(CHAT, ids(asked)) == len(shared)
    lease = start(cache, asked)
    assert lease.cached_tokens == len(shared)
    assert lease.copied_tokens == len(shared) % page_tokens
    cache.check()


@pytest.mark.parametrize("page_tokens", [1, 4, 16])
@pytest.mark.parametrize("off", [-1, 0, 1])
def test_the_next_turn_reuses_prompt_and_answer_to_the_token(page_tokens: int, off: int) -> None:
    cache = PrefixCache(num_pages=40, page_tokens=page_tokens)
    turn = list(range(2 * page_tokens + off))
    serve(cache, turn)
    lease = serve(cache, [*turn, 500, 501])
    assert lease.cached_tokens == len(turn)


def test_the_fork_look_compares_eight_children_at_most_the_newest_first() -> None:
    cache = PrefixCache(num_pages=100, page_tokens=4)
    serve(cache, [7, 8, 9, 0])
    for last in range(10, 18):
        serve(cache, [7, last, last, last])
    assert cache.match(CHAT, ids([7, 8, 9, 1])) == 1
    assert cache.match(CHAT, ids([7, 10, 10, 1])) == 3


def test_a_donor_makes_way_for_the_page_that_goes_on_from_it() -> None:
    cache = PrefixCache(num_pages=10, page_tokens=4)
    serve(cache, range(6))
    assert [node.is_donor for node in nodes(cache)] == [False, True]
    serve(cache, range(7))
    assert cache.cached_pages == 2
    serve(cache, range(8))
    assert [node.is_donor for node in nodes(cache)] == [False]
    serve(cache, range(6))
    assert cache.cached_pages == 2, "a tail that a whole page begins with is of no use"


def test_a_donor_stays_when_a_page_enters_that_only_begins_alike() -> None:
    cache = PrefixCache(num_pages=10, page_tokens=4)
    serve(cache, [1, 2, 3])
    serve(cache, [1, 2, 8, 9])
    assert cache.match(CHAT, ids([1, 2, 3, 4])) == 3


def test_a_copy_pins_one_page_of_its_source_not_the_branch() -> None:
    cache = PrefixCache(num_pages=20, page_tokens=4)
    serve(cache, range(16))
    lease = cache.lease(CHAT, ids([0, 1, 50]), max_reuse_tokens=2)
    assert lease.copy is not None
    assert cache.evictable_pages == 3


def test_a_donor_that_ends_inside_an_edge_hangs_at_a_split() -> None:
    cache = PrefixCache(num_pages=10, page_tokens=4)
    serve(cache, range(12))
    serve(cache, [0, 1, 2, 3, 4, 50])
    assert cache.match(CHAT, ids([0, 1, 2, 3, 4, 50, 51])) == 6
    assert cache.match(CHAT, ids(range(12))) == 12


def test_one_salt_never_meets_another_and_an_empty_namespace_is_forgotten() -> None:
    cache = PrefixCache(num_pages=2, page_tokens=4)
    serve(cache, range(8))
    assert cache.match(CHAT, ids(range(8))) == 8
    assert cache.match(OTHER, ids(range(8))) == 0
    serve(cache, range(8), OTHER)
    assert list(cache.core.picture().roots) == [OTHER]
    assert cache.match(OTHER, ids(range(8))) == 8


def test_token_ids_of_another_width_are_refused() -> None:
    cache = PrefixCache(num_pages=2, page_tokens=4)
    with pytest.raises(TypeError, match="int64"):
        cache.match(CHAT, np.array([1 << 32]))


def test_the_tail_of_an_old_donor_among_many_does_not_take_its_place() -> None:
    cache = PrefixCache(num_pages=64, page_tokens=4)
    tails = [[1, i] for i in range(20)]
    for tail in [*tails, tails[0], tails[5]]:
        serve(cache, tail)
    assert len(nodes(cache)) == len(tails)
    assert cache.cached_pages == len(tails)


def test_an_edge_whose_other_branch_was_evicted_is_one_edge_again_and_leases_stay_where_they_were() -> None:
    cache = PrefixCache(num_pages=14, page_tokens=4)
    serve(cache, range(16))
    serve(cache, [*range(8), *range(60, 68)])
    lease = cache.lease(CHAT, ids([*range(8), *range(60, 68)]), max_reuse_tokens=12)
    taking = cache.lease(CHAT, ids([99]), max_reuse_tokens=0)
    cache.extend(taking, 10 * 4)
    cache.check()
    assert [len(node.pages) for node in nodes(cache)] == [4]
    assert cache.match_pages(CHAT, ids([*range(8), *range(60, 68)])) == 16
    assert cache.evictable_pages == 1
    cache.release(lease, ids([*range(8), *range(60, 64)]))
    cache.check()
    assert cache.evictable_pages == 4
