"""Server-sent events: every network write is one whole `data:` line, and a status is only sent when it is known."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from dataclasses import dataclass

import orjson
from aiohttp import web

from runtime.generation import Delta, Generation
from wire.errors import AxilError, Broken

from .errors import in_stream

log = logging.getLogger(__name__)

_HEADERS = {"Content-Type": "text/event-stream; charset=utf-8", "Cache-Control": "no-cache", "X-Accel-Buffering": "no"}


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamForm:
    """How an API writes a frame, the error that ends a stream, and what stands behind the last frame."""

    frame: Callable[[dict[str, object]], bytes]
    error: Callable[[AxilError], dict[str, object]]
    end: bytes


def plain_frame(frame: dict[str, object]) -> bytes:
    """A frame without a name."""
    return b"data: " + orjson.dumps(frame) + b"\n\n"


def named_frame(frame: dict[str, object]) -> bytes:
    """A frame whose event is named by its `type`."""
    return b"event: " + str(frame["type"]).encode() + b"\n" + plain_frame(frame)


PLAIN = StreamForm(frame=plain_frame, error=in_stream, end=b"data: [DONE]\n\n")
"""SGLang's and OpenAI's form."""


async def respond(
    request: web.Request,
    frames: AsyncGenerator[dict[str, object], None],
    *,
    request_id: str,
    form: StreamForm = PLAIN,
) -> web.StreamResponse:
    """Send `frames` as they come, then the form's end; an error after the first is sent as a frame.

    Raises:
        AxilError: before the first frame, so that the answer can have its true status.
    """
    async with contextlib.aclosing(frames):
        first = await anext(frames)
        response = web.StreamResponse(headers=_HEADERS | {"X-Request-Id": request_id})
        await response.prepare(request)
        await response.write(form.frame(first))
        await _send_rest(response, frames, request_id, form)
    await response.write(form.end)
    await response.write_eof()
    return response


async def _send_rest(
    response: web.StreamResponse, frames: AsyncGenerator[dict[str, object], None], request_id: str, form: StreamForm
) -> None:
    try:
        async for frame in frames:
            await response.write(form.frame(frame))
    except AxilError as error:
        if isinstance(error, Broken):
            log.error("broken request_id=%s: %s", request_id, error.message)
        await response.write(form.frame(form.error(error)))
    except (asyncio.CancelledError, ConnectionError, KeyboardInterrupt, SystemExit):
        raise
    except BaseException:  # a panic in a Rust library is no Exception, and must not reach the event loop
        log.exception("broken request_id=%s", request_id)
        broken = Broken("internal error; the server's log has the traceback.")
        await response.write(form.frame(form.error(broken)))


async def merged(generations: Sequence[Generation]) -> AsyncIterator[tuple[int, Delta]]:
    """The deltas of several generations as they come, each with its generation's index.

    Raises:
        AxilError: one of them failed.
    """
    if len(generations) == 1:
        async for delta in generations[0]:
            yield 0, delta
        return
    arrived: asyncio.Queue[tuple[int, Delta | Exception]] = asyncio.Queue()
    pumps = [asyncio.ensure_future(_pump(i, generation, arrived)) for i, generation in enumerate(generations)]
    try:
        num_left = len(pumps)
        while num_left:
            i, item = await arrived.get()
            if isinstance(item, Exception):
                raise item
            num_left -= item.end is not None
            yield i, item
    finally:
        for pump in pumps:
            pump.cancel()
        await asyncio.gather(*pumps, return_exceptions=True)


async def _pump(i: int, generation: Generation, arrived: asyncio.Queue[tuple[int, Delta | Exception]]) -> None:
    try:
        async for delta in generation:
            arrived.put_nowait((i, delta))
    except Exception as error:
        arrived.put_nowait((i, error))
