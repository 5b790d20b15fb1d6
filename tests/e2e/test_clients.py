"""Published clients against the real model: a chat with tools over several turns, in each of the three APIs."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest

from tests.e2e.server import Server

pytestmark = pytest.mark.e2e

TEMPLATE = (
    "{%- if tools %}<|im_start|>system\nCall functions as <tool_call>.\n"
    "{% for tool in tools %}{{ tool.function | tojson }}{% endfor %}<|im_end|>\n{% endif %}"
    "{%- for message in messages %}{{ '<|im_start|>' + message.role + '\n' + message.content }}"
    "{% for call in message.tool_calls %}{{ '<tool_call>\n' }}"
    '{{ {"name": call.function.name, "arguments": call.function.arguments} | tojson }}'
    "{{ '\n</tool_call>' }}{% endfor %}{{ '<|im_end|>\n' }}{% endfor %}"
    "{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
SCHEMA = {
    "type": "object",
    "properties": {"city": {"enum": ["Paris", "Rome"]}, "days": {"type": "integer", "minimum": 1, "maximum": 9}},
    "required": ["city", "days"],
    "additionalProperties": False,
}
QUESTION = "What will the weather be in Rome over the next 3 days?"
RESULT = "Sunny."


@pytest.fixture
def server(start: Callable[..., Server], tmp_path: Path) -> Server:
    template = tmp_path / "tools.jinja"
    template.write_text(TEMPLATE)
    flags = ("--dtype", "float32", "--max-total-tokens", "8000", "--chat-template", str(template))
    return start(*flags).wait_ready()


def _checked(arguments: Any) -> None:  # noqa: ANN401 - any JSON
    assert arguments["city"] in ("Paris", "Rome")
    assert 1 <= arguments["days"] <= 9


def test_published_clients_call_tools_and_go_on(server: Server) -> None:
    url = f"http://127.0.0.1:{server.port}"
    with (
        openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=300) as client,
        anthropic.Anthropic(base_url=url, api_key="none", max_retries=0, timeout=300) as other,
    ):
        model = client.models.list().data[0].id
        _chat(client, model)
        _respond(client, model)
        _message(other, model)


def _chat(client: openai.OpenAI, model: str) -> None:
    tools: Any = [{"type": "function", "function": {"name": "weather", "parameters": SCHEMA}}]
    chat: list[Any] = [{"role": "user", "content": QUESTION}]
    with client.chat.completions.stream(
        model=model,
        messages=chat,
        tools=tools,
        tool_choice="required",
        parallel_tool_calls=False,
        temperature=0,
        stream_options={"include_usage": True},
    ) as stream:
        first = stream.get_final_completion()
    choice = first.choices[0]
    assert choice.finish_reason == "tool_calls"
    (call,) = choice.message.tool_calls
    _checked(json.loads(call.function.arguments))
    chat += [
        {"role": "assistant", "tool_calls": [call.model_dump(include={"id", "type", "function"})]},
        {"role": "tool", "tool_call_id": call.id, "content": RESULT},
    ]
    second = client.chat.completions.create(
        model=model, messages=chat, tools=tools, max_tokens=4, temperature=0, extra_headers={"X-Axil-Explain": "1"}
    )
    # All of the first turn that was computed is found, the call as it was written included: the template spells it as
    # the grammar did. What was forced behind the last free token wasn't computed, since the answer ended with it.
    used = second.usage
    assert used.prompt_tokens_details.cached_tokens >= first.usage.prompt_tokens + first.usage.completion_tokens - 8
    (told,) = second.model_extra["cache"]
    assert told["miss"]["cause"] == "never_seen"


def _respond(client: openai.OpenAI, model: str) -> None:
    tools: Any = [{"type": "function", "name": "weather", "parameters": SCHEMA, "strict": True}]
    items: list[Any] = [{"role": "user", "content": QUESTION}]
    with client.responses.stream(
        model=model, input=items, tools=tools, tool_choice="required", parallel_tool_calls=False, temperature=0
    ) as stream:
        first = stream.get_final_response()
    (call,) = first.output
    _checked(json.loads(call.arguments))
    assert first.usage.input_tokens_details.cached_tokens > 0  # the same prompt as the chat's
    items += [call.to_dict(), {"type": "function_call_output", "call_id": call.call_id, "output": RESULT}]
    second = client.responses.create(model=model, input=items, tools=tools, max_output_tokens=4, temperature=0)
    assert second.status in ("completed", "incomplete")
    assert second.usage.input_tokens_details.cached_tokens > first.usage.input_tokens


def _message(client: anthropic.Anthropic, model: str) -> None:
    tools: Any = [{"name": "weather", "input_schema": SCHEMA}]
    chat: list[Any] = [{"role": "user", "content": QUESTION}]
    wish: dict[str, Any] = {"model": model, "tools": tools, "extra_body": {"temperature": 0}}
    counted = client.messages.count_tokens(model=model, messages=chat, tools=tools)
    with client.messages.stream(
        messages=chat, max_tokens=60, tool_choice={"type": "any", "disable_parallel_tool_use": True}, **wish
    ) as stream:
        first = stream.get_final_message()
    (call,) = first.content
    assert first.stop_reason == "tool_use"
    _checked(call.input)
    assert first.usage.input_tokens + first.usage.cache_read_input_tokens == counted.input_tokens
    result = {"type": "tool_result", "tool_use_id": call.id, "content": RESULT}
    chat += [
        {"role": "assistant", "content": [block.to_dict() for block in first.content]},
        {"role": "user", "content": [result]},
    ]
    second = client.messages.create(messages=chat, max_tokens=4, **wish)
    assert second.usage.cache_read_input_tokens > counted.input_tokens
