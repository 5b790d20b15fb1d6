"""A variable whose value is on its way: what a call will give, its pieces as they come, and what it cost.

Filled on the programs' loop; read from anywhere.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from types import CodeType
from typing import Any

from .backend import TokenLogprob, Usage
from .promise import Promise

_PACKAGE = __name__.rpartition(".")[0]


@dataclass(frozen=True, slots=True)
class Place:
    """A line of a program."""

    code: CodeType
    line: int

    def __str__(self) -> str:
        return f"{self.code.co_filename}:{self.line} in {self.code.co_name}"


def place_of_caller() -> Place | None:
    """The innermost line that isn't part of the DSL itself."""
    frame = sys._getframe(1)
    while frame is not None:
        name = frame.f_globals.get("__name__", "")
        if not name.startswith(_PACKAGE):
            return Place(frame.f_code, frame.f_lineno)
        if frame.f_back is None:
            return None
        frame = frame.f_back
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Meta:
    """What is known of a finished call.

    `cached_tokens` is None where the backend doesn't tell. `logprobs` has one tuple for each of the call's samples,
    and is empty where none were asked for.
    `scores` are those of a choice's candidates, higher is better. `seconds` includes waiting for a turn.
    """

    prompt_tokens: int
    cached_tokens: int | None
    completion_tokens: int
    finish_reason: str
    seconds: float
    logprobs: tuple[tuple[TokenLogprob, ...], ...] = ()
    scores: dict[str, float] | None = None

    @classmethod
    def of(cls, usage: Usage, **more: Any) -> Meta:  # noqa: ANN401 - the other fields
        """Take the tokens from `usage`."""
        return cls(
            prompt_tokens=usage.prompt_tokens,
            cached_tokens=usage.cached_tokens,
            completion_tokens=usage.completion_tokens,
            **more,
        )


class Slot:
    """One variable. `result` gives (value, meta)."""

    __slots__ = ("_readers", "name", "pieces", "place", "result")

    def __init__(self, name: str | None, place: Place | None) -> None:
        self.name = name
        self.place = place
        self.result: Promise[tuple[Any, Meta | None]] = Promise()
        self.pieces: list[str] | None = None
        self._readers: list[Callable[[str | None], None]] = []

    def put(self, piece: str) -> None:
        """Take a further piece of the answer's text. On the loop."""
        if self.pieces is None:
            self.pieces = []
        self.pieces.append(piece)
        for reader in self._readers:
            reader(piece)

    def finish(self, value: object, meta: Meta | None) -> None:
        """Set the value. On the loop."""
        self.result.set_result((value, meta))
        self._tell_end()

    def fail(self, error: BaseException) -> None:
        """Set the error that the value's users get. On the loop."""
        self.result.set_exception(error)
        self._tell_end()

    def read(self, reader: Callable[[str | None], None]) -> None:
        """Give all pieces, those to come included, to `reader`, and None at the end. On the loop."""
        for piece in self.pieces or ():
            reader(piece)
        if self.result.is_done:
            reader(None)
        else:
            self._readers.append(reader)

    def _tell_end(self) -> None:
        for reader in self._readers:
            reader(None)
        self._readers.clear()
