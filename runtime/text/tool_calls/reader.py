"""Takes tool calls out of a text that grows, the same ones however the text is cut.

A call is told once it is whole, so that one that goes wrong can still be text, as it was written. Whitespace around
calls is dropped: chat templates write their own. Knows no format.
"""

from __future__ import annotations

from collections.abc import Collection
from enum import Enum, auto

from runtime.text.pieces import Piece, Text

from .brackets import Brackets
from .form import CallForm, NotACall


class _State(Enum):
    START = auto()  # of the answer, or right behind a call
    TEXT = auto()
    CALL = auto()  # behind a mark
    BEHIND = auto()  # a call: its closing may follow


class CallReader:
    """Reads calls of the tools `names` in one form; any other call is text.

    held:  [ whitespace | mark | brackets ...
                        0      _body_from
    """

    def __init__(self, form: CallForm, names: Collection[str]) -> None:
        self._form = form
        self._names = names
        self._longest_mark = max(map(len, form.marks))
        self._state = _State.START
        self._held = ""
        self._body_from = 0
        self._brackets: Brackets | None = None

    def push(self, text: str) -> list[Piece]:
        """Add `text`; return what is certain now."""
        self._held += text
        pieces: list[Piece] = []
        while self._step(pieces):
            pass
        return pieces

    def flush(self) -> list[Piece]:
        """What was held back; no text may follow."""
        held, self._held = self._held, ""
        is_dropped = self._state is _State.BEHIND or not held
        return [] if is_dropped else [Text(held)]

    def _step(self, pieces: list[Piece]) -> bool:
        """Decide one thing; False when that takes more text."""
        match self._state:
            case _State.START:
                return self._start()
            case _State.TEXT:
                return self._text(pieces)
            case _State.CALL:
                return self._call(pieces)
            case _State.BEHIND:
                return self._behind()

    def _start(self) -> bool:
        stripped = self._held.lstrip()
        if not stripped:
            return False
        if stripped[0] in self._form.anchors:
            self._begin_call(len(self._held) - len(stripped))
        else:
            self._state = _State.TEXT
        return True

    def _text(self, pieces: list[Piece]) -> bool:
        found = [(at, mark) for mark in self._form.marks if (at := self._held.find(mark)) >= 0]
        if found:
            at, mark = min(found)
            self._say(len(self._held[:at].rstrip()), pieces)
            self._begin_call(self._held.index(mark) + len(mark))
            return True
        self._say(self._num_certain(), pieces)
        return False

    def _num_certain(self) -> int:
        """How much of the text can't be a mark's beginning, or whitespace before one."""
        held = self._held
        for start in range(max(0, len(held) - self._longest_mark + 1), len(held)):
            if any(mark.startswith(held[start:]) for mark in self._form.marks):
                return len(held[:start].rstrip())
        return len(held.rstrip())

    def _call(self, pieces: list[Piece]) -> bool:
        try:
            end = self._end_of_call()
            if end is None:
                return False
            calls = self._form.calls(self._held[self._body_from : end])
            if not all(call.name in self._names for call in calls):
                raise NotACall
        except NotACall:
            # What stands behind the mark is looked at again: there may be another. Behind brackets, only from there.
            end = self._brackets.at if self._brackets is not None else max(self._body_from, 1)
            self._state = _State.TEXT
            self._say(end, pieces)
            return True
        pieces += calls
        self._held = self._held[end:]
        self._state = _State.BEHIND
        return True

    def _end_of_call(self) -> int | None:
        if self._brackets is None:
            at = self._form.body_at(self._held[self._body_from :])
            if at is None:
                return None
            self._brackets = Brackets(self._body_from + at, self._form.quotes)
        return self._brackets.end(self._held)

    def _behind(self) -> bool:
        self._held = self._held.lstrip()
        for closing in self._form.closings:
            if self._held.startswith(closing):
                self._held = self._held[len(closing) :]
                return True
            if closing.startswith(self._held):
                return False
        if not self._held:
            return False
        self._state = _State.START
        return True

    def _begin_call(self, body_from: int) -> None:
        self._state = _State.CALL
        self._body_from = body_from
        self._brackets = None

    def _say(self, num_characters: int, pieces: list[Piece]) -> None:
        if num_characters:
            pieces.append(Text(self._held[:num_characters]))
            self._held = self._held[num_characters:]
