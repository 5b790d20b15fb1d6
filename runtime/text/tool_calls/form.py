"""What a format of tool calls has to say of itself, and what the formats share. Knows no format by name."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
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


class Body(Protocol):
    """What a call consists of; `at` is how far it has been looked through."""

    at: int

    def end(self, text: str) -> int | None:
        """Where it ends, if that is in `text`, which is what the last call had, and more."""


class Telling(Protocol):
    """A call of `name` that is told while it is written; up to `at` its text has been told."""

    name: str

    @property
    def at(self) -> int:
        """An index into the text that the call stands in."""

    def more(self, text: str) -> str:
        """More of its arguments, as JSON; their last character is not among it. `text` is the last one's, and more.

        Raises:
            NotACall: they are wrong, and all before the mistake has been told.
        """

    def last(self, text: str, call: Call) -> str:
        """What was not told yet of the arguments of `call`, the whole one.

        Raises:
            NotACall: another one was told.
        """


class CallForm(Protocol):
    """One way of writing tool calls.

    A call begins with one of `marks` anywhere, or, at the start of the answer and right behind another call, with one
    of the brackets in `anchors`. It goes on with its body; behind that `closings` may stand, which belong to it.
    Templates of some models want ids of `id_characters`.
    """

    marks: tuple[str, ...]
    anchors: str
    closings: tuple[str, ...]
    id_characters: int | None

    def body_at(self, text: str) -> int | None:
        """Where the body begins in `text`, what stands behind a mark; None while that is not certain.

        A longer text must not change what is certain.

        Raises:
            NotACall: it never will.
        """

    def body(self, start: int) -> Body:
        """The body that begins at `start`."""

    def calls(self, text: str, tools: Mapping[str, Tool]) -> list[Call]:
        """The calls in `text`, which stands behind a mark and ends with its body; calls of `tools` are right.

        Raises:
            NotACall: it is none.
        """

    def telling(self, text: str, start: int, tools: Mapping[str, Tool]) -> Telling | None:
        """The first call behind a mark that ends at `start` of `text`; None while its name is not there.

        Forms that never give one are told when they are whole.
        """

    def write(self, call: Call) -> str:
        """`call` as the model writes it, mark and closing included; `calls` gives it back."""

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


def call_object(call: Call, arguments_name: str) -> str:
    """The object that `json_call` reads."""
    return f'{{"name": {json.dumps(call.name)}, "{arguments_name}": {call.arguments}}}'


def made_call(name: str, arguments: object) -> Call:
    """A call of `name` with `arguments`.

    Raises:
        NotACall: they are no object, or hold what JSON in UTF-8 can't.
    """
    if not isinstance(arguments, dict):
        raise NotACall
    return Call(name, written(arguments))


def written(value: object) -> str:
    """The JSON of a value.

    Raises:
        NotACall: it holds what JSON in UTF-8 can't.
    """
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False)
        text.encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise NotACall from error
    return text


def parameters_of(tool: Tool) -> tuple[dict[str, dict[str, object]], list[str], frozenset[str]]:
    """The schemas of a tool's parameters, their names in the order to write them (required ones first), and those."""
    properties, required = tool.parameters.get("properties"), tool.parameters.get("required")
    schemas = {
        name: schema if isinstance(schema, dict) else {}
        for name, schema in (properties.items() if isinstance(properties, dict) else ())
    }
    first = [name for name in (required if isinstance(required, list) else []) if name in schemas]
    return schemas, [*first, *(name for name in schemas if name not in first)], frozenset(first)


def shared_schemas(tool: Tool) -> dict[str, object]:
    """What a tool's parameters may refer to."""
    return {key: tool.parameters[key] for key in ("$defs", "definitions") if key in tool.parameters}


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
            **shared_schemas(tool),
        }
        for tool in tools
    ]
    alternatives = " | ".join(f"object_{i}" for i in range(len(schemas)))
    rules = "".join(f"object_{i}: {json_rule(schema)}\n" for i, schema in enumerate(schemas))
    return f"object: {alternatives}\n{rules}"


def _no_constant(name: str) -> NoReturn:
    raise ValueError(name)
