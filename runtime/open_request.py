"""One request at the scheduler, and what has arrived for it. Knows neither text nor sockets."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass

from wire.errors import AxilError, DeadlineExceeded
from wire.messages.to_tokenizer import Done, Tokens


@dataclass(frozen=True, slots=True)
class Deadline:
    """When an answer has to be complete, on the monotonic clock, and how long it has been given."""

    at: float
    limit_s: float


class OpenRequest:
    """One request at the scheduler, and what has arrived for it.

    `listener`, if there is one, is called when something has arrived; it must not raise.
    """

    __slots__ = ("_deadline", "_error", "_messages", "_waiter", "ended", "is_ended", "listener", "request_id")

    def __init__(self, request_id: str) -> None:
        self.request_id = request_id
        self.is_ended = False
        self.ended: asyncio.Event | None = None
        self.listener: Callable[[], None] | None = None
        self._messages: list[int | Tokens | Done] = []
        self._error: AxilError | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._deadline: asyncio.TimerHandle | None = None

    async def take(self) -> list[int | Tokens | Done]:
        """Everything that has arrived since the last call, in order; waits until there is something.

        An int is the id of one more output token.

        Raises:
            AxilError: the request was refused, or nothing more can arrive.
        """
        while not (messages := self.take_now()):
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        return messages

    def take_now(self) -> list[int | Tokens | Done]:
        """As `take`, without waiting: the list may be empty."""
        messages = self._messages
        if messages:
            self._messages = []
        elif self._error is not None:
            raise self._error
        return messages

    def put(self, message: int | Tokens | Done) -> None:
        """Add a message, or one token id; `announce` is to follow."""
        self._messages.append(message)

    def fail(self, error: AxilError) -> None:
        """End the request with `error`, after what has arrived."""
        self._error = error
        self.announce()

    def announce(self) -> None:
        """Tell the one who takes that something has arrived."""
        if self.listener is not None:
            self.listener()
        elif self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def expire_at(self, deadline: Deadline | None) -> None:
        """Fail when the time has come, unless the request has been left before; None takes a deadline away."""
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
        if deadline is not None:
            left_s = max(0.0, deadline.at - time.monotonic())
            self._deadline = asyncio.get_running_loop().call_later(left_s, self._expire, deadline)

    def _expire(self, deadline: Deadline) -> None:
        self._deadline = None
        self.fail(
            DeadlineExceeded(
                f"the answer was not complete within {deadline.limit_s:g} s (--request-timeout). Ask for fewer tokens, "
                "or when the server is less busy."
            )
        )

    def mark_ended(self) -> None:
        """Note that the scheduler has forgotten this request, so that its id is free again."""
        self.is_ended = True
        if self.ended is not None:
            self.ended.set()
