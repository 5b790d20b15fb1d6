"""The latest diagnosis, shared by those who ask: making one keeps a thread busy. Knows no prompts."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

from .diagnosis import Diagnosis

_TIME_SHARE = 0.1
"""The part of the time that may go into diagnoses."""

PATIENCE_S = 1.0
"""Where a new one takes longer, the one before is given."""


class LatestDiagnosis:
    """Makes one at a time, and no new one before the last is ten times as old as it took to make.

    Only the first has to be waited for, however long making one takes.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic, *, patience_s: float = PATIENCE_S) -> None:
        self._clock = clock
        self._patience_s = patience_s
        self._latest: asyncio.Future[Diagnosis] | None = None
        self._last_made: Diagnosis | None = None
        self._fresh_until_s = 0.0

    async def get(self, make: Callable[[], Awaitable[Diagnosis]]) -> Diagnosis:
        """The latest one; `make` makes the next where that is too old. One that failed is not kept."""
        if self._latest is None or (self._latest.done() and self._clock() >= self._fresh_until_s):
            self._latest = asyncio.ensure_future(self._made(make))
        if self._last_made is not None:
            await asyncio.wait([self._latest], timeout=self._patience_s)
            if not self._latest.done():
                return self._last_made
        return await asyncio.shield(self._latest)

    async def _made(self, make: Callable[[], Awaitable[Diagnosis]]) -> Diagnosis:
        began_s = self._fresh_until_s = self._clock()
        diagnosis = self._last_made = await make()
        now_s = self._clock()
        self._fresh_until_s = now_s + (now_s - began_s) * (1 / _TIME_SHARE - 1)
        return diagnosis
