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
from typing import Any, Self, TypeVar, Unpack, cast, overload

from wire.errors import AxilError, Unavailable
from wire.sampling import SamplingParams

from .batch_progress import BatchProgress
from .completion import Chunk, Completion
from .config import MODULES
from .engine_calls import EngineCalls
from .engine_loop import EngineLoop
from .engine_processes import EngineProcesses
from .engine_wishes import (
    Batch,
    Chat,
    Chats,
    Message,
    Options,
    Sampling,
    TextOrIds,
    Wish,
    chat_wishes_of,
    is_batch,
    is_batch_of_chats,
    one_chat_wish,
    one_wish,
    wishes_of,
)
from .model_files import resolve_model
from .room import Room
from .settings import engine_config

Setting = str | int | float | bool | None
Answers = Completion | list[Completion] | list[list[Completion]]

T = TypeVar("T")


class Engine:
    """A model, ready to generate. `settings` are the flags of `axil serve` as keyword arguments.

        with axil.Engine(max_total_tokens=8192) as engine:
            print(engine.generate("The capital of France is").text)

    Its methods may be called from any thread, whether an event loop runs there or not. Without `with`, call `close`;
    an engine that is still open is closed when it is dropped and at the interpreter's exit. It belongs to the process
    that made it. `sampling` is one for all prompts or a list with one for each; `options` hold for all
    of a call: `salt` separates caches, the higher `priority` (-1000 to 1000) goes first, and `cache_priority` (0 to 10)
    and `cache_ttl_s` ask that the pages be kept longer than others. With `n` each
    prompt gets a list of that many answers, the first of which has the given seed. Every method raises `AxilError` when
    a prompt or a parameter is wrong (`field` names it, a note says which prompt) or a process has died.
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
            limits = config.scheduler
            room = Room(max_requests=limits.max_queued, max_tokens=limits.max_queued_tokens)
            self._calls = EngineCalls(self._loop.parts.result(), room)
        except BaseException:
            self.close()
            raise

    @overload
    def generate(
        self,
        prompts: TextOrIds,
        sampling: Sampling = None,
        *,
        n: None = None,
        progress: bool = True,
        **options: Unpack[Options],
    ) -> Completion: ...

    @overload
    def generate(
        self,
        prompts: TextOrIds,
        sampling: Sampling = None,
        *,
        n: int,
        progress: bool = True,
        **options: Unpack[Options],
    ) -> list[Completion]: ...

    @overload
    def generate(
        self,
        prompts: Batch,
        sampling: Sampling = None,
        *,
        n: None = None,
        progress: bool = True,
        **options: Unpack[Options],
    ) -> list[Completion]: ...

    @overload
    def generate(
        self, prompts: Batch, sampling: Sampling = None, *, n: int, progress: bool = True, **options: Unpack[Options]
    ) -> list[list[Completion]]: ...

    def generate(
        self,
        prompts: TextOrIds | Batch,
        sampling: Sampling = None,
        *,
        n: int | None = None,
        progress: bool = True,
        **options: Unpack[Options],
    ) -> Answers:
        """Continue a prompt (text or token ids), or each of a list of them; a list gives a list in the same order.

        Without `sampling` an answer has at most 128 tokens; a `max_new_tokens` of None means as many as fit. Prompts
        are submitted so that those with a common beginning follow each other. A list shows a progress bar, unless
        `progress` is off.
        """
        wishes = wishes_of(prompts, sampling, n=n, options=options)
        return _shaped(self._complete(wishes, progress=progress and is_batch(prompts)), is_batch(prompts), n)

    @overload
    def chat(
        self,
        messages: Sequence[Message],
        sampling: Sampling = None,
        *,
        n: None = None,
        progress: bool = True,
        **options: Unpack[Options],
    ) -> Completion: ...

    @overload
    def chat(
        self,
        messages: Sequence[Message],
        sampling: Sampling = None,
        *,
        n: int,
        progress: bool = True,
        **options: Unpack[Options],
    ) -> list[Completion]: ...

    @overload
    def chat(
        self,
        messages: Sequence[Sequence[Message]],
        sampling: Sampling = None,
        *,
        n: None = None,
        progress: bool = True,
        **options: Unpack[Options],
    ) -> list[Completion]: ...

    @overload
    def chat(
        self,
        messages: Sequence[Sequence[Message]],
        sampling: Sampling = None,
        *,
        n: int,
        progress: bool = True,
        **options: Unpack[Options],
    ) -> list[list[Completion]]: ...

    def chat(
        self,
        messages: Chats,
        sampling: Sampling = None,
        *,
        n: int | None = None,
        progress: bool = True,
        **options: Unpack[Options],
    ) -> Answers:
        """Give the assistant's next turn of a chat (`{"role": …, "content": …}` each), or of a list of chats.

        A message that was an answer may carry its `token_ids`: they are then what the model sees of it, so that the
        whole answer is found in the cache, however it was sampled.
        """
        wishes = chat_wishes_of(messages, sampling, n=n, options=options)
        is_many = is_batch_of_chats(messages)
        return _shaped(self._complete(wishes, progress=progress and is_many), is_many, n)

    @overload
    async def agenerate(
        self, prompts: TextOrIds, sampling: Sampling = None, *, n: None = None, **options: Unpack[Options]
    ) -> Completion: ...

    @overload
    async def agenerate(
        self, prompts: TextOrIds, sampling: Sampling = None, *, n: int, **options: Unpack[Options]
    ) -> list[Completion]: ...

    @overload
    async def agenerate(
        self, prompts: Batch, sampling: Sampling = None, *, n: None = None, **options: Unpack[Options]
    ) -> list[Completion]: ...

    @overload
    async def agenerate(
        self, prompts: Batch, sampling: Sampling = None, *, n: int, **options: Unpack[Options]
    ) -> list[list[Completion]]: ...

    async def agenerate(
        self, prompts: TextOrIds | Batch, sampling: Sampling = None, *, n: int | None = None, **options: Unpack[Options]
    ) -> Answers:
        """As `generate`, without blocking the caller's event loop; a task that is cancelled cancels its requests."""
        answers = await self._acomplete(wishes_of(prompts, sampling, n=n, options=options))
        return _shaped(answers, is_batch(prompts), n)

    @overload
    async def achat(
        self, messages: Sequence[Message], sampling: Sampling = None, *, n: None = None, **options: Unpack[Options]
    ) -> Completion: ...

    @overload
    async def achat(
        self, messages: Sequence[Message], sampling: Sampling = None, *, n: int, **options: Unpack[Options]
    ) -> list[Completion]: ...

    @overload
    async def achat(
        self,
        messages: Sequence[Sequence[Message]],
        sampling: Sampling = None,
        *,
        n: None = None,
        **options: Unpack[Options],
    ) -> list[Completion]: ...

    @overload
    async def achat(
        self, messages: Sequence[Sequence[Message]], sampling: Sampling = None, *, n: int, **options: Unpack[Options]
    ) -> list[list[Completion]]: ...

    async def achat(
        self, messages: Chats, sampling: Sampling = None, *, n: int | None = None, **options: Unpack[Options]
    ) -> Answers:
        """As `chat`, without blocking the caller's event loop."""
        answers = await self._acomplete(chat_wishes_of(messages, sampling, n=n, options=options))
        return _shaped(answers, is_batch_of_chats(messages), n)

    def stream(
        self,
        prompt: TextOrIds,
        sampling: SamplingParams | None = None,
        *,
        n: int | None = None,
        **options: Unpack[Options],
    ) -> AsyncGenerator[Chunk, None]:
        """Continue a prompt, piece by piece; leaving the iteration cancels what is left of it.

        With `n` the pieces of that many answers come as they are made; a chunk's `index` says whose it is.
        """
        return self._chunks(one_wish(prompt, sampling, n=n, options=options))

    def stream_chat(
        self,
        messages: Sequence[Message],
        sampling: SamplingParams | None = None,
        *,
        n: int | None = None,
        **options: Unpack[Options],
    ) -> AsyncGenerator[Chunk, None]:
        """Give the assistant's next turn, piece by piece, as `stream` does."""
        return self._chunks(one_chat_wish(messages, sampling, n=n, options=options))

    def encode(self, prompt: TextOrIds | Sequence[Message], *, continue_final: bool = False) -> list[int]:
        """Give a prompt's token ids: those of a text, or of a chat at whose end the assistant's turn begins.

        With `continue_final` the chat's last message is left open, so that what is generated goes on in it.
        """
        try:
            return self._encoding(prompt, continue_final).result()
        except concurrent.futures.CancelledError:
            raise Unavailable("this Engine was closed.") from None

    async def aencode(self, prompt: TextOrIds | Sequence[Message], *, continue_final: bool = False) -> list[int]:
        """As `encode`, without blocking the caller's event loop."""
        return await asyncio.wrap_future(self._encoding(prompt, continue_final))

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

    def _encoding(
        self, prompt: TextOrIds | Sequence[Message], continue_final: bool
    ) -> concurrent.futures.Future[list[int]]:
        if not isinstance(prompt, str) and prompt and isinstance(prompt[0], Mapping):
            chat = Chat(messages=cast(Sequence[Message], prompt), is_open=continue_final)
            return self._loop.call(lambda: self._calls.encoded(chat))
        plain = cast(str | list[int], prompt)
        return self._loop.call(lambda: self._calls.encoded(plain))

    def _complete(self, wishes: Sequence[Wish], *, progress: bool) -> list[list[Completion]]:
        with BatchProgress(sum(wish.num_samples for wish in wishes), is_shown=progress) as bar:
            future = self._loop.call(lambda: self._calls.complete_all(wishes, bar.note))
            try:
                return future.result()
            except concurrent.futures.CancelledError:
                raise Unavailable("this Engine was closed.") from None
            finally:
                future.cancel()

    async def _acomplete(self, wishes: Sequence[Wish]) -> list[list[Completion]]:
        return await asyncio.wrap_future(self._loop.call(lambda: self._calls.complete_all(wishes, _ignore)))

    async def _chunks(self, wish: Wish) -> AsyncGenerator[Chunk, None]:
        arrived: asyncio.Queue[Chunk | AxilError] = asyncio.Queue()
        loop = asyncio.get_running_loop()

        def put(item: Chunk | AxilError) -> None:
            loop.call_soon_threadsafe(arrived.put_nowait, item)

        future = self._loop.call(lambda: _feed(self._calls.chunks(wish), put))
        num_left = wish.num_samples
        try:
            while num_left:
                item = await arrived.get()
                if isinstance(item, AxilError):
                    raise item
                num_left -= item.completion is not None
                yield item
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


def _shaped(answers: list[list[Completion]], is_many: bool, n: int | None) -> Answers:
    """One answer or, with `n`, a list for the prompt, or for each of many."""
    if n is not None:
        return answers if is_many else answers[0]
    firsts = [samples[0] for samples in answers]
    return firsts if is_many else firsts[0]


def _ignore(completion: Completion) -> None:
    pass
