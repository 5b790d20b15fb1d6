"""What a format of tool calls has to say of itself, and what the formats share. Knows no format by name."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NoReturn, Protocol

from runtime.text.pieces import Call

MAX_HEAD_CHARACTERS = 256
"""A call whose brackets don't open within so many characters behind its mark is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """A function that the model may call; `parameters` is a JSON schema."""

    name: str
    parameters: dict[str, object] = field(default_factory=lambda: {"type": "object", "properties": {}})


class CallForm(Protocol):
    """One way of writing tool calls.

    A call begins with one of `marks` anywhere, or, at the start of the answer and right behind another call, with one
    of the brackets in `anchors`. It goes on with brackets that close again, strings between any of `quotes` aside;
    behind them `closings` may stand, which belong to it. Templates of some models want ids of `id_characters`.
    """

    marks: tuple[str, ...]
    anchors: str
    closings: tuple[str, ...]
    quotes: str
    id_characters: int | None

    def body_at(self, text: str) -> int | None:
        """Where the brackets open in `text`, what stands behind a mark; None while that is not certain.

        A longer text must not change what is certain.

        Raises:
            NotACall: they never will.
        """

    def calls(self, text: str) -> list[Call]:
        """The calls in `text`, which ends with its closing bracket.

        Raises:
            NotACall: it is none.
        """

    def grammar(self, tools: Sequence[Tool], literal: Callable[[str], str], *, is_single: bool) -> str:
        """Lark rules of which `calls` is one call or several of `tools`; `literal` writes a mark as Lark does."""


class NotACall(Exception):
    """What began like a call is text."""


def plain_body_at(text: str, brackets: str) -> int | None:
    """`body_at` of formats with nothing but whitespace before the brackets."""
    stripped = text.lstrip()
    if not stripped and len(text) <= MAX_HEAD_CHARACTERS:
        return None
    if stripped[:1] and stripped[0] in brackets:
        return len(text) - len(stripped)
    raise NotACall


def parsed_json(text: str) -> object:
    """The JSON in `text`.

    Raises:
        NotACall: it is none, or nested too deeply.
    """
    try:
        return json.loads(text, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise NotACall from error


def json_call(value: object) -> Call:
    """The call in `{"name", "arguments" or "parameters"}`; arguments may be an object, or one as text, or absent.

    Raises:
        NotACall: it is of another form.
    """
    if not isinstance(value, dict) or not isinstance(value.get("name"), str):
        raise NotACall
    arguments = value.get("arguments", value.get("parameters"))
    if isinstance(arguments, str):
        arguments = parsed_json(arguments)
    return made_call(value["name"], {} if arguments is None else arguments)


def made_call(name: str, arguments: object) -> Call:
    """A call of `name` with `arguments`.

    Raises:
        NotACall: they are no object, or hold what JSON in UTF-8 can't.
    """
    if not isinstance(arguments, dict):
        raise NotACall
    try:
        text = json.dumps(arguments, ensure_ascii=False, allow_nan=False)
        text.encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise NotACall from error
    return Call(name, text)


def json_rule(schema: dict[str, object]) -> str:
    """JSON of `schema` in Lark, spaced as templates write it, so that the next turn finds it in the cache."""
    spacing = {"item_separator": ", ", "key_separator": ": ", "whitespace_flexible": False}
    return "%json " + json.dumps({"x-guidance": spacing, **schema})


def object_rules(tools: Sequence[Tool], arguments_name: str) -> str:
    """Lark rules of which `object` is `{"name": …, arguments_name: …}` of one of `tools`."""
    schemas = [
        {
            "type": "object",
            "properties": {"name": {"const": tool.name}, arguments_name: tool.parameters},
            "required": ["name", arguments_name],
            "additionalProperties": False,
            **{key: tool.parameters[key] for key in ("$defs", "definitions") if key in tool.parameters},
        }
        for tool in tools
    ]
    alternatives = " | ".join(f"object_{i}" for i in range(len(schemas)))
    rules = "".join(f"object_{i}: {json_rule(schema)}\n" for i, schema in enumerate(schemas))
    return f"object: {alternatives}\n{rules}"


def _no_constant(name: str) -> NoReturn:
    raise ValueError(name)


class ObjectForm:
    """What the formats have in common whose calls are one JSON object each."""

    quotes = '"'
    id_characters: int | None = None

    def body_at(self, text: str) -> int | None:
        """The object."""
        return plain_body_at(text, "{")

    def calls(self, text: str) -> list[Call]:
        """One call."""
        return [json_call(parsed_json(text))]
