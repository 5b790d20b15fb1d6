"""Draining: nobody new comes in, those inside have their whole answer, and everybody can see it."""

from __future__ import annotations

import asyncio

import aiohttp
import pytest

from tests.deadline import DEADLINE_S
from tests.fakes import Script, Server
from wire.messages.to_scheduler import Submit


async def _begun(http: aiohttp.ClientSession, *, path: str = "/generate") -> aiohttp.ClientResponse:
    """A stream whose first token has come."""
    response = await http.post(path, json={"text": "x", "stream": True})
    assert response.status == 200
    await response.content.readuntil(b"\n\n")
    return response


async def test_open_streams_finish_and_new_work_is_refused_with_a_time_to_come_back(
    server: Server, http: aiohttp.ClientSession
) -> None:
    server.scheduler.script = lambda _: Script(is_held=True)
    stream = await _begun(http)
    async with http.post("/drain") as response:
        assert response.status == 200
        assert await response.json() == {"status": "draining", "open_requests": 1}
    for path, body in (
        ("/generate", {"text": "x"}),
        ("/v1/completions", {"prompt": "x"}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}]}),
    ):
        async with http.post(path, json=body) as response:
            assert response.status == 503
            assert int(response.headers["Retry-After"]) > 0
            assert response.headers["Connection"] == "close"
            assert "draining" in (await response.json())["error"]["message"]
    server.scheduler.release()
    rest = await asyncio.wait_for(stream.read(), DEADLINE_S)
    assert b"hello world" in rest
    assert b'"error"' not in rest
    assert len([message for message in server.scheduler.received if isinstance(message, Submit)]) == 1
    async with http.get("/drain") as response:
        assert await response.json() == {"status": "draining", "open_requests": 0}


async def test_a_request_that_came_before_the_drain_is_answered_even_if_its_body_came_after(
    server: Server, http: aiohttp.ClientSession
) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    body = b'{"text": "x"}'
    writer.write(
        b"POST /generate HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        b"Connection: close\r\nContent-Length: %d\r\n\r\n" % len(body)
    )
    async with asyncio.timeout(DEADLINE_S):
        while server.front.gate.num_inside == 0:
            await asyncio.sleep(0)
    async with http.post("/drain") as response:
        assert (await response.json())["open_requests"] == 1
    writer.write(body)
    answer = await asyncio.wait_for(reader.read(), DEADLINE_S)
    writer.close()
    assert answer.startswith(b"HTTP/1.1 200")
    assert b"hello world" in answer


async def test_balancers_see_it_and_liveness_does_not(http: aiohttp.ClientSession) -> None:
    async with http.post("/drain"):
        pass
    for path in ("/health", "/ready", "/health_generate"):
        async with http.get(path) as response:
            assert response.status == 503
            assert "draining" in (await response.json())["error"]["message"]
    async with http.get("/live") as response:
        assert response.status == 200
    async with http.get("/server_info") as response:
        info = await response.json()
        assert (info["status"], info["open_requests"]) == ("draining", 0)
    async with http.get("/metrics") as response:
        text = await response.text()
        assert 'axil_draining{model_name="fake"} 1.0' in text
        assert 'axil_http_open_requests{model_name="fake"} 0.0' in text


async def test_what_is_left_can_be_aborted_while_draining(server: Server, http: aiohttp.ClientSession) -> None:
    server.scheduler.script = lambda _: Script(is_held=True)
    stream = await _begun(http)
    async with http.post("/drain"):
        pass
    async with http.post("/abort_request", json={"abort_all": True}) as response:
        assert await response.json() == {"aborted": 1}
    assert b"abort" in await asyncio.wait_for(stream.read(), DEADLINE_S)
    async with http.get("/drain") as response:
        assert (await response.json())["open_requests"] == 0


async def test_a_drain_can_be_taken_back(http: aiohttp.ClientSession) -> None:
    async with http.post("/drain"):
        pass
    async with http.delete("/drain") as response:
        assert await response.json() == {"status": "serving", "open_requests": 0}
    async with http.get("/health") as response:
        assert response.status == 200
    async with http.post("/generate", json={"text": "x"}) as response:
        assert response.status == 200


async def test_a_stop_cannot_be_taken_back(server: Server, http: aiohttp.ClientSession) -> None:
    server.front.gate.close()
    async with http.delete("/drain") as response:
        assert response.status == 503
    async with http.post("/drain") as response:
        assert (await response.json())["status"] == "stopping"


@pytest.mark.parametrize("path", ["/generate", "/v1/completions"])
async def test_failed_requests_are_no_longer_counted_as_open(
    server: Server, http: aiohttp.ClientSession, path: str
) -> None:
    async with http.post(path, json={"text": 5, "prompt": 5}) as response:
        assert response.status == 400
    assert server.front.gate.num_inside == 0
