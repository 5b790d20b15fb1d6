"""What a chat's prompt was rendered from: two prompts are compared by what their clients have sent. Only values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from .text.template import Message


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
    def num_characters(self) -> int:
        """About the memory that it keeps: messages, and the text made of them."""
        return 2 * len(self.text)
