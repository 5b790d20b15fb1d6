from __future__ import annotations

import pytest

from runtime.doctor.prompts import prompt_of_body


@pytest.mark.parametrize(
    ("body", "parts"),
    [
        (
            {"messages": [{"role": "system", "content": "S"}, {"role": "user", "content": [{"text": "a"}]}]},
            [("system", "S"), ("user", "a")],
        ),
        (
            {"system": [{"type": "text", "text": "S"}], "messages": [{"role": "user", "content": "a"}]},
            [("system", "S"), ("user", "a")],
        ),
        ({"instructions": "S", "input": "a"}, [("system", "S"), ("user", "a")]),
        ({"instructions": "S", "input": [{"role": "user", "content": "a"}]}, [("system", "S"), ("user", "a")]),
        ({"prompt": "a"}, [("prompt", "a")]),
        ({"text": ["a", "b"]}, [("prompt", "a")]),
    ],
)
def test_the_prompt_of_every_api_is_read(body: dict[str, object], parts: list[tuple[str, str]]) -> None:
    assert [(part.name, part.text) for part in prompt_of_body(body).message_parts] == parts


def test_the_tools_of_every_api_are_read() -> None:
    openai = {"type": "function", "function": {"name": "f"}}
    anthropic = {"name": "f", "cache_control": {"type": "ephemeral"}}
    prompt = prompt_of_body({"messages": [{"role": "user", "content": "a"}], "tools": [openai, anthropic]})
    assert [(part.name, part.text) for part in prompt.tool_parts] == [("f", '{"name": "f"}')] * 2


def test_a_call_and_its_result_are_text_without_their_ids() -> None:
    def text(call_id: str) -> str:
        calls = [{"id": call_id, "function": {"name": "f", "arguments": "{}"}}]
        body = {"messages": [{"role": "assistant", "content": "x", "tool_calls": calls}]}
        return prompt_of_body(body).message_parts[0].text

    assert text("a") == text("b") == 'x\n{"name": "f", "arguments": "{}"}'


def test_a_body_without_a_prompt_is_refused() -> None:
    with pytest.raises(ValueError, match="none of messages, input, prompt and text"):
        prompt_of_body({"model": "m"})
