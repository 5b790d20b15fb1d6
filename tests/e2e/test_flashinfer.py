"""A whole server on FlashInfer's wrappers, with the kernels below them replaced by plain torch on the CPU."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import aiohttp
import pytest
import torch
from transformers import LlamaForCausalLM

from tests.e2e.server import Server, wait_until
from tests.e2e.tiny_model import write_tiny_model

pytestmark = pytest.mark.e2e

ROOT = Path(__file__).parents[2]
LENGTHS = [1, 5, 15, 16, 17, 31, 32, 100]
NUM_NEW_TOKENS = 20


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("model") / "tiny", head_dim=64, context_tokens=2048)


@pytest.fixture(scope="module")
def server(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with pytest.MonkeyPatch.context() as patch:
        path = [str(Path(__file__).parent / "flashinfer_on_cpu"), str(ROOT), os.environ.get("PYTHONPATH", "")]
        patch.setenv("PYTHONPATH", os.pathsep.join(filter(None, path)))
        started = Server(
            tmp_path_factory.mktemp("server"),
            *(
                str(model),
                "--kernels",
                "off",
                "--attention",
                "flashinfer",
                "--dtype",
                "float32",
                "--max-total-tokens",
                "1600",
            ),
        )
    try:
        yield started.wait_ready()
        started.assert_idle_and_whole()
    finally:
        started.stop()


def _prompt(length: int) -> list[int]:
    return [(7 * i + length) % 250 for i in range(length)]


async def _all(server: Server, requests: Sequence[dict[str, object]]) -> list[dict[str, object]]:
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:

        async def ask(request: dict[str, object]) -> dict[str, object]:
            async with session.post(f"http://127.0.0.1:{server.port}/generate", json=request) as reply:
                assert reply.status == 200, await reply.text()
                answer: dict[str, object] = await reply.json()
                return answer

        return await asyncio.gather(*map(ask, requests))


def _request(prompt: list[int], num_tokens: int = NUM_NEW_TOKENS) -> dict[str, object]:
    sampling = {"temperature": 0, "max_new_tokens": num_tokens, "ignore_eos": True}
    return {"input_ids": prompt, "sampling_params": sampling}


async def test_greedy_answers_are_those_of_transformers_also_when_they_share_steps(server: Server, model: Path) -> None:
    reference = LlamaForCausalLM.from_pretrained(model, dtype=torch.float32)
    answers = await _all(server, [_request(_prompt(length)) for length in LENGTHS])
    for length, answer in zip(LENGTHS, answers, strict=True):
        prompt = torch.tensor([_prompt(length)])
        expected = reference.generate(
            prompt,
            attention_mask=torch.ones_like(prompt),
            do_sample=False,
            min_new_tokens=NUM_NEW_TOKENS,
            max_new_tokens=NUM_NEW_TOKENS,
            eos_token_id=None,
            pad_token_id=0,
        )
        assert answer["output_ids"] == expected[0, length:].tolist(), length


def test_a_warm_prompt_gives_the_cold_one_s_tokens(server: Server) -> None:
    prompt = [3, *_prompt(200)]
    cold, warm = (server.post("/generate", _request(prompt)).json for _ in range(2))
    assert cold["meta_info"]["cached_tokens"] == 0
    assert warm["meta_info"]["cached_tokens"] == len(prompt) - 1
    assert cold["output_ids"] == warm["output_ids"]


async def test_a_client_that_goes_away_frees_its_row(server: Server) -> None:
    async with aiohttp.ClientSession() as session:
        request = _request([9, 8, 7], 1500) | {"stream": True}
        reply = await session.post(f"http://127.0.0.1:{server.port}/generate", json=request)
        await reply.content.readline()
        reply.close()
    await asyncio.to_thread(
        wait_until,
        lambda: server.metric("axil_cancelled_total") >= 1 and server.metric("axil_running_requests") == 0,
        "the row is free",
    )


async def test_more_requests_than_the_pool_holds_all_end_once(server: Server) -> None:
    answers = await _all(server, [_request([i, *_prompt(60)], 6) for i in range(60)])
    assert all(len(answer["output_ids"]) == 6 for answer in answers)  # type: ignore[arg-type]
    assert server.metric("axil_ledger_mismatches_total") == 0
