"""`Engine`: a model in the caller's own program, with the scheduler and the model runner as child processes.

The same parts as a server's, without HTTP. Results are those of `runtime/completion.py`.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import os
import weakref
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from typing import Any, Self, TypeVar, overload

from wire.errors import AxilError, Unavailable
from wire.sampling import SamplingParams

from .batch_progress import BatchProgress
from .completion import Chunk, Completion
from .config import MODULES
from .engine_calls import Chat, EngineCalls, Message, Wish
from .engine_loop import EngineLoop
from .engine_processes import EngineProcesses
from .model_files import resolve_model
from .settings import engine_config

DEFAULT_NEW_TOKENS = 128
"""Output tokens of a prompt that comes without sampling parameters; a chat's answer may fill the context."""

Setting = str | int | float | bool | None
TextOrIds = str | list[int]
Batch = list[str] | list[list[int]] | list[TextOrIds]
Sampling = SamplingParams | Sequence[SamplingParams] | None

T = TypeVar("T")

_TO_GENERATE = SamplingParams(max_new_tokens=DEFAULT_NEW_TOKENS)
_TO_CHAT = SamplingParams()


class Engine:
    """A model, ready to generate. `settings` are the flags of `axil serve` as keyword arguments.

        with axil.Engine(max_total_tokens=8192) as engine:
            print(engine.generate("The capital of France is").text)

    Its methods may be called from any thread, whether an event loop runs there or not. Without `with`, call `close`;
    an engine that is still open is closed when it is dropped and at the interpreter's exit. It belongs to the process
    that made it. `sampling` is one for all prompts or a list with one for each; `salt` separates caches. Every method
    raises `AxilError` when a prompt or a parameter is wrong (a note says which prompt) or a process has died.
    """

    def __init__(self, model: str | os.PathLike[str] | None = None, **settings: Setting) -> None:
        """Load `model` (None: the small embedded one) and wait until it is ready.

        Raises:
            ValueError: the model's files are not usable, or a setting is unknown or out of its range.
            StartFailed: a process could not start; nothing is left of the others.
        """
        config = engine_config(None if model is None else os.fspath(model), settings)
        files = resolve_model(config.model)
        made_loop: concurrent.futures.Future[EngineLoop] = concurrent.futures.Future()

        def end_calls(sentence: str) -> None:
            with contextlib.suppress(concurrent.futures.CancelledError):
                made_loop.result().end_calls(sentence)

        processes = EngineProcesses(config, files, on_death=end_calls, modules=MODULES)
        self._finalizer = weakref.finalize(self, _close, os.getpid(), processes, made_loop)
        _abandon_after_fork(processes)
        try:
            self._loop = EngineLoop(processes.run_dir(), files.tokenizer_dir, config.http.chat_template)
            made_loop.set_result(self._loop)
            both: list[concurrent.futures.Future[Any]] = [processes.started, self._loop.parts]
            done, _ = concurrent.futures.wait(both, return_when=concurrent.futures.FIRST_EXCEPTION)
            for ready in done:
                ready.result()
            self._calls = EngineCalls(self._loop.parts.result(), max_open=config.scheduler.max_queued)
        except BaseException:
            self.close()
            raise

    @overload
    def generate(
        self, prompts: TextOrIds, sampling: Sampling = None, *, salt: str = "", progress: bool = True
    ) -> Completion: ...

    @overload
    def generate(
        self, prompts: Batch, sampling: Sampling = None, *, salt: str = "", progress: bool = True
    ) -> list[Completion]: ...

    def generate(
        self, prompts: TextOrIds | Batch, sampling: Sampling = None, *, salt: str = "", progress: bool = True
    ) -> Completion | list[Completion]:
        """Continue a prompt (text or token ids), or each of a list of them; a list gives a list in the same order.

        Without `sampling` an answer has at most 128 tokens; a `max_new_tokens` of None means as many as fit. Prompts
        are submitted so that those with a common beginning follow each other. A list shows a progress bar, unless
        `progress` is off.
        """
        return self._complete(_wishes(prompts, sampling, salt), is_batch=_is_batch(prompts), progress=progress)

    @overload
    def chat(
        self, messages: Sequence[Message], sampling: Sampling = None, *, salt: str = "", progress: bool = True
    ) -> Completion: ...

    @overload
    def chat(
        self, messages: Sequence[Sequence[Message]], sampling: Sampling = None, *, salt: str = "", progress: bool = True
    ) -> list[Completion]: ...

    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        sampling: Sampling = None,
        *,
        salt: str = "",
        progress: bool = True,
    ) -> Completion | list[Completion]:
        """Give the assistant's next turn of a chat (`{"role": …, "content": …}` each), or of a list of chats."""
        return self._complete(
            _chat_wishes(messages, sampling, salt), is_batch=_is_batch_of_chats(messages), progress=progress
        )

    @overload
    async def agenerate(self, prompts: TextOrIds, sampling: Sampling = None, *, salt: str = "") -> Completion: ...

    @overload
    async def agenerate(self, prompts: Batch, sampling: Sampling = None, *, salt: str = "") -> list[Completion]: ...

    async def agenerate(
        self, prompts: TextOrIds | Batch, sampling: Sampling = None, *, salt: str = ""
    ) -> Completion | list[Completion]:
        """As `generate`, without blocking the caller's event loop; a task that is cancelled cancels its requests."""
        return await self._acomplete(_wishes(prompts, sampling, salt), is_batch=_is_batch(prompts))

    @overload
    async def achat(self, messages: Sequence[Message], sampling: Sampling = None, *, salt: str = "") -> Completion: ...

    @overload
    async def achat(
        self, messages: Sequence[Sequence[Message]], sampling: Sampling = None, *, salt: str = ""
    ) -> list[Completion]: ...

    async def achat(
        self, messages: Sequence[Message] | Sequence[Sequence[Message]], sampling: Sampling = None, *, salt: str = ""
    ) -> Completion | list[Completion]:
        """As `chat`, without blocking the caller's event loop."""
        return await self._acomplete(_chat_wishes(messages, sampling, salt), is_batch=_is_batch_of_chats(messages))

    def stream(
        self, prompt: TextOrIds, sampling: SamplingParams | None = None, *, salt: str = ""
    ) -> AsyncGenerator[Chunk, None]:
        """Continue a prompt, piece by piece; leaving the iteration cancels what is left of it."""
        return self._chunks(Wish(prompt=prompt, sampling=sampling or _TO_GENERATE, salt=salt))

    def stream_chat(
        self, messages: Sequence[Message], sampling: SamplingParams | None = None, *, salt: str = ""
    ) -> AsyncGenerator[Chunk, None]:
        """Give the assistant's next turn, piece by piece; leaving the iteration cancels what is left of it."""
        return self._chunks(Wish(prompt=Chat(messages=messages), sampling=sampling or _TO_CHAT, salt=salt))

    def close(self) -> None:
        """End the processes; open calls end as Unavailable, and so do later ones. Closing twice does nothing."""
        self._finalizer()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await asyncio.to_thread(self.close)

    def _complete(self, wishes: Sequence[Wish], *, is_batch: bool, progress: bool) -> Completion | list[Completion]:
        with BatchProgress(len(wishes), is_shown=progress and is_batch) as bar:
            future = self._loop.call(lambda: self._calls.complete_all(wishes, bar.note))
            try:
                completions = future.result()
            except concurrent.futures.CancelledError:
                raise Unavailable("this Engine was closed.") from None
            finally:
                future.cancel()
        return completions if is_batch else completions[0]

    async def _acomplete(self, wishes: Sequence[Wish], *, is_batch: bool) -> Completion | list[Completion]:
        future = self._loop.call(lambda: self._calls.complete_all(wishes, _ignore))
        completions = await asyncio.wrap_future(future)
        return completions if is_batch else completions[0]

    async def _chunks(self, wish: Wish) -> AsyncGenerator[Chunk, None]:
        arrived: asyncio.Queue[Chunk | AxilError] = asyncio.Queue()
        loop = asyncio.get_running_loop()

        def put(item: Chunk | AxilError) -> None:
            loop.call_soon_threadsafe(arrived.put_nowait, item)

        future = self._loop.call(lambda: _feed(self._calls.chunks(wish), put))
        try:
            while True:
                item = await arrived.get()
                if isinstance(item, AxilError):
                    raise item
                yield item
                if item.completion is not None:
                    return
        finally:
            future.cancel()


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


