from __future__ import annotations

import pytest

from radix.cache import PrefixCache
from radix.journal import Journal
from scheduler.belt import Belt
from tests.radix.serving import serve


class Clock:
    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


def made() -> tuple[PrefixCache, Belt, Clock]:
    cache, clock = PrefixCache(num_pages=100, page_tokens=2), Clock()
    return cache, Belt(cache, Journal(cache, clock=clock)), clock


def test_the_belt_is_the_pool_over_the_rate_of_new_pages() -> None:
    cache, belt, clock = made()
    for i in range(10):
        clock.now_s += 2
        serve(cache, [7 * i + 1, 7 * i + 2])  # one new page each 2 s
    assert belt.reading().belt_s == pytest.approx(200)


def test_what_is_found_cached_does_not_move_the_belt() -> None:
    cache, belt, clock = made()
    serve(cache, [1, 2])
    clock.now_s += 10
    serve(cache, [1, 2])
    assert belt.reading().belt_s == pytest.approx(1000)


def test_only_the_last_minutes_count() -> None:
    cache, belt, clock = made()
    for i in range(50):
        serve(cache, [2 * i + 1, 2 * i + 2])
    clock.now_s += 1000
    assert belt.reading().belt_s is None
    serve(cache, [500, 501])
    assert belt.reading().belt_s == pytest.approx(100 * 300)


def test_the_next_victim_is_as_old_as_its_last_use() -> None:
    cache, belt, clock = made()
    assert belt.reading().next_victim_s is None
    serve(cache, [1, 2])
    clock.now_s += 30
    serve(cache, [3, 4])
    clock.now_s += 5
    assert belt.reading().next_victim_s == pytest.approx(35)
    serve(cache, [1, 2, 9])
    assert belt.reading().next_victim_s == pytest.approx(0), "a partly filled page goes first"


def test_the_chance_to_survive_is_the_share_that_returns_in_time() -> None:
    cache, belt, clock = made()
    assert belt.reading().survival is None
    for idle_s in (1.0, 2.0, 4.0, 1000.0):
        belt.note_return(idle_s)
    assert belt.reading().survival is None, "nothing has come yet, so the belt stands"
    clock.now_s += 10
    for i in range(10):
        serve(cache, [2 * i + 1, 2 * i + 2])  # a belt of 100 s
    reading = belt.reading()
    assert reading.belt_s == pytest.approx(100)
    assert reading.survival == pytest.approx(0.75)
    assert reading.expected_return_s == pytest.approx(2.0)
