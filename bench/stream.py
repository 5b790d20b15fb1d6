"""Makes an answer of a stream's chunks as they come, in OpenAI's form or in that of `/generate`. Knows no sockets."""

from __future__ import annotations

import time
from collections.abc import Sequence
from itertools import pairwise
from typing import Protocol

from bench.summary import Answer, Failure

Json = dict[str, object]


class AnswerReader(Protocol):
    """Takes the chunks of one stream."""

    def add(self, chunk: Json) -> bool:
        """Take a chunk; True when it brought text.

        Raises:
            ValueError: the chunk is malformed.
        """

    def end(self) -> Answer | Failure:
        """What all chunks together say, after the last.

        Raises:
            ValueError: the counts are malformed.
        """


class OpenAIReader:
    """Chunks of `/v1/completions` and `/v1/chat/completions`, each with a piece of text; usage comes at the end."""

    def __init__(self, started_s: float) -> None:
        self._pieces = _Pieces(started_s)
        self._token_ids: list[int] = []
        self._usage: Json | None = None

    def add(self, chunk: Json) -> bool:
        """Take a chunk; True when it brought text."""
        self._usage = _object(chunk.get("usage")) or self._usage
        choices = chunk.get("choices")
        choice = _object(choices[0]) if isinstance(choices, list) and choices else None
        if choice is None:
            return False
        token_ids = choice.get("token_ids")
        if isinstance(token_ids, list):
            self._token_ids += token_ids
        delta = _object(choice.get("delta")) or {}
        return self._pieces.add(choice.get("text") or delta.get("content"))

    def end(self) -> Answer | Failure:
        """What all chunks together say, after the last."""
        if self._usage is None:
            return Failure("no usage", "the stream had no usage although stream_options.include_usage asked for it")
        details = _object(self._usage.get("prompt_tokens_details")) or {}
        return self._pieces.answer(
            counts=self._usage, cached=details.get("cached_tokens"), token_ids=self._token_ids or None
        )


class GenerateReader:
    """Chunks of `/generate`, each with all of the text, the token ids and the counts so far."""

    def __init__(self, started_s: float) -> None:
        self._pieces = _Pieces(started_s)
        self._last: Json = {}
        self._num_characters = 0

    def add(self, chunk: Json) -> bool:
        """Take a chunk; True when it brought text."""
        text = chunk.get("text")
        if not isinstance(text, str):
            raise ValueError("a chunk of /generate has no text")
        self._last = chunk
        piece, self._num_characters = text[self._num_characters :], len(text)
        return self._pieces.add(piece)

    def end(self) -> Answer | Failure:
        """What all chunks together say, after the last."""
        counts = _object(self._last.get("meta_info"))
        token_ids = self._last.get("output_ids")
        if counts is None or not isinstance(token_ids, list):
            return Failure("no usage", "the last chunk of /generate had no meta_info or no output_ids")
        return self._pieces.answer(counts=counts, cached=counts.get("cached_tokens"), token_ids=token_ids)


class _Pieces:
    """Pieces of text and when they came."""

    def __init__(self, started_s: float) -> None:
        self._started_s = started_s
        self._texts: list[str] = []
        self._times_s: list[float] = []

    def add(self, piece: object) -> bool:
        if not piece or not isinstance(piece, str):
            return False
        self._texts.append(piece)
        self._times_s.append(time.perf_counter())
        return True

    def answer(self, *, counts: Json, cached: object, token_ids: Sequence[int] | None) -> Answer:
        return Answer(
            pieces=tuple(self._texts),
            token_ids=None if token_ids is None else tuple(token_ids),
            ttft_s=self._times_s[0] - self._started_s if self._times_s else None,
            gaps_s=tuple(later - earlier for earlier, later in pairwise(self._times_s)),
            prompt_tokens=_count(counts, "prompt_tokens"),
            completion_tokens=_count(counts, "completion_tokens"),
            cached_tokens=cached if isinstance(cached, int) else None,
        )


def _count(counts: Json, name: str) -> int:
    value = counts.get(name)
    if not isinstance(value, int):
        raise ValueError(f"{name} must be a number, got {value}")
    return value


def _object(value: object) -> Json | None:
    return value if isinstance(value, dict) else None
