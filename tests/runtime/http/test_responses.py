from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import openai
import pytest
from pydantic import BaseModel

from tests.fakes import END_OF_TURN, Script, Server, running_server, text_ids
from tests.runtime.http.chats import CALL, LONG_CALL, SCHEMA, THOUGHT, TOOL_TEMPLATE, answers, prompt_text, submits

TOOLS: list[Any] = [
    {"type": "function", "name": "weather", "description": "Looks.", "parameters": SCHEMA, "strict": False}
]
WISH: dict[str, Any] = {"model": "fake", "input": "Warm?"}


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[Server]:
    async with running_server(tmp_path, chat_template=TOOL_TEMPLATE) as running:
        yield running


async def test_a_text_is_answered(server: Server, client: openai.AsyncOpenAI) -> None:
    answers(server.scheduler, "Yes.")
    response = await client.responses.create(
        **WISH, instructions="Be brief.", max_output_tokens=50, temperature=0.5, store=False, prompt_cache_key="k"
    )
    assert (response.object, response.status, response.model, response.store) == (
        "response",
        "completed",
        "fake",
        False,
    )
    assert response.output_text == "Yes."
    (item,) = response.output
    assert (item.type, item.role, item.status) == ("message", "assistant", "completed")
    (submit,) = submits(server.scheduler)
    assert prompt_text(submit) == "<system>Be brief.<user>Warm?<assistant>"
    assert (submit.sampling.max_new_tokens, submit.sampling.temperature) == (50, 0.5)
    usage = response.usage
    assert (usage.input_tokens, usage.output_tokens) == (len(submit.token_ids) // 4, 5)
    assert usage.input_tokens_details.cached_tokens == 3
    assert usage.output_tokens_details.reasoning_tokens == 0
    assert usage.total_tokens == usage.input_tokens + usage.output_tokens


async def test_thoughts_text_and_calls_are_items(server: Server, client: openai.AsyncOpenAI) -> None:
    answers(server.scheduler, f"{THOUGHT}Let me look.\n{CALL}")
    response = await client.responses.create(**WISH, tools=TOOLS)
    thought, message, call = response.output
    assert (thought.type, thought.content[0].text) == ("reasoning", "Where?")
    assert message.content[0].text == "Let me look."
    assert (call.type, call.name, json.loads(call.arguments)) == ("function_call", "weather", {"city": "Romé"})
    assert call.call_id
    assert call.call_id != call.id
    assert response.usage.output_tokens_details.reasoning_tokens > 0


async def test_a_stream_tells_the_same_as_the_whole(server: Server, client: openai.AsyncOpenAI) -> None:
    answers(server.scheduler, f"{THOUGHT}Let me look.\n{CALL}\n{LONG_CALL}")
    async with client.responses.stream(**WISH, tools=TOOLS) as stream:
        events = [event async for event in stream]
        response = await stream.get_final_response()
    assert [item.type for item in response.output] == ["reasoning", "message", "function_call", "function_call"]
    assert response.output_text == "Let me look."
    kinds = [event.type for event in events]
    assert kinds[:3] == ["response.created", "response.in_progress", "response.output_item.added"]
    assert kinds[-2:] == ["response.output_item.done", "response.completed"]
    assert [event.sequence_number for event in events] == list(range(len(events)))
    done = [event.item for event in events if event.type == "response.output_item.done"]
    assert [item.id for item in done] == [item.id for item in response.output]
    added = [event.item for event in events if event.type == "response.output_item.added"]
    assert [item.id for item in added] == [item.id for item in done]
    deltas = [event.delta for event in events if event.type == "response.output_text.delta"]
    assert "".join(deltas) == "Let me look."
    thoughts = [event.delta for event in events if event.type == "response.reasoning_text.delta"]
    assert "".join(thoughts) == "Where?"
    for item in done[2:]:
        parts = [
            event.delta
            for event in events
            if event.type == "response.function_call_arguments.delta" and event.item_id == item.id
        ]
        assert "".join(parts) == item.arguments
    assert len(parts) > 5, "as they are written"
    wholes = [event.arguments for event in events if event.type == "response.function_call_arguments.done"]
    assert [json.loads(whole) for whole in wholes] == [{"city": "Romé"}, {"city": "Romé" * 100}]


async def test_a_call_that_is_cut_off_in_a_stream_is_an_incomplete_item(
    server: Server, client: openai.AsyncOpenAI
) -> None:
    server.scheduler.script = lambda _: Script(text_ids(CALL[:-20]), reason="length")
    async with client.responses.stream(**WISH, tools=TOOLS) as stream:
        events = [event async for event in stream]
    (call,) = [event.item for event in events if event.type == "response.output_item.done"]
    assert (call.type, call.status) == ("function_call", "incomplete")
    assert events[-1].type == "response.incomplete"


async def test_the_events_of_a_message_come_in_their_order(server: Server) -> None:
    server.scheduler.script = lambda _: Script([*text_ids("Hi"), END_OF_TURN], per_frame=3)
    async with (
        aiohttp.ClientSession(server.url) as http,
        http.post("/v1/responses", json={**WISH, "stream": True}) as response,
    ):
        frames = (await response.read()).decode().strip().split("\n\n")
    names = []
    for frame in frames:
        name, data = frame.split("\n")
        event = json.loads(data.removeprefix("data: "))
        assert name == f"event: {event['type']}"
        names.append(event["type"].removeprefix("response."))
    assert names == [
        "created",
        "in_progress",
        "output_item.added",
        "content_part.added",
        "output_text.delta",
        "output_text.done",
        "content_part.done",
        "output_item.done",
        "completed",
    ]


async def test_what_codex_sends_is_understood(server: Server, client: openai.AsyncOpenAI) -> None:
    answers(server.scheduler, f"{THOUGHT}{CALL}", "Done.")
    first_input: list[Any] = [
        {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "Sandboxed."}]},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Warm?"}]},
    ]
    wish: dict[str, Any] = {
        "model": "fake",
        "instructions": "You are an agent.",
        "tools": TOOLS,
        "tool_choice": "auto",
        "parallel_tool_calls": True,
        "reasoning": {"effort": "medium", "summary": "auto"},
        "store": False,
        "stream": True,
        "include": ["reasoning.encrypted_content"],
        "prompt_cache_key": "session",
        "extra_body": {"client_metadata": {"a": "b"}},
    }
    events = [event async for event in await client.responses.create(input=first_input, **wish)]
    items = [event.item.to_dict() for event in events if event.type == "response.output_item.done"]
    result = {"type": "function_call_output", "call_id": items[-1]["call_id"], "output": "30 degrees"}
    events = [event async for event in await client.responses.create(input=[*first_input, *items, result], **wish)]
    assert events[-1].response.output_text == "Done."
    first, second = (prompt_text(submit) for submit in submits(server.scheduler))
    assert "<system>You are an agent.\n\nSandboxed.<user>Warm?<assistant>" in first
    assert second.startswith(first)
    assert second.endswith(
        '<think>Where?</think><tool_call>{"name": "weather", "arguments": {"city": "Romé"}}</tool_call>'
        "<tool>30 degrees<assistant>"
    )


