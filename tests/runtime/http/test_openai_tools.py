from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import openai
import pytest
from pydantic import BaseModel

from tests.fakes import Server, running_server
from tests.runtime.http.chats import CALL, LONG_CALL, SCHEMA, THOUGHT, TOOL_TEMPLATE, answers, prompt_text, submits
from wire.messages.to_scheduler import Finish

USER = [{"role": "user", "content": "Warm?"}]
TOOLS = [{"type": "function", "function": {"name": "weather", "description": "Looks.", "parameters": SCHEMA}}]
WISH: dict[str, Any] = {"model": "fake", "messages": USER, "tools": TOOLS}


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[Server]:
    async with running_server(tmp_path, chat_template=TOOL_TEMPLATE) as running:
        yield running


async def test_a_call_comes_as_a_call(server: Server, client: openai.AsyncOpenAI) -> None:
    answers(server.scheduler, f"{THOUGHT}Let me look.\n{CALL}")
    answer = await client.chat.completions.create(**WISH)
    choice = answer.choices[0]
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content == "Let me look."
    assert choice.message.reasoning_content == "Where?"
    (call,) = choice.message.tool_calls
    assert (call.type, call.function.name, json.loads(call.function.arguments)) == (
        "function",
        "weather",
        {"city": "Romé"},
    )
    assert call.id
    assert 0 < answer.usage.completion_tokens_details.reasoning_tokens < answer.usage.completion_tokens
    assert '<tools>{"name": "weather"' in prompt_text(submits(server.scheduler)[0])


async def test_a_stream_tells_the_same_as_the_whole(server: Server, client: openai.AsyncOpenAI) -> None:
    answers(server.scheduler, f"{THOUGHT}Let me look.\n{CALL}\n{LONG_CALL}")
    async with client.chat.completions.stream(**WISH) as stream:
        events = [event async for event in stream]
        message = (await stream.get_final_completion()).choices[0].message
    assert message.content == "Let me look."
    assert [call.function.name for call in message.tool_calls] == ["weather", "weather"]
    assert len({call.id for call in message.tool_calls}) == 2
    chunks = [event.chunk for event in events if event.type == "chunk"]
    assert "".join(chunk.choices[0].delta.model_extra.get("reasoning_content", "") for chunk in chunks) == "Where?"
    assert chunks[-1].choices[0].finish_reason == "tool_calls"
    indices = [call.index for chunk in chunks for call in chunk.choices[0].delta.tool_calls or []]
    assert indices == sorted(indices)
    assert set(indices) == {0, 1}
    for index in (0, 1):
        parts = [call for chunk in chunks for call in chunk.choices[0].delta.tool_calls or [] if call.index == index]
        assert [bool(call.id) for call in parts] == [True] + [False] * (len(parts) - 1)
        arguments = [call.function.arguments for call in parts]
        assert json.loads("".join(arguments)) == {"city": "Romé" * (100 if index else 1)}
    assert len([text for text in arguments if text]) > 5, "as they are written"


async def test_results_and_earlier_calls_go_into_the_prompt(server: Server, client: openai.AsyncOpenAI) -> None:
    answers(server.scheduler, CALL, "It is warm.")
    first = (await client.chat.completions.create(**WISH)).choices[0].message
    assert first.content is None
    result = {"role": "tool", "tool_call_id": first.tool_calls[0].id, "content": "30 degrees"}
    chat = [*USER, first.model_dump(exclude_none=True), result]
    second = await client.chat.completions.create(model="fake", messages=chat, tools=TOOLS)
    assert second.choices[0].message.content == "It is warm."
    assert second.choices[0].finish_reason == "stop"
    text = prompt_text(submits(server.scheduler)[1])
    assert '"arguments": {"city": "Romé"}' in text
    assert "<tool>30 degrees" in text


class Weather(BaseModel):
    city: str


async def test_the_parse_helpers_of_the_client_work(server: Server, client: openai.AsyncOpenAI) -> None:
    answers(server.scheduler, CALL, '{"city": "Rome"}')
    tool = openai.pydantic_function_tool(Weather, name="weather")
    parsed = await client.chat.completions.parse(model="fake", messages=USER, tools=[tool])
    assert parsed.choices[0].message.tool_calls[0].function.parsed_arguments == Weather(city="Romé")
    parsed = await client.chat.completions.parse(model="fake", messages=USER, response_format=Weather)
    assert parsed.choices[0].message.parsed == Weather(city="Rome")


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "weather"}}])
async def test_a_call_is_forced_by_a_grammar(server: Server, client: openai.AsyncOpenAI, choice: object) -> None:
    answers(server.scheduler, CALL)
    await client.chat.completions.create(**WISH, tool_choice=choice)
    assert "weather" in submits(server.scheduler)[0].sampling.grammar.source


async def test_without_a_choice_calls_are_text_and_the_prompt_stays(server: Server, client: openai.AsyncOpenAI) -> None:
    answers(server.scheduler, CALL)
    answer = await client.chat.completions.create(**WISH, tool_choice="none")
    assert answer.choices[0].message.content == CALL
    assert answer.choices[0].message.tool_calls is None
    await client.chat.completions.create(**WISH)
    first, second = submits(server.scheduler)
    assert first.token_ids == second.token_ids


