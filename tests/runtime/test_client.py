from __future__ import annotations

import asyncio
import threading

import aiohttp
import pytest

from runtime import client as client_module
from runtime.process import break_all
from tests.deadline import DEADLINE_S
from tests.fakes import Script, Server, text_ids
from wire.messages.encoding import ids_to_bytes
from wire.messages.to_scheduler import Finish, Submit
from wire.messages.to_tokenizer import Done, Tokens
from wire.sampling import SamplingParams


async def _submitted(server: Server, request_id: str) -> None:
    await server.scheduler.received_where(
        lambda message: isinstance(message, Submit) and message.request_id == request_id
    )


async def test_when_a_process_dies_open_requests_are_500_and_new_ones_503(
    server: Server, http: aiohttp.ClientSession
) -> None:
    server.scheduler.script = lambda _: Script(is_held=True)
    asked = [asyncio.create_task(http.post("/generate", json={"text": "x", "rid": f"r{i}"})) for i in range(5)]
    for i in range(5):
        await _submitted(server, f"r{i}")
    flush = asyncio.create_task(http.post("/health"))
    break_all(server.client, "the scheduler process died (killed by SIGKILL). Start the server again.")
    for response in await asyncio.wait_for(asyncio.gather(*asked), DEADLINE_S):
        assert response.status == 500
        assert "scheduler process died (killed by SIGKILL)" in (await response.json())["error"]["message"]
    (await flush).close()
    for method, path in (("POST", "/generate"), ("GET", "/health"), ("POST", "/flush_cache")):
        async with http.request(method, path, json={"text": "x"}) as response:
            assert response.status == 503
    assert server.client.num_open == 0


async def test_messages_for_a_request_that_was_left_reach_nobody(server: Server, http: aiohttp.ClientSession) -> None:
    server.scheduler.script = lambda _: Script(text_ids("ab"), is_held=True)
    server.scheduler.holds_ends = True
    answer = await http.post("/generate", json={"text": "x", "rid": "s", "sampling_params": {"stop": "a"}})
    assert (await answer.json())["text"] == ""
    await server.scheduler.received_where(lambda message: message == Finish(request_id="s", kept_tokens=1))
    late = Tokens(request_id="s", token_ids=ids_to_bytes([65]))
    await server.scheduler.send(
        late, Done(request_id="s", reason="stop"), late, Done(request_id="never", reason="stop")
    )
    server.scheduler.release()
    async with http.post("/generate", json={"text": "x", "rid": "s", "sampling_params": {"stop": "b"}}) as response:
        assert (await response.json())["text"] == "a"


async def test_health_is_false_when_no_figures_have_come_for_long(
    server: Server, http: aiohttp.ClientSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_module, "STATS_MISSING_AFTER_S", -1.0)
    async with http.get("/health") as response:
        assert response.status == 503
        assert "no figures" in (await response.json())["error"]["message"]


async def test_others_are_served_while_a_long_prompt_is_tokenised(
    server: Server, http: aiohttp.ClientSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizer = server.front.generator.tokenizer
    encode, begun, answered = tokenizer.encode, threading.Event(), threading.Event()

    def watched(text: str, *, add_special_tokens: bool) -> list[int]:
        if len(text) < 1000:
            return encode(text, add_special_tokens=add_special_tokens)
        begun.set()
        token_ids = encode(text, add_special_tokens=add_special_tokens)
        assert answered.wait(DEADLINE_S), "the short request waited for the long prompt"
        return token_ids

    monkeypatch.setattr(tokenizer, "encode", watched)
    # Without this, so long a text would be refused before it is tokenised.
    monkeypatch.setattr(server.front.generator, "_check_text", lambda text, *, field: None)
    long = asyncio.create_task(http.post("/generate", json={"text": "many words " * 90_000, "rid": "long"}))
    assert await asyncio.to_thread(begun.wait, 5)
    async with http.post("/generate", json={"text": "x", "rid": "short"}) as response:
        assert (await response.json())["text"] == "hello world"
    answered.set()
    async with await long as response:
        assert "tokens" in (await response.json())["error"]["message"]


async def test_an_id_that_was_left_is_used_again_only_after_the_scheduler_has_ended_it(
    server: Server, http: aiohttp.ClientSession
) -> None:
    server.scheduler.holds_ends = True
    server.scheduler.script = lambda submit: Script(is_held=submit.request_id == "s", per_frame=len("hello"))
    body = {"text": "x", "rid": "s", "sampling_params": {"stop": "hello"}}
    async with http.post("/generate", json=body) as response:
        assert response.status == 200
    again = asyncio.create_task(http.post("/generate", json=body))
    async with http.post("/generate", json={"text": "x", "rid": "other"}) as response:
        assert response.status == 200
    submitted = [message.request_id for message in server.scheduler.received if isinstance(message, Submit)]
    assert submitted == ["s", "other"]
    await server.scheduler.send(Done(request_id="s", reason="stop"))
    async with await again as response:
        assert (await response.json())["meta_info"]["finish_reason"]["matched"] == "hello"


async def test_a_request_that_cannot_be_sent_is_not_open(server: Server) -> None:
    sampling = SamplingParams(seed=1, stop=("\ud800",))
    with pytest.raises(UnicodeEncodeError):
        await server.client.open(Submit(request_id="bad", token_ids=b"", sampling=sampling))
    assert server.client.num_open == 0
