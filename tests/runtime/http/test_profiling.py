from __future__ import annotations

import aiohttp

from tests.fakes import Server
from wire.messages.to_scheduler import Control, ProfileWish


async def test_a_profile_is_begun_as_wished_and_its_file_is_named(server: Server, http: aiohttp.ClientSession) -> None:
    async with http.post(
        "/start_profile", json={"num_steps": 7, "with_stack": True, "activities": ["CPU"]}
    ) as response:
        assert response.status == 200
        assert (await response.json())["num_steps"] == 7
    asked = server.scheduler.received[-1]
    assert isinstance(asked, Control)
    assert asked.profile == ProfileWish(num_steps=7, with_stack=True)
    async with http.post("/stop_profile") as response:
        assert (await response.json())["path"] == "/profiles/a.json"


async def test_a_profile_needs_no_body_and_can_be_asked_for_by_get(http: aiohttp.ClientSession) -> None:
    async with http.get("/start_profile") as response:
        assert (await response.json())["num_steps"] == 100
    async with http.get("/stop_profile") as response:
        assert response.status == 200


async def test_what_can_not_be_done_now_is_a_400_that_says_why(server: Server, http: aiohttp.ClientSession) -> None:
    server.scheduler.profile_refusal = "no profile is running"
    async with http.post("/stop_profile") as response:
        assert response.status == 400
        assert "no profile is running" in (await response.json())["error"]["message"]


async def test_a_client_can_not_choose_where_the_server_writes(http: aiohttp.ClientSession) -> None:
    async with http.post("/start_profile", json={"output_dir": "/etc"}) as response:
        assert response.status == 400
        assert (await response.json())["error"]["param"] == "output_dir"
