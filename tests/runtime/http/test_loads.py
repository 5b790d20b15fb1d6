from __future__ import annotations

import aiohttp
import pytest

from tests.fakes import Server
from wire.messages.to_tokenizer import Stats

STATS = Stats(
    device="NVIDIA H200",
    context_tokens=4096,
    vocabulary=259,
    num_pages=100,
    page_tokens=16,
    free_pages=40,
    cached_pages=50,
    evictable_pages=30,
    num_running=3,
    num_waiting=2,
    pending_tokens=700,
    max_running=6,
    prompt_tokens_total=100,
    cached_tokens_total=40,
)


@pytest.fixture
async def busy(server: Server) -> Server:
    server.scheduler.stats = STATS
    await server.client.control("stats")
    return server


async def test_a_router_of_the_older_protocol_reads_a_list(busy: Server, http: aiohttp.ClientSession) -> None:
    async with http.get("/get_load") as response:
        assert response.status == 200
        assert await response.json() == [{"dp_rank": 0, "num_reqs": 5, "num_waiting_reqs": 2, "num_tokens": 480}]


async def test_a_load_says_how_full_pool_and_rows_are(busy: Server, http: aiohttp.ClientSession) -> None:
    async with http.get("/v1/loads") as response:
        body = await response.json()
    assert body["accelerator"] == "NVIDIA H200"
    (load,) = body["loads"]
    assert load["num_used_tokens"] == 480
    assert load["num_waiting_uncached_tokens"] == 700
    assert load["max_total_num_tokens"] == 1600
    assert load["token_usage"] == pytest.approx(0.3)
    assert load["cache_hit_rate"] == pytest.approx(0.4)
    assert load["utilization"] == pytest.approx(0.5)
    assert load["gen_throughput"] >= 0
    assert load["memory"]["evictable_tokens"] == 480
    assert load["queues"]["waiting"] == 2


async def test_a_load_can_be_asked_for_in_part_and_for_prometheus(busy: Server, http: aiohttp.ClientSession) -> None:
    async with http.get("/v1/loads", params={"include": "core", "dp_rank": "0"}) as response:
        (load,) = (await response.json())["loads"]
    assert not load.keys() & {"memory", "queues"}
    async with http.get("/v1/loads", params={"format": "prometheus"}) as response:
        assert "axil_running_requests" in await response.text()


@pytest.mark.parametrize(("name", "value"), [("dp_rank", "1"), ("dp_rank", "x"), ("include", "?"), ("format", "xml")])
async def test_a_wrong_question_is_a_400_that_names_it(
    busy: Server, http: aiohttp.ClientSession, name: str, value: str
) -> None:
    async with http.get("/v1/loads", params={name: value}) as response:
        assert response.status == 400
        error = (await response.json())["error"]
    assert error["param"] == name
    assert value in error["message"]
