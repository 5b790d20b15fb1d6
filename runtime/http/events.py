"""Server-sent events of an answer as bytes, and those that differ in one string only, of which the rest is kept."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import orjson

from wire.errors import AxilError

from .errors import in_stream

DONE = b"data: [DONE]\n\n"


def event(body: Mapping[str, object]) -> bytes:
    """One event with `body` as its JSON."""
    return b"data: " + orjson.dumps(body) + b"\n\n"


def named_event(body: Mapping[str, object]) -> bytes:
    """One event that is named by the `type` in its body."""
    return b"event: " + str(body["type"]).encode() + b"\n" + event(body)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """How an API ends its streams: what stands behind the last event, and what tells of an error instead."""

    good: tuple[bytes, ...]
    bad: Callable[[AxilError], Sequence[bytes]]


PLAIN_ENDING = Ending(good=(DONE,), bad=lambda error: (event(in_stream(error)), DONE))
"""SGLang's and OpenAI's."""


class TextEvent:
    """Events whose bodies are `make(text)`, where `make` puts the text in one place and alters nothing else.

    >>> said = TextEvent(lambda text: {"index": 0, "text": text})
    >>> said.of('"Hi')
    b'data: {"index":0,"text":"\\\\"Hi"}\\n\\n'
    """

    __slots__ = ("_head", "_tail")

    def __init__(
        self, make: Callable[[str], Mapping[str, object]], write: Callable[[Mapping[str, object]], bytes] = event
    ) -> None:
        mark = uuid.uuid4().hex  # nobody can have it in a field of theirs
        self._head, self._tail = write(make(mark)).split(orjson.dumps(mark))

    def of(self, text: str) -> bytes:
        """The event with this text."""
        return self._head + orjson.dumps(text) + self._tail
