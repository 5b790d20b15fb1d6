"""Parts that stand still for a moment, and wishes that cross each other."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal

import aiohttp
import pytest

from tests.e2e.server import Server

pytestmark = pytest.mark.e2e

DEADLINE_S = 120


def body(prompt: list[int], *, max_new_tokens: int = 20, **fields: object) -> dict[str, object]:
    sampling = {"temperature": 0, "max_new_tokens": max_new_tokens, "ignore_eos": True}
    return {"input_ids": prompt, "sampling_params": sampling, **fields}


def client(server: Server) -> aiohttp.ClientSession:
    return aiohttp.ClientSession(
        f"http://127.0.0.1:{server.port}",
        connector=aiohttp.TCPConnector(limit=0),
        timeout=aiohttp.ClientTimeout(total=DEADLINE_S),
    )


async def whole(http: aiohttp.ClientSession, prompt: list[int]) -> list[int]:
    async with http.post("/generate", json=body(prompt)) as reply:
        assert reply.status == 200, await reply.text()
        ids: list[int] = (await reply.json())["output_ids"]
        return ids


@pytest.mark.parametrize("part", ["scheduler", "model_runner", "runtime"])
async def test_a_part_that_stands_still_for_a_moment_loses_no_request(tiny_server: Server, part: str) -> None:
    chance = random.Random(part)
    prompts = [chance.choices(range(256), k=20) for _ in range(4)]
    async with asyncio.timeout(DEADLINE_S), client(tiny_server) as http:
        wanted = [await whole(http, prompt) for prompt in prompts]
        async with http.post("/generate", json=body(prompts[0], max_new_tokens=120, stream=True)) as stream:
            await stream.content.readline()
            os.kill(tiny_server.parts[part], signal.SIGSTOP)
            try:
                waiting = [asyncio.create_task(whole(http, prompt)) for prompt in prompts]
                if part != "runtime":
                    async with http.get("/health") as reply:  # the front goes on
                        assert reply.status == 200
            finally:
                os.kill(tiny_server.parts[part], signal.SIGCONT)
            assert await asyncio.gather(*waiting) == wanted
            lines = [line async for line in stream.content if line != b"\n"]
        assert lines[-1] == b"data: [DONE]\n"
        assert len(json.loads(lines[-2].removeprefix(b"data: "))["output_ids"]) == 120
    await asyncio.to_thread(tiny_server.assert_idle_and_whole)


async def test_a_cancel_an_abort_and_a_flush_at_once_end_a_request_once(tiny_server: Server) -> None:
    chance = random.Random(9)
    async with asyncio.timeout(DEADLINE_S), client(tiny_server) as http:

        async def raced(i: int) -> None:
            rid = f"raced-{i}"
            answer = await http.post("/generate", json=body([i] * 40, max_new_tokens=200, stream=True, rid=rid))
            await answer.content.readline()
            abort = http.post("/abort_request", json={"rid": rid})
            flush = http.post("/flush_cache")
            wishes = [asyncio.ensure_future(wish) for wish in chance.sample([abort, flush], 2)]
            if chance.random() < 0.5:
                answer.close()
            else:
                lines = [line async for line in answer.content if line != b"\n"]
                assert lines.count(b"data: [DONE]\n") == 1
            for reply in await asyncio.gather(*wishes):
                assert reply.status == 200
                reply.release()
            again = await http.post("/generate", json=body([i] * 40, max_new_tokens=2, rid=rid))
            while again.status == 400:  # the server has not seen yet that the client went away
                assert (await again.json())["error"]["code"] == "duplicate_request_id"
                again = await http.post("/generate", json=body([i] * 40, max_new_tokens=2, rid=rid))
            assert len((await again.json())["output_ids"]) == 2

        await asyncio.gather(*map(raced, range(24)))
        async with http.post("/abort_request", json={"abort_all": True}) as reply:
            assert (await reply.json())["aborted"] == 0
    await asyncio.to_thread(tiny_server.assert_idle_and_whole)
