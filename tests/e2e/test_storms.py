"""Crowds of clients that cancel, stall, retry and share prefixes: every answer is right, every request ends once."""

from __future__ import annotations

import asyncio
import json
import random
import uuid
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import aiohttp
import pytest

from tests.e2e.server import Server
from tests.fakes import VOCABULARY

pytestmark = pytest.mark.e2e

DEADLINE_S = 150
NEAR_TIE = 1e-4
"""Two logits may change places in another batch when they are nearer than rounding; float32 rounds at about 1e-6."""


@dataclass(frozen=True, slots=True)
class Ask:
    prompt: tuple[int, ...]
    max_new_tokens: int

    def body(self, *, stream: bool, rid: str | None = None) -> dict[str, object]:
        sampling = {"temperature": 0, "max_new_tokens": self.max_new_tokens, "ignore_eos": True}
        return {"input_ids": self.prompt, "sampling_params": sampling, "stream": stream, "rid": rid}


def golden(server: Server, asks: Iterable[Ask]) -> dict[Ask, list[int]]:
    """The answers that requests get alone, on an empty cache; those that hang on rounding are left out."""
    answers: dict[Ask, list[int]] = {}
    asks = list(dict.fromkeys(asks))
    for ask in asks:
        server.post("/flush_cache", {})
        wish = {**ask.body(stream=False), "return_logprob": True, "logprob_start_len": -1, "top_logprobs_num": 2}
        reply = server.post("/generate", wish).json
        if all(first - second > NEAR_TIE for (first, *_), (second, *_) in reply["meta_info"]["output_top_logprobs"]):
            answers[ask] = reply["output_ids"]
    assert len(answers) > len(asks) * 3 / 4
    return answers


@dataclass(slots=True)
class Crowd:
    """Clients of one server, and how their requests ended."""

    server: Server
    http: aiohttp.ClientSession
    random: random.Random
    ends: Counter[str] = field(default_factory=Counter)

    async def whole(self, ask: Ask) -> list[int]:
        async with self.http.post("/generate", json=ask.body(stream=False)) as reply:
            assert reply.status == 200, await reply.text()
            self.ends["200"] += 1
            ids: list[int] = (await reply.json())["output_ids"]
            return ids

    async def streamed(
        self, ask: Ask, *, rid: str | None = None, wait: asyncio.Event | None = None
    ) -> list[int] | None:
        """The answer, read to its end (after `wait`, by a client that stalls till then); None when it was aborted."""
        async with self.http.post("/generate", json=ask.body(stream=True, rid=rid), read_bufsize=2048) as reply:
            assert reply.status == 200, await reply.text()
            self.ends["200"] += 1
            if wait is not None:
                await wait.wait()
            events = [line.removeprefix(b"data: ") async for line in reply.content if line != b"\n"]
        assert events[-1] == b"[DONE]\n"
        assert events.count(b"[DONE]\n") == 1
        last = [json.loads(event) for event in events[:-1]]
        reasons = [event["meta_info"]["finish_reason"] for event in last]
        assert all(reason is None for reason in reasons[:-1]), "an answer went on behind its end"
        assert reasons[-1] is not None
        return None if reasons[-1]["type"] == "abort" else last[-1]["output_ids"]

    async def left(self, ask: Ask, after_s: float) -> list[int] | None:
        """As `streamed`, by a client that goes away after a time, if the answer has not come by then."""
        try:
            async with asyncio.timeout(after_s):
                return await self.streamed(ask)
        except TimeoutError:
            self.ends["left"] += 1
            return None

    async def aborted(self, ask: Ask, after_s: float) -> list[int] | None:
        """As `streamed`, with somebody who aborts the request after a time."""
        rid = uuid.UUID(int=self.random.getrandbits(128)).hex
        answer = asyncio.create_task(self.streamed(ask, rid=rid))
        await asyncio.wait({answer}, timeout=after_s)
        async with self.http.post("/abort_request", json={"rid": rid}) as reply:
            assert reply.status == 200
        return await answer

    async def persistent(self, ask: Ask) -> list[int]:
        """Cancels a few times in different ways, and asks again till the whole answer is there."""
        for _ in range(self.random.randrange(5)):
            cancel = self.random.choice((self.left, self.aborted))
            ids = await cancel(ask, self.random.uniform(0, 0.08))
            if ids is not None:
                return ids
        return await self.whole(ask)


async def in_crowd(
    server: Server, work: Callable[[Crowd], asyncio.Future[None] | object], *, seed: int
) -> Counter[str]:
    base = f"http://127.0.0.1:{server.port}"
    async with (
        asyncio.timeout(DEADLINE_S),
        aiohttp.ClientSession(base, connector=aiohttp.TCPConnector(limit=0), timeout=NO_LIMIT) as http,
    ):
        crowd = Crowd(server, http, random.Random(seed))
        await work(crowd)  # type: ignore[misc]
        return crowd.ends


NO_LIMIT = aiohttp.ClientTimeout(total=None)


def family(chance: random.Random, *, num: int, shared: int, own: int, max_new_tokens: int) -> list[Ask]:
    """Prompts with a common beginning, some of which part from it or from each other in the middle of a page."""
    trunk = chance.choices(range(VOCABULARY - 3), k=shared)
    asks = []
    for _ in range(num):
        kept = chance.choice((shared, shared, shared - chance.randrange(1, 20)))
        tail = chance.choices(range(VOCABULARY - 3), k=chance.randrange(1, own))
        asks.append(Ask((*trunk[:kept], *tail), chance.randrange(1, max_new_tokens)))
    return asks


