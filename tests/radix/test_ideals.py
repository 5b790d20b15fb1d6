"""What ideal caches find, against models that do it page by page."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from xxhash import xxh3_64_intdigest

from radix import ideals as module
from radix.ideals import POOL_FACTORS, Found, Ideals

Page = tuple[int, ...]
"""All that stands up to the end of a page, as its hash would say."""

SMALL = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=5), min_size=1, max_size=40)


def pages_of(prompt: Sequence[int]) -> list[Page]:
    return [tuple(prompt[: end + 1]) for end in range(len(prompt))]


def hash_of(page: Page, seed: int = 0) -> int:
    return random.Random(f"{seed} {page}").getrandbits(64)


def asked(prompts: Sequence[Sequence[int]], ideals: Ideals, seed: int = 0) -> list[Found]:
    return [ideals.ask(ideals.sample([hash_of(page, seed) for page in pages_of(prompt)])) for prompt in prompts]


def naive_hits(prompts: Sequence[Sequence[int]], pool_pages: int, *, knows_future: bool) -> list[int]:
    """Page by page, each prompt brought in whole or as far as it fits; the ends of branches go first."""
    paths = [pages_of(prompt) for prompt in prompts]
    pool: dict[Page, int] = {}
    hits = []
    for number, path in enumerate(paths):
        hits.append(next((i for i, page in enumerate(path) if page not in pool), len(path)))
        wanted = path[:pool_pages]
        for page in wanted:
            if page not in pool and len(pool) == pool_pages:
                parents = {each[:-1] for each in pool}
                ends = [each for each in pool if each not in parents and each not in wanted]
                if knows_future:
                    later = paths[number + 1 :]
                    victim = max(ends, key=partial(_next_use, later))
                else:
                    victim = min(ends, key=lambda each: pool[each])
                del pool[victim]
            pool[page] = number
        pool.update(dict.fromkeys(wanted, number))
    return hits


def _next_use(later: list[list[Page]], page: Page) -> float:
    return next((i for i, path in enumerate(later) if page in path), math.inf)


@settings(max_examples=150, deadline=None)
@given(SMALL, st.integers(2, 9))
def test_with_every_page_followed_they_find_what_models_find(prompts: list[list[int]], num_pages: int) -> None:
    found = asked(prompts, Ideals(num_pages=num_pages, moments_a_pool=None))
    for i, factor in enumerate(POOL_FACTORS):
        hits = naive_hits(prompts, max(1, int(num_pages * factor)), knows_future=False)
        assert [each.lru[i] for each in found] == hits, factor
    oracle = naive_hits(prompts, num_pages, knows_future=True)
    # Which of two pages of the same prompt the future spares is free, but not how many.
    assert sum(each.oracle for each in found) == sum(oracle)
    seen: set[Page] = set()
    for prompt, each in zip(prompts, found, strict=True):
        assert each.seen == len(seen.intersection(pages_of(prompt)))
        seen.update(pages_of(prompt))


@settings(max_examples=60, deadline=None)
@given(SMALL, st.integers(2, 9))
def test_numbering_moments_anew_changes_nothing(prompts: list[list[int]], num_pages: int) -> None:
    whole = asked(prompts, Ideals(num_pages=num_pages, moments_a_pool=None))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_MOST_MOMENTS", 512)  # of which half may stay: more than there are prompts
        patch.setattr(module._Moments, "is_full", property(lambda moments: moments.now > 0))
        assert asked(prompts, Ideals(num_pages=num_pages, moments_a_pool=None)) == whole


def sessions(num_sessions: int, num_turns: int, seed: int) -> list[list[int]]:
    """Prompts that grow turn by turn, in an order in which some sessions come often and others seldom."""
    draw = random.Random(seed)
    weights = [1 / (1 + i) for i in range(num_sessions)]
    system = list(range(30))
    histories = [[*system, 100 + i] for i in range(num_sessions)]
    prompts = []
    for number in draw.choices(range(num_sessions), weights, k=num_turns):
        histories[number] = histories[number] + [draw.getrandbits(30) for _ in range(draw.randint(5, 60))]
        if len(histories[number]) > 900:
            histories[number] = [*system, draw.getrandbits(30)]
        prompts.append(histories[number])
    return prompts


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_sample_of_the_pages_tells_each_ideal_within_a_point(seed: int) -> None:
    prompts = sessions(60, 400, seed)
    num_pages = 4096
    every = Ideals(num_pages=num_pages, sampled_pages=num_pages, moments_a_pool=None)
    some = Ideals(num_pages=num_pages)
    hashes = [_chained(prompt, seed) for prompt in prompts]
    real = Ideals(num_pages=num_pages * 3 // 4, sampled_pages=num_pages)
    really = [real.ask(each).lru[POOL_FACTORS.index(1.0)] for each in hashes]
    exact, sampled = _percents(every, hashes, really), _percents(some, hashes, really)
    assert (every.share, some.share) == (1, 0.5)
    for name, percent in exact.items():
        assert sampled[name] == pytest.approx(percent, abs=1.0), name


def test_what_the_real_cache_lost_by_a_flush_is_told_apart() -> None:
    ideals = Ideals(num_pages=100)
    prompts = [[1, 2, 3], [1, 2, 4]]
    asked(prompts, ideals)
    ideals.flush()
    again = asked([*prompts, prompts[0]], ideals)
    assert [each.flushed for each in again] == [3, 1, 0]
    assert [each.lru[1] for each in again] == [3, 3, 3]


def test_what_an_answer_adds_is_found_by_whoever_continues_it() -> None:
    ideals = Ideals(num_pages=100)
    turn = [hash_of(page) for page in pages_of([1, 2, 3, 4])]
    ideals.ask(turn[:2])
    ideals.keep(turn[:3])
    assert ideals.ask(turn).seen == 3


@pytest.mark.parametrize(("runs_on", "found"), [(False, 1), (True, 0)])
def test_what_a_running_request_holds_is_no_room_for_the_oracle(runs_on: bool, found: int) -> None:
    ideals = Ideals(num_pages=4)
    long, other = ([hash_of((i, j)) for j in range(3)] for i in range(2))
    ideals.ask(other[:2])
    ideals.ask(long)
    ideals.ask([hash_of((9,))])
    if runs_on:
        ideals.keep(long)
    assert ideals.ask(other[:2]).oracle == found


def test_its_memory_is_bounded_and_what_it_has_forgotten_was_seen_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "_LEAST_FOLLOWED", 0)
    ideals = Ideals(num_pages=64)
    prompts = [[hash_of((i, j)) for j in range(16)] for i in range(200)]
    for prompt in prompts:
        ideals.ask(prompt)
    assert ideals.num_followed <= 8 * 64
    first = ideals.ask(prompts[0])
    assert (first.seen, first.lru) == (16, (0, 0, 0, 0))


def _chained(prompt: list[int], seed: int) -> list[int]:
    state, hashes = seed, []
    for page in prompt:
        state = xxh3_64_intdigest(page.to_bytes(4), state)
        hashes.append(state)
    return hashes


def _percents(ideals: Ideals, hashes: list[list[int]], really: list[int]) -> dict[str, float]:
    """What all prompts together are told to find, when the real cache found so many pages of each."""
    found = [ideals.ask(ideals.sample(each)) for each in hashes]
    counts = {"seen": sum(each.seen for each in found), "oracle": float(sum(each.oracle for each in found))}
    for i, factor in enumerate(POOL_FACTORS):
        counts[f"lru x{factor}"] = sum(each.lru[i] for each in found)
    sampled = sum(len(ideals.sample(each[:count])) for each, count in zip(hashes, really, strict=True))
    pages = sum(map(len, hashes))
    return {
        name: 100 * ideals.found_share(count, really=sampled, whole_really=sum(really), whole_pages=pages)
        for name, count in counts.items()
    }
