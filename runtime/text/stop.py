"""Stop strings in a growing text. Knows neither tokens nor requests.

An Aho-Corasick automaton over all stop strings: its depth after a character is the length of the longest suffix that
could begin a stop string, which is exactly what must be held back. O(1) per character, however many the strings are.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(slots=True)
class _State:
    depth: int
    next: dict[str, _State] = field(default_factory=dict)
    fallback: _State | None = None
    matched: str | None = None


class StopStrings:
    """Lets text through up to the first stop string.

    The first is the one that ends first; of several that end together, the longest. `matched` is None until then.

    >>> stop = StopStrings(["</s>"], is_kept=False)
    >>> stop.push("a<"), stop.push("b</"), stop.push("s>c"), stop.matched
    ('a', '<b', '', '</s>')
    """

    def __init__(self, strings: Sequence[str], *, is_kept: bool) -> None:
        self._root = _automaton(strings)
        self._state = self._root
        self._held = ""
        self._is_kept = is_kept
        self.matched: str | None = None

    def push(self, text: str) -> str:
        """Add `text`; return what may be shown now. Nothing may follow a match."""
        assert self.matched is None
        state = self._state
        for i, character in enumerate(text):
            state = self._step(state, character)
            if state.matched is not None:
                self.matched = state.matched
                shown = self._held + text[: i + 1]
                self._held = ""
                return shown if self._is_kept else shown[: -len(state.matched)]
        self._state = state
        pending = self._held + text
        num_shown = len(pending) - state.depth
        self._held = pending[num_shown:]
        return pending[:num_shown]

    def flush(self) -> str:
        """What was held back; no text may follow."""
        held, self._held = self._held, ""
        return held

    def _step(self, state: _State, character: str) -> _State:
        while True:
            after = state.next.get(character)
            if after is not None:
                return after
            if state.fallback is None:
                return self._root
            state = state.fallback


def _automaton(strings: Sequence[str]) -> _State:
    root = _State(0)
    for string in strings:
        state = root
        for character in string:
            state = state.next.setdefault(character, _State(state.depth + 1))
        state.matched = string
    # Breadth first, so that a state's fallback is complete before the state itself.
    queue = deque[_State]()
    for child in root.next.values():
        child.fallback = root
        queue.append(child)
    while queue:
        state = queue.popleft()
        for character, child in state.next.items():
            child.fallback = _longest_suffix(root, state.fallback, character)
            child.matched = child.matched or child.fallback.matched
            queue.append(child)
    return root


def _longest_suffix(root: _State, state: _State | None, character: str) -> _State:
    while state is not None:
        if character in state.next:
            return state.next[character]
        state = state.fallback
    return root
