"""Reads the messages of a chat in OpenAI's shape, and makes them what chat templates expect."""

from __future__ import annotations

import json
from collections.abc import Set

from runtime.text.template import Message, check_role
from wire.errors import Refused

from .fields import Fields
from .schema import Schema, either, list_of, record, shown, string

MESSAGES: Schema = list_of(
    record(
        {
            "role": string(),
            "content": either(string(), list_of(record({"type": string(), "text": string()}))),
            "reasoning_content": string(text="What an assistant thought; the template decides whether it is kept."),
            "reasoning": string(text="Another name of reasoning_content."),
            "tool_call_id": string(text="Whose result a tool's message is."),
            "tool_calls": list_of(
                record(
                    {
                        "id": string(),
                        "type": string(),
                        "function": record({"name": string(), "arguments": string()}),
                    }
                ),
                text="What an assistant called.",
            ),
        }
    ),
    text="The chat, in OpenAI's shape; the model's template says which roles there are.",
)


def read_messages(fields: Fields, roles: Set[str]) -> list[Message]:
    """The messages; `roles` are those that they may have.

    Raises:
        Refused: there are none, or one is wrong.
    """
    items = fields.items("messages")
    if not items:
        raise Refused("messages is empty; it must hold at least one message. Send one.", field="messages")
    messages = []
    for item in items:
        role = item.string("role")
        if not role:
            raise Refused(f"{item.name('role')} is missing. Set it to user, for example.", field=item.name("role"))
        check_role(role, roles, field=item.name("role"))
        message: Message = {**item.everything(), "content": _content(item)}
        thought = item.string("reasoning_content") or item.string("reasoning")
        if thought is not None:
            message["reasoning_content"] = thought
        calls = [_call(call) for call in item.items("tool_calls")]
        if calls:
            message["tool_calls"] = calls
        else:
            message.pop("tool_calls", None)
        messages.append(message)
    return messages


def tool_call(name: str, arguments: str, call_id: str | None) -> dict[str, object]:
    """A call of an earlier turn, as templates take it: arguments as an object wherever they are one."""
    try:
        value = json.loads(arguments) if arguments else {}
    except (ValueError, RecursionError):
        value = arguments
    return {
        "id": call_id,
        "type": "function",
        "function": {"name": name, "arguments": value if isinstance(value, dict) else arguments},
    }


def _call(item: Fields) -> dict[str, object]:
    function = item.fields("function")
    name = function.string("name")
    if not name:
        raise Refused(f"{function.name('name')} is missing. Name the function.", field=function.name("name"))
    item.string("type")
    return tool_call(name, function.string("arguments") or "", item.string("id"))


def _content(item: Fields) -> str:
    """A message's text; several text parts are joined by line ends."""
    value = item.raw("content")
    match value:
        case None:
            return ""
        case str():
            return value
        case list():
            return "\n".join(_part(part) for part in item.items("content"))
        case _:
            raise item.wrong_type("content", "a string or a list of parts", value)


def _part(part: Fields) -> str:
    kind = part.string("type")
    if kind != "text":
        raise Refused(
            f"{part.name('type')} must be text, got {shown(kind)}: this model reads text only. Leave the part out.",
            field=part.name("type"),
        )
    text = part.string("text")
    if text is None:
        raise part.wrong_type("text", "a string", text)
    return text
