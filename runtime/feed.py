"""Hands out the deltas of several answers as they come, in the very turn of the event loop that brought them.

A task that waits for each token costs more than everything else that is done with the token. Knows no HTTP.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial

from .generation import Delta, Generation


class Feed:
    """Gives `take` each delta of `generations`, with the index of its generation, while `run` is awaited.

    What comes while it is not is kept, and comes together afterwards. The generations must not be iterated meanwhile.
    """

    def __init__(self, generations: Sequence[Generation], take: Callable[[int, Delta], None]) -> None:
        self._generations = generations
        self._take = take
        self._num_left = len(generations)
        self._due = deque(range(len(generations)))  # something may have come already
        self._stopped: asyncio.Future[None] | None = None
        for i, generation in enumerate(generations):
            generation.listen(partial(self._note, i))

    @property
    def is_over(self) -> bool:
        """Whether all answers have ended."""
        return not self._num_left

    async def run(self) -> None:
        """Return when all answers have ended, or `pause` was called.

        Raises:
            AxilError: one of the requests was refused or broke, or a process died.
            Exception: whatever `take` raised.
        """
        self._stopped = asyncio.get_running_loop().create_future()
        try:
            self._hand_out()
            await self._stopped
        finally:
            self._stopped = None

    def pause(self) -> None:
        """To be called by `take`: give it nothing more until `run` is awaited again."""
        if self._stopped is not None and not self._stopped.done():
            self._stopped.set_result(None)

    def _note(self, i: int) -> None:
        self._due.append(i)
        if self._stopped is not None:
            self._hand_out()

    def _hand_out(self) -> None:
        stopped = self._stopped
        assert stopped is not None
        while self._due and not stopped.done():
            i = self._due.popleft()
            try:
                delta = self._generations[i].poll()
                if delta is None:
                    continue
                self._take(i, delta)
            except BaseException as error:  # whoever awaits `run` is told, also of a panic in a Rust library
                stopped.set_exception(error)
                return
            if delta.end is not None:
                self._num_left -= 1
                if not self._num_left:
                    self.pause()
