"""`/pause_generation` and `/continue_generation`, and what other routes say meanwhile."""

from __future__ import annotations

import aiohttp
import msgspec

from tests.fakes import Server
from wire.messages.to_scheduler import Control


def _wishes(server: Server) -> list[str]:
    return [message.action for message in server.scheduler.received if isinstance(message, Control)]


async def test_a_pause_aborts_what_is_open_unless_it_shall_wait(server: Server, http: aiohttp.ClientSession) -> None:
    num_before = len(_wishes(server))
    async with http.post("/pause_generation") as response:
        assert response.status == 200
        assert (await response.json())["mode"] == "abort"
    assert _wishes(server)[num_before:] == ["pause", "abort"], "nothing may begin between the two"
    async with http.post("/pause_generation", json={"mode": "in_place"}) as response:
        assert (await response.json())["aborted"] == 0
    async with http.post("/continue_generation", json={"torch_empty_cache": True}) as response:
        assert (await response.json())["status"] == "ok"
    assert _wishes(server)[num_before + 2 :] == ["pause", "continue"]


async def test_a_mode_that_there_is_not_is_refused(server: Server, http: aiohttp.ClientSession) -> None:
    async with http.post("/pause_generation", json={"mode": "retract"}) as response:
        assert response.status == 400
        assert "mode must be one of abort, in_place" in (await response.json())["error"]["message"]
    assert "pause" not in _wishes(server)


async def test_a_paused_server_is_well_and_says_that_it_is_paused(server: Server, http: aiohttp.ClientSession) -> None:
    server.scheduler.stats = msgspec.structs.replace(server.scheduler.stats, is_paused=True)
    await server.client.control("stats")
    async with http.get("/health") as response:
        assert (response.status, await response.json()) == (200, {"status": "paused"})
    async with http.get("/health_generate") as response:
        assert response.status == 503
        assert "/continue_generation" in (await response.json())["error"]["message"]
