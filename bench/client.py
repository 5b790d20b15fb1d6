"""Asks a server and times what streams back. Knows no shapes of load.

A URL that ends in `/generate` is asked by that route (axil, SGLang), any other by OpenAI's.
"""

from __future__ import annotations

import ipaddress
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

import aiohttp
import orjson

from bench.command import CannotMeasure
from bench.stream import AnswerReader, GenerateReader, OpenAIReader
from bench.summary import Answer, Failure
from runtime.connection_failure import connection_failure

GENERATE = "/generate"
LINE_BYTES = 1 << 20
DETAIL_CHARACTERS = 300

Prompt = str | tuple[int, ...]
"""A text, or token ids."""


def require_loopback(url: str, *, is_remote_allowed: bool) -> None:
    """Check that load goes to this machine unless asked otherwise.

    Raises:
        CannotMeasure: the URL names another host, or is none.
    """
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise CannotMeasure(f"--url must look like http://127.0.0.1:30000, got {url}")
    if not is_remote_allowed and not _is_loopback(parts.hostname):
        raise CannotMeasure(f"--url names {parts.hostname}, which is not this machine; add --allow-remote to load it")


def _ignore() -> None:
    """Hear of a piece of text and do nothing."""


class Client:
    """One server, one model. Fixed output lengths are asked for with `ignore_eos`, at temperature 0."""

    def __init__(self, session: aiohttp.ClientSession, again: aiohttp.ClientSession, *, url: str, model: str) -> None:
        """`again` is for requests whose kept connection was closed: it keeps none."""
        self._session = session
        self._again = again
        self.is_generate = url.endswith(GENERATE)
        self._url = url.removesuffix(GENERATE).rstrip("/")
        self.model = model

    async def complete(
        self,
        prompt: Prompt,
        *,
        max_tokens: int,
        timeout_s: float,
        json_schema: str | None = None,
        on_text: Callable[[], object] = _ignore,
    ) -> Answer | Failure:
        """Stream a completion to its end; `on_text` is called at every piece of text.

        With `json_schema` the server is asked for JSON of that form, which may end before `max_tokens`.
        """
        reader: AnswerReader
        if self.is_generate:
            path, reader = GENERATE, GenerateReader(time.perf_counter())
            sampling: dict[str, object] = {"max_new_tokens": max_tokens, "temperature": 0, "ignore_eos": True}
            if json_schema is not None:
                sampling |= {"json_schema": json_schema, "ignore_eos": False}
            key = "text" if isinstance(prompt, str) else "input_ids"
            body: dict[str, object] = {key: prompt, "sampling_params": sampling, "stream": True}
        else:
            path, reader = "/v1/completions", OpenAIReader(time.perf_counter())
            body = {"prompt": prompt, **self._wanted(max_tokens)}
            if json_schema is not None:
                form = {"name": "answer", "schema": orjson.loads(json_schema)}
                body |= {"response_format": {"type": "json_schema", "json_schema": form}, "ignore_eos": False}
            if not isinstance(prompt, str):
                body["return_token_ids"] = True
        return await self._stream(path, body, reader, timeout_s=timeout_s, on_text=on_text)

    async def chat(self, messages: Sequence[dict[str, str]], *, max_tokens: int, timeout_s: float) -> Answer | Failure:
        """Stream `/v1/chat/completions` to its end."""
        body = {"messages": list(messages), **self._wanted(max_tokens)}
        reader = OpenAIReader(time.perf_counter())
        return await self._stream("/v1/chat/completions", body, reader, timeout_s=timeout_s, on_text=_ignore)

    async def flush(self) -> bool:
        """Empty the server's prefix cache; False when it has no route for that.

        Raises:
            CannotMeasure: it has one, and refuses or does not answer.
        """
        status, text = await self._fetch("POST", "/flush_cache")
        if status in (404, 405):
            return False
        if status != 200:
            raise CannotMeasure(f"/flush_cache answered {status}: {_brief(text)}")
        return True

    async def metrics(self) -> str:
        """The text of `/metrics`.

        Raises:
            CannotMeasure: the server has no metrics.
        """
        status, text = await self._fetch("GET", "/metrics")
        if status != 200:
            raise CannotMeasure(f"/metrics answered {status}; this measurement needs the server's metrics")
        return text

    async def _fetch(self, method: str, path: str) -> tuple[int, str]:
        try:
            async with self._session.request(method, self._url + path) as response:
                return response.status, await response.text()
        except (aiohttp.ClientError, TimeoutError) as error:
            raise CannotMeasure(f"{path} did not answer: {_brief(connection_failure(error))}") from error

    def _wanted(self, max_tokens: int) -> dict[str, object]:
        return {
            "model": self.model,
            "max_tokens": max_tokens,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }

    async def _stream(
        self,
        path: str,
        body: Mapping[str, object],
        reader: AnswerReader,
        *,
        timeout_s: float,
        on_text: Callable[[], object],
    ) -> Answer | Failure:
        if timeout_s <= 0:
            return Failure("time limit", "the time of the whole run was over before this request")
        try:
            async with await self._post(path, body, aiohttp.ClientTimeout(total=timeout_s)) as response:
                if response.status != 200:
                    return Failure(f"HTTP {response.status}", _brief(await response.text()))
                return await _read(response.content, reader, on_text)
        except TimeoutError:
            return Failure("timeout", f"no complete answer within {timeout_s:.0f} s")
        except aiohttp.ClientError as error:
            return Failure(type(error).__name__, _brief(connection_failure(error)))
        except ValueError as error:
            return Failure("malformed stream", _brief(str(error)))

    async def _post(
        self, path: str, body: Mapping[str, object], timeout: aiohttp.ClientTimeout
    ) -> aiohttp.ClientResponse:
        """Send a request, once more on a new connection where the server closes that which it came on unanswered.

        Some close those that they kept open (llama.cpp's does after a stream), just as the next request comes.
        """
        try:
            return await self._session.post(self._url + path, json=body, timeout=timeout)
        except aiohttp.ClientConnectorError:
            raise
        except (aiohttp.ClientOSError, aiohttp.ServerDisconnectedError):
            return await self._again.post(self._url + path, json=body, timeout=timeout)


