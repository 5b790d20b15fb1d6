"""The processes of an engine and the loop that talks to them, as one: started, asked, and ended whatever happens.

Takes wishes and gives completions. Knows no prompts and no options as callers write them (`engine_wishes.py`).
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import os
import weakref
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from typing import Any

from wire.errors import AxilError, Unavailable

from .batch_progress import BatchProgress
from .completion import Chunk, Completion
from .config import MODULES
from .engine_calls import EngineCalls, pieces
from .engine_loop import EngineLoop
from .engine_processes import EngineProcesses
from .engine_wishes import Chat, Wish
from .model_files import resolve_model
from .room import Room
from .settings import engine_config

Setting = str | int | float | bool | None


class RunningEngine:
    """A started engine. It is ended by `close`, when nobody holds it any more, and at the interpreter's exit."""

    def __init__(self, model: str | None, settings: Mapping[str, Setting]) -> None:
        """Load `model` (None: the small embedded one) and wait until it is ready.

        Raises:
            ValueError: the model's files are not usable, or a setting is unknown or out of its range.
            StartFailed: a process could not start; nothing is left of the others.
        """
        config = engine_config(model, settings)
        files = resolve_model(config.model)
        made_loop: concurrent.futures.Future[EngineLoop] = concurrent.futures.Future()

        def end_calls(sentence: str) -> None:
            with contextlib.suppress(concurrent.futures.CancelledError):
                made_loop.result().end_calls(sentence)

        processes = EngineProcesses(config, files, on_death=end_calls, modules=MODULES)
        self._finalizer = weakref.finalize(self, _close, os.getpid(), processes, made_loop)
        _abandon_after_fork(processes)
        try:
            self.loop = EngineLoop(processes.run_dir(), files.tokenizer_dir, config.http.chat_template)
            made_loop.set_result(self.loop)
            both: list[concurrent.futures.Future[Any]] = [processes.started, self.loop.parts]
            done, _ = concurrent.futures.wait(both, return_when=concurrent.futures.FIRST_EXCEPTION)
            for ready in done:
                ready.result()
            limits = config.scheduler
            room = Room(max_requests=limits.max_queued_requests, max_tokens=limits.max_queued_tokens)
            self._calls = EngineCalls(self.loop.parts.result(), room)
        except BaseException:
            self.close()
            raise

    def encoded(self, prompt: Chat | str | Sequence[int]) -> concurrent.futures.Future[list[int]]:
        """A prompt's token ids, as soon as they are known."""
        return self.loop.call(lambda: self._calls.encoded(prompt))

    def decoded(self, token_ids: Sequence[int]) -> str:
        """The text of token ids."""
        return self._calls.decoded(token_ids)

    def complete(self, wishes: Sequence[Wish], *, progress: bool) -> list[list[Completion]]:
        """Wait for the answers to all wishes, behind a progress bar if wished for."""
        with BatchProgress(sum(wish.num_samples for wish in wishes), is_shown=progress) as bar:
            future = self.loop.call(lambda: self._calls.complete_all(wishes, bar.note))
            try:
                return future.result()
            except concurrent.futures.CancelledError:
                raise Unavailable("this Engine was closed.") from None
            finally:
                future.cancel()

    async def acomplete(self, wishes: Sequence[Wish]) -> list[list[Completion]]:
        """Wait for the answers to all wishes; a task that is cancelled cancels them."""
        return await asyncio.wrap_future(self.loop.call(lambda: self._calls.complete_all(wishes, _ignore)))

    async def chunks(self, wish: Wish) -> AsyncGenerator[Chunk, None]:
        """The pieces of all answers to a wish as they come; leaving the iteration cancels what is left."""
        arrived: asyncio.Queue[Chunk | Exception] = asyncio.Queue()
        loop = asyncio.get_running_loop()

        def put(item: Chunk | AxilError) -> None:
            loop.call_soon_threadsafe(arrived.put_nowait, item)

        future = self.loop.call(lambda: _feed(self._calls.chunks(wish), put))
        try:
            async for chunk in pieces(arrived, num_answers=wish.num_samples):
                yield chunk
        finally:
            future.cancel()

    def close(self) -> None:
        """End the processes; open calls end as Unavailable, and so do later ones. Closing twice does nothing."""
        self._finalizer()


async def _feed(chunks: AsyncGenerator[Chunk, None], put: Callable[[Chunk | AxilError], None]) -> None:
    """Runs on the engine's loop. The caller's may have ended, which is an error of `put` and ends the answer."""
    try:
        async with contextlib.aclosing(chunks):
            async for chunk in chunks:
                put(chunk)
    except AxilError as error:
        put(error)
    except asyncio.CancelledError:
        with contextlib.suppress(RuntimeError):
            put(Unavailable("this Engine was closed."))
        raise


def _close(process_id: int, processes: EngineProcesses, made_loop: concurrent.futures.Future[EngineLoop]) -> None:
    if os.getpid() != process_id:
        return  # a forked child's copy
    if not made_loop.cancel():
        made_loop.result().close()
    processes.stop()


def _abandon_after_fork(processes: EngineProcesses) -> None:
    abandon = weakref.WeakMethod(processes.abandon)

    def after_in_child() -> None:
        method = abandon()
        if method is not None:
            method()

    os.register_at_fork(after_in_child=after_in_child)


def _ignore(completion: Completion) -> None:
    pass
