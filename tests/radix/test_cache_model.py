"""The cache against a naive model: what every slot holds, and which prefixes were committed."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from radix.cache import Lease, Namespace, OutOfPages, PageId, PrefixCache
from radix.edges import FORK_LOOK
from radix.lease import ROOT
from tests.radix.twins import Twins, twin

NAMESPACES = [Namespace("m", None, "a"), Namespace("m", None, "b")]
UNLIMITED_PAGES = 3000

Tokens = tuple[int, ...]


@dataclass(eq=False)
class Request:
    namespace: Namespace
    tokens: list[int]
    lease: Lease
    computed: int
    is_copy_pending: bool
    flushes: int


@dataclass
class NaiveCache:
    """Committed prefixes as tuples of tokens, never evicted."""

    page_tokens: int
    whole: set[tuple[Namespace, Tokens]] = field(default_factory=set)
    tails: set[tuple[Namespace, Tokens]] = field(default_factory=set)
    open_tails: dict[object, tuple[Namespace, Tokens]] = field(default_factory=dict)

    def commit(self, namespace: Namespace, tokens: Tokens) -> None:
        for end in range(self.page_tokens, len(tokens) + 1, self.page_tokens):
            self.whole.add((namespace, tokens[:end]))

    def match(self, namespace: Namespace, tokens: Tokens) -> tuple[int, int, int]:
        """Tokens in whole pages, tokens with the best fork, and how many pages could be that fork."""
        end = 0
        while end + self.page_tokens <= len(tokens) and (namespace, tokens[: end + self.page_tokens]) in self.whole:
            end += self.page_tokens
        pages = {
            key[end : end + self.page_tokens]
            for owner, key in self.whole | self.tails | set(self.open_tails.values())
            if owner == namespace and len(key) > end and key[:end] == tokens[:end]
        }
        runs = [common(page, tokens[end:]) for page in pages]
        return end, end + max(runs, default=0), sum(run > 0 for run in runs)


def common(first: Tokens, second: Tokens) -> int:
    run = 0
    while run < min(len(first), len(second)) and first[run] == second[run]:
        run += 1
    return run


NAMESPACE = st.sampled_from(NAMESPACES)
PICK = st.integers(0, 100)
NUM_PAGES = st.integers(0, 4)
OFF = st.sampled_from([-1, 0, 1, 2])
TAIL = st.lists(st.integers(0, 2), max_size=20)
has_requests = precondition(lambda self: self.live)


class CacheMachine(RuleBasedStateMachine):
    @initialize(page_tokens=st.sampled_from([1, 4, 16]), num_pages=st.sampled_from([5, 12, 30, UNLIMITED_PAGES]))
    def start(self, page_tokens: int, num_pages: int) -> None:
        self.page_tokens = page_tokens
        self.cache = self.make_cache(num_pages, page_tokens)
        self.naive = NaiveCache(page_tokens)
        self.slots: dict[PageId, list[tuple[Namespace, Tokens] | None]] = {}
        self.live: list[Request] = []
        self.seen: list[Tokens] = [()]
        self.flushes = 0

    def make_cache(self, num_pages: int, page_tokens: int) -> PrefixCache:
        """A compiled tree and one in Python, of which every operation is compared."""
        return twin(PrefixCache(num_pages=num_pages, page_tokens=page_tokens))

    # --- rules

    @rule(namespace=NAMESPACE, base=PICK, num_pages=NUM_PAGES, off=OFF, tail=TAIL)
    def admit(self, namespace: Namespace, base: int, num_pages: int, off: int, tail: list[int]) -> None:
        self._admit(namespace, base, num_pages, off, tail)

    @has_requests
    @rule(pick=PICK)
    def send_copy(self, pick: int) -> None:
        self._send_copy(self._pick(pick))

    @has_requests
    @rule(pick=PICK, num_tokens=st.integers(1, 24), new=st.lists(st.integers(0, 2), max_size=6))
    def compute(self, pick: int, num_tokens: int, new: list[int]) -> None:
        self._compute(self._pick(pick), num_tokens, new)

    @has_requests
    @rule(pick=PICK)
    def commit(self, pick: int) -> None:
        self._commit(self._pick(pick))

    @has_requests
    @rule(pick=PICK, twice=st.booleans())
    def release(self, pick: int, twice: bool) -> None:
        self._release(self._pick(pick), twice)

    @rule(namespace=NAMESPACE, base=PICK, num_pages=NUM_PAGES, off=OFF, tail=TAIL, twin=st.booleans())
    def serve(self, namespace: Namespace, base: int, num_pages: int, off: int, tail: list[int], twin: bool) -> None:
        requests = [self._admit(namespace, base, num_pages, off, tail)]
        if twin:
            requests.append(self._admit(namespace, base + 1, num_pages, off, tail))
        for request in requests:
            self._compute(request, len(request.tokens), [])
            self.everything_is_accounted_for()
        for request in requests:
            self._commit(request)
            self.everything_is_accounted_for()
        for request in requests:
            self._release(request, True)
            self.everything_is_accounted_for()

    @rule(chance=st.integers(0, 5))
    def flush(self, chance: int) -> None:
        if chance:
            return
        evictable, free = self.cache.evictable_pages, self.cache.free_pages
        assert self.cache.flush() == evictable
        assert (self.cache.free_pages, self.cache.evictable_pages) == (free + evictable, 0)
        self.flushes += 1
        self.naive = NaiveCache(self.page_tokens)

    @rule(base=PICK, namespace=NAMESPACE)
    def match_is_read_only(self, base: int, namespace: Namespace) -> None:
        before = self._picture()
        version = self.cache.version
        self.cache.match(namespace, array(self.seen[base % len(self.seen)]))
        self.cache.match_pages(namespace, array(self.seen[base % len(self.seen)]))
        assert self._picture() == before
        assert self.cache.version == version

    @rule(base=PICK, namespace=NAMESPACE)
    def what_lies_beyond_goes_on_from_what_was_found(self, base: int, namespace: Namespace) -> None:
        known = array(self.seen[base % len(self.seen)])
        lease = self.cache.lease(namespace, known, max_reuse_tokens=len(known))
        _, tokens = self.cache.beyond(lease, 20)
        longer = np.concatenate([known[: lease.cached_tokens], np.frombuffer(tokens, np.int32)])
        self.cache.release(lease, known[:0])
        num_whole = len(longer) - len(longer) % self.page_tokens
        assert self.cache.match(namespace, longer) >= num_whole
        self.cache.next_victim()

    @rule(base=PICK, namespace=NAMESPACE)
    def a_lease_keeps_as_many_pages_from_eviction_as_were_told(self, base: int, namespace: Namespace) -> None:
        known = array(self.seen[base % len(self.seen)])
        whole = known[: self.cache.match_pages(namespace, known)]
        told = self.cache.unpinned_pages(self.cache.core.follow(namespace, ROOT, whole.tobytes(), 0))
        evictable = self.cache.evictable_pages
        lease = self.cache.lease(namespace, whole, max_reuse_tokens=len(whole))
        assert evictable - self.cache.evictable_pages == told
        self.cache.release(lease, whole[:0])
        assert self.cache.evictable_pages == evictable

    # --- operations, with what each promises

    def _admit(self, namespace: Namespace, base: int, num_pages: int, off: int, tail: list[int]) -> Request:
        known = self.seen[-1 - base % len(self.seen)]
        tokens = known[: max(num_pages * self.page_tokens + off, 0)] + tuple(tail)
        tokens = tokens or (0,)
        ids = array(tokens)
        limit = len(tokens) - 1
        before = self.cache.match(namespace, ids[:limit])
        whole = self.cache.match_pages(namespace, ids[:limit])
        free, evictable = self.cache.free_pages, self.cache.evictable_pages

        lease = self.cache.lease(namespace, ids, max_reuse_tokens=limit)

        assert lease.cached_tokens - lease.copied_tokens == whole
        # Where the page with most could only go into its own place, it made room for the copy of a running one's.
        is_second_best = free == 0 and whole < lease.cached_tokens < before and lease.copy_source is None
        assert lease.cached_tokens == (before if lease.copy or before == whole else whole) or is_second_best
        assert lease.copy is None or lease.copy[1] == lease.page_ids[-1]
        assert lease.copy is not None or before == whole or free == 0, "a copy was possible but not made"
        assert lease.copy is None or free + evictable > 0
        self._compare_with_naive(namespace, tokens[:limit], whole, before)
        if lease.copy:
            self.slots[lease.copy[1]] = [None] * self.page_tokens
        request = Request(namespace, list(tokens), lease, whole, lease.copy is not None, self.flushes)
        self.live.append(request)
        self.seen.append(tokens)
        return request

    def _send_copy(self, request: Request) -> None:
        if request.is_copy_pending:
            assert request.lease.copy is not None
            source, destination = request.lease.copy
            self.slots[destination] = list(self.slots[source])
            request.computed = request.lease.cached_tokens
            request.is_copy_pending = False
            self.cache.copied(request.lease)

    def _compute(self, request: Request, num_tokens: int, new: list[int]) -> None:
        self._send_copy(request)
        request.tokens += new
        end = min(request.computed + num_tokens, len(request.tokens))
        table = request.lease.page_ids[:]
        free, evictable, evicted = self.cache.free_pages, self.cache.evictable_pages, self.cache.evicted_pages_total
        needed = max(-(-end // self.page_tokens) - len(table), 0)
        try:
            appended = self.cache.extend(request.lease, end)
        except OutOfPages as error:
            assert (error.needed, error.available) == (needed, free + evictable)
            assert needed > free + evictable
            assert request.lease.page_ids == table
            assert (self.cache.free_pages, self.cache.evictable_pages) == (free, evictable)
            return
        assert request.lease.page_ids == table + appended
        assert len(appended) == needed
        assert self.cache.evicted_pages_total - evicted == max(needed - free, 0), "exactly the shortfall is evicted"
        for page in appended:
            self.slots[page] = [None] * self.page_tokens
        for index in range(request.computed, end):
            page = request.lease.page_ids[index // self.page_tokens]
            self.slots[page][index % self.page_tokens] = (request.namespace, tuple(request.tokens[: index + 1]))
        request.computed = end

    def _commit(self, request: Request) -> None:
        if request.is_copy_pending:
            return
        tokens = tuple(request.tokens[: request.computed])
        is_copied_from = self._is_copied_from(request)
        self.cache.commit(request.lease, array(tokens))
        if request.flushes == self.flushes and not is_copied_from:
            self.naive.commit(request.namespace, tokens)
            self.naive.open_tails[request] = (request.namespace, tokens)

    def _release(self, request: Request, twice: bool) -> None:
        tokens = tuple(request.tokens[: request.computed])
        if self._is_copied_from(request):
            tokens = tokens[: request.lease.depth]
        self.cache.release(request.lease, array(tuple(request.tokens[: request.computed])))
        self.naive.open_tails.pop(request, None)
        if twice:
            self.cache.release(request.lease, array(tokens))
        self.live.remove(request)
        self.seen.append(tokens)
        if request.flushes == self.flushes:
            self.naive.commit(request.namespace, tokens)
            if len(tokens) > request.lease.cached_tokens:
                self.naive.tails.add((request.namespace, tokens))

    # --- what always holds

    @invariant()
    def everything_is_accounted_for(self) -> None:
        if not hasattr(self, "cache"):
            return
        self.cache.check()
        if isinstance(self.cache.core, Twins):
            self.cache.core.compare()
        assert self.cache.mismatches_total == 0
        own = sum(len(request.lease.own_page_ids) for request in self.live)
        assert own == self.cache.num_pages - self.cache.free_pages - self.cache.cached_pages

    @invariant()
    def every_leased_page_holds_what_the_request_believes(self) -> None:
        for request in getattr(self, "live", []):
            for index in range(request.computed):
                page = request.lease.page_ids[index // self.page_tokens]
                expected = (request.namespace, tuple(request.tokens[: index + 1]))
                assert self.slots[page][index % self.page_tokens] == expected
            assert is_held(self.cache, request.lease), "a pinned page was taken"

    @invariant()
    def every_cached_page_holds_what_its_key_says(self) -> None:
        if not hasattr(self, "cache"):
            return
        for namespace, root in self.cache.core.picture().roots.items():
            stack = [(root, ())]
            while stack:
                node, prefix = stack.pop()
                tokens: Tokens = prefix + tuple(np.frombuffer(bytes(node.key), np.int32).tolist())
                for index in range(node.start, node.end):
                    page = node.pages[(index - node.start) // self.page_tokens]
                    assert self.slots[page][index % self.page_tokens] == (namespace, tokens[: index + 1])
                stack += [(child, tokens) for child in node.children.values()]

    # --- helpers

    def _is_copied_from(self, request: Request) -> bool:
        """Whether another's copy of one of its own pages is still to be made."""
        own = request.lease.own_page_ids
        return any(
            other.is_copy_pending and other.lease.copy is not None and other.lease.copy[0] in own
            for other in self.live
            if other is not request
        )

    def _pick(self, pick: int) -> Request:
        return self.live[-1 - pick % len(self.live)]

    def _compare_with_naive(self, namespace: Namespace, tokens: Tokens, whole: int, matched: int) -> None:
        naive_whole, naive_matched, num_forks = self.naive.match(namespace, tokens)
        if self.cache.num_pages < UNLIMITED_PAGES:
            assert whole <= naive_whole
            return
        assert whole == naive_whole
        if num_forks <= FORK_LOOK:
            assert matched == naive_matched

    def _picture(self) -> list[object]:
        return [
            (node.start, bytes(node.key), tuple(node.pages), node.used_at, dict(node.ends), node.pinned_pages)
            for root in self.cache.core.picture().roots.values()
            for node in root.walk()
        ]


