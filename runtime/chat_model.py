"""Who `axil chat` and `axil generate` talk to: a running server, or an engine here. Knows no terminal."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass
from typing import Protocol, Self

import aiohttp
import msgspec

from wire.sampling import SamplingParams

from .engine import Engine
from .engine_wishes import Message
from .remote import ServerFailed, base_url_of, get_json, message_of, post_events, session_with


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """The tokens of one answer; comes after its text."""

    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int


class ChatModel(Protocol):
    """Gives the assistant's next turn: pieces of text, then `Usage`; leaving the iteration ends the answer."""

    def reply(self, messages: list[Message]) -> AsyncGenerator[str | Usage, None]:
        """Raises ServerFailed or AxilError."""


class EngineModel:
    """The model of an engine; what it has said goes back to it as it said it, token by token."""

    def __init__(self, engine: Engine, sampling: SamplingParams) -> None:
        self._engine = engine
        self._sampling = sampling
        self._ids_said: dict[object, tuple[int, ...]] = {}

    async def reply(self, messages: list[Message]) -> AsyncGenerator[str | Usage, None]:
        """The assistant's next turn."""
        async with aclosing(self._engine.stream_chat(self._with_ids(messages), self._sampling)) as chunks:
            async for chunk in chunks:
                yield chunk.text
                if chunk.completion is not None:
                    self._ids_said[chunk.completion.text] = chunk.completion.token_ids
                    yield Usage(
                        prompt_tokens=chunk.completion.prompt_tokens,
                        cached_tokens=chunk.completion.cached_tokens,
                        completion_tokens=chunk.completion.completion_tokens,
                    )

    def _with_ids(self, messages: list[Message]) -> list[Message]:
        return [
            {**message, "token_ids": self._ids_said[message["content"]]}
            if message["role"] == "assistant" and message["content"] in self._ids_said
            else message
            for message in messages
        ]


class ServerModel:
    """The model of a running server with OpenAI's API."""

    def __init__(self, session: aiohttp.ClientSession, base_url: str, name: str, sampling: SamplingParams) -> None:
        self.name = name
        self._session = session
        self._base_url = base_url
        self._sampling = sampling

    @classmethod
    async def connect(cls, url: str, *, api_key: str | None, sampling: SamplingParams) -> Self:
        """Find out what the server at `url` serves.

        Raises:
            ServerFailed: it can't be reached, or wants another key.
            ValueError: `url` is none.
        """
        base_url = base_url_of(url)
        session = session_with(api_key)
        try:
            name = (await get_json(session, f"{base_url}/v1/models"))["data"][0]["id"]
        except (LookupError, TypeError) as error:
            await session.close()
            raise ServerFailed(f"{base_url}/v1/models does not list models; is it a server of OpenAI's API?") from error
        except ServerFailed:
            await session.close()
            raise
        return cls(session, base_url, name, sampling)

    async def close(self) -> None:
        """End the connections."""
        await self._session.close()

    async def reply(self, messages: list[Message]) -> AsyncGenerator[str | Usage, None]:
        """The assistant's next turn."""
        body = {
            "model": self.name,
            "messages": messages,
            "stream": True,
            "stream_options": {"include_usage": True},
            **_fields(self._sampling),
        }
        url = f"{self._base_url}/v1/chat/completions"
        async with aclosing(post_events(self._session, url, body)) as events:
            async for event in events:
                for item in _items(event):
                    yield item

    async def continuation(self, prompt: str) -> AsyncGenerator[str, None]:
        """What follows `prompt`, in pieces; raises ServerFailed."""
        body = {"model": self.name, "prompt": prompt, "stream": True, **_fields(self._sampling)}
        async with aclosing(post_events(self._session, f"{self._base_url}/v1/completions", body)) as events:
            async for event in events:
                match event:
                    case {"error": error}:
                        raise ServerFailed(message_of(error))
                    case {"choices": [{"text": str(text)}, *_]}:
                        yield text


_API_NAMES = {"max_new_tokens": "max_tokens", "min_new_tokens": "min_tokens"}


def _fields(sampling: SamplingParams) -> dict[str, object]:
    """Those parameters that are not at their defaults, under the API's names."""
    default = msgspec.structs.asdict(SamplingParams())
    given = msgspec.structs.asdict(sampling)
    changed = {_API_NAMES.get(name, name): value for name, value in given.items() if value != default[name]}
    if sampling.logit_bias:
        changed["logit_bias"] = {str(token_id): bias for token_id, bias in sampling.logit_bias}
    return changed


def _items(event: dict[str, object]) -> list[str | Usage]:
    match event:
        case {"error": error}:
            raise ServerFailed(message_of(error))
        case {"choices": [{"delta": {"content": str(text)}}, *_]}:
            return [text]
        case {"usage": {"prompt_tokens": int(prompt), "completion_tokens": int(completion), **rest}}:
            details = rest.get("prompt_tokens_details")
            cached = details.get("cached_tokens") if isinstance(details, dict) else None
            return [Usage(prompt_tokens=prompt, cached_tokens=cached or 0, completion_tokens=completion)]
        case _:
            return []
