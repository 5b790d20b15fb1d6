"""Depth-first order: a sweep over the prompts in the order of their tokens: what shares a prefix runs together.

Any such order computes every shared prefix once where the pool holds the longest request. Knows no pages.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterator

from radix.node import TOKEN_BYTES

from .request import Request

_Stop = tuple[int, str, bytes, int]


class Elevator:
    """Waiting requests, sorted by priority, namespace and tokens; the sweep goes on behind the last one taken."""

    def __init__(self) -> None:
        self._stops: list[_Stop] = []
        self._requests: dict[int, Request] = {}
        self._last: _Stop | None = None

    def add(self, request: Request) -> None:
        """Enter a request. O(log n) comparisons of prompts."""
        insort(self._stops, _stop(request))
        self._requests[request.arrival] = request

    def remove(self, request: Request, *, is_taken: bool) -> None:
        """Take a request out; the sweep goes on behind it if it was taken to be run."""
        stop = _stop(request)
        del self._stops[bisect_left(self._stops, stop)]
        del self._requests[request.arrival]
        if is_taken:
            self._last = stop

    def in_order(self, shared_tokens: Callable[[Request], int | None]) -> Iterator[Request]:
        """Give the requests that need not wait, those of the highest priority first, in the order of the sweep.

        `shared_tokens` counts the first tokens of a request such that all who share them must wait, or is None.
        """
        start = 0
        while start < len(self._stops):
            end = bisect_left(self._stops, (self._stops[start][0] + 1, "", b"", 0), start)
            turn = bisect_left(self._stops, self._last, start, end) if self._last else start
            yield from self._between(turn, end, shared_tokens)
            yield from self._between(start, turn, shared_tokens)
            start = end

    def _between(self, start: int, end: int, shared_tokens: Callable[[Request], int | None]) -> Iterator[Request]:
        while start < end:
            priority, namespace, key, arrival = self._stops[start]
            request = self._requests[arrival]
            shared = shared_tokens(request)
            start += 1
            if shared is None:
                yield request
            else:
                behind = (priority, namespace, key[: TOKEN_BYTES * shared])
                start = bisect_left(self._stops, True, start, end, key=lambda stop: _is_behind(stop, behind))


def _stop(request: Request) -> _Stop:
    return -request.priority, repr(request.namespace), request.prompt_bytes, request.arrival


def _is_behind(stop: _Stop, behind: tuple[int, str, bytes]) -> bool:
    """Whether `stop` comes after all that begin with the prefix."""
    return (*stop[:2], stop[2][: len(behind[2])]) > behind
