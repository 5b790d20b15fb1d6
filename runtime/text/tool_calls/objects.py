"""What the formats have in common whose calls are one JSON object each, and the telling of its arguments.

Knows no format by name.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from runtime.text.pieces import Call

from .brackets import Brackets
from .form import NotACall, Telling, Tool, json_call, made_call, parsed_json, plain_body_at
from .json_object import JsonObject

_S = r"[ \t\n\r]{0,64}"
NAMED_OBJECT = rf'\{{{_S}"name"{_S}:{_S}"(?P<name>[^"\\]{{1,256}})"{_S},{_S}"(?:arguments|parameters)"{_S}:{_S}(?=\{{)'
"""How a call begins whose name comes before its arguments."""

_HEAD = re.compile(_S + NAMED_OBJECT)


class ObjectForm:
    """A call is an object with a name and arguments."""

    id_characters: int | None = None

    def body_at(self, text: str) -> int | None:
        """The object."""
        return plain_body_at(text, "{")

    def body(self, start: int) -> Brackets:
        """Its brackets."""
        return Brackets(start, '"')

    def calls(self, text: str, tools: Mapping[str, Tool]) -> list[Call]:
        """One call."""
        return [json_call(parsed_json(text))]

    def telling(self, text: str, start: int, tools: Mapping[str, Tool]) -> Telling | None:
        """Its arguments as they are written, where the name comes first."""
        return told_from(_HEAD.match(text, start))


def told_from(head: re.Match[str] | None) -> Telling | None:
    """The telling of the call of which `head` is all that stands before its arguments."""
    return None if head is None else ObjectTelling(head["name"], head.end())


class ObjectTelling:
    """Tells a call's arguments as they stand in the text, from `start` on."""

    def __init__(self, name: str, start: int) -> None:
        self.name = name
        self._start = start
        self._told = start
        self._arguments = JsonObject(start)

    @property
    def at(self) -> int:
        """Behind what was told of the arguments."""
        return self._told

    def more(self, text: str) -> str:
        """Whole numbers and words, and strings as they come."""
        try:
            self._arguments.follow(text)
        except NotACall:
            if self._arguments.at == self._told:
                raise  # else the next call will, and what is right comes first
        begin, self._told = self._told, self._arguments.at - self._arguments.is_whole
        return text[begin : self._told]

    def last(self, text: str, call: Call) -> str:
        """Of a name or arguments that come twice, others may have been told than count in the end."""
        self._arguments.follow(text)
        arguments = text[self._start : self._arguments.at]
        if not self._arguments.is_whole or made_call(self.name, parsed_json(arguments)) != call:
            raise NotACall
        return text[self._told : self._arguments.at]
