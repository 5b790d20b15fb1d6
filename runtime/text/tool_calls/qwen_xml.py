"""Qwen3-Coder's tool calls: `<tool_call>`, then `<function=NAME>` and a `<parameter=KEY>` for each argument.

A value that the tool's schema calls a string is taken as it stands between two line ends; any other is JSON, or a
string where it is none. A call ends with the first `</function>`, and a value with the first `</parameter>`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence

from runtime.text.pieces import Call

from .form import (
    MAX_HEAD_CHARACTERS,
    NotACall,
    Telling,
    Tool,
    json_rule,
    made_call,
    parameters_of,
    parsed_json,
    shared_schemas,
    written,
)

_END = "</function>"
_VALUE_END = "</parameter>"
_HEAD = re.compile(r"\s{0,64}<function=(?P<name>[^<>\n]{1,256})>")
_UNFINISHED_HEAD = re.compile(r"\s{0,64}(?:<(?:f(?:u(?:n(?:c(?:t(?:i(?:o(?:n(?:=[^<>\n]{0,256})?)?)?)?)?)?)?)?)?)?")
_KEY = re.compile(r"\s{0,64}<parameter=(?P<key>[^<>\n]{1,256})>\n?")
_PYTHON_WORDS: Mapping[str, object] = {"True": True, "False": False, "None": None}


class QwenXmlForm:
    """`<tool_call>` and a function with its parameters; a missing `</tool_call>` is forgiven."""

    marks: tuple[str, ...] = ("<tool_call>",)
    anchors = ""
    closings: tuple[str, ...] = ("</tool_call>",)
    id_characters: int | None = None

    def body_at(self, text: str) -> int | None:
        """Behind the function's name."""
        found = _HEAD.match(text)
        if found is not None:
            return found.end()
        if len(text) <= MAX_HEAD_CHARACTERS and _UNFINISHED_HEAD.fullmatch(text):
            return None
        raise NotACall

    def body(self, start: int) -> Parameters:
        """Up to the function's end."""
        return Parameters(start)

    def calls(self, text: str, tools: Mapping[str, Tool]) -> list[Call]:
        """One call."""
        head = _HEAD.match(text)
        if head is None:
            raise NotACall
        arguments: dict[str, object] = {}
        at, end = head.end(), len(text) - len(_END)
        while (found := _KEY.match(text, at, end)) is not None:
            value_end = text.find(_VALUE_END, found.end(), end)
            if value_end < 0:
                raise NotACall
            value = text[found.end() : value_end].removesuffix("\n")
            arguments[found["key"]] = value if _is_text(tools, head["name"], found["key"]) else _value(value)
            at = value_end + len(_VALUE_END)
        if text[at:end].strip():
            raise NotACall
        return [made_call(head["name"], arguments)]

    def telling(self, text: str, start: int, tools: Mapping[str, Tool]) -> Telling | None:
        """Strings as they come, other values when they are whole."""
        head = _HEAD.match(text, start)
        return None if head is None else _XmlTelling(head["name"], head.end(), tools)

    def write(self, call: Call) -> str:
        """Strings as they are, other values as JSON, with the template's line ends."""
        parameters = "".join(
            f"<parameter={key}>\n{value if isinstance(value, str) else written(value)}\n{_VALUE_END}\n"
            for key, value in json.loads(call.arguments).items()
        )
        return f"{self.marks[0]}\n<function={call.name}>\n{parameters}{_END}\n{self.closings[0]}"

    def grammar(self, tools: Sequence[Tool], literal: Callable[[str], str], *, is_single: bool) -> str:
        """Line ends as the template has them; parameters in the order of the schema, those that are optional or not."""
        more = "" if is_single else ' ("\\n" call)*'
        begin, end = literal(self.marks[0]), literal(self.closings[0])
        names = " | ".join(f"function_{i}" for i in range(len(tools)))
        rules = "".join(_rules(tool, f"function_{i}") for i, tool in enumerate(tools))
        return f'calls: call{more}\ncall: {begin} "\\n" function "\\n" {end}\nfunction: {names}\n{rules}'


class Parameters:
    """All between a function's name and its end."""

    def __init__(self, start: int) -> None:
        self.at = start

    def end(self, text: str) -> int | None:
        """Behind the function's end."""
        found = text.find(_END, self.at)
        if found >= 0:
            self.at = found + len(_END)
            return self.at
        self.at = max(self.at, len(text) - len(_END) + 1)
        return None


