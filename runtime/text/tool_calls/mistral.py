"""Mistral's tool calls: `[TOOL_CALLS] [{"name": …, "arguments": {…}}, …]`, lately `[TOOL_CALLS]name[ARGS]{…}`."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence

from runtime.text.pieces import Call

from .brackets import Brackets
from .form import (
    MAX_HEAD_CHARACTERS,
    NotACall,
    Telling,
    Tool,
    call_object,
    json_call,
    made_call,
    object_rules,
    parsed_json,
)
from .objects import NAMED_OBJECT, told_from

_NAME = r"(?P<name>[\w.\-]{1,256})(?:\[CALL_ID\][\w\-]+)?(?:\[ARGS\])?\s*"
_BODY = re.compile(rf"\s*(?:(?=[\[{{])|{_NAME}(?={{))")
_LISTED = re.compile(rf"\s{{0,64}}\[?\s{{0,64}}{NAMED_OBJECT}")
_NAMED = re.compile(rf"\s{{0,64}}{_NAME}(?={{)")
_UNFINISHED = re.compile(r"\s*(?:[\w.\-]+(?:\[[A-Z_]*\]?[\w\-]*)*\s*)?")


class MistralForm:
    """A list or an object behind `[TOOL_CALLS]`, or a name and its arguments."""

    marks: tuple[str, ...] = ("[TOOL_CALLS]",)
    anchors = ""
    closings: tuple[str, ...] = ()
    id_characters: int | None = 9

    def body_at(self, text: str) -> int | None:
        """The list, the object or the arguments."""
        found = _BODY.match(text)
        if found is not None:
            return found.end()
        if len(text) <= MAX_HEAD_CHARACTERS and _UNFINISHED.fullmatch(text):
            return None
        raise NotACall

    def body(self, start: int) -> Brackets:
        """Its brackets."""
        return Brackets(start, '"')

    def telling(self, text: str, start: int, tools: Mapping[str, Tool]) -> Telling | None:
        """The first call's arguments as they are written; the others of a list come when it is whole."""
        return told_from(_NAMED.match(text, start) or _LISTED.match(text, start))

    def calls(self, text: str, tools: Mapping[str, Tool]) -> list[Call]:
        """All calls of a list, or the one."""
        head = _BODY.match(text)
        if head is None:
            raise NotACall
        value = parsed_json(text[head.end() :])
        if head["name"] is not None:
            return [made_call(head["name"], value)]
        if isinstance(value, list) and value:
            return [json_call(item) for item in value]
        return [json_call(value)]

    def write(self, call: Call) -> str:
        """A list of one."""
        return f"{self.marks[0]}[{call_object(call, 'arguments')}]"

    def grammar(self, tools: Sequence[Tool], literal: Callable[[str], str], *, is_single: bool) -> str:
        """The list, which all templates but the latest write."""
        more = "" if is_single else ' (", " object)*'
        return f'calls: {literal(self.marks[0])} " "? "[" object{more} "]"\n' + object_rules(tools, "arguments")