def is_held(cache: PrefixCache, lease: Lease) -> bool:
    """Whether the tree has every page of the path that the lease pins."""
    page, depth = lease.place
    node = None if page is None else cache.core.picture().home_of(page)
    while node is not None and node.parent is not None:
        if not node.start < depth <= node.start + len(node.pages) * cache.page_tokens:
            return False
        node, depth = node.parent, node.start
    return depth == 0


def array(tokens: Tokens | list[int]) -> np.ndarray:
    return np.array(tokens, np.int32)


CacheMachine.TestCase.settings = settings(
    max_examples=50,
    stateful_step_count=30,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large],
)
TestCacheAgainstNaiveModel = CacheMachine.TestCase


@pytest.mark.parametrize("page_tokens", [1, 4, 16])
@pytest.mark.parametrize("num_pages", [6, 14, 40, UNLIMITED_PAGES])
def test_a_long_random_life_breaks_nothing(page_tokens: int, num_pages: int) -> None:
    random = Random(page_tokens * num_pages)
    machine = CacheMachine()
    machine.start(page_tokens, num_pages)
    for _ in range(60 if num_pages == UNLIMITED_PAGES else 300):
        operation = random.choice(["admit", "compute", "compute", "commit", "release", "serve", "serve", "flush"])
        pick, namespace = random.randrange(20), random.choice(NAMESPACES)
        tail = random.choices([0, 1, 2], k=random.randrange(12))
        shape = (namespace, pick, random.randrange(5), random.choice([-1, 0, 1, 2]), tail)
        if operation == "admit" and len(machine.live) < 6:
            machine.admit(*shape)
        elif operation == "serve":
            machine.serve(*shape, twin=random.random() < 0.5)
        elif operation == "flush":
            machine.flush(random.randrange(30))
        elif machine.live and operation == "compute":
            machine.compute(pick, random.randrange(1, 25), tail[:4])
        elif machine.live and operation == "commit":
            machine.commit(pick)
        elif machine.live and operation == "release":
            machine.release(pick, twice=True)
        machine.everything_is_accounted_for()
        machine.every_leased_page_holds_what_the_request_believes()
        machine.every_cached_page_holds_what_its_key_says()
