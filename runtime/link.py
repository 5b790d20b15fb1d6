"""A ZMQ socket on the event loop. Knows no messages.

`zmq.asyncio` does the same for every kind of socket and costs twice the time of this for each frame.
"""

from __future__ import annotations

import asyncio
from typing import Any

import zmq

from wire.sockets import has_frame


class Link:
    """Sends and receives single frames over `socket`, which it closes; made inside a running event loop."""

    def __init__(self, socket: zmq.Socket[Any]) -> None:
        self._socket = socket
        self._loop = asyncio.get_running_loop()
        self._waiter: asyncio.Future[None] | None = None
        self._descriptor = socket.fileno()
        self._loop.add_reader(self._descriptor, self._wake)

    def send(self, data: bytes, /) -> None:
        """Queue one frame; never waits."""
        self._socket.send(data, zmq.NOBLOCK)
        # The descriptor announces only changes, and sending may have taken the announcement of a frame.
        self._wake()

    async def recv(self, most: int) -> list[bytes]:
        """The frames that have come, `most` at a time; waits until there is one. For one task at a time."""
        while not (frames := self._arrived(most)):
            self._waiter = self._loop.create_future()
            await self._waiter
        return frames

    def close(self) -> None:
        """Close the socket; what it has not sent is dropped."""
        self._loop.remove_reader(self._descriptor)
        self._socket.close()

    def _arrived(self, most: int) -> list[bytes]:
        frames: list[bytes] = []
        while len(frames) < most and has_frame(self._socket):
            frames.append(self._socket.recv(zmq.NOBLOCK))
        return frames

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
