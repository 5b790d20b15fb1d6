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

from wire.errors import Refused
from wire.messages import Submit, ids_to_bytes
from wire.sampling import SamplingParams, checked

from .client import SchedulerClient
from .generation import Generation, Prompt, Times
from .metrics import RequestMetrics
from .text.stop_regex import compiled
from .text.tokenizer import Tokenizer

INLINE_CHARACTERS = 2048
"""Shorter texts are tokenised on the event loop: that takes less time than a thread's wake-up."""

MAX_STOP_CHARACTERS = 1024

T = TypeVar("T")


class Generator:
    """Turns texts into prompts, and prompts into generations."""

    def __init__(self, client: SchedulerClient, tokenizer: Tokenizer, metrics: RequestMetrics) -> None:
        self.client = client
        self.tokenizer = tokenizer
        self._metrics = metrics
        self._threads = ThreadPoolExecutor(2, thread_name_prefix="tokenise")

    def arrival(self) -> Times:
        """Start a request's clock."""
        return Times(self._metrics)

    async def encode(self, text: str, *, add_special_tokens: bool, field: str) -> list[int]:
        """Token ids of a prompt.

        Raises:
            Refused: `text` is empty.
        """
        if not text:
            raise Refused(f"{field} is empty; it must hold at least one token. Send a prompt.", field=field)
        encode = self.tokenizer.encode
        token_ids = await self.off_loop(len(text), lambda: encode(text, add_special_tokens=add_special_tokens))
        return self.checked_ids(token_ids, field=field)

    def checked_ids(self, token_ids: Sequence[int], *, field: str) -> list[int]:
        """Return `token_ids` when they can be a prompt.

        Raises:
            Refused: there are none, or one lies outside the vocabulary.
        """
        if not token_ids:
            raise Refused(f"{field} is empty; it must hold at least one token. Send a prompt.", field=field)
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
        if num_characters < INLINE_CHARACTERS:
            return work()
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    async def start(self, prompt: Prompt, times: Times) -> Generation:
        """Submit a prompt; leave the generation's context to cancel what is left of it.

        Raises:
            AxilError: a sampling parameter is wrong, the id is in use, or no new work is taken.
        """
        prompt = replace(prompt, sampling=self._resolved(prompt.sampling))
        submit = Submit(
            request_id=prompt.request_id,
            token_ids=ids_to_bytes(prompt.token_ids),
            sampling=prompt.sampling,
            salt=prompt.salt,
        )
        open_request = await self.client.open(submit)
        return Generation(prompt, open_request, self.client, self.tokenizer, times)

    @contextlib.asynccontextmanager
    async def start_all(self, prompts: Sequence[Prompt], times: Times) -> AsyncIterator[list[Generation]]:
        """Submit several prompts as one; leaving the context cancels what is left of them."""
        self.client.check_ids_free([prompt.request_id for prompt in prompts])
        with contextlib.ExitStack() as stack:
            yield [stack.enter_context(await self.start(prompt, times)) for prompt in prompts]

    def _resolved(self, sampling: SamplingParams) -> SamplingParams:
        for string in sampling.stop:
            if len(string) > MAX_STOP_CHARACTERS:
                raise Refused(
                    f"a stop string has {len(string):,} characters; at most {MAX_STOP_CHARACTERS:,} are allowed. "
                    "Shorten it.",
                    field="stop",
                )
        for pattern in checked(sampling).stop_regex:
            compiled(pattern)
        eos = () if sampling.ignore_eos else self.tokenizer.eos_token_ids
        return msgspec.structs.replace(
            sampling,
            seed=secrets.randbits(63) if sampling.seed is None else sampling.seed,
            stop_token_ids=tuple(dict.fromkeys((*eos, *sampling.stop_token_ids))),
        )
