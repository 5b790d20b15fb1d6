"""Running requests that compute what others may wait for: their whole pages, and what is shared within the next page.

Whoever waits for whole pages follows in the cache's trie of waiters, in which leaders have a place too. What two
prompts share of a page stands in no trie; it is compared here. Knows no rows, no queue and no budget.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice

from radix.cache import Namespace, PageId, PrefixCache
from radix.edges import FORK_LOOK
from radix.lease import Place
from radix.node import TOKEN_BYTES, common_tokens
from radix.waiters import Waiter

from .request import Request, Running

FOLLOW_S = 10.0
"""How long a request waits, at most, for the next page that another one is computing."""

_Front = tuple[Namespace, PageId | None, int]


@dataclass(slots=True, eq=False)
class Leader:
    """A running request with prompt left to compute, and when it last finished a page.

    `waiter` is its place in the trie, where it has whole pages to compute.
    """

    running: Running
    waiter: Waiter | None
    depth_tokens: int
    advanced_s: float


class Leaders:
    """The leaders, by request and by the place behind which each computes its next page."""

    def __init__(self, cache: PrefixCache) -> None:
        self._cache = cache
        self._leaders: dict[str, Leader] = {}
        self._fronts: dict[_Front, list[Leader]] | None = None

    def add(self, running: Running, waiter: Waiter | None, *, now_s: float) -> None:
        """Let others wait for what `running` computes."""
        leader = Leader(running, waiter, running.lease.depth, now_s)
        self._leaders[running.request.request_id] = leader
        if self._fronts is not None:
            self._fronts.setdefault(_front(running.request, running.lease.place), []).append(leader)

    def remove(self, request_id: str) -> None:
        """Let nobody wait for this request any more, if anybody has."""
        if (leader := self._leaders.pop(request_id, None)) is not None:
            self._leave(leader)

    def drop(self, *, now_s: float) -> None:
        """Let nobody wait for one that has ended, has computed its prompt, or has finished no page for `FOLLOW_S`."""
        self._fronts = None
        for request_id, leader in list(self._leaders.items()):
            depth = leader.running.lease.depth
            if depth > leader.depth_tokens:
                leader.depth_tokens, leader.advanced_s = depth, now_s
            if not self._is_leading(leader, now_s=now_s):
                self._leave(leader)
                del self._leaders[request_id]

    def tail_tokens(self, request: Request, place: Place) -> int:
        """Count the tokens behind `place`, in one page, that `request` could copy once a leader has computed them.

        None of them need be missing now. Of several leaders the latest eight that begin with the same token are looked
        at, as of pages that are there.
        """
        wanted = request.token_ids[place.depth : min(request.reusable_tokens, place.depth + self._cache.page_tokens)]
        if not len(wanted):
            return 0
        leaders = self._by_front().get(_front(request, place), ())
        return max((_shared(each.running, place, wanted.tobytes()) for each in _latest(leaders)), default=0)

    def _by_front(self) -> dict[_Front, list[Leader]]:
        """The leaders where each is now. O(leaders) when asked for the first time after `drop`."""
        if self._fronts is None:
            self._fronts = {}
            for leader in self._leaders.values():
                running = leader.running
                self._fronts.setdefault(_front(running.request, running.lease.place), []).append(leader)
        return self._fronts

    def _is_leading(self, leader: Leader, *, now_s: float) -> bool:
        running = leader.running
        return (
            running.is_live
            and running.lease.generation == self._cache.core.generation
            and (leader.waiter is None or leader.waiter.branch is not None)
            and running.computed_tokens < running.target_tokens
            and now_s - leader.advanced_s < FOLLOW_S
        )

    def _leave(self, leader: Leader) -> None:
        if leader.waiter is not None:
            self._cache.waiters.leave(leader.waiter)


def _front(request: Request, place: Place) -> _Front:
    return request.namespace, place.page, int(request.token_ids[place.depth])


def _latest(leaders: Sequence[Leader]) -> Iterable[Leader]:
    return islice(reversed(leaders), FORK_LOOK)


def _shared(running: Running, place: Place, wanted: bytes) -> int:
    """Count the tokens behind `place` that `running` has in common with `wanted`, if the last one is not computed."""
    stop = min(place.depth + len(wanted) // TOKEN_BYTES, running.target_tokens)
    num_tokens = common_tokens(running.request.token_ids[place.depth : stop].tobytes(), wanted)
    return num_tokens if running.computed_tokens < place.depth + num_tokens else 0
