"""Who `axil chat` talks to: a running server, or an engine in this process. Knows no terminal."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass
from typing import Protocol, Self
from urllib.parse import urlsplit

import aiohttp
import msgspec

from wire.sampling import SamplingParams

from .engine import Engine
from .engine_wishes import Message


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """The tokens of one answer; comes after its text."""

    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int


class ChatFailed(Exception):
    """The server can't be reached, or has answered with an error; the message says which."""


class ChatModel(Protocol):
    """Gives the assistant's next turn: pieces of text, then `Usage`; leaving the iteration ends the answer."""

    def reply(self, messages: list[Message]) -> AsyncGenerator[str | Usage, None]:
        """Raises ChatFailed or AxilError."""


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
            ChatFailed: it can't be reached, or wants another key.
            ValueError: `url` is none.
        """
        base_url = url.rstrip("/").removesuffix("/v1")
        if urlsplit(base_url).scheme not in ("http", "https"):
            raise ValueError(f"--url must begin with http:// or https://, got {url}")
        headers = {} if api_key is None else {"Authorization": f"Bearer {api_key}"}
        session = aiohttp.ClientSession(headers=headers, timeout=aiohttp.ClientTimeout(total=None, sock_connect=10))
        try:
            async with session.get(f"{base_url}/v1/models") as response:
                await _check(response)
                name = json.loads(await response.read())["data"][0]["id"]
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            await session.close()
            raise ChatFailed(f"can't reach {base_url}: {error}. Is it running? Start one with: axil serve") from error
        except (ValueError, LookupError, TypeError) as error:
            await session.close()
            raise ChatFailed(f"{base_url}/v1/models does not list models; is it a server of OpenAI's API?") from error
        except ChatFailed:
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
        try:
            async with self._session.post(f"{self._base_url}/v1/chat/completions", json=body) as response:
                await _check(response)
                async with aclosing(_events(response)) as events:
                    async for event in events:
                        for item in _items(event):
                            yield item
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise ChatFailed(f"the connection to {self._base_url} broke: {error}") from error


_API_NAMES = {"max_new_tokens": "max_tokens", "min_new_tokens": "min_tokens"}


def _fields(sampling: SamplingParams) -> dict[str, object]:
    """Those parameters that are not at their defaults, under the API's names."""
    default = msgspec.structs.asdict(SamplingParams())
    given = msgspec.structs.asdict(sampling)
    changed = {_API_NAMES.get(name, name): value for name, value in given.items() if value != default[name]}
    if sampling.logit_bias:
        changed["logit_bias"] = {str(token_id): bias for token_id, bias in sampling.logit_bias}
    return changed


async def _events(response: aiohttp.ClientResponse) -> AsyncGenerator[dict[str, object], None]:
    """The server-sent events up to `[DONE]`."""
    pending = b""
    async for piece in response.content.iter_any():
        *lines, pending = (pending + piece).split(b"\n")
        for line in lines:
            data = line.removeprefix(b"data:").strip()
            if not line.startswith(b"data:"):
                continue
            if data == b"[DONE]":
                return
            yield _event(data)
    raise ChatFailed("the server ended the answer in the middle")


def _event(data: bytes) -> dict[str, object]:
    try:
        event: dict[str, object] = json.loads(data)
    except ValueError as error:
        shown = data[:80].decode(errors="replace")
        raise ChatFailed(f"the server sent an event that is no JSON: {shown}") from error
    return event


def _items(event: dict[str, object]) -> list[str | Usage]:
    match event:
        case {"error": error}:
            raise ChatFailed(_message(error))
        case {"choices": [{"delta": {"content": str(text)}}, *_]}:
            return [text]
        case {"usage": {"prompt_tokens": int(prompt), "completion_tokens": int(completion), **rest}}:
            details = rest.get("prompt_tokens_details")
            cached = details.get("cached_tokens") if isinstance(details, dict) else None
            return [Usage(prompt_tokens=prompt, cached_tokens=cached or 0, completion_tokens=completion)]
        case _:
            return []


async def _check(response: aiohttp.ClientResponse) -> None:
    if response.status == 200:
        return
    text = await response.text()
    try:
        message = _message(json.loads(text)["error"])
    except (ValueError, LookupError, TypeError):
        message = text.strip()[:200]
    remedy = " Here: --api-key KEY." if response.status == 401 else ""
    raise ChatFailed(f"the server answered {response.status}: {message}{remedy}")


def _message(error: object) -> str:
    return str(error.get("message")) if isinstance(error, dict) else str(error)