async def test_a_storm_of_cancels_and_retries_on_shared_prefixes_leaves_every_answer_right(tiny_server: Server) -> None:
    chance = random.Random(16)
    asks = [ask for _ in range(4) for ask in family(chance, num=10, shared=120, own=60, max_new_tokens=24)]
    wanted = golden(tiny_server, asks)

    async def storm(crowd: Crowd) -> None:
        async def one(ask: Ask) -> None:
            assert await crowd.persistent(ask) == wanted[ask]

        async def flushes(stop: asyncio.Event) -> None:
            while not stop.is_set():
                async with crowd.http.post("/flush_cache") as reply:
                    assert reply.status == 200
                await crowd.left(crowd.random.choice([*wanted]), 0.2)

        stop = asyncio.Event()
        flushing = asyncio.create_task(flushes(stop))
        for _ in range(3):
            await asyncio.gather(*(one(ask) for ask in crowd.random.sample([*wanted], len(wanted))))
        stop.set()
        await flushing

    ends = await in_crowd(tiny_server, storm, seed=1)
    assert ends["left"] > 20, "the storm was none"
    await asyncio.to_thread(tiny_server.assert_idle_and_whole)


async def test_a_thousand_requests_of_two_hundred_clients_end_once_each_and_memory_returns(tiny_server: Server) -> None:
    chance = random.Random(1000)
    wanted = golden(tiny_server, family(chance, num=40, shared=70, own=40, max_new_tokens=12))
    asks = [*wanted]
    long = Ask(tuple(chance.choices(range(256), k=20)), 200)
    wanted |= golden(tiny_server, [long])

    async def thousand(crowd: Crowd) -> None:
        places = asyncio.Semaphore(200)
        release = asyncio.Event()

        async def one(kind: int, ask: Ask) -> None:
            async with places:
                if kind < 4:
                    ids = await crowd.whole(ask)
                elif kind < 7:
                    ids = await crowd.streamed(ask)
                elif kind == 7:
                    ids = await crowd.left(ask, crowd.random.uniform(0, 0.1))
                else:
                    ids = await crowd.aborted(ask, crowd.random.uniform(0, 0.1))
            assert ids is None or ids == wanted[ask]
            assert ids is not None or kind >= 7

        slow = [asyncio.create_task(crowd.streamed(long, wait=release)) for _ in range(12)]
        await asyncio.gather(*(one(i % 9, crowd.random.choice(asks)) for i in range(1000 - len(slow))))
        release.set()
        assert await asyncio.gather(*slow) == [wanted[long]] * len(slow)

    before = await asyncio.to_thread(tiny_server.figures)
    ends = await in_crowd(tiny_server, thousand, seed=2)
    await asyncio.to_thread(tiny_server.assert_idle_and_whole)
    after = await asyncio.to_thread(tiny_server.figures)
    assert ends["200"] + ends["left"] >= 1000
    taken = after["requests_total"] - before["requests_total"]
    assert 1000 - ends["left"] <= taken <= 1000, "one that was left may have gone before it came"
    assert after["refused_total"] == before["refused_total"]
    settled = tiny_server.resident_bytes()
    await in_crowd(tiny_server, thousand, seed=3)
    await asyncio.to_thread(tiny_server.assert_idle_and_whole)
    grown = {part: size - settled[part] for part, size in tiny_server.resident_bytes().items()}
    # oneDNN keeps what it has compiled for up to 1,024 shapes of a step: the runner's growth ends with those.
    assert grown["model_runner"] < 250e6, grown
    assert max(grown["runtime"], grown["scheduler"]) < 24e6, grown


async def test_three_hundred_requests_on_a_pool_of_a_thousand_tokens_all_get_their_answers(
    start: Callable[..., Server], tiny_model: object
) -> None:
    server = start(str(tiny_model), "--dtype", "float32", "--max-total-tokens", "1000", "--max-running", "32")
    await asyncio.to_thread(server.wait_ready)
    chance = random.Random(300)
    # Short answers first, so that what comes then is expected to be as short and is taken in too large a number.
    short = golden(server, [Ask(tuple(chance.choices(range(256), k=20)), 2) for _ in range(20)])
    long = golden(
        server,
        [
            *family(chance, num=8, shared=200, own=50, max_new_tokens=60),
            *(Ask(tuple(chance.choices(range(256), k=chance.randrange(10, 90))), 60) for _ in range(16)),
        ],
    )
    wanted = short | long

    async def press(crowd: Crowd) -> None:
        async def one(ask: Ask) -> None:
            assert await crowd.whole(ask) == wanted[ask]

        await asyncio.gather(*(one(chance.choice([*short])) for _ in range(100)))
        await asyncio.gather(*(one(chance.choice([*long])) for _ in range(200)))

    before = await asyncio.to_thread(server.figures)
    ends = await in_crowd(server, press, seed=4)
    assert ends == {"200": 300}
    await asyncio.to_thread(server.assert_idle_and_whole)
    after = await asyncio.to_thread(server.figures)
    assert after["evicted_pages_total"] > before["evicted_pages_total"], "the pool was never too small"
    output_tokens = after["output_tokens_total"] - before["output_tokens_total"]
    computed_tokens = after["computed_tokens_total"] - before["computed_tokens_total"]
    offered_tokens = after["prompt_tokens_total"] - before["prompt_tokens_total"] + output_tokens
    assert computed_tokens < 3 * offered_tokens, "most of the time went into computing again what was retracted"
    assert server.stop() == 0
    server.assert_nothing_left()