async def test_tools_of_openai_s_own_servers_are_left_out_and_the_answer_says_so(
    server: Server, client: openai.AsyncOpenAI
) -> None:
    answers(server.scheduler, CALL)
    custom = {
        "type": "custom",
        "name": "apply_patch",
        "format": {"type": "grammar", "syntax": "lark", "definition": "x"},
    }
    others: list[Any] = [
        {"type": "web_search", "external_web_access": False},
        custom,
        {"type": "namespace", "name": "functions", "description": "", "tools": [custom]},
    ]
    with_others = await client.responses.create(model="fake", input="Warm?", tools=[*others, *TOOLS])
    assert [tool.name for tool in with_others.tools] == ["weather"]
    assert with_others.output[0].type == "function_call"
    await client.responses.create(model="fake", input="Warm?", tools=TOOLS)
    first, second = submits(server.scheduler)
    assert first.token_ids == second.token_ids
    alone = await client.responses.create(model="fake", input="Warm?", tools=others)
    assert alone.tools == []


async def test_functions_of_a_namespace_are_called_by_the_name_that_they_have_there(
    server: Server, client: openai.AsyncOpenAI
) -> None:
    called = CALL.replace('"weather"', '"mcp__sky__weather"')
    answers(server.scheduler, called, "Done.")
    space: dict[str, Any] = {"type": "namespace", "name": "mcp__sky", "description": "", "tools": TOOLS}
    wish: dict[str, Any] = {"model": "fake", "tools": [space, *TOOLS]}
    asked = {"role": "user", "content": "Warm?"}
    events = [event async for event in await client.responses.create(input=[asked], stream=True, **wish)]
    (item,) = [event.item.to_dict() for event in events if event.type == "response.output_item.done"]
    assert (item["namespace"], item["name"]) == ("mcp__sky", "weather")
    assert [tool.name for tool in events[-1].response.tools] == ["mcp__sky", "weather"]
    result = {"type": "function_call_output", "call_id": item["call_id"], "output": "30 degrees"}
    await client.responses.create(input=[asked, item, result], **wish)
    first, second = (prompt_text(submit) for submit in submits(server.scheduler))
    assert '"name": "mcp__sky__weather"' in first
    assert second == first + '<tool_call>{"name": "mcp__sky__weather", "arguments": {"city": "Romé"}}</tool_call>' + (
        "<tool>30 degrees<assistant>"
    )