@pytest.mark.parametrize("is_stream", [False, True])
async def test_who_wants_one_call_at_a_time_gets_one(
    server: Server, client: openai.AsyncOpenAI, is_stream: bool
) -> None:
    answers(server.scheduler, f"{CALL}\n{CALL}")
    wish = {**WISH, "parallel_tool_calls": False}
    if is_stream:
        async with client.chat.completions.stream(**wish) as stream:
            message = (await stream.get_final_completion()).choices[0].message
    else:
        message = (await client.chat.completions.create(**wish)).choices[0].message
    assert len(message.tool_calls) == 1
    assert await server.scheduler.received_where(lambda message: isinstance(message, Finish))


async def test_a_wrong_call_is_text(server: Server, client: openai.AsyncOpenAI) -> None:
    wrong = '<tool_call>{"name": "weather", "arguments": {"city": }}</tool_call>'
    answers(server.scheduler, wrong)
    choice = (await client.chat.completions.create(**WISH)).choices[0]
    assert (choice.message.content, choice.finish_reason) == (wrong, "stop")


async def test_a_call_that_goes_wrong_in_a_stream_is_left_without_its_end(
    server: Server, client: openai.AsyncOpenAI
) -> None:
    begin = f'{{"city": "{"Rome" * 100}", "days": '
    answers(server.scheduler, f'<tool_call>{{"name": "weather", "arguments": {begin}oops}}}}')
    chunks = [chunk.choices[0] async for chunk in await client.chat.completions.create(**WISH, stream=True)]
    calls = [call for choice in chunks for call in choice.delta.tool_calls or []]
    assert "".join(call.function.arguments for call in calls) == begin
    assert "".join(choice.delta.content or "" for choice in chunks) == "oops}}"
    assert chunks[-1].finish_reason == "tool_calls"


async def test_thoughts_can_stay_in_the_text(server: Server, client: openai.AsyncOpenAI) -> None:
    answers(server.scheduler, f"{THOUGHT}Yes.")
    body = {"separate_reasoning": False}
    answer = await client.chat.completions.create(model="fake", messages=USER, extra_body=body)
    assert answer.choices[0].message.content == f"{THOUGHT}Yes."


async def test_effort_is_told_to_the_template(server: Server, client: openai.AsyncOpenAI) -> None:
    await client.chat.completions.create(model="fake", messages=USER, reasoning_effort="none")
    assert prompt_text(submits(server.scheduler)[0]).endswith("<assistant>False:")


async def test_a_developer_speaks_as_system_where_the_template_knows_none(
    server: Server, client: openai.AsyncOpenAI
) -> None:
    await client.chat.completions.create(model="fake", messages=[{"role": "developer", "content": "Be brief."}, *USER])
    assert "<system>Be brief." in prompt_text(submits(server.scheduler)[0])


async def test_several_choices_each_have_their_calls(server: Server, client: openai.AsyncOpenAI) -> None:
    answers(server.scheduler, CALL, "No.")
    answer = await client.chat.completions.create(**WISH, n=2)
    assert [choice.finish_reason for choice in answer.choices] == ["tool_calls", "stop"]
    assert [bool(choice.message.tool_calls) for choice in answer.choices] == [True, False]


async def test_cache_hints_reach_the_scheduler(server: Server, client: openai.AsyncOpenAI) -> None:
    body = {"prompt_cache_options": {"ttl": "30m"}, "cache_priority": 3}
    wish = {"model": "fake", "prompt_cache_key": "k", "extra_body": body}
    await client.chat.completions.create(messages=USER, **wish)
    await client.completions.create(prompt="x", model="fake", extra_body=body)
    for submit in submits(server.scheduler):
        assert (submit.cache_ttl_s, submit.cache_priority) == (1800, 3)


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"tools": [{"type": "function", "function": {}}]}, "tools[0].function.name"),
        ({"tools": TOOLS * 2}, "tools"),
        ({"tool_choice": "sometimes"}, "tool_choice"),
        ({"tool_choice": {"type": "function", "function": {"name": "other"}}}, "tool_choice"),
        ({"tool_choice": "required", "tools": []}, "tool_choice"),
        ({"tool_choice": "required", "response_format": {"type": "json_object"}}, "tool_choice"),
        ({"prompt_cache_options": {"ttl": "long"}}, "prompt_cache_options.ttl"),
        ({"messages": [{"role": "assistant", "tool_calls": [{"type": "function"}]}]}, "messages[0].tool_calls[0]"),
    ],
)
async def test_a_wrong_wish_names_its_field(client: openai.AsyncOpenAI, change: dict[str, object], field: str) -> None:
    with pytest.raises(openai.BadRequestError) as error:
        await client.chat.completions.create(model="fake", messages=USER, extra_body={**WISH, **change})
    assert str(error.value.param).startswith(field)


async def test_a_template_that_takes_no_tools_says_so(tmp_path: Path) -> None:
    async with (
        running_server(tmp_path) as server,
        openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client,
    ):
        with pytest.raises(openai.BadRequestError, match="--chat-template"):
            await client.chat.completions.create(**WISH)
