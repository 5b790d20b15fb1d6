from __future__ import annotations

import asyncio

import aiohttp
import msgspec
import pytest

from tests.deadline import DEADLINE_S
from tests.fakes import Server, submitted_ids
from wire.messages.to_scheduler import Control, Submit


async def test_health_answers_from_what_is_known_and_asks_nobody(server: Server, http: aiohttp.ClientSession) -> None:
    before = len(server.scheduler.received)
    for _ in range(20):
        async with http.get("/health") as response:
            assert response.status == 200
    async with http.post("/generate", json={"text": "x"}) as response:
        assert response.status == 200
    asked = server.scheduler.received[before:]
    assert [type(message) for message in asked] == [Submit]


async def test_the_generation_probe_generates_one_token(server: Server, http: aiohttp.ClientSession) -> None:
    async with http.get("/health_generate") as response:
        assert response.status == 200
    (submit,) = [message for message in server.scheduler.received if isinstance(message, Submit)]
    assert submit.sampling.max_new_tokens == 1


@pytest.mark.parametrize("path", ["/model_info", "/get_model_info"])
async def test_the_model_is_described(http: aiohttp.ClientSession, path: str) -> None:
    async with http.get(path) as response:
        info = await response.json()
    assert info["model_path"] == "/models/fake"
    assert info["is_generation"] is True
    assert info["architectures"] == ["LlamaForCausalLM"]
    assert info["tool_call_parser"] is None


@pytest.mark.parametrize("path", ["/server_info", "/get_server_info"])
async def test_the_server_is_described_without_its_key(http: aiohttp.ClientSession, path: str) -> None:
    async with http.get(path) as response:
        info = await response.json()
    assert info["max_total_num_tokens"] == 4096
    assert info["page_tokens"] == 16
    assert info["internal_states"][0]["prompt_tokens_total"] == 100
    assert info["internal_states"][0]["lost"]["workload"] == 0.3
    assert info["internal_states"][0]["memory_usage"]["token_capacity"] == 4096
    assert info["internal_states"][0]["world_size"] == 1
    assert "api_key" not in info


@pytest.mark.parametrize("method", ["get", "post"])
async def test_the_cache_is_flushed(server: Server, http: aiohttp.ClientSession, method: str) -> None:
    async with http.request(method, "/flush_cache") as response:
        assert response.status == 200
        assert "7 pages" in await response.text()


async def test_a_flush_with_a_timeout_waits_until_no_request_is_under_way(
    server: Server, http: aiohttp.ClientSession
) -> None:
    idle = server.scheduler.stats
    server.scheduler.stats = msgspec.structs.replace(idle, num_running=0, num_waiting=1)
    num_before = len(server.scheduler.received)

    async def flushed() -> tuple[int, str]:
        async with http.post("/flush_cache?timeout=60") as response:
            return response.status, await response.text()

    task = asyncio.create_task(flushed())
    async with asyncio.timeout(DEADLINE_S):
        while len(server.scheduler.received) < num_before + 2:  # it has asked, and was told to wait
            await asyncio.sleep(0)
    assert not task.done()
    server.scheduler.stats = msgspec.structs.replace(idle, num_running=0, num_waiting=0)
    assert await task == (200, "Cache flushed: 7 pages.\n")


async def test_a_flush_whose_timeout_is_over_flushes_nothing_and_says_why(
    server: Server, http: aiohttp.ClientSession
) -> None:
    server.scheduler.stats = msgspec.structs.replace(server.scheduler.stats, num_running=2, num_waiting=3)
    async with http.post("/flush_cache?timeout=0.1") as response:
        assert response.status == 400
        assert "0.1 s, and then 2 requests still ran and 3 waited" in (await response.json())["error"]["message"]
    assert Control not in {type(each) for each in server.scheduler.received if getattr(each, "action", "") == "flush"}
    for wrong in ("soon", "-1", "nan", "1e9"):
        async with http.post(f"/flush_cache?timeout={wrong}") as response:
            assert response.status == 400, wrong
            assert "timeout" in (await response.json())["error"]["message"]


async def test_all_requests_can_be_aborted(server: Server, http: aiohttp.ClientSession) -> None:
    async with http.post("/abort_request", json={"rid": "", "abort_all": True}) as response:
        assert response.status == 200
    message = server.scheduler.received[-1]
    assert isinstance(message, Control)
    assert message.request_id is None


