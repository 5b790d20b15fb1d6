"""The tokenizer part of an engine, inside the caller's process: an event loop in a thread of its own.

Text, detokenizer, stop strings and the link to the scheduler run there, so that a caller may or may not have a loop
running itself. Knows no processes; it is told when one has died.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import functools
import logging
import os
import threading
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import uvloop
import zmq

from wire.errors import AxilError, Broken, Unavailable
from wire.messages.to_tokenizer import Reuse
from wire.sockets import Endpoints, connected

from .client import SchedulerClient
from .generator import Generator
from .link import Link
from .text.template import ChatTemplate, load_template
from .text.tokenizer import ModelFiles, Tokenizer

log = logging.getLogger(__name__)

T = TypeVar("T")

_LAST_CALLS_S = 1.0
"""How long calls may take to notice that the engine is closed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TextParts:
    """What a call on the loop needs. `template` is None when the model has none."""

    generator: Generator
    template: ChatTemplate | None


class EngineLoop:
    """An event loop in a thread, with a generator on it."""

    def __init__(self, run_dir: Path, tokenizer_dir: Path, chat_template: str | None) -> None:
        """Start the thread, which loads the tokenizer and then waits for the scheduler.

        `parts` is done when both are there; it ends with OSError or ValueError when the tokenizer's files are not.
        """
        self._run_dir = run_dir
        self._tokenizer_dir = tokenizer_dir
        self._chat_template = chat_template
        self._process_id = os.getpid()
        self._lock = threading.Lock()
        self._is_closed = False
        self._loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
        self._is_over = asyncio.Event()
        self.parts: concurrent.futures.Future[TextParts] = concurrent.futures.Future()
        self._client: SchedulerClient | None = None
        self._thread = threading.Thread(target=self._run, name="axil-text", daemon=True)
        self._thread.start()

    def call(self, work: Callable[[], Coroutine[Any, Any, T]]) -> concurrent.futures.Future[T]:
        """Run `work` on the loop.

        Raises:
            Unavailable: the engine is closed, or belongs to another process.
        """
        if os.getpid() != self._process_id:
            raise Unavailable("this Engine belongs to the process that made it. Make one in this process.")
        with self._lock:
            if self._is_closed:
                raise _closed()
            return asyncio.run_coroutine_threadsafe(work(), self._loop)

    def end_calls(self, sentence: str) -> None:
        """End what is open as broken, and all calls that still come."""
        with self._lock:
            if not self._is_closed:
                self._loop.call_soon_threadsafe(self._end_calls, functools.partial(Broken, sentence))

    def close(self) -> None:
        """End what is open, then the loop and its thread."""
        with self._lock:
            if not self._is_closed:
                self._is_closed = True
                self._loop.call_soon_threadsafe(self._is_over.set)
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            try:
                runner.run(self._serve())
            except BaseException as error:
                if self.parts.done():
                    log.exception("the engine's event loop failed")
                else:
                    self.parts.set_exception(error)
            # From here on a call would wait for ever; and nobody may wake the loop once the runner has closed it.
            with self._lock:
                self._is_closed = True

    async def _serve(self) -> None:
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        link = Link(connected(context, zmq.DEALER, Endpoints(str(self._run_dir)).requests))
        client = self._client = SchedulerClient(link)
        receiving = asyncio.create_task(client.receive())
        over = asyncio.create_task(self._is_over.wait())
        ready = asyncio.create_task(client.wait_until_ready())
        try:
            parts = self._load(client)
            await asyncio.wait({ready, over, receiving}, return_when=asyncio.FIRST_COMPLETED)
            if ready.done():
                self.parts.set_result(parts)
            await asyncio.wait({over, receiving}, return_when=asyncio.FIRST_COMPLETED)
            if not over.done():
                self._end_calls(lambda: Broken("the link to the scheduler broke. Make another Engine."))
                await over
            self._end_calls(_closed)
            if not self.parts.done():
                self.parts.set_exception(_closed())
            await self._last_calls({receiving, over, ready})
        finally:
            for task in (receiving, over, ready):
                task.cancel()
            await asyncio.gather(receiving, over, ready, return_exceptions=True)
            link.close()
            context.term()

    def _load(self, client: SchedulerClient) -> TextParts:
        files = ModelFiles.read(self._tokenizer_dir)
        tokenizer = Tokenizer.load(self._tokenizer_dir)
        source = load_template(self._tokenizer_dir, files.tokenizer_config, self._chat_template)
        return TextParts(
            generator=Generator(client, tokenizer, _Untimed()),
            template=None if source is None else ChatTemplate(source, tokenizer.special_tokens),
        )

    def _end_calls(self, make_error: Callable[[], AxilError]) -> None:
        if self._client is not None:
            self._client.refuse_new(make_error)
            self._client.fail_open(make_error)

    async def _last_calls(self, own: set[asyncio.Task[Any]]) -> None:
        calls = asyncio.all_tasks() - own - {asyncio.current_task()}
        if calls:
            await asyncio.wait(calls, timeout=_LAST_CALLS_S)


class _Untimed:
    """An engine keeps no metrics; its caller can measure."""

    def scheduled(self, reuse: Reuse) -> None:
        pass

    def missed(self, cause: str, num_tokens: int) -> None:
        pass

    def time_to_first_token_s(self, value: float, reuse: Reuse | None) -> None:
        pass

    def inter_token_latency_s(self, value: float, num_tokens: int) -> None:
        pass

    def ended(self, latency_s: float, output_tokens: int) -> None:
        pass


def _closed() -> AxilError:
    return Unavailable("this Engine is closed. Make another.")
