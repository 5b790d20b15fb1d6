from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import anthropic
import pytest

from tests.fakes import Script, Server, running_server, text_ids
from tests.runtime.http.chats import CALL, LONG_CALL, SCHEMA, THOUGHT, TOOL_TEMPLATE, answers, prompt_text, submits
from wire.messages.to_scheduler import Submit
from wire.messages.to_tokenizer import Refused

USER = [{"role": "user", "content": "Warm?"}]
TOOLS = [{"name": "weather", "description": "Looks.", "input_schema": SCHEMA}]
WISH: dict[str, Any] = {"model": "fake", "max_tokens": 200, "messages": USER}


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[Server]:
    async with running_server(tmp_path, chat_template=TOOL_TEMPLATE) as running:
        yield running


@pytest.fixture
async def client(server: Server) -> AsyncIterator[anthropic.AsyncAnthropic]:
    async with anthropic.AsyncAnthropic(base_url=server.url, api_key="none", max_retries=0) as made:
        yield made


async def test_a_message_is_answered(server: Server, client: anthropic.AsyncAnthropic) -> None:
    answers(server.scheduler, "Yes.")
    system = [{"type": "text", "text": "Be brief."}, {"type": "text", "text": "Be kind."}]
    message = await client.messages.create(
        **WISH, system=system, metadata={"user_id": "u"}, extra_body={"temperature": 0.5}
    )
    assert (message.type, message.role, message.model) == ("message", "assistant", "fake")
    assert [block.to_dict() for block in message.content] == [{"type": "text", "text": "Yes."}]
    assert (message.stop_reason, message.stop_sequence) == ("end_turn", None)
    (submit,) = submits(server.scheduler)
    assert prompt_text(submit) == "<system>Be brief.\nBe kind.<user>Warm?<assistant>"
    assert (submit.sampling.max_new_tokens, submit.sampling.temperature) == (200, 0.5)
    usage = message.usage
    assert usage.cache_read_input_tokens == 3
    assert usage.cache_creation_input_tokens == 0
    assert usage.input_tokens + usage.cache_read_input_tokens == len(submit.token_ids) // 4
    assert usage.output_tokens == 5


@pytest.mark.parametrize("is_stream", [False, True])
async def test_thoughts_and_calls_are_blocks(server: Server, client: anthropic.AsyncAnthropic, is_stream: bool) -> None:
    answers(server.scheduler, f"{THOUGHT}Let me look.\n{CALL}\n{CALL}")
    if is_stream:
        async with client.messages.stream(**WISH, tools=TOOLS) as stream:
            message = await stream.get_final_message()
    else:
        message = await client.messages.create(**WISH, tools=TOOLS)
    assert [block.type for block in message.content] == ["thinking", "text", "tool_use", "tool_use"]
    thought, text, call, other = message.content
    assert (thought.thinking, text.text) == ("Where?", "Let me look.")
    assert (call.name, call.input) == ("weather", {"city": "Romé"})
    assert call.id != other.id
    assert message.stop_reason == "tool_use"
    assert message.usage.output_tokens == len(f"{THOUGHT}Let me look.\n{CALL}\n{CALL}".encode()) + 1
    assert message.usage.cache_read_input_tokens == 3


async def test_a_streams_input_comes_as_it_is_written(server: Server, client: anthropic.AsyncAnthropic) -> None:
    answers(server.scheduler, LONG_CALL)
    snapshots = []
    async with client.messages.stream(**WISH | {"max_tokens": 900}, tools=TOOLS) as stream:
        async for event in stream:
            if event.type == "input_json":
                snapshots.append(event.snapshot)
        message = await stream.get_final_message()
    assert len(snapshots) > 5
    assert snapshots[-1] == message.content[0].input == {"city": "Romé" * 100}


async def test_the_events_of_a_stream_come_in_their_order(server: Server, client: anthropic.AsyncAnthropic) -> None:
    answers(server.scheduler, "Hi")
    events = [event async for event in await client.messages.create(**WISH, stream=True)]
    kinds = [event.type for event in events]
    assert kinds[:2] == ["message_start", "content_block_start"]
    assert kinds[-3:] == ["content_block_stop", "message_delta", "message_stop"]
    assert set(kinds[2:-3]) == {"content_block_delta"}
    assert events[0].message.usage.input_tokens > 0
    assert events[-2].delta.stop_reason == "end_turn"


