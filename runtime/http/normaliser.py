"""Takes out of chats what clients change in each request and no model needs, where the operator has asked for it.

`--drop-billing-headers` drops the lines that coding agents put in front of their system prompt for whom they pay;
`--sort-tools` writes tools by name and the keys of their schemas in order. Whatever changes is told in the answer.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from aiohttp import web

from runtime.config import HttpConfig
from runtime.text.template import Message
from runtime.text.tool_calls.form import Tool

from .access import EXTRA_HEADERS
from .front import FRONT
from .tools import ToolWish

HEADER = "X-Axil-Normalized"
"""The header of answers whose prompt was changed, with what was: `billing_header`, `tool_order`, `key_order`."""

_BILLING_HEADER = re.compile(r"x-anthropic-billing-header:(?:[ \t]*[\w-]+=[^;\s]*;?)*[ \t]*\n?", re.IGNORECASE)
_INSTRUCTIONS = ("system", "developer")

Changes = tuple[str, ...]


def normalised(
    messages: Sequence[Message], tools: ToolWish, config: HttpConfig
) -> tuple[list[Message], ToolWish, Changes]:
    """Messages and tools as the flags want them written, and the names of what that has changed."""
    changes: list[str] = []
    kept = list(messages)
    if config.drop_billing_headers:
        kept = _without_billing_headers(kept)
        changes += ["billing_header"] if kept != list(messages) else []
    if config.sort_tools:
        tools, tool_changes = _sorted(tools)
        changes += tool_changes
    return kept, tools, tuple(changes)


def tell(request: web.Request, changes: Changes) -> None:
    """Have the answer to a request say what was changed in its prompt, and count it."""
    if changes:
        request[EXTRA_HEADERS] = {**request.get(EXTRA_HEADERS, {}), HEADER: ", ".join(changes)}
        request.app[FRONT].metrics.normalised(changes)


def _without_billing_headers(messages: Sequence[Message]) -> list[Message]:
    """The messages, of which those of the system don't begin with such a header; one that has nothing else goes."""
    kept: list[Message] = []
    for message in messages:
        content = message.get("content")
        found = _BILLING_HEADER.match(content) if isinstance(content, str) else None
        if found is None or message.get("role") not in _INSTRUCTIONS:
            kept.append(message)
        elif rest := found.string[found.end() :]:
            kept.append({**message, "content": rest})
    return kept or list(messages)


def _sorted(wish: ToolWish) -> tuple[ToolWish, list[str]]:
    shown = tuple(sorted((_with_sorted_keys(tool) for tool in wish.shown), key=_name))
    callables = tuple(sorted((_tool_with_sorted_keys(tool) for tool in wish.callable), key=lambda tool: tool.name))
    changes = ["tool_order"] if [*map(_name, shown)] != [*map(_name, wish.shown)] else []
    if any(_keys(tool) != _keys(_with_sorted_keys(tool)) for tool in wish.shown):
        changes.append("key_order")
    return replace(wish, shown=shown, callable=callables), changes


def _name(tool: dict[str, object]) -> str:
    function = tool["function"]
    return str(function["name"]) if isinstance(function, dict) else ""


def _with_sorted_keys(tool: dict[str, object]) -> dict[str, object]:
    """The tool with sorted keys in its schema; its own are ours, in one order always."""
    function = tool["function"]
    assert isinstance(function, dict), "made_wish has made it"
    return {**tool, "function": {**function, "parameters": _sorted_value(function["parameters"])}}


def _tool_with_sorted_keys(tool: Tool) -> Tool:
    parameters = _sorted_value(tool.parameters)
    assert isinstance(parameters, dict)
    return Tool(name=tool.name, parameters=parameters)


def _sorted_value(value: object) -> object:
    match value:
        case dict():
            return {key: _sorted_value(value[key]) for key in sorted(value)}
        case list():
            return [_sorted_value(item) for item in value]
        case _:
            return value


def _keys(value: object) -> object:
    """The keys of a value in their order, which comparing dictionaries does not see."""
    match value:
        case dict():
            return [(key, _keys(item)) for key, item in value.items()]
        case list():
            return [_keys(item) for item in value]
        case _:
            return None
