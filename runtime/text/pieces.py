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
    """One whole tool call; `arguments` is the text of a JSON object."""

    name: str
    arguments: str


Piece = Text | Thought | Call
