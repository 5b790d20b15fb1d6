"""What an answer is made of, once its text has been read: text, thoughts and tool calls, in order."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Text:
    """More of what the user is told."""

    text: str


@dataclass(frozen=True, slots=True)
class Thought:
    """More of what the model thinks before it answers."""

    text: str


@dataclass(frozen=True, slots=True)
class Call:
    """A tool call; `arguments` is the text of a JSON object, or how it begins where the call is not whole yet."""

    name: str
    arguments: str
    is_whole: bool = True


@dataclass(frozen=True, slots=True)
class Arguments:
    """More of the arguments of the call before; a call whose last ones never come went wrong, or was cut off."""

    text: str
    is_last: bool


Piece = Text | Thought | Call | Arguments
