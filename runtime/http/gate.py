"""The gate that work passes on its way in: it counts what is inside, and closes while the server drains or stops.

Knows no route and nothing of the scheduler, whose client says whether work *can* be done.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

from wire.errors import Unavailable

_WHY_CLOSED = {
    "draining": "the server is draining: it finishes open requests and takes no new ones. Ask another.",
    "stopping": "the server is stopping. Start it again, or ask another.",
}


class Gate:
    """Open at first. A request is inside until its stream has ended, or its answer is ready to be sent."""

    def __init__(self) -> None:
        self._state: Literal["serving", "draining", "stopping"] = "serving"
        self._num_inside = 0
        self._empty = asyncio.Event()

    @property
    def state(self) -> Literal["serving", "draining", "stopping"]:
        """What the server does at present."""
        return self._state

    @property
    def num_inside(self) -> int:
        """Requests under way."""
        return self._num_inside

    @property
    def why_closed(self) -> str | None:
        """The sentence for those who are not let in; None while the gate is open."""
        return _WHY_CLOSED.get(self._state)

    def is_closed(self) -> bool:
        """Whether nobody is let in."""
        return self._state != "serving"

    @contextmanager
    def passed(self) -> Iterator[None]:
        """Be inside.

        Raises:
            Unavailable: the gate is closed.
        """
        if self.why_closed is not None:
            raise Unavailable(self.why_closed)
        self._num_inside += 1
        try:
            yield
        finally:
            self._num_inside -= 1
            if not self._num_inside:
                self._empty.set()

    def drain(self) -> None:
        """Let nobody in until `reopen`."""
        if self._state == "serving":
            self._state = "draining"

    def reopen(self) -> None:
        """End a drain.

        Raises:
            Unavailable: the server is stopping already.
        """
        if self._state == "stopping":
            raise Unavailable(_WHY_CLOSED["stopping"])
        self._state = "serving"

    def close(self) -> None:
        """Let nobody in any more: the server is about to stop."""
        self._state = "stopping"

    async def wait_until_empty(self) -> None:
        """Return when nobody is inside."""
        while self._num_inside:
            self._empty.clear()
            await self._empty.wait()
