"""Ollama's routes: chats and prompts as lines of JSON, calls whole, thoughts apart, the model's card."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.fakes import END_OF_TURN, Script, Server, running_server, text_ids
from wire.messages.to_scheduler import Cancel

from .chats import CALL, SCHEMA, THOUGHT, TOOL_TEMPLATE, answers, prompt_text, submits

USER = [{"role": "user", "content": "Warm?"}]
TOOLS = [{"type": "function", "function": {"name": "weather", "description": "", "parameters": SCHEMA}}]


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[Server]:
    async with running_server(tmp_path, chat_template=TOOL_TEMPLATE) as running:
        yield running


async def _lines(http: aiohttp.ClientSession, path: str, **body: object) -> list[dict[str, Any]]:
    async with http.post(path, json=body) as response:
        assert response.status == 200, await response.text()
        assert response.content_type == "application/x-ndjson"
        return [json.loads(line) async for line in response.content]


async def _whole(http: aiohttp.ClientSession, path: str, status: int = 200, **body: object) -> Any:  # noqa: ANN401
    async with http.post(path, json={"stream": False, **body}) as response:
        assert response.status == status, await response.text()
        return await response.json()


async def test_a_chat_is_streamed_as_lines_unless_it_shall_not_be(server: Server, http: aiohttp.ClientSession) -> None:
    answers(server.scheduler, "It is é.")
    lines = await _lines(http, "/api/chat", model="fake:latest", messages=USER)
    *parts, last = lines
    assert "".join(line["message"]["content"] for line in parts) == "It is é."
    assert not any(line["done"] for line in parts)
    assert last["done"] is True
    assert last["done_reason"] == "stop"
    assert last["message"] == {"role": "assistant", "content": ""}
    assert last["prompt_eval_count"] == len(submits(server.scheduler)[0].token_ids) // 4
    assert last["eval_count"] == len("It is é.".encode()) + 1
    assert last["total_duration"] >= last["prompt_eval_duration"] > 0
    whole = await _whole(http, "/api/chat", model="fake", messages=USER)
    assert whole["message"] == {"role": "assistant", "content": "It is é."}
    assert whole.keys() == last.keys()


async def test_thoughts_and_whole_calls_are_told_apart(server: Server, http: aiohttp.ClientSession) -> None:
    answers(server.scheduler, THOUGHT + CALL)
    expected = [{"function": {"name": "weather", "arguments": {"city": "Romé"}}}]
    lines = await _lines(http, "/api/chat", messages=USER, tools=TOOLS, think=True)
    assert "".join(line["message"].get("thinking", "") for line in lines) == "Where?"
    assert [call for line in lines for call in line["message"].get("tool_calls", ())] == expected
    message = (await _whole(http, "/api/chat", messages=USER, tools=TOOLS, think=True))["message"]
    assert (message["thinking"], message["tool_calls"]) == ("Where?", expected)
    assert prompt_text(submits(server.scheduler)[0]).endswith("<assistant>True:")
    said = {"role": "assistant", "content": "", "thinking": "Where?", "tool_calls": expected}
    result = {"role": "tool", "tool_name": "weather", "content": "30 degrees"}
    answers(server.scheduler, "Yes.")
    await _whole(http, "/api/chat", messages=[*USER, said, result], tools=TOOLS, think=False)
    text = prompt_text(submits(server.scheduler)[-1])
    assert '<think>Where?</think><tool_call>{"name": "weather", "arguments": {"city": "Romé"}}</tool_call>' in text
    assert text.endswith("<tool>30 degrees<assistant>False:")


async def test_a_prompt_is_a_turn_or_continued_as_it_is(server: Server, http: aiohttp.ClientSession) -> None:
    answers(server.scheduler, "yes")
    lines = await _lines(http, "/api/generate", prompt="Warm?", system="Be brief.")
    assert "".join(line["response"] for line in lines) == "yes"
    whole = await _whole(http, "/api/generate", prompt="Warm?", raw=True, options={"num_predict": 2})
    assert (whole["response"], whole["done_reason"], whole["eval_count"]) == ("ye", "length", 2)
    first, second = submits(server.scheduler)
    assert prompt_text(first) == "<system>Be brief.<user>Warm?<assistant>"
    assert prompt_text(second) == "Warm?"


async def test_who_asks_for_nothing_is_told_that_the_model_is_there(
    server: Server, http: aiohttp.ClientSession
) -> None:
    for path, body in (("/api/generate", {}), ("/api/generate", {"prompt": ""}), ("/api/chat", {"messages": []})):
        answer = await _whole(http, path, model="fake", **body)
        assert (answer["done"], answer["done_reason"]) == (True, "load")
    assert not submits(server.scheduler)


async def test_options_reach_the_sampler(server: Server, http: aiohttp.ClientSession) -> None:
    options = {
        "num_predict": 3,
        "temperature": 0.25,
        "top_k": 7,
        "top_p": 0.5,
        "min_p": 0.125,
        "seed": 42,
        "repeat_penalty": 1.5,
        "stop": ["\n\n"],
        "num_ctx": 4096,
    }
    schema = {"type": "object", "properties": {"city": {"type": "string"}}}
    await _whole(http, "/api/chat", messages=USER, options=options, format=schema, keep_alive="5m")
    sampling = submits(server.scheduler)[0].sampling
    assert (sampling.max_new_tokens, sampling.temperature, sampling.top_k) == (3, 0.25, 7)
    assert (sampling.top_p, sampling.min_p, sampling.seed) == (0.5, 0.125, 42)
    assert (sampling.repetition_penalty, sampling.stop) == (1.5, ("\n\n",))
    assert sampling.grammar is not None
    await _whole(http, "/api/chat", messages=USER, options={"num_predict": -1}, format="")
    rest = submits(server.scheduler)[1].sampling
    assert (rest.max_new_tokens, rest.grammar) == (None, None)


@pytest.mark.parametrize("more", [{}, {"raw": True}])
async def test_more_than_the_context_holds_is_up_to_its_end(
    server: Server, http: aiohttp.ClientSession, more: dict[str, object]
) -> None:
    await _whole(http, "/api/generate", prompt="x", options={"num_predict": 5000}, **more)
    assert submits(server.scheduler)[0].sampling.max_new_tokens is None


async def test_the_model_is_listed_and_described(http: aiohttp.ClientSession) -> None:
    async with http.get("/api/tags") as response:
        (card,) = (await response.json())["models"]
    assert card["name"] == card["model"] == "fake"
    async with http.get("/api/ps") as response:
        (loaded,) = (await response.json())["models"]
    assert (loaded["name"], loaded["context_length"]) == ("fake", 4096)
    async with http.get("/api/version") as response:
        assert (await response.json())["version"] >= "0.6.4"  # what VS Code asks for
    shown = await _whole(http, "/api/show", model="fake")
    assert shown["model_info"] == {"general.architecture": "llama", "llama.context_length": 4096}
    assert shown["capabilities"] == ["completion", "tools", "thinking"]
    assert "not served here" in (await _whole(http, "/api/show", 404, name="other"))["error"]


@pytest.mark.parametrize(
    ("path", "body", "words"),
    [
        ("/api/chat", {"messages": [{"content": "x"}]}, "messages[0].role is missing"),
        ("/api/chat", {"messages": [{"role": "wizard", "content": "x"}]}, "messages[0].role must be one of"),
        ("/api/chat", {"messages": [{"role": "user", "content": "x", "images": ["aGk="]}]}, "images is not supported"),
        ("/api/chat", {"messages": USER, "options": {"temperature": "hot"}}, "options.temperature must be a number"),
        ("/api/chat", {"messages": USER, "options": {"repeat_penalty": -1}}, "options.repeat_penalty"),
        ("/api/generate", {"prompt": "x" * 5000}, "prompt has 5019 tokens"),
        ("/api/chat", {"messages": USER, "options": {"mirostat": 2}}, "options.mirostat is not supported"),
        ("/api/chat", {"messages": USER, "format": "xml"}, "format"),
        ("/api/generate", {"prompt": "x", "suffix": "y"}, "suffix is not supported"),
    ],
)
async def test_a_wrong_wish_is_an_error_in_a_string(
    http: aiohttp.ClientSession, path: str, body: dict[str, object], words: str
) -> None:
    answer = await _whole(http, path, 400, **body)
    assert words in answer["error"]


async def test_an_abort_in_the_middle_is_a_last_line(server: Server, http: aiohttp.ClientSession) -> None:
    server.scheduler.script = lambda _: Script([*text_ids("hello"), END_OF_TURN], is_held=True)
    async with http.post("/api/chat", json={"messages": USER}) as response:
        assert json.loads(await response.content.readline())["message"]["content"] == "h"
        async with http.post("/abort_request", json={"abort_all": True}):
            pass
        last = json.loads(await response.content.readline())
        assert "aborted" in last["error"]
        assert await response.content.read() == b""


async def test_a_client_that_leaves_is_cancelled(server: Server, http: aiohttp.ClientSession) -> None:
    server.scheduler.script = lambda _: Script(text_ids("hello"), is_held=True)
    response = await http.post("/api/generate", json={"prompt": "x", "raw": True})
    await response.content.readline()
    response.close()
    assert await server.scheduler.received_where(lambda message: isinstance(message, Cancel))
