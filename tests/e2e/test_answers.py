"""What a client of a real server sees: answers, streams, reuse, cancels, overload."""

from __future__ import annotations

import asyncio
import itertools
import json
from pathlib import Path

import aiohttp
import openai
import pytest

from tests.e2e.server import Server, wait_until

pytestmark = pytest.mark.e2e

NUM_AT_ONCE = 200
STORY = "The old lighthouse keeper counted the ships every evening and wrote their names in a book. " * 12


def test_a_prompt_is_answered_with_text_ids_and_figures(shared_server: Server) -> None:
    answer = shared_server.generate("The capital of France is", max_new_tokens=8)
    assert "Paris" in answer["text"]
    meta = answer["meta_info"]
    assert meta["completion_tokens"] == len(answer["output_ids"]) == 8
    assert meta["finish_reason"] == {"type": "length", "length": 8}
    assert meta["prompt_tokens"] == 5
    assert meta["cached_tokens"] >= 0
    assert meta["e2e_latency"] > 0


def test_a_warm_prompt_gives_the_cold_one_s_answer_and_says_what_was_cached(shared_server: Server) -> None:
    prompt = "Cold and warm must agree. " + STORY
    request = {
        "text": prompt,
        "sampling_params": {"temperature": 0, "max_new_tokens": 24},
        "return_logprob": True,
        "logprob_start_len": -1,
    }
    cold = shared_server.post("/generate", request).json
    warm = shared_server.post("/generate", request).json
    shared_server.post("/flush_cache", {})
    again = shared_server.post("/generate", request).json
    assert cold["meta_info"]["cached_tokens"] < 16
    assert warm["meta_info"]["cached_tokens"] == warm["meta_info"]["prompt_tokens"] - 1
    assert again["meta_info"]["cached_tokens"] == 0
    assert cold["output_ids"] == warm["output_ids"] == again["output_ids"]
    for one, other in zip(
        cold["meta_info"]["output_token_logprobs"], warm["meta_info"]["output_token_logprobs"], strict=True
    ):
        assert one[0] == pytest.approx(other[0], abs=1e-4)


def test_a_stream_is_cumulative_and_each_network_line_is_one_data_line(shared_server: Server) -> None:
    request = {
        "text": "Count: one, two, three,",
        "sampling_params": {"temperature": 0, "max_new_tokens": 12},
        "stream": True,
    }
    lines = [line for line in shared_server.post("/generate", request).body.split(b"\n\n") if line]
    assert all(line.startswith(b"data: ") for line in lines)
    assert lines[-1] == b"data: [DONE]"
    pieces = [json.loads(line[6:]) for line in lines[:-1]]
    for earlier, later in itertools.pairwise(pieces):
        assert later["text"].startswith(earlier["text"])
    whole = shared_server.generate("Count: one, two, three,", max_new_tokens=12)
    assert pieces[-1]["text"] == whole["text"]
    assert pieces[-1]["output_ids"] == whole["output_ids"]


def test_a_stop_string_ends_the_text_before_it(shared_server: Server) -> None:
    whole = shared_server.generate("Count: one, two, three,", max_new_tokens=24)["text"]
    stop = whole[10:14]
    stopped = shared_server.generate("Count: one, two, three,", max_new_tokens=24, stop=[stop])
    assert stopped["text"] == whole[: whole.index(stop)]
    assert stopped["meta_info"]["finish_reason"] == {"type": "stop", "matched": stop}


def test_the_second_turn_of_a_chat_reuses_the_first_but_for_what_the_template_changes(
    shared_server: Server,
) -> None:
    client = openai.OpenAI(base_url=f"http://127.0.0.1:{shared_server.port}/v1", api_key="none")
    model = client.models.list().data[0].id
    messages: list[dict[str, str]] = [
        {"role": "system", "content": "You answer in one short sentence. " + STORY},
        {"role": "user", "content": "What did the keeper count?"},
    ]
    first = client.chat.completions.create(model=model, messages=messages, temperature=0, max_tokens=60)
    assert first.choices[0].finish_reason == "stop", "the answer must end by itself for this test"
    answer = first.choices[0].message.content
    assert answer is not None
    messages += [{"role": "assistant", "content": answer}, {"role": "user", "content": "And then?"}]
    second = client.chat.completions.create(model=model, messages=messages, temperature=0, max_tokens=8)
    assert first.usage is not None
    assert second.usage is not None
    assert second.usage.prompt_tokens_details is not None
    cached = second.usage.prompt_tokens_details.cached_tokens
    # The answer ends with <|im_end|>, which is sampled last and so never computed; the template writes it again, and a
    # line break that the model did not write follows. All before it is reused.
    assert cached == first.usage.prompt_tokens + first.usage.completion_tokens - 1


