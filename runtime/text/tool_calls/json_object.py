"""Follows a JSON object that grows, character by character, and says how far it is right. Knows no tool calls."""

from __future__ import annotations

import math
import re
from enum import Enum, auto

from .form import NotACall, parsed_json

MAX_DEPTH = 200
"""Brackets within brackets, at most: what holds more could not be read by those who get it."""

_MAX_SCALAR_CHARACTERS = 4300  # digits that Python reads as a number
_LONGEST_ESCAPE = 12  # two halves of a character, \uXXXX each

_TOKEN = re.compile(r'[ \t\n\r]+|[{}\[\],:"]|[^ \t\n\r{}\[\],:"]+(?=[ \t\n\r{}\[\],:"])')
_HALF = r"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}"
_STRING = re.compile(rf'(?:[^"\\\x00-\x1f]+|\\["\\/bfnrt]|\\u(?![dD][89a-fA-F])[0-9a-fA-F]{{4}}|{_HALF})*')


class _Next(Enum):
    VALUE = auto()
    VALUE_OR_END = auto()
    KEY = auto()
    KEY_OR_END = auto()
    COLON = auto()
    COMMA_OR_END = auto()


_BEFORE_VALUES = (_Next.VALUE, _Next.VALUE_OR_END)
_BEFORE_KEYS = (_Next.KEY, _Next.KEY_OR_END)


class JsonObject:
    """The object whose first bracket stands at `start` of a text: up to `at` it is right, and whole once `is_whole`.

    Scalars and escapes count when they are whole, strings as they come. Takes time linear in the text.

    >>> json_object = JsonObject(1)
    >>> json_object.follow('x{"a": tru'); json_object.at
    7
    >>> json_object.follow('x{"a": true} and more'); json_object.at, json_object.is_whole
    (12, True)
    """

    def __init__(self, start: int) -> None:
        self.at = start
        self._open: list[str] = []
        self._next = _Next.VALUE
        self._is_in_string = False
        self._is_begun = False

    @property
    def is_whole(self) -> bool:
        """Whether its last bracket has come."""
        return self._is_begun and not self._open

    def follow(self, text: str) -> None:
        """Go on as far as `text` is certain, which is what the last call had, and more.

        Raises:
            NotACall: it is no JSON, or nested too deeply.
        """
        while not self.is_whole:
            if self._is_in_string:
                if not self._follow_string(text):
                    return
                continue
            found = _TOKEN.match(text, self.at)
            if found is None:
                if len(text) - self.at > _MAX_SCALAR_CHARACTERS:
                    raise NotACall
                return
            self._take(found[0])
            self.at = found.end()

    def _follow_string(self, text: str) -> bool:
        """Go on in the string; False when it needs more text."""
        found = _STRING.match(text, self.at)
        assert found is not None, "it matches nothing too"
        self.at = found.end()
        behind = text[self.at : self.at + _LONGEST_ESCAPE]
        if behind.startswith('"'):
            self.at += 1
            self._is_in_string = False
            return True
        if behind and (not behind.startswith("\\") or len(behind) == _LONGEST_ESCAPE):
            raise NotACall
        return False

    def _take(self, token: str) -> None:
        match token[0]:
            case " " | "\t" | "\n" | "\r":
                return
            case "{" | "[" as bracket:
                self._open_bracket(bracket)
            case "}":
                self._close_bracket("{", _Next.KEY_OR_END)
            case "]":
                self._close_bracket("[", _Next.VALUE_OR_END)
            case ",":
                self._expect(_Next.COMMA_OR_END)
                self._next = _Next.KEY if self._open[-1] == "{" else _Next.VALUE
            case ":":
                self._expect(_Next.COLON)
                self._next = _Next.VALUE
            case '"':
                self._expect(*_BEFORE_VALUES, *_BEFORE_KEYS)
                self._next = _Next.COLON if self._next in _BEFORE_KEYS else _Next.COMMA_OR_END
                self._is_in_string = True
            case _:
                self._expect(*_BEFORE_VALUES)
                value = parsed_json(token)
                if isinstance(value, float) and not math.isfinite(value):
                    raise NotACall
                self._next = _Next.COMMA_OR_END

    def _open_bracket(self, bracket: str) -> None:
        self._expect(*_BEFORE_VALUES)
        if len(self._open) == MAX_DEPTH:
            raise NotACall
        self._open.append(bracket)
        self._next = _Next.KEY_OR_END if bracket == "{" else _Next.VALUE_OR_END
        self._is_begun = True

    def _close_bracket(self, bracket: str, empty: _Next) -> None:
        self._expect(_Next.COMMA_OR_END, empty)
        if self._open[-1] != bracket:
            raise NotACall
        self._open.pop()
        self._next = _Next.COMMA_OR_END

    def _expect(self, *allowed: _Next) -> None:
        if self._next not in allowed:
            raise NotACall
