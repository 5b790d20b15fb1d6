"""Takes tool calls out of a text that grows, the same ones however the text is cut.

A call is told once it is whole, so that one that goes wrong can still be text, as it was written; or, where it is
streamed, as it is written: then one that goes wrong is left without its end, and what follows is text. Whitespace
around calls is dropped: chat templates write their own. Knows no format.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection
from enum import Enum, auto

from runtime.text.pieces import Arguments, Call, Piece, Text

from .form import Body, CallForm, NotACall, Telling, Tool


class _State(Enum):
    START = auto()  # of the answer, or right behind a call
    TEXT = auto()
    CALL = auto()  # behind a mark
    BEHIND = auto()  # a call: its closing may follow


class CallReader:
    """Reads calls of `tools` in one form; any other call is text.

    held:  [ whitespace | mark | body ...
                               _body_from
    """

    def __init__(self, form: CallForm, tools: Collection[Tool], *, is_streamed: bool = False) -> None:
        self._form = form
        self._tools = {tool.name: tool for tool in tools}
        self._is_streamed = is_streamed
        self._longest_mark = max(map(len, form.marks))
        self._state = _State.START
        self._held = ""
        self._body_from = 0
        self._body: Body | None = None
        self._telling: Telling | None = None
        self._is_untold = False  # the call may still be told as it is written

    def push(self, text: str) -> list[Piece]:
        """Add `text`; return what is certain now."""
        self._held += text
        pieces: list[Piece] = []
        while self._step(pieces):
            pass
        return pieces

    def flush(self) -> list[Piece]:
        """What was held back; no text may follow. Of a call that is cut off, nothing more is told."""
        held, self._held = self._held, ""
        is_dropped = self._state is _State.BEHIND or self._telling is not None or not held
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
                self._tell(pieces)
                return False
            pieces += self._rest_of_calls(end)
        except NotACall:
            self._state = _State.TEXT
            if self._telling is not None:
                with contextlib.suppress(NotACall):
                    self._tell(pieces)  # what was right before the mistake
                self._held = self._held[self._telling.at :]
                self._telling = None
                return True
            # What stands behind the mark is looked at again: there may be another. Behind a body, only from there.
            self._say(self._body.at if self._body is not None else max(self._body_from, 1), pieces)
            return True
        self._held = self._held[end:]
        self._telling = None
        self._state = _State.BEHIND
        return True

    def _end_of_call(self) -> int | None:
        if self._body is None:
            at = self._form.body_at(self._held[self._body_from :])
            if at is None:
                return None
            self._body = self._form.body(self._body_from + at)
        return self._body.end(self._held)

    def _rest_of_calls(self, end: int) -> list[Piece]:
        """What is not told yet of the calls that end at `end`."""
        first, *others = self._form.calls(self._held[self._body_from : end], self._tools)
        if not all(call.name in self._tools for call in (first, *others)):
            raise NotACall
        if self._telling is None:
            return [first, *others]
        return [Arguments(self._telling.last(self._held, first), is_last=True), *others]

    def _tell(self, pieces: list[Piece]) -> None:
        """Tell more of the call. One that is wrong before anything was told of it can still be text."""
        if self._telling is not None:
            while more := self._telling.more(self._held):
                pieces.append(Arguments(more, is_last=False))
        elif self._is_untold and self._body is not None:
            telling = self._form.telling(self._held, self._body_from, self._tools)
            if telling is None:
                return
            self._is_untold = False
            if telling.name not in self._tools:
                return
            with contextlib.suppress(NotACall):
                pieces.append(Call(telling.name, telling.more(self._held), is_whole=False))
                self._telling = telling

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
        self._body = None
        self._is_untold = self._is_streamed

    def _say(self, num_characters: int, pieces: list[Piece]) -> None:
        if num_characters:
            pieces.append(Text(self._held[:num_characters]))
            self._held = self._held[num_characters:]
