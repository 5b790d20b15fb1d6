"""What a chat's prompt was rendered from: two prompts are compared by what their clients have sent. Only values."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import orjson

from .text.template import Message

MESSAGE_BYTES = 256
"""A message without its text."""

_OBJECTS_OVER_JSON = 10
"""What JSON takes in memory once it is read."""


class Render(Protocol):
    """Renders a variant of a chat once more."""

    def __call__(self, messages: Sequence[Message], *, with_tools: bool) -> str:
        """These messages, with the chat's own variables and without what begins an answer.

        Raises:
            Refused: the template does not take them.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatSource:
    """A chat and the `text` that the template has made of it; `variables` are all others that the template read.

    `changes` names what the server has changed in what its client sent.
    """

    messages: Sequence[Message]
    tools: Sequence[dict[str, object]]
    variables: Mapping[str, object]
    text: str
    render: Render
    changes: tuple[str, ...] = ()

    @property
    def num_bytes(self) -> int:
        """About the memory that it keeps: the text, the messages that say the same, and the tools."""
        tools_bytes = _OBJECTS_OVER_JSON * len(orjson.dumps(self.tools)) if self.tools else 0
        return 2 * sys.getsizeof(self.text) + MESSAGE_BYTES * len(self.messages) + tools_bytes