async def test_tools_may_be_added_by_an_item(server: Server, client: openai.AsyncOpenAI) -> None:
    answers(server.scheduler, CALL)
    user = {"role": "user", "content": "Warm?"}
    custom = {"type": "custom", "name": "exec"}
    more: list[Any] = [{"type": "namespace", "name": "functions", "tools": [custom]}, *TOOLS]
    added = {"type": "additional_tools", "role": "developer", "tools": more}
    answer = await client.responses.create(model="fake", input=[added, user], tools=[])  # type: ignore[list-item]  # new
    assert answer.output[0].type == "function_call"
    await client.responses.create(model="fake", input=[added, user], tools=TOOLS)  # type: ignore[list-item]  # new
    first, second = submits(server.scheduler)
    assert first.token_ids == second.token_ids
    assert '<tools>{"name": "weather"' in prompt_text(first)


async def test_a_chat_begun_at_openai_is_gone_on_with(server: Server, client: openai.AsyncOpenAI) -> None:
    answers(server.scheduler, "Done.")
    items: list[Any] = [
        {"role": "user", "content": "Mend it."},
        {"type": "web_search_call", "id": "ws_1", "status": "completed", "action": {"type": "search", "query": "x"}},
        {"type": "custom_tool_call", "call_id": "c1", "name": "apply_patch", "input": "*** Begin"},
        {"role": "assistant", "content": [{"type": "output_text", "text": "I mend it."}]},
        {"type": "custom_tool_call_output", "call_id": "c1", "output": "Mended."},
    ]
    await client.responses.create(model="fake", input=items)
    (submit,) = submits(server.scheduler)
    assert prompt_text(submit) == (
        '<user>Mend it.<assistant>I mend it.<tool_call>{"name": "apply_patch", "arguments": {"input": "*** Begin"}}'
        "</tool_call><tool>Mended.<assistant>"
    )


class Weather(BaseModel):
    city: str


async def test_the_parse_helper_of_the_client_works(server: Server, client: openai.AsyncOpenAI) -> None:
    answers(server.scheduler, '{"city": "Rome"}')
    response = await client.responses.parse(**WISH, text_format=Weather)
    assert response.output_parsed == Weather(city="Rome")
    assert submits(server.scheduler)[0].sampling.grammar is not None


async def test_an_answer_that_is_cut_off_is_incomplete(server: Server, client: openai.AsyncOpenAI) -> None:
    answers(server.scheduler, "Yes, it is.")
    response = await client.responses.create(**WISH, max_output_tokens=3)
    assert (response.status, response.incomplete_details.reason) == ("incomplete", "max_output_tokens")
    assert response.output[0].status == "incomplete"
    events = [event async for event in await client.responses.create(**WISH, max_output_tokens=3, stream=True)]
    assert events[-1].type == "response.incomplete"


