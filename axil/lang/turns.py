"""The order in which calls go out: those with a common beginning follow each other, at most so many open at a time.

Runs on one event loop; knows keys (the prompts' texts), not calls.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right, insort
from types import TracebackType


class Turns:
    """Gives turns in the order of the keys, going round: depth first, as a walk over the tree of all prompts.

    Calls that become ready in the same turn of the event loop are sorted before the first of them goes.
    """

    def __init__(self, max_open: int) -> None:
        self.max_open = max_open
        self.num_open = 0
        self._waiting: list[tuple[str, int, asyncio.Future[None]]] = []
        self._last_key = ""
        self._num_asked = 0
        self._is_due = False

    def turn(self, key: str) -> Turn:
        """Wait for a turn on entering, and hold it up to the exit."""
        return Turn(self, key)

    async def take(self, key: str) -> None:
        """Wait for a turn; `give_back` ends it."""
        loop = asyncio.get_running_loop()
        self._num_asked += 1
        granted: asyncio.Future[None] = loop.create_future()
        entry = (key, self._num_asked, granted)
        insort(self._waiting, entry, key=_rank)
        self._plan(loop)
        try:
            await granted
        except asyncio.CancelledError:
            if granted.done() and not granted.cancelled():
                self.give_back()
            elif entry in self._waiting:
                self._waiting.remove(entry)
            raise

    def give_back(self) -> None:
        """End a turn."""
        self.num_open -= 1
        self._plan(asyncio.get_running_loop())

    def _plan(self, loop: asyncio.AbstractEventLoop) -> None:
        if not self._is_due and self._waiting and self.num_open < self.max_open:
            self._is_due = True
            loop.call_soon(self._give)

    def _give(self) -> None:
        self._is_due = False
        while self._waiting and self.num_open < self.max_open:
            i = bisect_right(self._waiting, (self._last_key, self._num_asked), key=_rank)
            key, _, granted = self._waiting.pop(i if i < len(self._waiting) else 0)
            if granted.cancelled():  # its task was cancelled and has not run since
                continue
            self._last_key = key
            self.num_open += 1
            granted.set_result(None)


class Turn:
    """A turn in a `with`; used once. Every call makes one, so it's no generator."""

    __slots__ = ("_key", "_turns")

    def __init__(self, turns: Turns, key: str) -> None:
        self._turns = turns
        self._key = key

    async def __aenter__(self) -> None:
        await self._turns.take(self._key)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._turns.give_back()


def _rank(entry: tuple[str, int, asyncio.Future[None]]) -> tuple[str, int]:
    return entry[:2]
