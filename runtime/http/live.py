"""Streams that are written by whoever brings the tokens: each goes out in the turn of the event loop it came in.

Every chunk on the network is one whole event, and a status is only sent when it is known. A client that reads too
slowly holds up nobody: what comes for it meanwhile is kept, and goes out as one event when it has caught up.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from typing import Protocol

from aiohttp import hdrs, web

from runtime.feed import Feed
from runtime.generation import Delta, Generation
from wire.errors import AxilError, Broken

from .events import PLAIN_ENDING, Ending

log = logging.getLogger(__name__)

HEADERS = {"Content-Type": "text/event-stream; charset=utf-8", "Cache-Control": "no-cache", "X-Accel-Buffering": "no"}

_UNSENT_BYTES = 64 * 1024
"""What may wait in a connection's buffer before its stream pauses; the transport's own limit is the same."""


class Events(Protocol):
    """What a route tells of an answer, as events."""

    def of(self, i: int, delta: Delta) -> Sequence[bytes]:
        """Those that tell of a delta of the i-th generation."""

    def last(self) -> Sequence[bytes]:
        """Those behind the last delta."""


async def stream(
    request: web.Request,
    generations: Sequence[Generation],
    events: Events,
    *,
    request_id: str,
    ending: Ending = PLAIN_ENDING,
    headers: Mapping[str, str] = HEADERS,
) -> web.StreamResponse:
    """Send the events of `generations` as they come, then the API's ending, also after an error behind the first.

    `headers` say what events are; server-sent ones as a rule.

    Raises:
        AxilError: before the first event, so that the answer can have its true status.
    """
    early: list[bytes] = []
    written: _Written | None = None

    def take(i: int, delta: Delta) -> None:
        if written is not None:
            written.write(events.of(i, delta))
            if written.is_full:
                feed.pause()
            return
        early.extend(events.of(i, delta))
        if early:
            feed.pause()

    feed = Feed(generations, take)
    while not early and not feed.is_over:
        await feed.run()
    response = web.StreamResponse(headers={**headers, "X-Request-Id": request_id})
    await response.prepare(request)
    for each in early:
        await response.write(each)
    written = _Written(request, response)
    for each in await _rest(request, feed, events, request_id, ending):
        await response.write(each)
    await response.write_eof()
    return response


async def _rest(request: web.Request, feed: Feed, events: Events, request_id: str, ending: Ending) -> Sequence[bytes]:
    """Let the feed write what is still to come; returns the events that end the stream."""
    try:
        while not feed.is_over:
            await feed.run()
            await request.writer.drain()  # after a pause: until the client has read
        return [*events.last(), *ending.good]
    except AxilError as error:
        if isinstance(error, Broken):
            log.error("broken request_id=%s: %s", request_id, error.message)
        return ending.bad(error)
    except (asyncio.CancelledError, ConnectionError, KeyboardInterrupt, SystemExit):
        raise
    except BaseException:  # a panic in a Rust library is no Exception, and must not reach the event loop
        log.exception("broken request_id=%s", request_id)
        return ending.bad(Broken("internal error; the server's log has the traceback."))


class _Written:
    """A response that has begun, written to without a task: straight into its connection's buffer."""

    def __init__(self, request: web.Request, response: web.StreamResponse) -> None:
        if request.transport is None:
            raise ConnectionResetError("the client has gone")
        self._transport = request.transport
        self._is_chunked = response.headers.get(hdrs.TRANSFER_ENCODING) == "chunked"  # not so in HTTP/1.0

    @property
    def is_full(self) -> bool:
        """Whether nothing more is to be written for now."""
        return self._transport.get_write_buffer_size() > _UNSENT_BYTES

    def write(self, events: Sequence[bytes]) -> None:
        """Write whole events.

        Raises:
            ConnectionResetError: the client has gone.
        """
        if not events:
            return
        if self._transport.is_closing():
            raise ConnectionResetError("the client has gone")
        if self._is_chunked:
            events = [b"%x\r\n%b\r\n" % (len(each), each) for each in events]
        self._transport.write(events[0] if len(events) == 1 else b"".join(events))
