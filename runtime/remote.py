"""Calls of the command line to a running server: JSON out of a path, events out of an answer. Knows no API's fields."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Mapping
from typing import Any
from urllib.parse import urlsplit

import aiohttp

from .connection_failure import connection_failure


class ServerFailed(Exception):
    """The server can't be reached, or has answered with an error; the message says which."""


def base_url_of(url: str) -> str:
    """The address that paths are added to; with the /v1 that OpenAI's clients want behind it, the same.

    Raises:
        ValueError: `url` is none.
    """
    if urlsplit(url).scheme not in ("http", "https"):
        raise ValueError(f"--url must begin with http:// or https://, got {url}")
    return url.rstrip("/").removesuffix("/v1")


def session_with(api_key: str | None) -> aiohttp.ClientSession:
    """Connections that carry the key; whoever opens them closes them."""
    headers = {} if api_key is None else {"Authorization": f"Bearer {api_key}"}
    connector = aiohttp.TCPConnector(limit=0)
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=10)
    return aiohttp.ClientSession(headers=headers, timeout=timeout, connector=connector)


async def get_json(session: aiohttp.ClientSession, url: str) -> Any:  # noqa: ANN401 - JSON of any form
    """What the server tells at `url`.

    Raises:
        ServerFailed: it can't be reached, wants another key, or tells something else than JSON.
    """
    try:
        async with session.get(url) as response:
            await _check(response)
            return json.loads(await response.read())
    except (aiohttp.ClientError, OSError, TimeoutError) as error:
        base = url.removesuffix(urlsplit(url).path)
        reason = connection_failure(error)
        raise ServerFailed(f"can't reach {base}: {reason}. Is it running? Start one with: axil serve") from error
    except ValueError as error:
        raise ServerFailed(f"{url} answered something else than JSON; is it axil?") from error


async def post_events(
    session: aiohttp.ClientSession, url: str, body: Mapping[str, object]
) -> AsyncGenerator[dict[str, object], None]:
    """The server-sent events of an answer, up to `[DONE]`.

    Raises:
        ServerFailed: it has answered with an error, or the connection broke.
    """
    try:
        async with session.post(url, json=body) as response:
            await _check(response)
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
    except (aiohttp.ClientError, OSError, TimeoutError) as error:
        raise ServerFailed(f"the connection to {url} broke: {connection_failure(error)}") from error
    raise ServerFailed("the server ended the answer in the middle")


def message_of(error: object) -> str:
    """The sentence in an error's object."""
    return str(error.get("message")) if isinstance(error, dict) else str(error)


def _event(data: bytes) -> dict[str, object]:
    try:
        event: dict[str, object] = json.loads(data)
    except ValueError as error:
        shown = data[:80].decode(errors="replace")
        raise ServerFailed(f"the server sent an event that is no JSON: {shown}") from error
    return event


async def _check(response: aiohttp.ClientResponse) -> None:
    if response.status == 200:
        return
    text = await response.text()
    try:
        message = message_of(json.loads(text)["error"])
    except (ValueError, LookupError, TypeError):
        message = text.strip()[:200]
    remedy = " Here: --api-key KEY." if response.status == 401 else ""
    raise ServerFailed(f"the server answered {response.status}: {message}{remedy}")
