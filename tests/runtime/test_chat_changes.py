from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from runtime.chat_changes import NEW, Verdict, compare, is_version
from runtime.chat_source import ChatSource
from runtime.prompt_parts import Part, part_at
from runtime.text.template import Message
from wire.errors import Refused

TOOLS = [{"type": "function", "function": {"name": name, "parameters": {}}} for name in ("a", "b", "c")]
SYSTEM = {"role": "system", "content": "It is noon. Be brief and kind to everybody."}
ASK = {"role": "user", "content": "Why?"}
SAY = {"role": "assistant", "content": "Because."}
MORE = {"role": "user", "content": "And then?"}


def rendered(messages: Sequence[Message], tools: Sequence[dict[str, Any]]) -> str:
    """Reasoning stands only behind the last user message."""
    last_user = max((i for i, message in enumerate(messages) if message["role"] == "user"), default=-1)
    text = f"<tools>{[tool['function']['name'] for tool in tools]}</tools>" if tools else ""
    for i, message in enumerate(messages):
        thought = message.get("reasoning_content")
        shown = f"<think>{thought}</think>" if thought and i > last_user else ""
        text += f"<{message['role']}>{shown}{message['content']}<end>"
    return text


def source(*messages: Message, tools: Sequence[dict[str, Any]] = (), **variables: object) -> ChatSource:
    def render(variant: Sequence[Message], *, with_tools: bool) -> str:
        return rendered(variant, tools if with_tools else ())

    text = rendered(messages, tools) + "<assistant>"
    return ChatSource(messages=messages, tools=tools, variables=variables, text=text, render=render)


def said(text: str) -> Callable[[], str]:
    return lambda: text


@pytest.mark.parametrize(
    ("own", "other", "answer", "verdict"),
    [
        (source(ASK), source(MORE), None, NEW),
        (source(SYSTEM, ASK), source(SYSTEM, MORE), None, NEW),
        (source(SYSTEM, ASK), source({**SYSTEM, "content": "Count boats."}, ASK, SAY, MORE), None, "edited system"),
        (
            source({**SYSTEM, "content": "It is one. Be brief and kind to everybody."}, MORE),
            source(SYSTEM, ASK),
            None,
            "edited system",
        ),
        (source(SYSTEM, ASK), source(ASK), None, "added system"),
        (source(ASK, tools=TOOLS[::-1]), source(ASK, tools=TOOLS), None, "reordered tools"),
        (source(ASK, tools=TOOLS[:2]), source(ASK, tools=TOOLS), None, "removed tools"),
        (source(ASK, tools=[*TOOLS[:2], {**TOOLS[2], "x": 1}]), source(ASK, tools=TOOLS), None, "edited tools"),
        (source({**ASK, "content": "What?"}, SAY, MORE), source(ASK, SAY, MORE), None, "edited message 0"),
        (source(ASK, MORE), source(ASK, SAY, MORE), None, "removed message 1"),
        (source(ASK, SAY, MORE), source(ASK, MORE), None, "added message 1"),
        (source(ASK, think=True), source(ASK, think=False), None, Verdict("client_changed", None, "options")),
        (source(ASK, {**SAY, "content": "No."}, MORE), source(ASK), said("Because."), "edited message 1"),
        (
            source(ASK, SAY, MORE),
            source(ASK),
            said("<think>Hm</think>Because."),
            Verdict("template_changed", "message 1", "dropped_reasoning"),
        ),
        (
            source(ASK, SAY, MORE),
            source(ASK),
            said(" Because.  "),
            Verdict("template_changed", "message 1", "rerendered"),
        ),
        (
            source(ASK, {**SAY, "reasoning_content": "Hm."}, MORE),
            source(ASK, {**SAY, "reasoning_content": "Hm."}),
            None,
            Verdict("template_changed", None, "dropped_reasoning"),
        ),
        (source(ASK), source(ASK, SAY, MORE), None, Verdict("template_changed", "generation_prompt", "rerendered")),
    ],
)  # fmt: skip
def test_what_was_changed_is_told_from_what_is_new(
    own: ChatSource, other: ChatSource, answer: Callable[[], str] | None, verdict: Verdict | str
) -> None:
    if isinstance(verdict, str):
        change, _, part = verdict.partition(" ")
        found = compare(own, other, answer=answer)
        assert (found.cause, found.change, found.part) == ("client_changed", change, part)
    else:
        assert compare(own, other, answer=answer) == verdict


def test_texts_are_versions_of_one_when_they_end_alike() -> None:
    assert is_version("at 12:01, list all boats in the harbour", "at 12:02, list all boats in the harbour")
    assert not is_version("list all boats in the harbour", "list all birds of the island")
    assert not is_version("a?", "b?")


def names_of(chat: ChatSource) -> list[str]:
    """The part of each character, without repeats."""
    names: list[str] = []
    for i in range(len(chat.text)):
        name = part_at(chat, i).name
        if not names or names[-1] != name:
            names.append(name)
    return names


def test_every_character_of_a_chat_lies_in_its_part() -> None:
    chat = source(SYSTEM, ASK, SAY, MORE, tools=TOOLS)
    assert names_of(chat) == ["tools", "system", "message 1", "message 2", "message 3", "generation_prompt"]
    part = part_at(chat, chat.text.index("Because"))
    assert chat.text[part.start : part.end] == "<assistant>Because.<end>"


def test_parts_are_found_where_the_template_writes_a_message_otherwise_when_it_is_the_last() -> None:
    chat = source(ASK, {**SAY, "reasoning_content": "Hm."}, MORE)
    assert part_at(chat, chat.text.index("Because")).name == "message 1"
    assert names_of(chat) == ["message 0", "message 1", "message 2", "generation_prompt"]


def test_a_template_that_refuses_parts_of_a_chat_still_has_places() -> None:
    def render(messages: Sequence[Message], *, with_tools: bool) -> str:
        if len(messages) < 3:
            raise Refused("too few")
        return rendered(messages, ())

    whole = rendered([ASK, SAY, MORE], ())
    chat = ChatSource(messages=[ASK, SAY, MORE], tools=(), variables={}, text=whole, render=render)
    assert part_at(chat, whole.index("Because")) == Part("message 1", whole.index("Because"), whole.index("And then"))
