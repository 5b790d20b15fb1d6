"""Requests that have ended leave nothing behind that grows without end: whatever they were, whoever sent them."""

from __future__ import annotations

import random
from pathlib import Path

import aiohttp
import pytest

from runtime import records
from runtime.config import HttpConfig
from runtime.text import grammar, prefix_encoder, word_encoder
from tests.fakes import running_server
from tests.reachable import num_reachable

NUM_ROUNDS = 6
NUM_REQUESTS = 60


def chat_of(draw: random.Random, i: int) -> dict[str, object]:
    """A request that is like no other: its words, who sent it, what it may call and where it stops."""
    text = " ".join(f"{draw.randrange(10**9):x}" for _ in range(draw.randrange(1, 400)))
    body: dict[str, object] = {
        "messages": [{"role": "system", "content": "漢" * (i % 100)}, {"role": "user", "content": text}],
        "max_tokens": 2,
        "rid": f"rid {i}",
        "cache_salt": f"salt {i}",
        "stop": [f"stop {i}"],
        f"unknown_{i}": 1,
    }
    if i % 5 == 0:
        body["response_format"] = {"type": "json_schema", "json_schema": {"schema": {"const": f"only {i}"}}}
    return body


async def test_what_ended_requests_leave_behind_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (word_encoder, prefix_encoder):
        monkeypatch.setattr(module, "MAX_BYTES", 100_000)
    monkeypatch.setattr(records, "MAX_RECORDS", 32)
    monkeypatch.setattr(grammar, "_REMEMBERED", 8)
    draw = random.Random(7)
    async with running_server(tmp_path, config=HttpConfig(port=0, doctor_prompts=32)) as server:

        async def serve_others(first: int) -> None:
            async with aiohttp.ClientSession(server.url) as http:
                for i in range(first, first + NUM_REQUESTS):
                    async with http.post("/v1/chat/completions", json=chat_of(draw, i)) as response:
                        assert response.status == 200, await response.text()

        counts = []
        for i in range(NUM_ROUNDS):
            await serve_others(i * NUM_REQUESTS)
            counts.append(num_reachable(server.front))
        assert len(server.front.generator.grammars._known) <= 8
    assert max(counts[NUM_ROUNDS // 2 :]) < 1.1 * max(counts[: NUM_ROUNDS // 2]), counts