class _XmlTelling:
    """Tells parameters as a JSON object; `at` is behind what was told."""

    def __init__(self, name: str, start: int, tools: Mapping[str, Tool]) -> None:
        self.name = name
        self.at = start
        self._tools = tools
        self._told = ""
        self._is_begun = False
        self._is_in_text = False
        self._looked_to = start

    def more(self, text: str) -> str:
        """Strings up to what may be the tag that ends them."""
        parts = []
        while part := self._text(text) if self._is_in_text else self._parameter(text):
            parts.append(part)
        more = "".join(parts)
        self._told += more
        return more

    def last(self, text: str, call: Call) -> str:
        """The bracket that closes the object, behind all parameters."""
        rest = self.more(text)
        end = "}" if self._is_begun else "{}"
        if made_call(self.name, parsed_json(self._told + end)) != call:
            raise NotACall
        return rest + end

    def _parameter(self, text: str) -> str:
        """The beginning of the next parameter, if it is a string, or all of it; empty where that is not certain."""
        found = _KEY.match(text, self.at)
        if found is None or (found.end() == len(text) and not text.endswith("\n")):
            return ""
        begin = f"{', ' if self._is_begun else '{'}{written(found['key'])}: "
        if _is_text(self._tools, self.name, found["key"]):
            self._is_in_text, self._is_begun, self.at = True, True, found.end()
            return begin + '"'
        end = text.find(_VALUE_END, max(found.end(), self._looked_to))
        if end < 0:
            self._looked_to = max(self._looked_to, len(text) - len(_VALUE_END) + 1)
            return ""
        self._is_begun, self.at = True, end + len(_VALUE_END)
        return begin + written(_value(text[found.end() : end].removesuffix("\n")))

    def _text(self, text: str) -> str:
        """More of a string, and its end."""
        end = text.find(_VALUE_END, self.at)
        if end < 0:
            begin, self.at = self.at, max(self.at, len(text) - len(_VALUE_END))  # a line end may stand before the tag
            return written(text[begin : self.at])[1:-1]
        value = text[self.at : end].removesuffix("\n")
        self._is_in_text, self.at = False, end + len(_VALUE_END)
        return written(value)[1:]


def _is_text(tools: Mapping[str, Tool], name: str, key: str) -> bool:
    properties = tools[name].parameters.get("properties") if name in tools else None
    schema = properties.get(key) if isinstance(properties, dict) else None
    return isinstance(schema, dict) and schema.get("type") == "string"


def _value(text: str) -> object:
    word = text.strip()
    if word in _PYTHON_WORDS:
        return _PYTHON_WORDS[word]
    try:
        return parsed_json(word)
    except NotACall:
        return text


def _rules(tool: Tool, rule: str) -> str:
    """Lark of one function: `rule` is the call, `rule_K` its parameters from the K-th on."""
    schemas, names, required = parameters_of(tool)
    lines = [f'{rule}: {json.dumps(f"<function={tool.name}>")} "\\n" {rule}_0']
    for k, name in enumerate(names):
        item = f'{json.dumps(f"<parameter={name}>")} "\\n" {rule}_value_{k} {rule}_{k + 1}'
        lines.append(f"{rule}_{k}: {item}" + ("" if name in required else f" | {rule}_{k + 1}"))
        lines.append(_value_rule(tool, schemas[name], f"{rule}_value_{k}"))
    lines.append(f"{rule}_{len(names)}: {json.dumps(_END)}")
    return "\n".join(lines) + "\n"


def _value_rule(tool: Tool, schema: Mapping[str, object], rule: str) -> str:
    """Lark of a value and the tag behind it; of strings only an `enum` is followed."""
    end = json.dumps(f"\n{_VALUE_END}\n")
    choices = schema.get("enum")
    if schema.get("type") != "string":
        return f"{rule}: {rule}_json {end}\n{rule}_json: {json_rule(shared_schemas(tool) | dict(schema))}"
    if isinstance(choices, list) and choices:
        return f"{rule}: ({' | '.join(json.dumps(str(choice)) for choice in choices)}) {end}"
    return f"{rule}[suffix={end}]: /(?s:.*)/"
