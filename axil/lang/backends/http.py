"""Requests to a server on the programs' loop: kept connections, server-sent events, patience with a full server.

Knows no API: paths and bodies are given to it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from types import TracebackType
from typing import Any, Self

import aiohttp
import orjson

from axil.lang.home import Home
from axil.lang.turns import Turns
from runtime.connection_failure import connection_failure
from wire.errors import AxilError, Overloaded, Refused, Unavailable

DEFAULT_TIMEOUT_S = 600.0
DEFAULT_RETRY_S = 60.0

_RETRIED = (429, 503)
_FIRST_WAIT_S = 0.25
_LONGEST_WAIT_S = 8.0
_LONGEST_LINE_BYTES = 2**24


class Connection:
    """One server. A full or starting server (429, 503) is asked again for up to `retry_seconds`; nothing else is."""

    def __init__(self, url: str, *, api_key: str | None, timeout_s: float, retry_s: float) -> None:
        self.url = url.rstrip("/")
        self._headers = {"Content-Type": "application/json"}
        if api_key is not None:
            self._headers["Authorization"] = f"Bearer {api_key}"
        self._timeout_s = timeout_s
        self._retry_s = retry_s
        self._session: aiohttp.ClientSession | None = None

    async def post(self, path: str, body: dict[str, Any]) -> Any:  # noqa: ANN401 - JSON
        """Send a body and give the answer's.

        Raises:
            AxilError: the server refused, failed or could not be reached.
        """
        try:
            async with await self._answered(path, body) as response:
                return self._json(path, await response.read())
        except (aiohttp.ClientError, TimeoutError) as failure:
            raise self._broken(path, failure) from failure

    async def events(self, path: str, body: dict[str, Any]) -> AsyncIterator[Any]:
        """Send a body and give each event of the answer.

        Raises:
            AxilError: as `post`, and when the stream holds an error or ends before it is done.
        """
        is_done = False
        try:
            async with await self._answered(path, body) as response:
                async for line in response.content:
                    data = line.removeprefix(b"data:").strip()
                    is_done = is_done or data == b"[DONE]"
                    if not line.startswith(b"data:") or is_done:
                        continue
                    event = self._json(path, data)
                    if isinstance(event, dict) and event.get("error"):
                        raise AxilError(f"{self.url}{path}: {_message(data)}")
                    yield event
        except (aiohttp.ClientError, TimeoutError) as failure:
            raise self._broken(path, failure) from failure
        if not is_done:
            raise Unavailable(f"{self.url}{path} broke off: the answer ended before it was done. Ask again.")

    async def aclose(self) -> None:
        """Close the connections."""
        if self._session is not None:
            session, self._session = self._session, None
            await session.close()

    async def _answered(self, path: str, body: dict[str, Any]) -> aiohttp.ClientResponse:
        """The response, which the caller closes, once the server takes the request.

        Raises:
            AxilError: the server refused, or was full for too long.
        """
        deadline_s = time.monotonic() + self._retry_s
        wait_s = _FIRST_WAIT_S
        while True:
            response = await self._opened().post(self.url + path, data=orjson.dumps(body))
            if response.status < 400:
                return response
            async with response:
                error = _error(f"{self.url}{path}", response.status, await response.read())
            pause_s = max(wait_s, _seconds(response.headers.get("Retry-After")))
            if response.status not in _RETRIED or time.monotonic() + pause_s > deadline_s:
                raise error
            await asyncio.sleep(pause_s)
            wait_s = min(2 * wait_s, _LONGEST_WAIT_S)

    def _json(self, path: str, body: bytes) -> Any:  # noqa: ANN401 - JSON
        try:
            return orjson.loads(body)
        except orjson.JSONDecodeError as error:
            begins = ascii(body[:80].decode(errors="replace"))
            raise AxilError(f"{self.url}{path} answered no JSON, but {begins}. Is it the server's address?") from error

    def _broken(self, path: str, failure: Exception) -> AxilError:
        if isinstance(failure, TimeoutError):  # first: aiohttp's are among its other errors too
            return Unavailable(f"{self.url}{path} gave nothing for {self._timeout_s:g} s. Raise timeout_seconds.")
        return Unavailable(f"{self.url} can't be reached, or broke off: {connection_failure(failure)}")

    def _opened(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                headers=self._headers,
                connector=aiohttp.TCPConnector(limit=0),
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=self._timeout_s, sock_read=self._timeout_s),
                read_bufsize=_LONGEST_LINE_BYTES,
            )
        return self._session


class Remote:
    """What every backend with a server has: an event loop, turns and a connection, which are closed together.

    That happens too when nobody holds it any more, and at the interpreter's exit.
    """

    def __init__(self, connection: Connection, *, max_open: int) -> None:
        self.home = Home(at_end=connection.aclose)
        self.turns = Turns(max_open)
        self._connection = connection

    def close(self) -> None:
        """Close the connections and stop the thread on which calls are made."""
        self.home.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _error(where: str, status: int, body: bytes) -> AxilError:
    message = f"{where}: {_message(body)} (HTTP {status})"
    match status:
        case 429:
            return Overloaded(message)
        case 503:
            return Unavailable(message)
        case _ if status < 500:
            return Refused(message)
        case _:
            return AxilError(message)


def _message(body: bytes) -> str:
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError:
        return body[:500].decode(errors="replace")
    while isinstance(value, dict):
        inner = value.get("error") or value.get("message")
        if inner is None:
            break
        value = inner
    return str(value)[:2000]


def _seconds(header: str | None) -> float:
    return float(header) if header is not None and header.isdigit() else 0.0