async def test_the_next_turn_brings_blocks_and_results(server: Server, client: anthropic.AsyncAnthropic) -> None:
    answers(server.scheduler, f"{THOUGHT}{CALL}", "Warm.")
    first = await client.messages.create(**WISH, tools=TOOLS)
    result = {"type": "tool_result", "tool_use_id": first.content[-1].id, "content": [{"type": "text", "text": "30"}]}
    chat = [
        *USER,
        {"role": "assistant", "content": [block.to_dict() for block in first.content]},
        {"role": "user", "content": [result, {"type": "text", "text": "So?"}]},
    ]
    second = await client.messages.create(model="fake", max_tokens=9, messages=chat, tools=TOOLS)
    assert second.content[0].text == "Warm."
    text = prompt_text(submits(server.scheduler)[1])
    assert '<think>Where?</think><tool_call>{"name": "weather", "arguments": {"city": "Romé"}}</tool_call>' in text
    assert text.endswith("<tool>30<user>So?<assistant>")


async def test_a_begun_answer_is_gone_on_with(server: Server, client: anthropic.AsyncAnthropic) -> None:
    begun = [*USER, {"role": "assistant", "content": "I think"}]
    await client.messages.create(model="fake", max_tokens=9, messages=begun)
    assert prompt_text(submits(server.scheduler)[0]).endswith("<assistant>I think")


@pytest.mark.parametrize(
    ("choice", "is_forced"),
    [({"type": "any"}, True), ({"type": "tool", "name": "weather"}, True), ({"type": "auto"}, False)],
)
async def test_a_choice_of_tools_is_followed(
    server: Server, client: anthropic.AsyncAnthropic, choice: dict[str, str], is_forced: bool
) -> None:
    answers(server.scheduler, f"{CALL}\n{CALL}")
    message = await client.messages.create(
        **WISH, tools=TOOLS, tool_choice={**choice, "disable_parallel_tool_use": True}
    )
    assert [block.type for block in message.content] == ["tool_use"]
    assert (submits(server.scheduler)[0].sampling.grammar is not None) == is_forced


async def test_what_stopped_an_answer_is_told(server: Server, client: anthropic.AsyncAnthropic) -> None:
    answers(server.scheduler, "one END two")
    message = await client.messages.create(**WISH, stop_sequences=["END"])
    assert (message.stop_reason, message.stop_sequence, message.content[0].text) == ("stop_sequence", "END", "one ")
    message = await client.messages.create(**{**WISH, "max_tokens": 2})
    assert (message.stop_reason, message.content[0].text) == ("max_tokens", "on")


async def test_an_answer_may_be_asked_for_that_is_longer_than_the_context(
    server: Server, client: anthropic.AsyncAnthropic
) -> None:
    async with client.messages.stream(**{**WISH, "max_tokens": 32_000}) as stream:
        message = await stream.get_final_message()
    assert message.stop_reason == "model_context_window_exceeded"
    await client.messages.create(**{**WISH, "max_tokens": 4000})
    assert [submit.sampling.max_new_tokens for submit in submits(server.scheduler)] == [None, 4000]


async def test_texts_in_other_blocks_are_read(server: Server, client: anthropic.AsyncAnthropic) -> None:
    source = {"type": "text", "media_type": "text/plain", "data": "A page."}
    call = {"type": "tool_use", "id": "t1", "name": "weather", "input": {}}
    found = {"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "tool_reference", "tool_name": "edit"}]}
    chat: list[Any] = [
        {"role": "user", "content": [{"type": "document", "source": source}, {"type": "text", "text": "So?"}]},
        {"role": "assistant", "content": [call]},
        {"role": "user", "content": [found]},
    ]
    await client.messages.create(**{**WISH, "messages": chat}, tools=TOOLS)
    text = prompt_text(submits(server.scheduler)[0])
    assert "<user>A page.\nSo?<assistant>" in text
    assert text.endswith("<tool>edit<assistant>")


async def test_cache_control_asks_for_a_longer_stay(server: Server, client: anthropic.AsyncAnthropic) -> None:
    mark = {"type": "ephemeral", "ttl": "1h"}
    system = [{"type": "text", "text": "Long.", "cache_control": mark}]
    message = await client.messages.create(**WISH, system=system)
    (submit,) = submits(server.scheduler)
    assert submit.cache_ttl_s == 3600
    usage = message.usage
    assert usage.cache_creation_input_tokens + usage.cache_read_input_tokens + usage.input_tokens == (
        len(submit.token_ids) // 4
    )
    assert usage.cache_creation_input_tokens > 0
    user = [{"role": "user", "content": [{"type": "text", "text": "x", "cache_control": {"type": "ephemeral"}}]}]
    await client.messages.create(model="fake", max_tokens=9, messages=user)
    assert submits(server.scheduler)[1].cache_ttl_s == 300


async def test_thinking_is_told_to_the_template(server: Server, client: anthropic.AsyncAnthropic) -> None:
    await client.messages.create(**WISH, thinking={"type": "disabled"})
    await client.messages.create(**WISH, thinking={"type": "enabled", "budget_tokens": 1024})
    ends = [prompt_text(submit).rpartition(">")[2] for submit in submits(server.scheduler)]
    assert ends == ["False:", "True:"]


async def test_an_answer_can_be_forced_to_a_schema(server: Server, client: anthropic.AsyncAnthropic) -> None:
    form = {"type": "json_schema", "schema": SCHEMA}
    await client.messages.create(**WISH, extra_body={"output_config": {"format": form}})
    assert submits(server.scheduler)[0].sampling.grammar is not None


async def test_tokens_are_counted_as_they_would_be_used(server: Server, client: anthropic.AsyncAnthropic) -> None:
    counted = await client.messages.count_tokens(model="fake", messages=USER, tools=TOOLS, system="Be brief.")
    await client.messages.create(**WISH, tools=TOOLS, system="Be brief.")
    assert counted.input_tokens == len(submits(server.scheduler)[0].token_ids) // 4


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "wizard", "content": "x"}]}, r"messages\[0\].role"),
        ({"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]}, r"messages\[0\].content\[0\]"),
        ({"tools": [{"type": "bash_20250124", "name": "bash"}]}, r"tools\[0\].type"),
        ({"tool_choice": {"type": "any"}}, "tools is empty"),
        ({"tools": TOOLS, "tool_choice": {"type": "tool", "name": "other"}}, "tool_choice.name"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"cache_control": {"type": "ephemeral", "ttl": "soon"}}, "cache_control.ttl"),
        ({"output_config": {"format": {"type": "xml"}}}, "json_schema"),
        ({"messages": [{"role": "user", "content": "x" * 5000}]}, "prompt is too long"),
    ],
)
async def test_a_wrong_message_is_an_error_in_anthropic_s_shape(
    client: anthropic.AsyncAnthropic, change: dict[str, object], message: str
) -> None:
    with pytest.raises(anthropic.BadRequestError, match=message) as error:
        await client.messages.create(**{**WISH, **change})
    assert error.value.body["type"] == "error"
    assert error.value.body["error"]["type"] == "invalid_request_error"


