"""Turns texts into prompts, and prompts into generations. Knows nothing of HTTP or of any API's shapes."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TypeVar

import msgspec

from wire.errors import PromptTooLong, Refused, counted
from wire.messages.encoding import ids_to_bytes
from wire.messages.to_scheduler import Submit
from wire.sampling import MAX_LOGIT_BIAS_IDS, SamplingParams, checked

from .client import SchedulerClient
from .generation import Generation, Prompt, Times
from .metrics import RequestMetrics
from .open_request import Deadline
from .records import Record, Records
from .text.grammar import GrammarTrial
from .text.stop_regex import compiled
from .text.tokenizer import Tokenizer

INLINE_CHARACTERS = 2048
"""Shorter texts are tokenised on the event loop: that takes less time than a thread's wake-up."""

_LOOK_CHARACTERS = 16_384
_MANY_CHARACTERS = 8
"""A text with more characters for each token that fits is looked at in pieces first: seldom does such a text fit."""

MAX_STOP_CHARACTERS = 1024

MAX_PROMPTS = 1024
"""Prompts in one request, at most: each costs time on the event loop, which all streams share."""

MAX_ANSWERS = 4096
"""Answers to one request's prompts, at most: prompts times `n`."""

MAX_LOGIT_BIASES = 16 * MAX_LOGIT_BIAS_IDS
"""Entries of `logit_bias` in all answers to one request together: each goes to all three processes."""

MAX_SUBMITTED_BYTES = 256 * 1024 * 1024
"""Token ids and grammars in all answers to one request together."""

_SUBMITTED_AT_ONCE = 16
"""Prompts of a batch that are submitted before other streams get their turn."""

T = TypeVar("T")