@pytest.mark.parametrize("path", ["/flush_cache", "/abort_request", "/drain"])
async def test_a_web_page_from_elsewhere_cannot_operate_the_server(
    server: Server, http: aiohttp.ClientSession, path: str
) -> None:
    async with http.post(path, data='{"abort_all": true}', headers={"Origin": "https://elsewhere.example"}) as response:
        assert response.status == 400
        assert "elsewhere" in (await response.json())["error"]["message"]
    assert server.front.gate.state == "serving"
    async with http.post(path, data='{"abort_all": true}', headers={"Origin": server.url}) as response:
        assert response.status == 200


async def test_text_and_token_ids_are_turned_into_each_other(http: aiohttp.ClientSession) -> None:
    async with http.post("/tokenize", json={"prompt": "hé"}) as response:
        assert await response.json() == {"tokens": [104, 195, 169], "count": 3, "max_model_len": 4096}
    async with http.post("/tokenize", json={"prompt": ["h", ""]}) as response:
        assert await response.json() == {"tokens": [[104], []], "count": [1, 0], "max_model_len": 4096}
    async with http.post("/detokenize", json={"tokens": [104, 195, 169]}) as response:
        assert await response.json() == {"text": "hé"}


async def test_sessions_that_nobody_closes_keep_no_other_client_out(
    http: aiohttp.ClientSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("runtime.http.sessions.MAX_SESSIONS", 2)
    for session_id, status in (("a", 200), ("b", 200), ("c", 200), ("b", 400), ("a", 200)):
        async with http.post("/open_session", json={"session_id": session_id}) as response:
            assert response.status == status, session_id


async def test_a_session_is_open_once_until_it_is_closed(http: aiohttp.ClientSession) -> None:
    async with http.post("/open_session", json={"capacity_of_str_len": 1000}) as response:
        new = await response.json()
    assert isinstance(new, str)
    assert new
    for expected in (200, 400):
        async with http.post("/open_session", json={"session_id": "mine"}) as response:
            assert response.status == expected
            answer = await response.json()
    assert answer["error"]["param"] == "session_id"
    async with http.post("/close_session", json={"session_id": "mine"}) as response:
        assert response.status == 200
    async with http.post("/open_session", json={"session_id": "mine"}) as response:
        assert await response.json() == "mine"


async def test_calls_and_thoughts_are_read_from_a_finished_text(http: aiohttp.ClientSession) -> None:
    tools = [{"type": "function", "function": {"name": name}} for name in ("time", "weather")]
    text = 'So.\n<tool_call>{"name": "weather", "arguments": {"city": "Rome"}}</tool_call>'
    wish = {"text": text, "tools": tools, "tool_call_parser": "qwen25"}
    async with http.post("/parse_function_call", json=wish) as response:
        assert await response.json() == {
            "normal_text": "So.",
            "calls": [{"tool_index": 1, "name": "weather", "parameters": '{"city": "Rome"}'}],
        }
    for thought in ("<think>\nWhy?\n</think>", "Why?</think>"):
        async with http.post(
            "/separate_reasoning", json={"text": f"{thought}\n\nSo.", "reasoning_parser": "qwen3"}
        ) as response:
            assert await response.json() == {"reasoning_text": "Why?", "text": "So."}
    async with http.post("/separate_reasoning", json={"text": "x"}) as response:
        assert response.status == 400
        assert (await response.json())["error"]["param"] == "reasoning_parser"


async def test_a_chat_is_tokenised_as_it_would_be_answered(server: Server, http: aiohttp.ClientSession) -> None:
    chat = {"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "Well"}]}
    for more in ({}, {"add_generation_prompt": False, "continue_final_message": True}):
        async with http.post("/tokenize", json={**chat, **more}) as response:
            told = (await response.json())["tokens"]
        async with http.post("/v1/chat/completions", json={**chat, **more}) as response:
            assert response.status == 200
        submits = [message for message in server.scheduler.received if isinstance(message, Submit)]
        assert told == submitted_ids(submits[-1])


async def test_the_root_says_what_this_is(http: aiohttp.ClientSession) -> None:
    async with http.get("/") as response:
        text = await response.text()
    assert "fake" in text
    for line in ("GET    /requests/{id}", "POST   /v1/messages", "DELETE /drain", "GET    /openapi.json"):
        assert f"  {line}\n" in text
    assert "/v1/embeddings" not in text, "which is not offered"