async def test_logprobs_come_with_the_text(server: Server, client: openai.AsyncOpenAI) -> None:
    answers(server.scheduler, "Yes.")
    response = await client.responses.create(**WISH, include=["message.output_text.logprobs"], top_logprobs=2)
    logprobs = response.output[0].content[0].logprobs
    assert [entry.token for entry in logprobs][:4] == ["Y", "e", "s", "."]
    assert len(logprobs[0].top_logprobs) == 2


async def test_a_forced_call_is_forced_by_a_grammar(server: Server, client: openai.AsyncOpenAI) -> None:
    answers(server.scheduler, f"{CALL}\n{CALL}")
    response = await client.responses.create(**WISH, tools=TOOLS, tool_choice={"type": "function", "name": "weather"})
    assert [item.type for item in response.output] == ["function_call"]
    assert submits(server.scheduler)[0].sampling.grammar is not None
    allowed: Any = {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "weather"}]}
    await client.responses.create(**WISH, tools=TOOLS, tool_choice=allowed)
    assert submits(server.scheduler)[1].sampling.grammar is not None


async def test_an_error_in_a_stream_is_a_failed_response(server: Server) -> None:
    server.scheduler.script = lambda _: Script(text_ids("Hel"), reason="broken", is_held=True)
    async with (
        aiohttp.ClientSession(server.url) as http,
        http.post("/v1/responses", json={**WISH, "stream": True}) as response,
    ):
        server.scheduler.release()  # once the stream has begun
        *_, last = (await response.read()).decode().strip().split("\n\n")
    event = json.loads(last.partition("\ndata: ")[2])
    assert (event["type"], event["response"]["status"]) == ("response.failed", "failed")
    assert event["response"]["error"]["code"] == "server_error"


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"input": []}, "input"),
        ({"input": 5}, "input"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input[0]"),
        ({"input": [{"type": "computer_call"}]}, "input"),
        ({"input": [{"type": "thought"}]}, "input[0]"),
        ({"input": [{"type": "custom_tool_call", "name": "x"}]}, "input[0]"),
        ({"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]}, "input[0]"),
        ({"input": [{"type": "function_call", "call_id": "x"}]}, "input[0]"),
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"conversation": "conv_1"}, "conversation"),
        ({"background": True}, "background"),
        ({"tools": [{"type": "web_search"}], "tool_choice": "required"}, "tool_choice"),
        ({"tools": [{"type": "web_search"}], "tool_choice": {"type": "web_search"}}, "tool_choice"),
        ({"tools": [{"type": "function"}]}, "tools[0].name"),
        ({"text": {"format": {"type": "xml"}}}, "text.format.type"),
        ({"max_output_tokens": -1}, "max_output_tokens"),
    ],
)
async def test_a_wrong_wish_names_its_field(client: openai.AsyncOpenAI, change: dict[str, object], field: str) -> None:
    with pytest.raises(openai.BadRequestError) as error:
        await client.responses.create(**WISH, extra_body=change)
    assert str(error.value.param).startswith(field)


async def test_a_prompt_that_is_too_long_has_openai_s_code(client: openai.AsyncOpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as error:
        await client.responses.create(model="fake", input="x" * 5000)
    assert error.value.code == "context_length_exceeded"
    assert error.value.param == "input"
    assert "input has" in error.value.message


@pytest.mark.parametrize(
    ("method", "path"), [("GET", ""), ("DELETE", ""), ("POST", "/cancel"), ("GET", "/input_items")]
)
async def test_an_answer_that_is_asked_for_again_is_said_not_to_be_stored(
    http: aiohttp.ClientSession, method: str, path: str
) -> None:
    async with http.post("/v1/responses", json={"input": "Hi", "store": True}) as response:
        name = (await response.json())["id"]
    async with http.request(method, f"/v1/responses/{name}{path}") as response:
        assert response.status == 404
        error = (await response.json())["error"]
    assert error["code"] == "not_found"
    assert name in error["message"]
    assert "not stored" in error["message"]
