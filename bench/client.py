"""Asks an OpenAI-compatible server and times what streams back. Knows no shapes of load."""

from __future__ import annotations

import ipaddress
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from itertools import pairwise
from urllib.parse import urlsplit

import aiohttp
import orjson

from bench.command import CannotMeasure
from bench.summary import Answer, Failure

LINE_BYTES = 1 << 20
DETAIL_CHARACTERS = 300


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

    def __init__(self, session: aiohttp.ClientSession, *, url: str, model: str) -> None:
        self._session = session
        self._url = url.rstrip("/")
        self._model = model

    async def complete(
        self, prompt: str, *, max_tokens: int, timeout_s: float, on_text: Callable[[], object] = _ignore
    ) -> Answer | Failure:
        """Stream `/v1/completions` to its end; `on_text` is called at every piece of text."""
        body = {"prompt": prompt}
        return await self._stream("/v1/completions", body, max_tokens=max_tokens, timeout_s=timeout_s, on_text=on_text)

    async def chat(self, messages: Sequence[dict[str, str]], *, max_tokens: int, timeout_s: float) -> Answer | Failure:
        """Stream `/v1/chat/completions` to its end."""
        body = {"messages": list(messages)}
        return await self._stream(
            "/v1/chat/completions", body, max_tokens=max_tokens, timeout_s=timeout_s, on_text=_ignore
        )

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
            raise CannotMeasure(f"{path} did not answer: {_brief(str(error))}") from error

    async def _stream(
        self, path: str, body: Mapping[str, object], *, max_tokens: int, timeout_s: float, on_text: Callable[[], object]
    ) -> Answer | Failure:
        wanted = {
            "model": self._model,
            "max_tokens": max_tokens,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if timeout_s <= 0:
            return Failure("time limit", "the time of the whole run was over before this request")
        started_s = time.perf_counter()
        try:
            async with self._session.post(
                self._url + path, json={**body, **wanted}, timeout=aiohttp.ClientTimeout(total=timeout_s)
            ) as response:
                if response.status != 200:
                    return Failure(f"HTTP {response.status}", _brief(await response.text()))
                return await _read(response.content, started_s, on_text)
        except TimeoutError:
            return Failure("timeout", f"no complete answer within {timeout_s:.0f} s")
        except aiohttp.ClientError as error:
            return Failure(type(error).__name__, _brief(str(error)))
        except ValueError as error:
            return Failure("malformed stream", _brief(str(error)))


@asynccontextmanager
async def connected(url: str, model: str | None) -> AsyncIterator[Client]:
    """A client of `url`, for the first model it names where `model` is None.

    Raises:
        CannotMeasure: there is no OpenAI-compatible server there.
    """
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(
        connector=connector, json_serialize=lambda body: orjson.dumps(body).decode(), read_bufsize=LINE_BYTES
    ) as session:
        yield Client(session, url=url, model=model or await _first_model(session, url))


async def _first_model(session: aiohttp.ClientSession, url: str) -> str:
    address = url.rstrip("/") + "/v1/models"
    try:
        async with session.get(address, timeout=aiohttp.ClientTimeout(total=10)) as response:
            body = orjson.loads(await response.read())
            return str(body["data"][0]["id"])
    except (aiohttp.ClientError, TimeoutError) as error:
        raise CannotMeasure(f"{address} does not answer ({error}): start a server there, or use --launch") from error
    except (ValueError, KeyError, IndexError, TypeError) as error:
        raise CannotMeasure(f"{address} names no model: give one with --model") from error


async def _read(content: aiohttp.StreamReader, started_s: float, on_text: Callable[[], object]) -> Answer | Failure:
    pieces: list[str] = []
    times_s: list[float] = []
    usage: dict[str, object] | None = None
    async for line in content:
        if not line.startswith(b"data:"):
            continue
        data = line.removeprefix(b"data:").strip()
        if data == b"[DONE]":
            return _answer(pieces, times_s, usage, started_s)
        chunk = orjson.loads(data)
        if not isinstance(chunk, dict):
            raise ValueError(f"a chunk is no object: {_brief(data.decode())}")
        if chunk.get("error"):
            return Failure("error in stream", _brief(orjson.dumps(chunk["error"]).decode()))
        usage = chunk.get("usage") or usage
        piece = _text(chunk)
        if piece:
            pieces.append(piece)
            times_s.append(time.perf_counter())
            on_text()
    return Failure("stream cut short", f"the stream ended without [DONE] after {len(pieces)} pieces of text")


def _answer(
    pieces: list[str], times_s: list[float], usage: dict[str, object] | None, started_s: float
) -> Answer | Failure:
    if usage is None:
        return Failure("no usage", "the stream had no usage although stream_options.include_usage asked for it")
    details = usage.get("prompt_tokens_details")
    cached = details.get("cached_tokens") if isinstance(details, dict) else None
    return Answer(
        text="".join(pieces),
        ttft_s=times_s[0] - started_s if times_s else None,
        gaps_s=tuple(later - earlier for earlier, later in pairwise(times_s)),
        prompt_tokens=_count(usage, "prompt_tokens"),
        completion_tokens=_count(usage, "completion_tokens"),
        cached_tokens=cached if isinstance(cached, int) else None,
    )


def _count(usage: dict[str, object], name: str) -> int:
    value = usage.get(name)
    if not isinstance(value, int):
        raise ValueError(f"usage.{name} must be a number, got {value}")
    return value


def _text(chunk: dict[str, object]) -> str:
    choices = chunk.get("choices")
    if not isinstance(choices, list) or not choices or not isinstance(choices[0], dict):
        return ""
    delta = choices[0].get("delta")
    return choices[0].get("text") or (delta.get("content") if isinstance(delta, dict) else None) or ""


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