async def test_an_unknown_model_is_not_found(client: anthropic.AsyncAnthropic) -> None:
    with pytest.raises(anthropic.NotFoundError) as error:
        await client.messages.create(**{**WISH, "model": "claude"})
    assert error.value.body["error"]["type"] == "not_found_error"


async def test_a_refusal_of_the_scheduler_has_its_status(server: Server, client: anthropic.AsyncAnthropic) -> None:
    def full(submit: Submit) -> Script:
        return Script(refusal=Refused(request_id=submit.request_id, code="overloaded", message="full"))

    server.scheduler.script = full
    with pytest.raises(anthropic.RateLimitError):
        await client.messages.create(**WISH, stream=True)


async def test_an_error_in_a_stream_is_an_event(server: Server) -> None:
    server.scheduler.script = lambda _: Script(text_ids("Hel"), reason="broken", is_held=True)
    async with (
        aiohttp.ClientSession(server.url) as http,
        http.post("/v1/messages", json={**WISH, "stream": True}) as response,
    ):
        server.scheduler.release()  # once the stream has begun
        raw = (await response.read()).decode()
    *_, last, rest = raw.split("\n\n")
    assert rest == ""
    assert last.startswith('event: error\ndata: {"type":"error","error":{"type":"api_error"')


async def test_messages_that_are_too_long_have_their_tokens_told(client: anthropic.AsyncAnthropic) -> None:
    with pytest.raises(anthropic.BadRequestError, match=r"messages has \d+ tokens; .* included\. Shorten it\.['\"]"):
        await client.messages.create(**{**WISH, "messages": [{"role": "user", "content": "x" * 5000}]})


async def test_an_image_is_refused_as_what_it_is(client: anthropic.AsyncAnthropic) -> None:
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}}
    result = {"type": "tool_result", "tool_use_id": "t1", "content": [image]}
    for content in ([image], [result]):
        with pytest.raises(
            anthropic.BadRequestError, match="this model reads text only; images can't be used"
        ) as caught:
            await client.messages.create(**{**WISH, "messages": [{"role": "user", "content": content}]})
        assert "AAAA" not in str(caught.value)


async def test_a_result_of_a_call_that_was_never_made_is_refused(client: anthropic.AsyncAnthropic) -> None:
    call = {"type": "tool_use", "id": "t1", "name": "weather", "input": {}}
    chat: list[Any] = [
        {"role": "user", "content": "Warm?"},
        {"role": "assistant", "content": [call]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t1", "content": "30"}]},
    ]
    await client.messages.create(**{**WISH, "messages": chat}, tools=TOOLS)
    chat[2]["content"][0]["tool_use_id"] = "t2"
    for part in (chat, chat[2:]):
        with pytest.raises(anthropic.BadRequestError, match='tool_use_id "t2", and no tool_use before it'):
            await client.messages.create(**{**WISH, "messages": part}, tools=TOOLS)
