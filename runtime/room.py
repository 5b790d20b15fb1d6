"""How much an engine hands to its scheduler at a time, so that a large batch waits here and nothing is refused."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class Room:
    """Room for so many requests, and for so many prompt tokens of all of them; first come, first served."""

    def __init__(self, *, max_requests: int, max_tokens: int) -> None:
        self._max_requests = max_requests
        self._max_tokens = max_tokens
        self._num_requests = 0
        self._num_tokens = 0
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    @asynccontextmanager
    async def taken(self, num_tokens: int) -> AsyncIterator[None]:
        """Wait for room for one more request, and have it inside; the largest one may come in alone."""
        entered: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((num_tokens, entered))
        self._let_in()
        try:
            await entered
            yield
        finally:
            if entered.cancelled():
                self._waiting.remove((num_tokens, entered))
            else:
                self._num_requests -= 1
                self._num_tokens -= num_tokens
            self._let_in()

    def _let_in(self) -> None:
        while self._waiting and self._has_room(self._waiting[0][0]):
            num_tokens, entered = self._waiting.popleft()
            self._num_requests += 1
            self._num_tokens += num_tokens
            entered.set_result(None)

    def _has_room(self, num_tokens: int) -> bool:
        if not self._num_requests:
            return True
        return self._num_requests < self._max_requests and self._num_tokens + num_tokens <= self._max_tokens
