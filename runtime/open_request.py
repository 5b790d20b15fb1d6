"""One request at the scheduler, and what has arrived for it. Knows neither text nor sockets."""

from __future__ import annotations

import asyncio

from wire.errors import AxilError
from wire.messages import Done, Tokens


class OpenRequest:
    """One request at the scheduler, and what has arrived for it."""

    __slots__ = ("_error", "_messages", "_waiter", "ended", "is_ended", "request_id")

    def __init__(self, request_id: str) -> None:
        self.request_id = request_id
        self.is_ended = False
        self.ended: asyncio.Event | None = None
        self._messages: list[int | Tokens | Done] = []
        self._error: AxilError | None = None
        self._waiter: asyncio.Future[None] | None = None

    async def take(self) -> list[int | Tokens | Done]:
        """Everything that has arrived since the last call, in order; waits until there is something.

        An int is the id of one more output token.

        Raises:
            AxilError: the request was refused, or nothing more can arrive.
        """
        while not self._messages:
            if self._error is not None:
                raise self._error
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        messages, self._messages = self._messages, []
        return messages

    def put(self, message: int | Tokens | Done) -> None:
        """Hand a message, or one token id, to the one who takes."""
        self._messages.append(message)
        self._wake()

    def fail(self, error: AxilError) -> None:
        """End the request with `error`, after what has arrived."""
        self._error = error
        self._wake()

    def mark_ended(self) -> None:
        """Note that the scheduler has forgotten this request, so that its id is free again."""
        self.is_ended = True
        if self.ended is not None:
            self.ended.set()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
