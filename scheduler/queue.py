"""The waiting requests: by id, by age and in the order in which they are to be tried; who waits for whose pages.

Knows the cache's trie of waiters, no rows and no budget.
"""

from __future__ import annotations

from collections.abc import Iterator

from radix.cache import PrefixCache
from radix.lease import Place
from radix.waiters import AGE, RANK, Waiter, Waiters

from .elevator import Elevator
from .leaders import Leader, Leaders, PutOff
from .overtaking import Overtaking
from .request import Request, Running


class Queue:
    """Waiting requests. Order costs nothing while nothing changes, and O(what changed) when it does.

    `policy` is one of the flag's choices. `prompt_tokens` counts those of all that wait. `leaders` are the running ones
    that these may follow.
    """

    def __init__(self, cache: PrefixCache, *, policy: str) -> None:
        self._cache = cache
        self._policy = policy
        self.prompt_tokens = 0
        self._requests: dict[str, Request] = {}
        self._of_waiter: dict[Waiter, Request] = {}
        self._waiters: dict[str, Waiter] = {}
        self.leaders = Leaders(cache)
        self._tokens_taken, self._requests_taken = Overtaking(), Overtaking()
        self._elevator = Elevator(page_tokens=cache.page_tokens) if policy == "depth-first" else None

    def __len__(self) -> int:
        return len(self._requests)

    def __contains__(self, request_id: object) -> bool:
        return request_id in self._requests

    def __iter__(self) -> Iterator[Request]:
        return iter(self._requests.values())

    def get(self, request_id: str) -> Request | None:
        """The waiting request of this id."""
        return self._requests.get(request_id)

    def oldest(self) -> Request | None:
        """The one that came first. O(waiting)."""
        return min(self._requests.values(), key=lambda request: request.arrival, default=None)

    # --- coming and going

    def add(self, request: Request) -> None:
        """Queue a request: a new one, or one that was retracted and so leads nobody any more. O(its tokens)."""
        self.leaders.remove(request.request_id)
        self._requests[request.request_id] = request
        self.prompt_tokens += request.prompt_tokens
        self.enlist(request)

    def enlist(self, request: Request) -> None:
        """Give a request that waits its place in the order, at first or after it was put off. O(its tokens)."""
        page_tokens = self._cache.page_tokens
        waiter = Waiter(rank=self._rank(request), age=(int(not request.num_retractions), request.arrival))
        num_tokens = max(request.reusable_tokens, 0) // page_tokens * page_tokens
        self._enter(request, num_tokens, waiter)
        self._waiters[request.request_id] = waiter
        self._of_waiter[waiter] = request
        if self._elevator:
            self._elevator.add(request)

    def put_off(self, request: Request, leader: Leader, *, until_tokens: int, until_step: float) -> None:
        """Take a request out of the order, though it still waits, until `enlist`. O(log waiting)."""
        self._unlist(request, is_taken=False)
        leader.put_off.append(PutOff(request, until_tokens, until_step))

    def is_put_off(self, request: Request) -> bool:
        """Tell whether a request that waits has no place in the order."""
        return request.request_id not in self._waiters

    def remove(self, request: Request) -> None:
        """Take out a request that has ended."""
        self._remove(request, is_taken=False)

    def take(self, running: Running, *, now_s: float) -> None:
        """Take out a request that has got a row; those that want the same pages follow it while it computes them."""
        request, lease = running.request, running.lease
        self._remove(request, is_taken=True)
        oldest = next(iter(self._requests.values()), request).arrival
        self._tokens_taken.add(request.arrival, running.target_tokens - lease.cached_tokens, oldest=oldest)
        self._requests_taken.add(request.arrival, 1, oldest=oldest)
        num_tokens = running.target_tokens // self._cache.page_tokens * self._cache.page_tokens
        waiter = None
        if num_tokens > lease.depth:
            waiter = Waiter(rank=self._rank(request), age=(0, request.arrival), is_leader=True)
            self._enter(request, num_tokens, waiter)
        self.leaders.add(running, waiter, now_s=now_s)

    def _remove(self, request: Request, *, is_taken: bool) -> None:
        del self._requests[request.request_id]
        self.prompt_tokens -= request.prompt_tokens
        if not self.is_put_off(request):
            self._unlist(request, is_taken=is_taken)

    def _unlist(self, request: Request, *, is_taken: bool) -> None:
        waiter = self._waiters.pop(request.request_id)
        del self._of_waiter[waiter]
        self._index.leave(waiter)
        if self._elevator:
            self._elevator.remove(request, is_taken=is_taken)

    def _enter(self, request: Request, num_tokens: int, waiter: Waiter) -> None:
        known = request.prompt_bytes if num_tokens <= request.prompt_tokens else request.token_ids.tobytes()
        self._index.enter(request.namespace, known[: 4 * num_tokens], waiter)

    # --- order

    def by_policy(self) -> Iterator[Request]:
        """Give the requests that need not wait for a leader's page, in the policy's order.

        O(log waiting) for each taken; nothing may change in between.
        """
        if self._elevator is not None:
            return self._elevator.in_order(self._shared_tokens)
        return map(self._of_waiter.__getitem__, self._index.in_order(RANK))

    def by_age(self) -> Iterator[Request]:
        """Give the same requests in the order in which they came, after those that were retracted."""
        return map(self._of_waiter.__getitem__, self._index.in_order(AGE))

    def place(self, request: Request) -> Place:
        """Find where the whole cached pages that the request would find end."""
        return self._index.place(self._waiters[request.request_id])

    @property
    def pending_tokens(self) -> int:
        """Tokens to compute for those that wait and those that they follow; what they share counts once."""
        return self._index.pending_tokens

    def overtaken_tokens(self, request: Request) -> int:
        """Count what was to be computed for requests that came later and got a row earlier."""
        return self._tokens_taken.later_than(request.arrival)

    def overtaken_requests(self, request: Request) -> int:
        """Count the requests that came later and got a row earlier."""
        return self._requests_taken.later_than(request.arrival)

    @property
    def _index(self) -> Waiters:
        return self._cache.waiters

    def _rank(self, request: Request) -> tuple[tuple[int, ...], int]:
        if self._policy == "fcfs":
            return (-request.priority, request.arrival), 0
        return (-request.priority,), request.arrival

    def _shared_tokens(self, request: Request) -> int | None:
        return self._index.shared_tokens(self._waiters[request.request_id])
