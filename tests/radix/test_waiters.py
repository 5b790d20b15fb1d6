"""Waiters against the definition: what each finds cached, who follows whom, and who comes first."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import invariant, precondition, rule

from radix.cache import Namespace, PrefixCache
from radix.waiters import AGE, RANK, Waiter
from tests.radix.test_cache_model import (
    NAMESPACE,
    NAMESPACES,
    NUM_PAGES,
    OFF,
    PICK,
    TAIL,
    UNLIMITED_PAGES,
    CacheMachine,
    Tokens,
    array,
)


@dataclass(eq=False)
class Place:
    namespace: Namespace
    tokens: Tokens
    waiter: Waiter


def enter(cache: PrefixCache, namespace: Namespace, tokens: Tokens, waiter: Waiter) -> Place:
    whole = tokens[: len(tokens) // cache.page_tokens * cache.page_tokens]
    cache.waiters.enter(namespace, array(whole).tobytes(), waiter)
    return Place(namespace, whole, waiter)


has_waiters = precondition(lambda self: self.places)


class WaitersMachine(CacheMachine):
    """The random life of a cache, with waiters that come and go in it."""

    def __init__(self) -> None:
        super().__init__()
        self.places: list[Place] = []
        self.arrivals = 0
        self.is_compiled = True

    def make_cache(self, num_pages: int, page_tokens: int) -> PrefixCache:
        return PrefixCache(num_pages=num_pages, page_tokens=page_tokens, is_compiled=self.is_compiled)

    @rule(namespace=NAMESPACE, base=PICK, num_pages=NUM_PAGES, off=OFF, tail=TAIL, priority=st.integers(0, 1))
    def wait(self, namespace: Namespace, base: int, num_pages: int, off: int, tail: list[int], priority: int) -> None:
        self._enter(namespace, base, num_pages, off, tail, priority, is_leader=False)

    @rule(namespace=NAMESPACE, base=PICK, num_pages=NUM_PAGES, off=OFF, tail=TAIL)
    def lead(self, namespace: Namespace, base: int, num_pages: int, off: int, tail: list[int]) -> None:
        self._enter(namespace, base, num_pages, off, tail, 0, is_leader=True)

    @has_waiters
    @rule(pick=PICK, twice=st.booleans())
    def leave(self, pick: int, twice: bool) -> None:
        place = self.places.pop(-1 - pick % len(self.places))
        for _ in range(1 + twice):
            self.cache.waiters.leave(place.waiter)

    @rule(pick=PICK, chance=st.integers(0, 3))
    def lose_a_page(self, pick: int, chance: int) -> None:
        nodes = [node for root in self.cache.core.picture().roots.values() for node in root.walk() if node.pages]
        if nodes and not (chance or self.live) and self.cache.num_pages < UNLIMITED_PAGES:
            node = nodes[pick % len(nodes)]
            self.cache.core.forget(node.pages[pick % len(node.pages)])

    def _enter(
        self,
        namespace: Namespace,
        base: int,
        num_pages: int,
        off: int,
        tail: list[int],
        priority: int,
        *,
        is_leader: bool,
    ) -> None:
        known = self.seen[-1 - base % len(self.seen)]
        tokens = known[: max(num_pages * self.page_tokens + off, 0)] + tuple(tail)
        self.arrivals += 1
        waiter = Waiter(((-priority,), self.arrivals), (self.arrivals,), is_leader=is_leader)
        self.places.append(enter(self.cache, namespace, tokens, waiter))
        self.seen.append(tokens)

    @invariant()
    def every_match_is_that_from_scratch_and_the_first_is_the_first_by_definition(self) -> None:
        if not hasattr(self, "cache"):
            return
        waiters = self.cache.waiters
        self.places = [place for place in self.places if place.waiter.branch is not None]
        leaders = [place for place in self.places if place.waiter.is_leader]
        ranks, ages = [], []
        for place in self.places:
            matched = self.cache.match_pages(place.namespace, array(place.tokens))
            assert waiters.cached_tokens(place.waiter) == matched
            if place.waiter.is_leader:
                continue
            wanted = place.tokens[: matched + self.page_tokens]
            is_following = len(wanted) > matched and any(
                leader.namespace == place.namespace and leader.tokens[: len(wanted)] == wanted for leader in leaders
            )
            assert (waiters.shared_tokens(place.waiter) is not None) == is_following
            if not is_following:
                group, order = place.waiter.rank
                ranks.append((group, -matched, order, place.waiter))
                ages.append((place.waiter.age, place.waiter))
        assert list(waiters.in_order(RANK)) == [waiter for *_, waiter in sorted(ranks)]
        assert list(waiters.in_order(AGE)) == [waiter for *_, waiter in sorted(ages)]
        self.halts_are_where_cached_parts_end()

    def halts_are_where_cached_parts_end(self) -> None:
        waiters = self.cache.waiters
        branches = [branch for root in waiters.roots.values() for branch in root.walk()]
        picture = self.cache.core.picture()
        reached = {branch.page: branch for branch in branches if branch.page is not None}
        assert waiters.halts == reached
        for branch in branches:
            assert (branch.page is not None) == (branch.cached > branch.start)
            if branch.page is not None:
                node = picture.home_of(branch.page)
                assert node is not None
                assert not node.is_detached
                assert node.pages[(branch.cached - node.start) // self.page_tokens - 1] == branch.page
        assert waiters.pending_tokens == sum(branch.end - branch.cached for branch in branches)
        for branch in branches:
            assert branch.parent is None or branch.members or len(branch.children) > 1, "a chain was not joined"
            num_leaders = sum(waiter.is_leader for each in branch.walk() for waiter in each.members)
            assert branch.num_leaders == num_leaders

    def teardown(self) -> None:
        for place in self.places:
            self.cache.waiters.leave(place.waiter)
        if hasattr(self, "cache"):
            assert not self.cache.waiters.roots
            assert not self.cache.waiters.halts


WaitersMachine.TestCase.settings = settings(
    max_examples=50,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large],
)
TestWaitersAgainstTheDefinition = WaitersMachine.TestCase


@pytest.mark.parametrize("is_compiled", [True, False], ids=["compiled", "python"])
@pytest.mark.parametrize("page_tokens", [1, 4])
@pytest.mark.parametrize("num_pages", [10, 40])
def test_a_long_random_life_leaves_every_match_and_the_order_right(
    page_tokens: int, num_pages: int, is_compiled: bool
) -> None:
    random = Random(page_tokens * num_pages)
    machine = WaitersMachine()
    machine.is_compiled = is_compiled
    machine.start(page_tokens, num_pages)
    for _ in range(400):
        pick, namespace = random.randrange(20), random.choice(NAMESPACES)
        tail = random.choices([0, 1], k=random.randrange(12))
        shape = (namespace, pick, random.randrange(5), random.choice([-1, 0, 1, 2]), tail)
        operations = [
            "admit",
            "compute",
            "commit",
            "release",
            "serve",
            "wait",
            "wait",
            "lead",
            "leave",
            "aside",
            "flush",
        ]
        match random.choice(operations):
            case "admit" if len(machine.live) < 6:
                machine.admit(*shape)
            case "serve":
                machine.serve(*shape, twin=random.random() < 0.5)
            case "compute" if machine.live:
                machine.compute(pick, random.randrange(1, 25), tail[:4])
            case "commit" if machine.live:
                machine.commit(pick)
            case "release" if machine.live:
                machine.release(pick, twice=True)
            case "wait":
                machine.wait(*shape, priority=random.randrange(2))
            case "lead":
                machine.lead(*shape)
            case "leave" if machine.places:
                machine.leave(pick, twice=False)
            case "flush":
                machine.lose_a_page(pick, random.randrange(8))
                machine.flush(random.randrange(8))
        machine.every_match_is_that_from_scratch_and_the_first_is_the_first_by_definition()
    machine.teardown()
