"""Running requests that compute what others may wait for: their whole pages, and what is shared within the next page.

Whoever waits for whole pages follows in the cache's trie of waiters, in which leaders have a place too. What two
prompts share of a page, or of logprobs, stands in no trie; it is compared here. Knows no rows, no order and no budget.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import NamedTuple

import numpy as np

from radix.cache import Namespace, PageId, PrefixCache
from radix.edges import FORK_LOOK
from radix.lease import Place
from radix.waiters import Waiter

from .request import Request, Running, TokenIds

FOLLOW_S = 10.0
"""How long a request waits, at most, for the next page that another one is computing."""

RECALLED = 64
"""So many that were put off come back in one step: each costs what a new request does."""

_Front = tuple[Namespace, PageId | None, int]


@dataclass(frozen=True, slots=True)
class PutOff:
    """A waiting request that comes back when its leader has computed so many tokens, at the latest in this step."""

    request: Request
    until_tokens: int
    until_step: float = math.inf


@dataclass(slots=True, eq=False)
class Leader:
    """A running request with prompt left to compute, and when it last finished a page.

    `waiter` is its place in the trie, where it has whole pages to compute; `put_off` wait outside of it.
    """

    running: Running
    waiter: Waiter | None
    depth_tokens: int
    advanced_s: float
    put_off: list[PutOff] = field(default_factory=list)


class Coming(NamedTuple):
    """A request can have its first `until_tokens` from a leader, once that has computed them."""

    until_tokens: int
    leader: Leader


class Leaders:
    """The leaders, by request and by the place behind which each computes its next page."""

    def __init__(self, cache: PrefixCache) -> None:
        self._cache = cache
        self._leaders: dict[str, Leader] = {}
        self._recalled: deque[Request] = deque()
        self._fronts: dict[_Front, list[Leader]] | None = None

    def add(self, running: Running, waiter: Waiter | None, *, now_s: float) -> None:
        """Let others wait for what `running` computes."""
        leader = Leader(running, waiter, running.lease.depth, now_s)
        self._leaders[running.request.request_id] = leader
        if self._fronts is not None:
            self._fronts.setdefault(_front(running.request, running.lease.place), []).append(leader)

    def remove(self, request_id: str) -> None:
        """Let nobody wait for this request any more, if anybody has."""
        leader = self._leaders.pop(request_id, None)
        if leader is None:
            return
        self._recalled += (each.request for each in leader.put_off)
        if leader.waiter is not None:
            self._cache.waiters.leave(leader.waiter)

    def drop(self, *, now_s: float, step: int) -> list[Request]:
        """Let nobody wait for one that has ended, has computed its prompt, or has finished no page for `FOLLOW_S`.

        Returns some of those that were put off and have nothing more to wait for when this step is planned. O(leaders
        and who is put off).
        """
        self._fronts = None
        for request_id, leader in list(self._leaders.items()):
            depth = leader.running.lease.depth
            if depth > leader.depth_tokens:
                leader.depth_tokens, leader.advanced_s = depth, now_s
            if not self._is_leading(leader, now_s=now_s):
                self.remove(request_id)
            elif leader.put_off:
                self._recall(leader, step=step)
        return [self._recalled.popleft() for _ in range(min(RECALLED, len(self._recalled)))]

    def page_coming(self, request: Request, place: Place) -> Coming | None:
        """Find what `request` could copy of the one page behind `place`, were a leader's next tokens computed.

        Of several leaders the latest eight that begin with the same token are looked at, as of pages that are there.
        """
        if not self._leaders:
            return None
        wanted = request.token_ids[place.depth : min(request.reusable_tokens, place.depth + self._cache.page_tokens)]
        if not len(wanted):
            return None
        leaders = self._by_front().get(_front(request, place), ())
        return _longest(
            Coming(place.depth + _common(leader.running, wanted, start=place.depth), leader)
            for leader in _latest(leaders)
        )

    def scores_coming(self, request: Request) -> Coming | None:
        """Find up to where `request` could have tokens with the logprobs that it wants, were a leader further.

        A leader tells them from the first on that it was itself asked for. Looks at eight of them. O(its tokens).
        """
        if request.next_logprob is None or request.sampling.num_top_logprobs or request.sampling.logprob_ids:
            return None
        first_unknown = request.next_logprob + request.num_known_logprobs
        leaders = [each for each in self._leaders.values() if _tells(each.running.request, request, first_unknown)]
        return _longest(Coming(_scored(leader.running, request.token_ids), leader) for leader in _latest(leaders))

    def _recall(self, leader: Leader, *, step: int) -> None:
        waiting = []
        for each in leader.put_off:
            if each.until_tokens <= leader.running.computed_tokens or each.until_step <= step:
                self._recalled.append(each.request)
            else:
                waiting.append(each)
        leader.put_off = waiting

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


def _front(request: Request, place: Place) -> _Front:
    return request.namespace, place.page, int(request.token_ids[place.depth])


def _tells(other: Request, request: Request, first_logprob: int) -> bool:
    """Whether the logprobs that `other` wants are, for equal tokens, those of `request` from `first_logprob` on."""
    first = other.sampling.prompt_logprobs_from
    return first is not None and first <= first_logprob and other.namespace == request.namespace


def _latest(leaders: Sequence[Leader]) -> Iterable[Leader]:
    return islice(reversed(leaders), FORK_LOOK)


def _longest(found: Iterable[Coming]) -> Coming | None:
    """The one with most tokens, of those whose last token is not computed yet."""
    coming = (each for each in found if each.leader.running.computed_tokens < each.until_tokens)
    return max(coming, key=lambda each: each.until_tokens, default=None)


def _common(running: Running, wanted: TokenIds, *, start: int) -> int:
    """Count the equal tokens at the start of `wanted` and, from `start` on, of what `running` computes."""
    ours = running.request.token_ids[start : min(start + len(wanted), running.target_tokens)]
    differs = np.flatnonzero(ours != wanted[: len(ours)])
    return int(differs[0]) if len(differs) else len(ours)


def _scored(running: Running, wanted: TokenIds) -> int:
    """Count the tokens at the start of `wanted` of which `running` is to tell what a request may reuse.

    The logprob of the first token that differs is its own, and comes from the one before it.
    """
    return _common(running, wanted[: running.request.prompt_tokens], start=0) - 1
