"""The cache beside a naive one, on whole workloads: it finds no less."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from radix.cache import PrefixCache
from radix.eviction import POLICIES
from tests.radix.naive_tree import NaiveTree, Tokens
from tests.radix.serving import CHAT, ids

PAGE_TOKENS = 4
PROMPTS = st.lists(
    st.tuples(st.integers(0, 30), st.integers(0, 24), st.lists(st.integers(0, 2), max_size=14)), max_size=30
)


def serve(cache: PrefixCache, tokens: Tokens) -> int:
    """Run a request; returns the tokens that it found in whole pages."""
    found = cache.match_pages(CHAT, ids(tokens))
    lease = cache.lease(CHAT, ids(tokens), max_reuse_tokens=found)
    cache.extend(lease, len(tokens))
    whole = len(tokens) // PAGE_TOKENS * PAGE_TOKENS
    cache.release(lease, ids(tokens[:whole]))
    cache.check()
    return found


def prompts_of(recipe: list[tuple[int, int, list[int]]]) -> list[Tokens]:
    """Prompts that go on from the start of earlier ones."""
    prompts: list[Tokens] = [(0,)]
    for base, kept, tail in recipe:
        prompts.append((*prompts[base % len(prompts)][:kept], *tail) or (0,))
    return prompts


@settings(max_examples=60, deadline=None)
@given(PROMPTS)
def test_with_memory_for_all_it_finds_the_same_to_the_token(recipe: list[tuple[int, int, list[int]]]) -> None:
    cache = PrefixCache(num_pages=400, page_tokens=PAGE_TOKENS)
    naive = NaiveTree(num_pages=400, page_tokens=PAGE_TOKENS)
    for tokens in prompts_of(recipe):
        assert serve(cache, tokens) == naive.serve(tokens)


def sessions(random: Random) -> list[Tokens]:
    """Conversations behind three system prompts, interleaved, some forked half-way."""
    systems = [tuple(random.choices(range(9), k=24)) for _ in range(3)]
    open_sessions = [random.choice(systems) for _ in range(12)]
    prompts = []
    for _ in range(500):
        i = random.randrange(len(open_sessions))
        context = open_sessions[i]
        if len(context) > 120 or random.random() < 0.03:
            context = random.choice(systems)
        elif random.random() < 0.05:
            context = context[: len(context) // 2]
        open_sessions[i] = (*context, *random.choices(range(9), k=random.randrange(3, 20)))
        prompts.append(open_sessions[i])
    return prompts


def popular(random: Random) -> list[Tokens]:
    """Few-shot prompts of which some are asked for much more often than others."""
    starts = [tuple(random.choices(range(9), k=random.choice([8, 16, 40]))) for _ in range(20)]
    weights = [1 / (rank + 1) for rank in range(len(starts))]
    return [
        (*random.choices(starts, weights)[0], *random.choices(range(9), k=random.randrange(1, 12))) for _ in range(500)
    ]


@pytest.mark.parametrize("workload", [sessions, popular])
@pytest.mark.parametrize("num_pages", [48, 90, 180])
def test_with_equal_memory_it_reuses_as_much_as_naive_lru(
    workload: Callable[[Random], list[Tokens]], num_pages: int
) -> None:
    prompts = workload(Random(num_pages))
    cache = PrefixCache(num_pages=num_pages, page_tokens=PAGE_TOKENS)
    naive = NaiveTree(num_pages=num_pages, page_tokens=PAGE_TOKENS)
    total = sum(map(len, prompts))
    ours = sum(serve(cache, tokens) for tokens in prompts)
    theirs = sum(naive.serve(tokens) for tokens in prompts)
    assert theirs > 0
    assert ours >= theirs - total * 0.005


@pytest.mark.parametrize("policy", POLICIES)
def test_every_policy_keeps_the_ledger_and_reuses_something(policy: str) -> None:
    cache = PrefixCache(num_pages=60, page_tokens=PAGE_TOKENS, policy=POLICIES[policy](60))
    assert sum(serve(cache, tokens) for tokens in sessions(Random(1))) > 0
    assert cache.mismatches_total == 0
