from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from runtime.config import HttpConfig
from tests.fakes import Server, running_server
from tests.runtime.http.chats import TOOL_TEMPLATE, prompt_text, submits

BILLING = "x-anthropic-billing-header: cc_version=2.1.100.7b4; cc_entrypoint=cli; cch={};\n"
SYSTEM = "You are an agent."
HEADER = "X-Axil-Normalized"


@pytest.fixture(params=[True, False], ids=["on", "off"])
async def server(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[Server]:
    config = HttpConfig(port=0, drop_billing_headers=request.param, sort_tools=request.param)
    async with running_server(tmp_path, config=config, chat_template=TOOL_TEMPLATE) as running:
        yield running


def _is_on(server: Server) -> bool:
    return server.front.launch.config.sort_tools


def _schema(*names: str) -> dict[str, Any]:
    return {"type": "object", "properties": {name: {"type": "string"} for name in names}}


def _openai(system: str, tools: list[tuple[str, dict[str, Any]]], **more: object) -> dict[str, Any]:
    messages = [{"role": "system", "content": system}, {"role": "user", "content": "hi"}]
    functions = [{"type": "function", "function": {"name": name, "parameters": schema}} for name, schema in tools]
    return {"messages": messages, "tools": functions, "max_tokens": 2, **more}


async def _ask(http: aiohttp.ClientSession, path: str, body: dict[str, Any]) -> str | None:
    """What the answer says was changed."""
    async with http.post(path, json=body) as response:
        assert response.status == 200, await response.text()
        await response.read()
        return response.headers.get(HEADER)


async def test_prompts_that_differ_in_nonces_and_order_alone_become_one(
    server: Server, http: aiohttp.ClientSession
) -> None:
    told = []
    for nonce, names in (("eb6c6", ("read", "write")), ("0aaa9", ("write", "read"))):
        schemas = [(name, _schema(*(("a", "b") if nonce == "eb6c6" else ("b", "a")))) for name in names]
        body = _openai(BILLING.format(nonce) + SYSTEM, schemas)
        told.append(await _ask(http, "/v1/chat/completions", body))
    one, other = map(prompt_text, submits(server.scheduler))
    if _is_on(server):
        assert one == other
        assert "billing" not in one
        assert SYSTEM in one
        assert told == ["billing_header, key_order", "billing_header, tool_order, key_order"]
    else:
        assert one != other
        assert told == [None, None]


@pytest.mark.parametrize("is_stream", [False, True])
async def test_all_apis_say_what_was_changed(server: Server, http: aiohttp.ClientSession, is_stream: bool) -> None:
    system, question = BILLING.format("eb6c6") + SYSTEM, [{"role": "user", "content": "hi"}]
    blocks = [{"type": "text", "text": BILLING.format("eb6c6").strip()}, {"type": "text", "text": SYSTEM}]
    bodies = {
        "/v1/chat/completions": _openai(system, []),
        "/v1/responses": {"instructions": system, "input": "hi", "max_output_tokens": 2},
        "/v1/messages": {"system": blocks, "messages": question, "max_tokens": 2},
    }
    for path, body in bodies.items():
        told = await _ask(http, path, {**body, "stream": is_stream})
        assert told == ("billing_header" if _is_on(server) else None), path
        prompt = prompt_text(submits(server.scheduler)[-1])
        assert ("billing" in prompt) is not _is_on(server)
        assert f"<system>{SYSTEM}" in prompt or not _is_on(server)


async def test_counting_agrees_with_answering(server: Server, http: aiohttp.ClientSession) -> None:
    body: dict[str, Any] = {"system": BILLING.format("eb6c6") + SYSTEM, "messages": [{"role": "user", "content": "hi"}]}
    async with http.post("/v1/messages/count_tokens", json=body) as response:
        counted = (await response.json())["input_tokens"]
    await _ask(http, "/v1/messages", {**body, "max_tokens": 2})
    assert counted == len(submits(server.scheduler)[-1].token_ids) // 4


async def test_what_was_changed_is_counted(server: Server, http: aiohttp.ClientSession) -> None:
    body = _openai(BILLING.format("eb6c6") + SYSTEM, [("write", _schema()), ("read", _schema())])
    for _ in range(2):
        await _ask(http, "/v1/chat/completions", body)
    async with http.get("/metrics") as response:
        text = await response.text()
    lines = [line for line in text.splitlines() if line.startswith("axil_normalized_prompts_total{")]
    assert len(lines) == (3 if _is_on(server) else 0)  # the keys of `{"type": …, "properties": …}` too
    assert all(line.endswith(" 2.0") for line in lines)


async def test_the_requests_record_has_what_was_changed(server: Server, http: aiohttp.ClientSession) -> None:
    await _ask(http, "/v1/chat/completions", _openai(BILLING.format("eb6c6") + SYSTEM, []))
    async with http.get("/requests") as response:
        (row,) = (await response.json())["requests"]
    assert row["normalized"] == (["billing_header"] if _is_on(server) else [])


@pytest.mark.parametrize(
    ("system", "kept"),
    [
        ("x-anthropic-billing-header: cc_version=1; cch=00000;You are kind.", "You are kind."),
        ("You know x-anthropic-billing-header: cch=1;", "You know x-anthropic-billing-header: cch=1;"),
        ("X-Anthropic-Billing-Header: cch=1;\nLine", "Line"),
    ],
)
async def test_only_the_header_at_the_start_is_dropped(tmp_path: Path, system: str, kept: str) -> None:
    config = HttpConfig(port=0, drop_billing_headers=True)
    running = running_server(tmp_path, config=config, chat_template=TOOL_TEMPLATE)
    async with running as server, aiohttp.ClientSession(server.url) as http:
        await _ask(http, "/v1/chat/completions", _openai(system, []))
        assert f"<system>{kept}<user>" in prompt_text(submits(server.scheduler)[-1])


async def test_a_users_text_is_left_as_it_is(tmp_path: Path) -> None:
    config = HttpConfig(port=0, drop_billing_headers=True)
    running = running_server(tmp_path, config=config, chat_template=TOOL_TEMPLATE)
    async with running as server, aiohttp.ClientSession(server.url) as http:
        body = {"messages": [{"role": "user", "content": BILLING.format("1") + "What is this?"}], "max_tokens": 2}
        assert await _ask(http, "/v1/chat/completions", body) is None
        assert "billing" in prompt_text(submits(server.scheduler)[-1])