@asynccontextmanager
async def connected(url: str, model: str | None) -> AsyncIterator[Client]:
    """A client of `url`, for the first model it names where `model` is None.

    Raises:
        CannotMeasure: there is no OpenAI-compatible server there.
    """
    async with _session(is_kept=True) as session, _session(is_kept=False) as again:
        yield Client(session, again, url=url, model=model or await _first_model(session, url))


def _session(*, is_kept: bool) -> aiohttp.ClientSession:
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, force_close=not is_kept),
        json_serialize=lambda body: orjson.dumps(body).decode(),
        read_bufsize=LINE_BYTES,
    )


async def _first_model(session: aiohttp.ClientSession, url: str) -> str:
    """The first model that the server names; a server without that route has one, and takes any name for it."""
    address = url.removesuffix(GENERATE).rstrip("/") + "/v1/models"
    try:
        async with session.get(address, timeout=aiohttp.ClientTimeout(total=10)) as response:
            if response.status in (404, 405):
                return "default"
            body = orjson.loads(await response.read())
            return str(body["data"][0]["id"])
    except (aiohttp.ClientError, TimeoutError) as error:
        reason = connection_failure(error)
        raise CannotMeasure(f"{address} does not answer ({reason}): start a server there, or use --launch") from error
    except (ValueError, KeyError, IndexError, TypeError) as error:
        raise CannotMeasure(f"{address} names no model: give one with --model") from error


async def _read(content: aiohttp.StreamReader, reader: AnswerReader, on_text: Callable[[], object]) -> Answer | Failure:
    num_pieces = 0
    async for line in content:
        if not line.startswith(b"data:"):
            continue
        data = line.removeprefix(b"data:").strip()
        if data == b"[DONE]":
            return reader.end()
        chunk = orjson.loads(data)
        if not isinstance(chunk, dict):
            raise ValueError(f"a chunk is no object: {_brief(data.decode())}")
        if chunk.get("error"):
            return Failure("error in stream", _brief(orjson.dumps(chunk["error"]).decode()))
        if reader.add(chunk):
            num_pieces += 1
            on_text()
    return Failure("stream cut short", f"the stream ended without [DONE] after {num_pieces} pieces of text")


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _brief(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= DETAIL_CHARACTERS else line[:DETAIL_CHARACTERS] + "…"