class Generator:
    """Turns texts into prompts, and prompts into generations."""

    def __init__(
        self,
        client: SchedulerClient,
        tokenizer: Tokenizer,
        metrics: RequestMetrics,
        *,
        request_s: float | None = None,
        records: Records | None = None,
    ) -> None:
        """`request_s` is how long an answer may take from its request's arrival; `records` are kept of requests."""
        self.client = client
        self._request_s = request_s
        self._records = records
        self.tokenizer = tokenizer
        self.grammars = GrammarTrial(tokenizer)
        self._metrics = metrics
        self._threads = ThreadPoolExecutor(2, thread_name_prefix="tokenise")

    def arrival(self) -> Times:
        """Start a request's clock."""
        return Times(self._metrics)

    async def encode(self, text: str, *, add_special_tokens: bool, field: str) -> list[int]:
        """Token ids of a prompt.

        Raises:
            Refused: `text` is empty, or too long.
        """
        return (await self.encode_all([text], add_special_tokens=add_special_tokens, field=field))[0]

    async def encode_chat(
        self, render: Callable[[], str], *, num_characters: int, field: str
    ) -> tuple[str, Sequence[int]]:
        """A chat as `render` writes it with its special tokens, and its token ids; rendering costs `num_characters`.

        Raises:
            Refused: there is no text, it is too long, or `render` refuses.
        """

        def encoded(text: str) -> tuple[str, Sequence[int]]:
            return text, self._encoded_chat(text, field=field)

        if num_characters >= INLINE_CHARACTERS:
            return await self.in_thread(lambda: encoded(render()))
        text = render()
        return await self.off_loop(len(text), lambda: encoded(text))

    def _encoded_chat(self, text: str, *, field: str) -> Sequence[int]:
        self._check_text(text, field=field)
        self._check_beginning(text, field=field)
        token_ids = self.tokenizer.encode_chat(text)
        self._check_length(len(token_ids), field=field)
        # What the tokenizer knows the model knows, unless its files do not suit each other.
        if self.tokenizer.vocabulary > (self.client.stats.vocabulary or self.tokenizer.vocabulary):
            return self.known_ids(token_ids, field=field)
        return token_ids

    async def encode_all(self, texts: Sequence[str], *, add_special_tokens: bool, field: str) -> list[list[int]]:
        """Token ids of each of several prompts.

        Raises:
            Refused: there are too many, or one of them is empty or too long.
        """
        check_num_prompts(len(texts), field=field)
        for text in texts:
            self._check_text(text, field=field)
        num_characters = sum(map(len, texts))

        def encoded() -> list[list[int]]:
            return [self._encoded(text, add_special_tokens=add_special_tokens, field=field) for text in texts]

        return await self.off_loop(num_characters, encoded)

    def _encoded(self, text: str, *, add_special_tokens: bool, field: str) -> list[int]:
        self._check_beginning(text, field=field)
        return self.checked_ids(self.tokenizer.encode(text, add_special_tokens=add_special_tokens), field=field)

    def _check_beginning(self, text: str, *, field: str) -> None:
        """Refuse a text whose first pieces have twice the tokens that fit, before all of it is tokenised.

        Where a piece ends, a few tokens may be cut in two; twice as many as fit are too many all the same.
        """
        limit_tokens, what, remedy = self._longest_prompt()
        if not limit_tokens or len(text) <= max(_LOOK_CHARACTERS, _MANY_CHARACTERS * limit_tokens):
            return
        num_tokens = 0
        for start in range(0, len(text), _LOOK_CHARACTERS):
            piece = text[start : start + _LOOK_CHARACTERS]
            num_tokens += len(self.tokenizer.encode(piece, add_special_tokens=True))
            if num_tokens > 2 * limit_tokens:
                raise PromptTooLong(
                    f"{field} has {len(text):,} characters, the first {start + len(piece):,} of which are {num_tokens} "
                    f"tokens; {what} {limit_tokens}, output included. {remedy}",
                    field=field,
                )

    def _check_text(self, text: str, *, field: str) -> None:
        """Refuse at once what can't fit; tokenising 30 MB to count its tokens takes half a minute and a gigabyte."""
        if not text:
            raise Refused(f"{field} is empty; it must hold at least one token. Send a prompt.", field=field)
        limit_tokens, what, remedy = self._longest_prompt()
        longest = self.tokenizer.longest_token_characters
        if limit_tokens and longest and len(text) > limit_tokens * longest:
            raise PromptTooLong(
                f"{field} has {len(text):,} characters, which are more than {limit_tokens} tokens, as none of this "
                f"model's has more than {longest}; {what} {limit_tokens}. {remedy}",
                field=field,
            )

    def _longest_prompt(self) -> tuple[int, str, str]:
        """How many tokens prompt and output may have (0 before the first figures), what says so, and the remedy."""
        stats = self.client.stats
        context, pool = stats.context_tokens, stats.num_pages * stats.page_tokens
        if context <= pool:
            return context, "this model's context is", "Shorten it."
        return pool, "the KV pool holds", "Shorten it, or have the pool made larger (max_total_tokens)."

    def cut_to_context(self, sampling: SamplingParams, num_prompt: int) -> SamplingParams:
        """The parameters, `max_new_tokens` left out where prompt and answer would go beyond context or pool."""
        limit_tokens, _, _ = self._longest_prompt()
        most = sampling.max_new_tokens
        if most is None or not limit_tokens or num_prompt + most <= limit_tokens:
            return sampling
        return msgspec.structs.replace(sampling, max_new_tokens=None)

    def checked_ids(self, token_ids: Sequence[int], *, field: str) -> list[int]:
        """Return `token_ids` when they can be a prompt.

        Raises:
            Refused: there are none or too many, or one lies outside the vocabulary.
        """
        self._check_length(len(token_ids), field=field)
        return self.known_ids(token_ids, field=field)

    def _check_length(self, num_tokens: int, *, field: str) -> None:
        if not num_tokens:
            raise Refused(f"{field} is empty; it must hold at least one token. Send a prompt.", field=field)
        limit_tokens, what, remedy = self._longest_prompt()
        if limit_tokens and num_tokens >= limit_tokens:
            raise PromptTooLong(
                f"{field} has {counted(num_tokens, 'token')}; {what} {limit_tokens}, output included. {remedy}",
                field=field,
            )

    def known_ids(self, token_ids: Sequence[int], *, field: str) -> list[int]:
        """Return `token_ids`, of which there must be some, when all are in the vocabulary.

        Raises:
            Refused: one lies outside.
        """
        limit = self.client.stats.vocabulary or self.tokenizer.vocabulary
        for token_id in (min(token_ids), max(token_ids)):
            if not 0 <= token_id < limit:
                raise Refused(
                    f"{field} holds the token id {token_id}; this model's are in [0, {limit - 1}]. Use its tokenizer.",
                    field=field,
                )
        return list(token_ids)

    async def off_loop(self, num_characters: int, work: Callable[[], T]) -> T:
        """Do `work` on a text of that length, in a thread when it is long, so that other streams flow on."""
        return work() if num_characters < INLINE_CHARACTERS else await self.in_thread(work)

    async def in_thread(self, work: Callable[[], T]) -> T:
        """Do `work` in a thread, so that other streams flow on."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    async def start(self, prompt: Prompt, times: Times) -> Generation:
        """Submit a prompt; leave the generation's context to cancel what is left of it.

        Raises:
            AxilError: a sampling parameter is wrong, the id is in use, or no new work is taken.
        """
        prompt = replace(prompt, sampling=await self._resolved(prompt.sampling))
        submit = Submit(
            request_id=prompt.request_id,
            token_ids=ids_to_bytes(prompt.token_ids),
            sampling=prompt.sampling,
            salt=prompt.salt,
            priority=prompt.priority,
            cache_priority=prompt.cache_priority,
            cache_ttl_s=prompt.cache_ttl_s,
        )
        open_request = await self.client.open(submit)
        if self._request_s is not None:
            open_request.expire_at(Deadline(times.arrived_at + self._request_s, self._request_s))
        record = Record(prompt.request_id, submit.token_ids, prompt.salt, prompt.source)
        if self._records is not None:
            self._records.add(record)
        return Generation(prompt, open_request, self.client, self.tokenizer, times, record, self._records)

    @contextlib.asynccontextmanager
    async def start_all(self, prompts: Sequence[Prompt], times: Times) -> AsyncIterator[list[Generation]]:
        """Submit several prompts as one; leaving the context cancels what is left of them.

        Raises:
            AxilError: one of them is refused, or no new work is taken.
        """
        _check_size(prompts)
        self.client.check_ids_free([prompt.request_id for prompt in prompts])
        with contextlib.ExitStack() as stack:
            generations = []
            for i, prompt in enumerate(prompts):
                if i and i % _SUBMITTED_AT_ONCE == 0:
                    await asyncio.sleep(0)
                generations.append(stack.enter_context(await self.start(prompt, times)))
            yield generations

    async def _resolved(self, sampling: SamplingParams) -> SamplingParams:
        for string in sampling.stop:
            if len(string) > MAX_STOP_CHARACTERS:
                raise Refused(
                    f"a stop string has {len(string):,} characters; at most {MAX_STOP_CHARACTERS:,} are allowed. "
                    "Shorten it.",
                    field="stop",
                )
        for pattern in checked(sampling).stop_regex:
            compiled(pattern)
        grammar = sampling.grammar
        # Behind a whole text of its grammar, an answer has nothing else that it could go on with.
        eos = () if sampling.ignore_eos and grammar is None else self.tokenizer.eos_token_ids
        return msgspec.structs.replace(
            sampling,
            seed=secrets.randbits(63) if sampling.seed is None else sampling.seed,
            stop_token_ids=tuple(dict.fromkeys((*eos, *sampling.stop_token_ids))),
            grammar=None if grammar is None else await self.grammars.tried(grammar),
        )


def check_num_prompts(num_prompts: int, *, field: str) -> None:
    """Return when one request may hold that many prompts.

    Raises:
        Refused: they are too many.
    """
    if num_prompts > MAX_PROMPTS:
        raise Refused(
            f"{field} holds {num_prompts:,} prompts; at most {MAX_PROMPTS:,} are allowed in one request. "
            "Send several requests.",
            field=field,
        )


def _check_size(prompts: Sequence[Prompt]) -> None:
    """Refuse what fills memory when each answer takes its own copy of prompt, grammar and biases along."""
    num_biases = sum(len(prompt.sampling.logit_bias) for prompt in prompts)
    if num_biases > MAX_LOGIT_BIASES:
        raise Refused(
            f"logit_bias has {num_biases:,} ids for {len(prompts):,} answers; at most {MAX_LOGIT_BIASES:,} are "
            "allowed in one request. Send several requests.",
            field="logit_bias",
        )
    grammars = [prompt.sampling.grammar for prompt in prompts if prompt.sampling.grammar is not None]
    num_bytes = sum(4 * len(prompt.token_ids) for prompt in prompts) + sum(len(each.source) for each in grammars)
    if num_bytes > MAX_SUBMITTED_BYTES:
        raise Refused(
            f"prompts and grammars come to {num_bytes:,} bytes for {len(prompts):,} answers; at most "
            f"{MAX_SUBMITTED_BYTES:,} are allowed in one request. Send several requests.",
            field="n",
        )


def check_num_answers(num_answers: int, *, field: str) -> None:
    """Return when one request may be given that many answers.

    Raises:
        Refused: they are too many.
    """
    if num_answers > MAX_ANSWERS:
        raise Refused(
            f"{field} asks for {num_answers:,} answers to all prompts together; at most {MAX_ANSWERS:,} are allowed in "
            "one request. Send several requests.",
            field=field,
        )
