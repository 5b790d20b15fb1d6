"""The calls of programs sent as anybody would: the `openai` client, each call as soon as it is ready, in no order.

A program runs on it as on any backend, so that both ways make the same calls; `is_cached` off gives each call a cache
salt of its own, with which the server finds nothing to reuse.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import openai

from axil.lang.backend import Answer, Prompt, Scores, Usage, Wish
from axil.lang.errors import Unsupported
from axil.lang.home import Home
from axil.lang.turns import Turns


class Unordered(Turns):
    """Turns for all at once."""

    async def take(self, key: str) -> None:
        """Take a turn without waiting."""

    def give_back(self) -> None:
        """End it."""


class PlainCalls:
    """Answers calls by the `openai` client; a context manager."""

    def __init__(self, url: str, model: str, *, is_cached: bool = True) -> None:
        self.home = Home()
        self.turns = Unordered(max_open=1)
        self._model = model
        self._salts = None if is_cached else itertools.count()
        self._client = openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=600)

    async def generate(self, prompt: Prompt, wish: Wish, put: Callable[[str], None] | None) -> Answer:
        """Continue plain text by `/v1/completions`, a chat by `/v1/chat/completions`."""
        extra: dict[str, Any] = {"ignore_eos": wish.ignore_eos, "regex": wish.regex}
        if self._salts is not None:
            extra["cache_salt"] = f"call {next(self._salts)}"
        common: dict[str, Any] = {
            "model": self._model,
            "temperature": wish.temperature,
            "stop": list(wish.stop) or None,
            "extra_body": {name: value for name, value in extra.items() if value is not None},
        }
        found: Any
        if prompt.role is None:
            found = await self._client.completions.create(prompt=prompt.text, max_tokens=wish.max_tokens, **common)
            text = found.choices[0].text
        else:
            messages = [{"role": message.role, "content": message.content} for message in prompt.messages]
            found = await self._client.chat.completions.create(
                messages=messages,  # type: ignore[arg-type]  # the client's types name each role's own dictionary
                max_completion_tokens=wish.max_tokens,
                **common,
            )
            text = found.choices[0].message.content or ""
        details = found.usage.prompt_tokens_details
        usage = Usage(
            prompt_tokens=found.usage.prompt_tokens,
            cached_tokens=(details.cached_tokens if details is not None else None) or 0,
            completion_tokens=found.usage.completion_tokens,
        )
        return Answer(texts=(text,), finish_reasons=(found.choices[0].finish_reason or "",), usage=usage)

    async def score(self, prompt: Prompt, choices: Sequence[str]) -> Scores:
        """Refuse: the API doesn't tell a prompt's logprobs."""
        raise Unsupported("OpenAI's API doesn't tell a prompt's logprobs, which select needs.")

    async def score_alone(self, token_ids: Sequence[Sequence[int]]) -> Scores:
        """Refuse, as `score`."""
        return await self.score(Prompt(text=""), ())

    async def aclose(self) -> None:
        """Close the connections."""
        await self._client.close()

    def __enter__(self) -> PlainCalls:
        return self

    def __exit__(self, *error: object) -> None:
        self.home.start(self.aclose()).result()
        self.home.close()
