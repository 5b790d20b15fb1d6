from __future__ import annotations

import asyncio
import json
import socket

import aiohttp
import pytest
from aiohttp import web

from tests.deadline import DEADLINE_S
from tests.fakes import Script, Server, text_ids
from wire.messages.to_scheduler import Cancel

LETTERS = "abcdefghijklmnopqrstuvwxyz"


def _post(path: str, body: dict[str, object], *, version: str = "1.1") -> bytes:
    raw = json.dumps(body).encode()
    head = (
        f"POST {path} HTTP/{version}\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(raw)}\r\n\r\n"
    )
    return head.encode() + raw


def _events(stream: bytes) -> list[bytes]:
    return [event for event in stream.split(b"\n\n") if event]


def _text(events: list[bytes]) -> str:
    bodies = [json.loads(event.removeprefix(b"data: ")) for event in events if b"[DONE]" not in event]
    return "".join(choice["text"] for body in bodies for choice in body["choices"])


async def _chunk(reader: asyncio.StreamReader) -> bytes:
    size = int(await reader.readline(), 16)
    chunk = await reader.readexactly(size)
    assert await reader.readexactly(2) == b"\r\n"
    return chunk


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions", "/generate"])
async def test_each_chunk_on_the_network_is_one_whole_event(server: Server, path: str) -> None:
    server.scheduler.script = lambda _: Script(text_ids("hello"))
    prompt = {"messages": [{"role": "user", "content": "x"}]} if "chat" in path else {"prompt": "x"}
    body: dict[str, object] = {"text": "x"} if path == "/generate" else {**prompt, "max_tokens": 9}
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(_post(path, {**body, "stream": True}))
    assert b" 200 " in await reader.readline()
    while await reader.readline() != b"\r\n":
        pass
    chunks = []
    while chunk := await _chunk(reader):
        chunks.append(chunk)
    writer.close()
    assert chunks[-1] == b"data: [DONE]\n\n"
    assert all(chunk.startswith(b"data: {") and chunk.count(b"\n\n") == 1 for chunk in chunks[:-1])


async def test_http_1_0_gets_the_events_without_chunks_and_the_end_of_the_connection(server: Server) -> None:
    server.scheduler.script = lambda _: Script(text_ids("hello"))
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(_post("/v1/completions", {"prompt": "x", "stream": True}, version="1.0"))
    answer = await asyncio.wait_for(reader.read(), DEADLINE_S)
    writer.close()
    events = _events(answer.partition(b"\r\n\r\n")[2])
    assert events[-1] == b"data: [DONE]"
    assert _text(events) == "hello"


async def test_a_client_that_reads_slowly_gets_everything_in_fewer_events(server: Server) -> None:
    # Each frame repeats all before it: together they are more than both ends' buffers take, so the stream must pause.
    output = text_ids((LETTERS * 40)[:1000])
    server.scheduler.script = lambda _: Script(output)
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.setblocking(False)
        loop = asyncio.get_running_loop()
        await loop.sock_connect(connection, ("127.0.0.1", server.port))
        body = {"text": "x", "sampling_params": {"max_new_tokens": len(output)}, "stream": True, "rid": "slow"}
        await loop.sock_sendall(connection, _post("/generate", body))
        # The scheduler is done before the client has read anything.
        await server.scheduler.answered("slow")
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
        received = b""
        while not received.endswith(b"0\r\n\r\n"):
            received += await asyncio.wait_for(loop.sock_recv(connection, 1 << 20), DEADLINE_S)
    events = _events(_unchunked(received.partition(b"\r\n\r\n")[2]))
    last = json.loads(events[-2].removeprefix(b"data: "))
    assert last["output_ids"] == output
    assert last["meta_info"]["finish_reason"] == {"type": "length", "length": len(output)}
    assert len(events) < len(output)


def _unchunked(body: bytes) -> bytes:
    found = b""
    while body:
        size, _, body = body.partition(b"\r\n")
        found += body[: int(size, 16)]
        body = body[int(size, 16) + 2 :]
    return found


async def test_a_client_that_leaves_in_the_middle_has_its_request_cancelled(
    server: Server, http: aiohttp.ClientSession
) -> None:
    server.scheduler.script = lambda _: Script(text_ids(LETTERS), is_held=True)
    body = {"prompt": "x", "max_tokens": 26, "stream": True, "rid": "leaving"}
    async with http.post("/v1/completions", json=body) as response:
        await response.content.readuntil(b"\n\n")
        response.close()
    await server.scheduler.received_where(lambda message: message == Cancel(request_id="leaving"))
    async with http.get("/requests/leaving") as response:
        row = await response.json()
    assert row["state"] == "cancelled"
    assert row["latency_s"] >= row["first_token_s"] > 0


async def test_answers_that_differ_in_length_are_told_by_their_index(
    server: Server, http: aiohttp.ClientSession
) -> None:
    server.scheduler.script = lambda submit: Script(text_ids("ab" if submit.request_id.endswith("_0") else "wxyz"))
    body = {"prompt": "x", "max_tokens": 9, "stream": True, "n": 2}
    async with http.post("/v1/completions", json=body) as response:
        events = _events(await response.read())
    choices = [json.loads(event.removeprefix(b"data: "))["choices"][0] for event in events[:-1]]
    for i, text in enumerate(("ab", "wxyz")):
        assert "".join(choice["text"] for choice in choices if choice["index"] == i) == text
        assert [choice["finish_reason"] for choice in choices if choice["index"] == i][-1] == "length"


async def test_a_client_that_leaves_as_the_stream_begins_is_counted_and_leaves_no_traceback(
    server: Server, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    server.scheduler.script = lambda _: Script(text_ids("hello"))
    prepare = web.StreamResponse.prepare

    async def into_nothing(self: web.StreamResponse, request: web.Request) -> object:
        if type(self) is web.StreamResponse and request.transport is not None:
            request.transport.close()
            raise ConnectionResetError("Cannot write to closing transport")
        return await prepare(self, request)

    monkeypatch.setattr(web.StreamResponse, "prepare", into_nothing)
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(_post("/generate", {"text": "x", "stream": True}))
    assert await asyncio.wait_for(reader.read(), DEADLINE_S) == b""
    writer.close()
    async with aiohttp.ClientSession(server.url) as http, http.get("/metrics") as response:
        assert 'route="/generate",status="499"} 1.0' in await response.text()
    assert "Traceback" not in caplog.text and "Error handling" not in caplog.text