def _is_batch(prompts: TextOrIds | Batch) -> bool:
    return isinstance(prompts, list) and (not prompts or not isinstance(prompts[0], int))


def _is_batch_of_chats(messages: Sequence[Message] | Sequence[Sequence[Message]]) -> bool:
    return bool(messages) and not isinstance(messages[0], Mapping)


def _wishes(prompts: TextOrIds | Batch, sampling: Sampling, salt: str) -> list[Wish]:
    many: Sequence[Any] = prompts if _is_batch(prompts) else [prompts]
    return _with_sampling(many, sampling, _TO_GENERATE, salt)


def _chat_wishes(
    messages: Sequence[Message] | Sequence[Sequence[Message]], sampling: Sampling, salt: str
) -> list[Wish]:
    many: Sequence[Any] = messages if _is_batch_of_chats(messages) else [messages]
    return _with_sampling([Chat(messages=each) for each in many], sampling, _TO_CHAT, salt)


def _with_sampling(prompts: Sequence[Any], sampling: Sampling, default: SamplingParams, salt: str) -> list[Wish]:
    if sampling is None or isinstance(sampling, SamplingParams):
        sampling = [sampling or default] * len(prompts)
    if len(sampling) != len(prompts):
        raise ValueError(
            f"sampling has {len(sampling)} entries and there are {len(prompts)} prompts; give one for each"
        )
    return [Wish(prompt=prompt, sampling=one, salt=salt) for prompt, one in zip(prompts, sampling, strict=True)]


def _ignore(completion: Completion) -> None:
    pass
