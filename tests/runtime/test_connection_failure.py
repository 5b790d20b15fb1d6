"""What people are told when a server can't be reached: no part of aiohttp's or Python's own words."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import aiohttp
import pytest

from runtime.connection_failure import connection_failure

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Coroutine[Any, Any, None]]


async def _failure(serve: Serve | None, *, read_s: float | None = None) -> str:
    """Why a request to a server that does `serve` fails; None: nobody listens."""

    async def unheard(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    server = await asyncio.start_server(serve or unheard, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    if serve is None:
        server.close()
        await server.wait_closed()
    timeout = aiohttp.ClientTimeout(total=None, sock_read=read_s)
    try:
        async with aiohttp.ClientSession(timeout=timeout) as session:
            with pytest.raises((aiohttp.ClientError, OSError)) as caught:
                async with session.get(f"http://127.0.0.1:{port}/") as response:
                    await response.read()
    finally:
        server.close()
    return connection_failure(caught.value)


async def test_nobody_listens() -> None:
    assert await _failure(None) == "connection refused"


async def test_a_server_hangs_up_without_an_answer() -> None:
    async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readline()
        writer.close()

    assert await _failure(hang_up) in ("the server closed the connection", "connection reset by peer")


async def test_an_answer_breaks_off() -> None:
    async def break_off(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf")
        await writer.drain()
        writer.close()

    assert await _failure(break_off) == "the answer broke off"


async def test_no_answer_comes() -> None:
    over = asyncio.Event()

    async def wait(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await over.wait()
        writer.close()

    try:
        assert await _failure(wait, read_s=0.05) == "it did not answer in time"
    finally:
        over.set()


def test_a_name_that_nobody_knows_and_an_address_that_is_none() -> None:
    key = aiohttp.client_reqrep.ConnectionKey("no.such", 80, False, None, None, None, None)
    unknown = aiohttp.ClientConnectorDNSError(key, OSError(-2, "Name or service not known"))
    assert connection_failure(unknown) == "the name no.such is not known"
    assert connection_failure(aiohttp.InvalidURL("http://[")) == "http://[ is no address"
