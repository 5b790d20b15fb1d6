from __future__ import annotations

from pathlib import Path

import aiohttp
import pytest

from runtime.config import HttpConfig
from tests.fakes import Server, running_server
from tests.runtime.doctor.chats import SYSTEM
from tests.runtime.http.chats import TOOL_TEMPLATE


async def _ask(http: aiohttp.ClientSession, i: int, **headers: str) -> None:
    messages = [{"role": "system", "content": f"Now: 18:0{i}:31\n{SYSTEM}"}, {"role": "user", "content": "Mend it."}]
    body = {"messages": messages, "max_tokens": 4}
    async with http.post("/v1/chat/completions", json=body, headers=headers) as response:
        assert response.status == 200


async def test_what_changes_in_each_prompt_is_told(server: Server, http: aiohttp.ClientSession) -> None:
    for i in range(4):
        await _ask(http, i)
    async with http.get("/doctor") as response:
        body = await response.json()
    assert body["with_text"] is True
    (group,) = body["groups"]
    (finding,) = group["findings"]
    assert (group["requests"], finding["place"], finding["kind"]) == (4, "system", "timestamp")
    assert finding["context"] == "Now: "
    # The byte tokenizer's tokens are characters, and the template writes more of them than the messages have.
    assert 5 <= finding["tokens_before"] < 20


async def test_texts_and_messages_of_all_apis_are_seen(server: Server, http: aiohttp.ClientSession) -> None:
    text = f"Now: 18:0{{}}:31\n{SYSTEM}"
    said = [text.format(i) for i in range(3)]
    question = {"messages": [{"role": "user", "content": "Mend it."}], "max_tokens": 2}
    asked: dict[str, list[dict[str, object]]] = {
        "/generate": [{"text": each, "sampling_params": {"max_new_tokens": 2}} for each in said],
        "/v1/completions": [{"prompt": each, "max_tokens": 2} for each in said],
        "/v1/responses": [{"instructions": each, "input": "Mend it.", "max_output_tokens": 2} for each in said],
        "/v1/messages": [{"system": each, **question} for each in said],
    }
    for path, bodies in asked.items():
        for each in bodies:
            async with http.post(path, json=each) as response:
                assert response.status == 200, path
    async with http.get("/doctor") as response:
        body = await response.json()
    assert body["requests"] == 12
    assert {finding["kind"] for group in body["groups"] for finding in group["findings"]} == {"timestamp"}


@pytest.mark.parametrize(("key", "with_text"), [("user", False), ("boss", True)])
async def test_text_is_for_the_admin_key(tmp_path: Path, key: str, with_text: bool) -> None:
    config = HttpConfig(port=0, api_key="user", admin_api_key="boss")
    async with running_server(tmp_path, config=config) as server, aiohttp.ClientSession(server.url) as http:
        for i in range(4):
            await _ask(http, i, Authorization="Bearer user")
        async with http.get("/doctor", headers={"Authorization": f"Bearer {key}"}) as response:
            shown = await response.text()
            body = await response.json()
    assert body["with_text"] is with_text
    assert len(body["groups"][0]["findings"]) == 1
    assert ("Now: " in shown) is with_text
    assert ("mends programs" in shown or "18:0" in shown) is with_text


async def test_a_page_of_another_origin_reads_no_text(tmp_path: Path) -> None:
    config = HttpConfig(port=0, cors_origins="*")
    async with running_server(tmp_path, config=config) as server, aiohttp.ClientSession(server.url) as http:
        await _ask(http, 0)
        async with http.get("/doctor", headers={"Origin": "http://elsewhere.example"}) as response:
            assert (await response.json())["with_text"] is False


async def test_without_a_window_nothing_is_kept(tmp_path: Path) -> None:
    config = HttpConfig(port=0, doctor_prompts=0)
    running = running_server(tmp_path, config=config, chat_template=TOOL_TEMPLATE)
    async with running as server, aiohttp.ClientSession(server.url) as http:
        await _ask(http, 0)
        assert server.front.window.prompts() == []
        async with http.get("/doctor") as response:
            assert response.status == 400
            assert "--doctor-prompts" in await response.text()
