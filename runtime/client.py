"""The tokenizer process's side of the socket to the scheduler: open requests, operators' wishes, the last `Stats`.

Every request that is opened gets exactly one end: a terminal message of the scheduler, or an error when a process of
the launch has died. Knows neither text nor HTTP.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Callable
from typing import Protocol, assert_never

from wire.errors import BY_CODE, AxilError, Broken, DuplicateId, Unavailable
from wire.messages.encoding import bytes_to_ids, encode
from wire.messages.to_scheduler import Action, Answer, Ask, Cancel, Control, Finish, ProfileWish, Submit
from wire.messages.to_tokenizer import (
    Answered,
    Asked,
    ControlReply,
    Done,
    Refused,
    Stats,
    StepTokens,
    Tokens,
    ToTokenizer,
    decode_to_tokenizer,
)

from .open_request import OpenRequest
from .peers import Peers
from .recent import RecentHits

log = logging.getLogger(__name__)

STATS_MISSING_AFTER_S = 10.0

_FRAMES_AT_ONCE = 8
"""Frames that are taken before their readers are told: who is behind tells of several tokens at once."""

_COUNTED_S = 0.5
"""Figures that follow sooner, because somebody asked for them, say little of the rate."""

MakeError = Callable[[], AxilError]


class FrameSocket(Protocol):
    """What the client needs of a DEALER socket; `Link` is one."""

    def send(self, data: bytes, /) -> None:
        """Queue one frame; never waits."""

    async def recv(self, most: int) -> list[bytes]:
        """The frames that have come, `most` at a time; waits until there is one."""


class SchedulerClient:
    """Requests to the scheduler and their replies, over one socket.

    `receive` must run in a task. Until the first `Stats` new work is refused as Unavailable.
    """

    def __init__(self, socket: FrameSocket, *, num_others: int = 0) -> None:
        """`num_others` is how many other tokenizers serve the same port."""
        self._socket = socket
        self._open: dict[str, OpenRequest] = {}
        self._left: dict[str, OpenRequest] = {}
        self._controls: dict[int, asyncio.Future[ControlReply]] = {}
        self._control_ids = itertools.count(1)
        self._first_stats = asyncio.Event()
        self.peers = Peers(self._send, num_others=num_others)
        self._refusal: MakeError | None = _starting
        self._stats = Stats()
        self._stats_at = 0.0
        self._counted_at = 0.0
        self._counted_tokens = 0
        self._output_tokens_per_s = 0.0
        self._recent_hits = RecentHits()

    @property
    def stats(self) -> Stats:
        """The scheduler's latest state and counters; all zero before the first."""
        return self._stats

    @property
    def output_tokens_per_s(self) -> float:
        """Output tokens a second, over the last second or so."""
        return self._output_tokens_per_s

    @property
    def recent_hit_rate(self) -> float | None:
        """Part of the prompt tokens that was cached, of requests scheduled in the last minute; None without any."""
        return self._recent_hits.rate

    @property
    def stats_age_s(self) -> float:
        """How long ago the scheduler's latest figures came; 0 before the first."""
        return asyncio.get_running_loop().time() - self._stats_at if self._first_stats.is_set() else 0.0

    @property
    def num_open(self) -> int:
        """Requests whose client waits for a reply."""
        return len(self._open)

    @property
    def is_starting(self) -> bool:
        """Whether the scheduler has not reported itself ready yet."""
        return self._refusal is _starting

    def why_unhealthy(self) -> str | None:
        """The sentence that says why this server can't serve now; None while it can."""
        if self._refusal is not None:
            return self._refusal().message
        if self._stats.stuck is not None:
            return self._stats.stuck
        if self.stats_age_s > STATS_MISSING_AFTER_S:
            return f"the scheduler has sent no figures for {self.stats_age_s:.0f} s"
        return None

    async def wait_until_ready(self) -> None:
        """Ask for the first `Stats` and wait until the scheduler, and so the model runner, is ready."""
        self._send(Control(control_id=next(self._control_ids), action="stats"))
        await self._first_stats.wait()

    def check_accepting(self) -> None:
        """Return while new work is taken.

        Raises:
            AxilError: the server is starting, stopping or broken.
        """
        if self._refusal is not None:
            raise self._refusal()

    def check_ids_free(self, request_ids: list[str]) -> None:
        """Return when none of the ids belongs to an open request and no two are the same.

        Raises:
            DuplicateId: names the id.
        """
        seen = set()
        for request_id in request_ids:
            if request_id in self._open or request_id in seen:
                raise DuplicateId(
                    f"rid {request_id!r} belongs to a request that is still open. Send another, or none.", field="rid"
                )
            seen.add(request_id)

    async def open(self, submit: Submit) -> OpenRequest:
        """Submit a request; whoever opens must `close`.

        An id that was left a moment ago is free once the scheduler has confirmed it, which is waited for.

        Raises:
            DuplicateId: the id belongs to an open request.
            AxilError: no new work is taken.
        """
        while True:
            self.check_accepting()
            self.check_ids_free([submit.request_id])
            left = self._left.get(submit.request_id)
            if left is None:
                break
            if left.ended is None:
                left.ended = asyncio.Event()
            await left.ended.wait()
        frame = encode(submit)  # first: what can't be sent must not be open
        request = self._open[submit.request_id] = OpenRequest(submit.request_id)
        self._socket.send(frame)
        return request

    def close(self, request: OpenRequest, *, kept_tokens: int | None) -> None:
        """Leave a request: with `kept_tokens` the client has its answer (a stop string), else it is cancelled.

        Does nothing at the scheduler when that has ended the request already.
        """
        request.expire_at(None)
        if request.is_ended or self._open.get(request.request_id) is not request:
            return
        self._left[request.request_id] = request
        self._forget(request.request_id)
        if kept_tokens is None:
            self._send(Cancel(request_id=request.request_id))
        else:
            self._send(Finish(request_id=request.request_id, kept_tokens=kept_tokens))

    async def control(
        self,
        action: Action,
        *,
        request_id: str | None = None,
        profile: ProfileWish | None = None,
        page: int | None = None,
    ) -> ControlReply:
        """Have an operator's wish done.

        Raises:
            AxilError: the server is starting, stopping or broken.
        """
        self.check_accepting()
        control_id = next(self._control_ids)
        reply: asyncio.Future[ControlReply] = asyncio.get_running_loop().create_future()
        self._controls[control_id] = reply
        self._send(Control(control_id=control_id, action=action, request_id=request_id, profile=profile, page=page))
        try:
            return await reply
        finally:
            del self._controls[control_id]

    def refuse_new(self, make_error: MakeError) -> None:
        """From now on new work ends with `make_error()`."""
        self._refusal = make_error

    def fail_open(self, make_error: MakeError) -> None:
        """End every open request and every wish with `make_error()`, and tell the scheduler, if it still lives."""
        for request in [*self._open.values()]:
            request.fail(make_error())
            self.close(request, kept_tokens=None)
        for left in self._left.values():
            left.mark_ended()
        self._left.clear()
        for reply in self._controls.values():
            if not reply.done():
                reply.set_exception(make_error())

    async def receive(self) -> None:
        """Take frames until cancelled.

        Raises:
            msgspec.ValidationError: a frame holds something else than messages to a tokenizer.
        """
        while True:
            told: dict[OpenRequest, None] = {}  # a set that keeps the order in which they came
            for frame in await self._socket.recv(_FRAMES_AT_ONCE):
                for message in decode_to_tokenizer(frame):
                    self._take(message, told)
            for request in told:
                request.announce()
            await asyncio.sleep(0)  # a socket that always holds a frame must not keep the loop from everything else

    def _take(self, message: ToTokenizer, told: dict[OpenRequest, None]) -> None:
        """Put a message where it belongs; `told` gets the requests that have something new."""
        match message:
            case Tokens():
                request = self._open.get(message.request_id)
                if request is not None:
                    request.put(message)
                    told[request] = None
            case StepTokens():
                find = self._open.get
                for request_id, token_id in zip(message.request_ids, bytes_to_ids(message.token_ids), strict=True):
                    request = find(request_id)
                    if request is not None:
                        request.put(token_id)
                        told[request] = None
            case Done():
                request = self._ended(message.request_id)
                if request is not None:
                    request.put(message)
                    told[request] = None
            case Refused():
                request = self._ended(message.request_id)
                if request is not None:
                    request.fail(error_of(message))
            case Stats():
                self._take_stats(message)
            case ControlReply():
                if message.stats is not None:
                    self._take_stats(message.stats)
                reply = self._controls.get(message.control_id)
                if reply is not None and not reply.done():
                    reply.set_result(message)
            case Asked():
                self.peers.take_asked(message)
            case Answered():
                self.peers.take_answer(message)
            case _:
                assert_never(message)

    def _take_stats(self, stats: Stats) -> None:
        self._stats = stats
        self._stats_at = now = asyncio.get_running_loop().time()
        self._recent_hits.take(stats, now_s=now)
        if now - self._counted_at >= _COUNTED_S:
            num_new = stats.output_tokens_total - self._counted_tokens if self._counted_at else 0
            self._output_tokens_per_s = num_new / (now - self._counted_at)
            self._counted_at, self._counted_tokens = now, stats.output_tokens_total
        if not self._first_stats.is_set():
            self._first_stats.set()
            if self._refusal is _starting:
                self._refusal = None

    def _ended(self, request_id: str) -> OpenRequest | None:
        request = self._forget(request_id)
        gone = request or self._left.pop(request_id, None)
        if gone is not None:
            gone.mark_ended()
        return request

    def _forget(self, request_id: str) -> OpenRequest | None:
        return self._open.pop(request_id, None)

    def _send(self, message: Submit | Cancel | Finish | Control | Ask | Answer) -> None:
        self._socket.send(encode(message))


def error_of(refused: Refused) -> AxilError:
    """The error that a `Refused` message stands for."""
    kind = BY_CODE.get(refused.code, Broken)
    error = kind(refused.message)
    error.field = refused.field
    return error


def _starting() -> AxilError:
    return Unavailable("the server is starting; the model is not loaded yet. Try again in a few seconds.")
