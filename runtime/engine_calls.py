"""What an engine does for its callers, as coroutines on its own event loop: from prompts to completions.

Knows no threads and no processes.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass

from wire.errors import AxilError, Cancelled, Refused
from wire.messages import ids_to_bytes
from wire.sampling import SamplingParams

from .completion import Chunk, Completion
from .engine_loop import TextParts
from .generation import Delta, End, Generation, Prompt, TokenLogprob

Message = Mapping[str, object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Chat:
    """A prompt that is a list of messages."""

    messages: Sequence[Message]


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """One prompt as the caller gave it, and how it is to be continued."""

    prompt: str | Sequence[int] | Chat
    sampling: SamplingParams
    salt: str


class EngineCalls:
    """Answers wishes, at most `max_open` at a time, so that a large batch waits here and is not refused."""

    def __init__(self, parts: TextParts, *, max_open: int) -> None:
        self._generator = parts.generator
        self._template = parts.template
        self._room = asyncio.Semaphore(max_open)

    async def complete_all(self, wishes: Sequence[Wish], note: Callable[[Completion], None]) -> list[Completion]:
        """Answer all wishes, in their order; `note` is called with each completion as it comes.

        They are submitted sorted by their token ids, so that those with a common beginning follow each other.

        Raises:
            AxilError: of the first that failed, with a note that names it; the others are cancelled.
        """
        encoded: list[list[int]] = []
        for i, wish in enumerate(wishes):
            try:
                encoded.append(await self._encoded(wish.prompt))
            except AxilError as error:
                raise _noted(error, i, len(wishes)) from None
            await asyncio.sleep(0)  # a short text is encoded without waiting, and others want the loop too
        order = sorted(range(len(wishes)), key=lambda i: ids_to_bytes(encoded[i]))
        tasks = {i: asyncio.create_task(self._complete(encoded[i], wishes[i], note)) for i in order}
        try:
            if tasks:
                await asyncio.wait(tasks.values(), return_when=asyncio.FIRST_EXCEPTION)
            for i, task in tasks.items():
                failure = task.exception() if task.done() else None
                if failure is not None:
                    raise _noted(failure, i, len(wishes))
            return [tasks[i].result() for i in range(len(wishes))]
        finally:
            for task in tasks.values():
                task.cancel()
            await asyncio.gather(*tasks.values(), return_exceptions=True)

    async def chunks(self, wish: Wish) -> AsyncGenerator[Chunk, None]:
        """Answer one wish, piece by piece."""
        async with aclosing(self._chunks(await self._encoded(wish.prompt), wish)) as chunks:
            async for chunk in chunks:
                yield chunk

    async def _complete(self, token_ids: list[int], wish: Wish, note: Callable[[Completion], None]) -> Completion:
        async with aclosing(self._chunks(token_ids, wish)) as chunks:
            async for chunk in chunks:
                if chunk.completion is not None:
                    note(chunk.completion)
                    return chunk.completion
        raise AssertionError("an answer ends with a completion")

    async def _chunks(self, token_ids: list[int], wish: Wish) -> AsyncGenerator[Chunk, None]:
        prompt = Prompt(token_ids=token_ids, sampling=wish.sampling, request_id=uuid.uuid4().hex, salt=wish.salt)
        deltas: list[Delta] = []
        async with self._room:
            with await self._generator.start(prompt, self._generator.arrival()) as generation:
                async for delta in generation:
                    deltas.append(delta)
                    whole = None if delta.end is None else _whole(generation, deltas, delta.end)
                    yield Chunk(text=delta.text, token_ids=tuple(delta.token_ids), completion=whole)

    async def _encoded(self, prompt: str | Sequence[int] | Chat) -> list[int]:
        if isinstance(prompt, str):
            return await self._generator.encode(prompt, add_special_tokens=True, field="prompt")
        if isinstance(prompt, Chat):
            return await self._encoded_chat(prompt.messages)
        return self._generator.checked_ids(prompt, field="prompt")

    async def _encoded_chat(self, messages: Sequence[Message]) -> list[int]:
        template = self._template
        if template is None:
            raise Refused(
                "this model has no chat template. Use generate, or give chat_template=FILE.", field="messages"
            )
        if not messages:
            raise Refused("messages is empty; it must hold at least one message.", field="messages")
        for i, message in enumerate(messages):
            for name in ("role", "content"):
                if not isinstance(message.get(name), str):
                    raise Refused(f"messages[{i}] needs {name!r}, as a string.", field=f"messages[{i}].{name}")
        given = [dict(message) for message in messages]
        num_characters = sum(len(str(message["content"])) for message in messages)
        text = await self._generator.off_loop(
            num_characters, lambda: template.render(given, add_generation_prompt=True, variables={})
        )
        # The template has written the special tokens itself.
        return await self._generator.encode(text, add_special_tokens=False, field="messages")


def _whole(generation: Generation, deltas: Sequence[Delta], end: End) -> Completion:
    if end.reason == "cancelled":
        raise Cancelled(end.message or "the request was cancelled.")
    logprobs: list[TokenLogprob] = [token for delta in deltas for token in delta.logprobs]
    return Completion(
        text="".join(delta.text for delta in deltas),
        token_ids=tuple(generation.output_ids),
        finish_reason=end.reason,
        prompt_tokens=len(generation.prompt.token_ids),
        cached_tokens=generation.cached_tokens,
        completion_tokens=len(generation.output_ids),
        logprobs=None if generation.prompt.sampling.num_top_logprobs is None else tuple(logprobs),
    )


def _noted(error: BaseException, i: int, num_prompts: int) -> BaseException:
    if num_prompts > 1:
        error.add_note(f"in the prompt with index {i}")
    return error
