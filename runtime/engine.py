"""`Engine`: a model in the caller's own program, with the scheduler and the model runner as child processes.

What callers see, with its types; what runs is `engine_running.py`: the parts of a server, without HTTP. Results are
those of `completion.py`.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import os
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Self, Unpack, cast, overload

from wire.errors import Unavailable
from wire.sampling import SamplingParams

from .completion import Chunk, Completion
from .engine_running import RunningEngine, Setting
from .engine_wishes import (
    Batch,
    Chat,
    Chats,
    Message,
    Options,
    Sampling,
    TextOrIds,
    chat_wishes_of,
    is_batch,
    is_batch_of_chats,
    one_chat_wish,
    one_wish,
    wishes_of,
)

Answers = Completion | list[Completion] | list[list[Completion]]


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

    `SamplingParams(grammar=…)` forces an answer's form: one of `axil.json_schema`, `axil.regex`, `axil.choice` and
    `axil.ebnf`.
    """

    def __init__(self, model: str | os.PathLike[str] | None = None, **settings: Setting) -> None:
        """Load `model` (None: the small embedded one) and wait until it is ready.

        Raises:
            ValueError: the model's files are not usable, or a setting is unknown or out of its range.
            StartFailed: a process could not start; nothing is left of the others.
        """
        self._running = RunningEngine(None if model is None else os.fspath(model), settings)

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
        are submitted so that those with a common beginning follow each other. A list shows a progress bar
        where stderr is a terminal, unless `progress` is off.
        """
        wishes = wishes_of(prompts, sampling, n=n, options=options)
        return _shaped(self._running.complete(wishes, progress=progress and is_batch(prompts)), is_batch(prompts), n)

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
        return _shaped(self._running.complete(wishes, progress=progress and is_many), is_many, n)

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
        answers = await self._running.acomplete(wishes_of(prompts, sampling, n=n, options=options))
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
        answers = await self._running.acomplete(chat_wishes_of(messages, sampling, n=n, options=options))
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
        return self._running.chunks(one_wish(prompt, sampling, n=n, options=options))

    def stream_chat(
        self,
        messages: Sequence[Message],
        sampling: SamplingParams | None = None,
        *,
        n: int | None = None,
        **options: Unpack[Options],
    ) -> AsyncGenerator[Chunk, None]:
        """Give the assistant's next turn, piece by piece, as `stream` does."""
        return self._running.chunks(one_chat_wish(messages, sampling, n=n, options=options))

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

    def decode(self, token_ids: Sequence[int]) -> str:
        """Give the text of token ids, that of special tokens too."""
        return self._running.decoded(token_ids)

    def close(self) -> None:
        """End the processes; open calls end as Unavailable, and so do later ones. Closing twice does nothing."""
        self._running.close()

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
            return self._running.encoded(Chat(messages=cast(Sequence[Message], prompt), is_open=continue_final))
        return self._running.encoded(cast(str | list[int], prompt))


def _shaped(answers: list[list[Completion]], is_many: bool, n: int | None) -> Answers:
    """One answer or, with `n`, a list for the prompt, or for each of many."""
    if n is not None:
        return answers if is_many else answers[0]
    firsts = [samples[0] for samples in answers]
    return firsts if is_many else firsts[0]
