"""Depth-first order: a sweep over the prompts in the order of their tokens: what shares a prefix runs together.

Any such order computes every shared prefix once where the pool holds the longest request. Knows no pages.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterator

from radix.node import TOKEN_BYTES

from .request import Request

_Stop = tuple[int, str, bytes, bytes, int]


class Elevator:
    """Waiting requests, sorted by priority, namespace and tokens; the sweep goes on behind the last one taken.

    Of the tokens those come first that are waited for, in whole pages: what shares them waits together.
    """

    def __init__(self, *, page_tokens: int) -> None:
        self._page_tokens = page_tokens
        self._stops: list[_Stop] = []
        self._requests: dict[int, tuple[Request, _Stop]] = {}
        self._last: _Stop | None = None

    def add(self, request: Request) -> None:
        """Enter a request. O(log n) comparisons of prompts."""
        stop = self._stop(request)
        insort(self._stops, stop)
        self._requests[request.arrival] = (request, stop)

    def remove(self, request: Request, *, is_taken: bool) -> None:
        """Take a request out; the sweep goes on behind it if it was taken to be run."""
        _, stop = self._requests.pop(request.arrival)
        del self._stops[bisect_left(self._stops, stop)]
        if is_taken:
            self._last = stop

    def in_order(self, shared_tokens: Callable[[Request], int | None]) -> Iterator[Request]:
        """Give the requests that need not wait, those of the highest priority first, in the order of the sweep.

        `shared_tokens` counts the first tokens of a request such that all who wait for the same must wait, or is None.
        """
        start = 0
        while start < len(self._stops):
            end = bisect_left(self._stops, (self._stops[start][0] + 1, "", b"", b"", 0), start)
            turn = bisect_left(self._stops, self._last, start, end) if self._last else start
            yield from self._between(turn, end, shared_tokens)
            yield from self._between(start, turn, shared_tokens)
            start = end

    def _between(self, start: int, end: int, shared_tokens: Callable[[Request], int | None]) -> Iterator[Request]:
        while start < end:
            priority, namespace, wanted, _, arrival = self._stops[start]
            request, _ = self._requests[arrival]
            shared = shared_tokens(request)
            start += 1
            if shared is None:
                yield request
            elif len(wanted) >= TOKEN_BYTES * shared:
                behind = (priority, namespace, wanted[: TOKEN_BYTES * shared])
                start = bisect_left(self._stops, True, start, end, key=lambda stop: _is_behind(stop, behind))

    def _stop(self, request: Request) -> _Stop:
        num_tokens = max(0, min(request.reusable_tokens, request.prompt_tokens))
        wanted = request.prompt_bytes[: TOKEN_BYTES * (num_tokens - num_tokens % self._page_tokens)]
        return -request.priority, repr(request.namespace), wanted, request.prompt_bytes, request.arrival


def _is_behind(stop: _Stop, behind: tuple[int, str, bytes]) -> bool:
    """Whether `stop` comes after all that begin with the prefix."""
    return (*stop[:2], stop[2][: len(behind[2])]) > behind
