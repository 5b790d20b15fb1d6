"""What an engine does for its callers, as coroutines on its own event loop: from prompts to completions.

Knows no threads and no processes.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from contextlib import aclosing

from wire.errors import AxilError, Cancelled, Refused
from wire.messages.encoding import ids_to_bytes

from .completion import Chunk, Completion
from .engine_loop import TextParts
from .engine_wishes import Chat, Message, Wish, in_own_words, noted
from .generation import Delta, End, Generation, Prompt, TokenLogprob
from .room import Room
from .text.said import encode_with, find_said
from .text.template import check_role


class EngineCalls:
    """Answers wishes, as many at a time as `room` has room for."""

    def __init__(self, parts: TextParts, room: Room) -> None:
        self._generator = parts.generator
        self._template = parts.template
        self._room = room

    async def complete_all(self, wishes: Sequence[Wish], note: Callable[[Completion], None]) -> list[list[Completion]]:
        """Answer all wishes, in their order, each with as many answers as it asks for.

        They are submitted sorted by their token ids, so that those with a common beginning follow each other. `note`
        is called with each completion as it comes.

        Raises:
            AxilError: of the first that failed, with a note that names it; the others are cancelled.
        """
        prompts: list[Prompt] = []
        for i, wish in enumerate(wishes):
            try:
                prompts.append(await self._prompt(wish))
            except AxilError as error:
                raise noted(error, i, len(wishes)) from None
            await asyncio.sleep(0)  # a short text is encoded without waiting, and others want the loop too
        order = sorted(range(len(wishes)), key=lambda i: ids_to_bytes(prompts[i].token_ids))
        tasks = {
            i: [asyncio.create_task(self._complete(one, note)) for one in prompts[i].samples(wishes[i].num_samples)]
            for i in order
        }
        everything = [task for samples in tasks.values() for task in samples]
        try:
            if everything:
                await asyncio.wait(everything, return_when=asyncio.FIRST_EXCEPTION)
            for i, samples in tasks.items():
                failures = [task.exception() for task in samples if task.done()]
                for failure in filter(None, failures):
                    raise noted(failure, i, len(wishes))
            return [[task.result() for task in tasks[i]] for i in range(len(wishes))]
        finally:
            for task in everything:
                task.cancel()
            await asyncio.gather(*everything, return_exceptions=True)

    async def chunks(self, wish: Wish) -> AsyncGenerator[Chunk, None]:
        """Answer one wish, piece by piece, with as many answers as it asks for.

        Raises:
            AxilError: of the first answer that failed; the others are cancelled.
        """
        arrived: asyncio.Queue[Chunk | Exception] = asyncio.Queue()
        prompts = (await self._prompt(wish)).samples(wish.num_samples)
        tasks = [asyncio.create_task(self._put_chunks(prompt, arrived)) for prompt in prompts]
        try:
            async for chunk in pieces(arrived, num_answers=len(tasks)):
                yield chunk
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _put_chunks(self, prompt: Prompt, arrived: asyncio.Queue[Chunk | Exception]) -> None:
        try:
            async with aclosing(self._chunks(prompt)) as chunks:
                async for chunk in chunks:
                    arrived.put_nowait(chunk)
        except Exception as error:
            arrived.put_nowait(error)

    async def _complete(self, prompt: Prompt, note: Callable[[Completion], None]) -> Completion:
        async with aclosing(self._chunks(prompt)) as chunks:
            async for chunk in chunks:
                if chunk.completion is not None:
                    note(chunk.completion)
                    return chunk.completion
        raise AssertionError("an answer ends with a completion")

    async def _chunks(self, prompt: Prompt) -> AsyncGenerator[Chunk, None]:
        deltas: list[Delta] = []
        async with self._room.taken(len(prompt.token_ids)):
            try:
                with await self._generator.start(prompt, self._generator.arrival()) as generation:
                    async for delta in generation:
                        deltas.append(delta)
                        whole = None if delta.end is None else self._whole(generation, deltas, delta.end)
                        ids = tuple(delta.token_ids)
                        yield Chunk(text=delta.text, token_ids=ids, completion=whole, index=prompt.sample)
            except AxilError as error:
                raise in_own_words(error) from None

    async def _prompt(self, wish: Wish) -> Prompt:
        token_ids = await self.encoded(wish.prompt)
        return Prompt(
            token_ids=token_ids,
            sampling=wish.sampling,
            request_id=uuid.uuid4().hex,
            salt=wish.salt,
            priority=wish.priority,
            cache_priority=wish.cache_priority,
            cache_ttl_s=wish.cache_ttl_s,
        )

    async def encoded(self, prompt: str | Sequence[int] | Chat) -> list[int]:
        """Token ids of a prompt."""
        if isinstance(prompt, str):
            return await self._generator.encode(prompt, add_special_tokens=True, field="prompt")
        if isinstance(prompt, Chat):
            return await self._encoded_chat(prompt.messages, is_open=prompt.is_open)
        return self._generator.checked_ids(prompt, field="prompt")

    def decoded(self, token_ids: Sequence[int]) -> str:
        """The text of token ids; may be called from any thread."""
        ids = self._generator.checked_ids(token_ids, field="token_ids")
        return self._generator.tokenizer.decode(ids, skip_special_tokens=False)

    def _check_ids_of(self, message: Message, field: str) -> None:
        token_ids = message.get("token_ids")
        if token_ids is None:
            return
        if not isinstance(token_ids, list | tuple) or not all(type(token_id) is int for token_id in token_ids):
            raise Refused(
                f"{field} must be a list of integers. Give an answer's token_ids, or leave it out.", field=field
            )
        if token_ids:
            self._generator.known_ids(token_ids, field=field)

    async def _encoded_chat(self, messages: Sequence[Message], *, is_open: bool) -> list[int]:
        template = self._template
        if template is None:
            raise Refused(
                "this model has no chat template. Use generate, or give chat_template=FILE.", field="messages"
            )
        if not messages:
            raise Refused("messages is empty; it must hold at least one message.", field="messages")
        for i, message in enumerate(messages):
            check_role(str(message["role"]), template.roles, field=f"messages[{i}].role")
            self._check_ids_of(message, f"messages[{i}].token_ids")
        given = [dict(message) for message in messages]
        num_characters = sum(len(str(message["content"])) for message in messages)
        tokenizer = self._generator.tokenizer

        def render(some: Sequence[Message], is_asking: bool) -> str:
            plain = [{name: value for name, value in each.items() if name != "token_ids"} for each in some]
            if is_asking and is_open:
                return template.render_open(plain, variables={})
            return template.render(plain, add_generation_prompt=is_asking, variables={})

        text = await self._generator.off_loop(num_characters, lambda: render(given, True))
        said = await self._generator.off_loop(num_characters, lambda: find_said(text, given, tokenizer, render))
        if said:
            token_ids = await self._generator.off_loop(num_characters, lambda: encode_with(text, said, tokenizer))
            return self._generator.checked_ids(token_ids, field="messages")
        # The template has written the special tokens itself.
        return await self._generator.encode(text, add_special_tokens=False, field="messages")

    def _whole(self, generation: Generation, deltas: Sequence[Delta], end: End) -> Completion:
        if end.reason == "cancelled":
            raise Cancelled(end.message or "the request was cancelled.")
        sampling = generation.prompt.sampling
        told = sampling.num_top_logprobs is not None
        prompt_told = sampling.prompt_logprobs_from is not None
        return Completion(
            text="".join(delta.text for delta in deltas),
            token_ids=tuple(generation.output_ids),
            finish_reason=end.reason,
            matched=end.matched,
            prompt_tokens=len(generation.prompt.token_ids),
            cached_tokens=generation.cached_tokens,
            completion_tokens=len(generation.output_ids),
            logprobs=self._readable(delta.logprobs for delta in deltas) if told else None,
            prompt_logprobs=self._readable(delta.prompt_logprobs for delta in deltas) if prompt_told else None,
        )

    def _readable(self, parts: Iterable[list[TokenLogprob]]) -> tuple[TokenLogprob, ...]:
        text = self._generator.tokenizer.token_text
        return tuple(
            TokenLogprob(each.token_id, each.logprob, each.top, each.chosen, text(each.token_id))
            for part in parts
            for each in part
        )


async def pieces(arrived: asyncio.Queue[Chunk | Exception], *, num_answers: int) -> AsyncGenerator[Chunk, None]:
    """What has arrived, until so many answers are complete; an error among it is raised."""
    while num_answers:
        item = await arrived.get()
        if isinstance(item, Exception):
            raise item
        num_answers -= item.completion is not None
        yield item
