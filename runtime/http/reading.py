"""`/parse_function_call` and `/separate_reasoning`: what a finished text holds.

For those who have it generated without a chat. SGLang's names of the formats are known beside our own.
"""

from __future__ import annotations

from collections.abc import Mapping

from aiohttp import web

from runtime.text.answer_form import CALL_FORMS, THOUGHT_TAGS
from runtime.text.pieces import Call, Text, Thought
from runtime.text.reasoning import ThoughtReader
from runtime.text.tool_calls.reader import CallReader
from wire.errors import Refused

from .errors import json_response
from .fields import Fields, read_fields
from .front import FRONT
from .route import Route
from .schema import record, string
from .tools import CHAT_TOOL_FIELDS, read_tools

_LONGEST = 200_000
"""Characters of a text, at most: longer ones would hold up the streams."""

_CALL_NAMES: Mapping[str, str] = {name: name for name in CALL_FORMS} | {
    "llama3": "llama",
    "qwen": "hermes",
    "qwen25": "hermes",
}
_THOUGHT_NAMES: Mapping[str, str] = {name: name for name in THOUGHT_TAGS} | {
    "deepseek-r1": "think",
    "qwen3": "think",
    "qwen3-thinking": "think",
}

_CALLS_BODY = record(
    {
        "text": string(longest=_LONGEST, text="What a model has written."),
        "tools": CHAT_TOOL_FIELDS["tools"],
        "tool_call_parser": string(choices=tuple(_CALL_NAMES), text="Default: the served model's."),
    },
    required=("text", "tools"),
)
_THOUGHTS_BODY = record(
    {
        "text": string(longest=_LONGEST, text="What a model has written."),
        "reasoning_parser": string(choices=tuple(_THOUGHT_NAMES), text="Default: the served model's."),
    },
    required=("text",),
)


async def parse_function_call(request: web.Request) -> web.Response:
    """Take the tool calls out of a text."""
    front = request.app[FRONT]
    fields = await read_fields(request)
    tools = read_tools(fields).callable
    name = _named(fields, "tool_call_parser", _CALL_NAMES, front.answer_form.call_form_name)
    reader = CallReader(CALL_FORMS[name], tools)
    text = fields.string("text") or ""
    front.warn_unknown(fields)
    pieces = await front.generator.off_loop(len(text), lambda: [*reader.push(text), *reader.flush()])
    index = {tool.name: i for i, tool in enumerate(tools)}
    calls = [
        {"tool_index": index[piece.name], "name": piece.name, "parameters": piece.arguments}
        for piece in pieces
        if isinstance(piece, Call)
    ]
    normal_text = "".join(piece.text for piece in pieces if isinstance(piece, Text))
    return json_response({"normal_text": normal_text, "calls": calls})


async def separate_reasoning(request: web.Request) -> web.Response:
    """Part the thoughts at a text's start from the answer; a text that only closes a thought begins inside it."""
    front = request.app[FRONT]
    fields = await read_fields(request)
    name = _named(fields, "reasoning_parser", _THOUGHT_NAMES, front.answer_form.thought_tags_name)
    tags, text = THOUGHT_TAGS[name], fields.string("text") or ""
    front.warn_unknown(fields)
    reader = ThoughtReader(tags, is_open=tags.end in text and tags.begin not in text)
    pieces, answer = reader.push(text)
    more, rest = reader.flush()
    thoughts = "".join(piece.text for piece in (*pieces, *more) if isinstance(piece, Thought))
    return json_response({"reasoning_text": thoughts, "text": answer + rest})


def _named(fields: Fields, field: str, names: Mapping[str, str], served: str | None) -> str:
    given = fields.string(field)
    if given is not None:
        return names[given]
    if served is None:
        raise Refused(
            f"{field} is missing, and the served model has none. Send one of {', '.join(names)}.", field=field
        )
    return served


_TOOL = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object", "properties": {}}}}
ROUTES = (
    Route(
        method="POST",
        path="/parse_function_call",
        handler=parse_function_call,
        body=_CALLS_BODY,
        examples=(
            {"text": '<tool_call>{"name": "weather"}</tool_call>', "tools": [_TOOL], "tool_call_parser": "qwen25"},
        ),
    ),
    Route(
        method="POST",
        path="/separate_reasoning",
        handler=separate_reasoning,
        body=_THOUGHTS_BODY,
        examples=({"text": "<think>Hm.</think>Yes.", "reasoning_parser": "think"},),
    ),
)
