"""Thoughts that a model writes before its answer, between two tags. Knows no HTTP and no tokens."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto

from .pieces import Piece, Thought


@dataclass(frozen=True, slots=True)
class ThoughtTags:
    """What stands before and behind a model's thoughts."""

    begin: str
    end: str

    def is_open_in(self, prompt: str) -> bool:
        """Whether the answer to `prompt` begins inside a thought, since its template has written the tag."""
        return prompt.rstrip().endswith(self.begin)


class _State(Enum):
    START = auto()
    THOUGHT = auto()
    BEHIND = auto()  # the thought: line ends before the answer
    ANSWER = auto()


class ThoughtReader:
    """Parts the thought at the start of a growing text from the answer; line ends around both tags are dropped."""

    def __init__(self, tags: ThoughtTags, *, is_open: bool) -> None:
        self._tags = tags
        self._state = _State.THOUGHT if is_open else _State.START
        self._is_begun = False
        self._held = ""
        self._num_pushed = 0
        self._num_answered = 0

    @property
    def num_characters(self) -> int:
        """How much of the text so far was the thought, tags and line ends included."""
        return 0 if self._state is _State.START else self._num_pushed - self._num_answered

    def push(self, text: str) -> tuple[list[Piece], str]:
        """Add `text`; return the thoughts that are certain now, and more of the answer."""
        self._held += text
        self._num_pushed += len(text)
        pieces: list[Piece] = []
        if self._state is _State.START:
            self._start()
        if self._state is _State.THOUGHT:
            self._thought(pieces)
        if self._state is _State.BEHIND:
            self._held = self._held.lstrip("\n")
            if self._held:
                self._state = _State.ANSWER
        if self._state is not _State.ANSWER:
            return pieces, ""
        answer, self._held = self._held, ""
        self._num_answered += len(answer)
        return pieces, answer

    def flush(self) -> tuple[list[Piece], str]:
        """What was held back, of the thought and of the answer; no text may follow."""
        held, self._held = self._held, ""
        match self._state:
            case _State.THOUGHT:
                thought = held.rstrip("\n")
                return ([Thought(thought)] if thought else []), ""
            case _State.START:
                return [], held
            case _:
                return [], ""

    def _start(self) -> None:
        stripped = self._held.lstrip()
        begin = self._tags.begin
        if stripped.startswith(begin):
            self._held = stripped[len(begin) :]
            self._state = _State.THOUGHT
        elif not begin.startswith(stripped):
            self._state = _State.ANSWER

    def _thought(self, pieces: list[Piece]) -> None:
        if not self._is_begun:
            self._held = self._held.lstrip("\n")
        end = self._held.find(self._tags.end)
        thought = self._held[: self._num_certain() if end < 0 else end]
        thought = thought.rstrip("\n")
        self._is_begun = self._is_begun or bool(thought)
        if thought:
            pieces.append(Thought(thought))
        if end < 0:
            self._held = self._held[len(thought) :]
        else:
            self._held = self._held[end + len(self._tags.end) :]
            self._state = _State.BEHIND

    def _num_certain(self) -> int:
        """How much of the thought can't be the beginning of the tag that ends it."""
        tag = self._tags.end
        for start in range(max(0, len(self._held) - len(tag) + 1), len(self._held)):
            if tag.startswith(self._held[start:]):
                return start
        return len(self._held)
