"""What every turn passes before it is sent: nothing, or a gate that lets a waiting one through at random times."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import Protocol, Self


class Gate(Protocol):
    """Open while entered as a context."""

    async def __aenter__(self) -> Self: ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def passed(self) -> AbstractAsyncContextManager[None]:
        """Wait to be let through; the block is what counts as being under way."""


class OpenGate:
    """Lets everybody through at once."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return

    def passed(self) -> AbstractAsyncContextManager[None]:
        """Do not wait."""
        return contextlib.nullcontext()


class RandomGate:
    """Lets one of those who wait through at times drawn by `seed` (Poisson), with at most `most` under way.

    From `deadline_s` (`time.monotonic`) on it draws no more times.
    """

    def __init__(self, rate_per_s: float, *, seed: int, most: int, deadline_s: float) -> None:
        self._rate_per_s = rate_per_s
        self._draw = random.Random(seed)
        self._under_way = asyncio.Semaphore(most)
        self._deadline_s = deadline_s
        self._waiting: list[asyncio.Future[None]] = []
        self._somebody_waits = asyncio.Event()
        self._opening: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._opening = asyncio.create_task(self._open())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._opening is not None:
            self._opening.cancel()
            await asyncio.gather(self._opening, return_exceptions=True)

    @contextlib.asynccontextmanager
    async def passed(self) -> AsyncIterator[None]:
        """Wait to be let through; the block is what counts as being under way."""
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        self._somebody_waits.set()
        await turn
        try:
            yield
        finally:
            self._under_way.release()

    async def _open(self) -> None:
        due_s = time.monotonic()
        while True:
            await self._under_way.acquire()
            await self._somebody_waits.wait()
            await asyncio.sleep(max(0.0, min(due_s, self._deadline_s) - time.monotonic()))
            due_s += self._draw.expovariate(self._rate_per_s)
            self._waiting.pop(self._draw.randrange(len(self._waiting))).set_result(None)
            if not self._waiting:
                self._somebody_waits.clear()