async def test_the_published_openai_client_streams_chats_and_completions(shared_server: Server) -> None:
    async with openai.AsyncOpenAI(base_url=f"http://127.0.0.1:{shared_server.port}/v1", api_key="none") as client:
        model = (await client.models.list()).data[0].id
        chat = {"model": model, "messages": [{"role": "user", "content": "Say hello."}], "temperature": 0}
        whole = await client.chat.completions.create(**chat, max_tokens=16)  # type: ignore[call-overload]
        pieces, usage = [], None
        stream = await client.chat.completions.create(  # type: ignore[call-overload]
            **chat, max_tokens=16, stream=True, stream_options={"include_usage": True}
        )
        async for chunk in stream:
            usage = chunk.usage or usage
            pieces += [choice.delta.content or "" for choice in chunk.choices]
        assert "".join(pieces) == whole.choices[0].message.content
        assert usage is not None
        assert usage.completion_tokens == whole.usage.completion_tokens
        completion = await client.completions.create(model=model, prompt="2 + 2 =", max_tokens=4, temperature=0)
        streamed = await client.completions.create(
            model=model, prompt="2 + 2 =", max_tokens=4, temperature=0, stream=True
        )
        assert "".join([chunk.choices[0].text async for chunk in streamed]) == completion.choices[0].text
        with pytest.raises(openai.NotFoundError, match="no-such-model"):
            await client.completions.create(model="no-such-model", prompt="x")


async def test_a_client_that_goes_away_frees_its_row_at_once(shared_server: Server) -> None:
    request = {
        "text": "Once upon a time",
        "sampling_params": {"temperature": 0, "max_new_tokens": 4000, "ignore_eos": True},
        "stream": True,
    }
    async with aiohttp.ClientSession() as session:
        reply = await session.post(f"http://127.0.0.1:{shared_server.port}/generate", json=request)
        await reply.content.readline()
        assert shared_server.get("/server_info").status == 200
        reply.close()
    await asyncio.to_thread(wait_until, lambda: shared_server.metric("axil_running_requests") == 0, "the row is free")


async def test_requests_that_share_a_batch_get_the_answers_they_get_alone(shared_server: Server) -> None:
    requests = []
    for i in range(32):
        sampling = {"max_new_tokens": 8} | ({"temperature": 1.0, "sampling_seed": i} if i % 2 else {"temperature": 0})
        requests.append({"text": f"{STORY[: 40 + 13 * i]} Number {i} says:", "sampling_params": sampling})
    alone = [shared_server.post("/generate", request).json["output_ids"] for request in requests]
    shared_server.post("/flush_cache", {})
    async with aiohttp.ClientSession() as session:

        async def ask(request: dict[str, object]) -> list[int]:
            async with session.post(f"http://127.0.0.1:{shared_server.port}/generate", json=request) as reply:
                ids: list[int] = (await reply.json())["output_ids"]
                return ids

        together = await asyncio.gather(*map(ask, requests))
    assert together == alone


async def test_two_hundred_requests_on_a_pool_for_twenty_all_end_once(tmp_path: Path) -> None:
    server = Server(tmp_path, "--dtype", "float32", "--max-total-tokens", "640", "--max-running", "32")
    try:
        await asyncio.to_thread(server.wait_ready)
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:

            async def ask(i: int) -> dict[str, object]:
                request = {
                    "text": f"Question {i}: {i} + {i} =",
                    "sampling_params": {"temperature": 0, "max_new_tokens": 6, "ignore_eos": True},
                }
                async with session.post(f"http://127.0.0.1:{server.port}/generate", json=request) as reply:
                    assert reply.status == 200, await reply.text()
                    answer: dict[str, object] = await reply.json()
                    return answer

            answers = await asyncio.gather(*(ask(i) for i in range(NUM_AT_ONCE)))
        assert all(len(answer["output_ids"]) == 6 for answer in answers)  # type: ignore[arg-type]
        assert server.metric("axil_ledger_mismatches_total") == 0
        wait_until(lambda: server.metric("axil_running_requests") == 0, "idle")
        free, evictable = server.metric("axil_free_pages"), server.metric("axil_evictable_pages")
        assert free + evictable == server.metric("axil_pages")
    finally:
        assert server.stop() == 0
        server.assert_nothing_left()
