"""Stop strings in a growing text. Knows neither tokens nor requests.

Knuth, Morris and Pratt's automaton for each string that the end of the text begins: what must be held back is the
longest of those beginnings. Memory and start-up cost are those of the strings alone, for they come from clients.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from functools import lru_cache


class StopStrings:
    """Lets text through up to the first stop string.

    The first is the one that ends first; of several that end together, the longest. `matched` is None until then.

    >>> stop = StopStrings(["</s>"], is_kept=False)
    >>> stop.push("a<"), stop.push("b</"), stop.push("s>c"), stop.matched
    ('a', '<b', '', '</s>')
    """

    def __init__(self, strings: Sequence[str], *, is_kept: bool) -> None:
        self._starting: dict[str, list[str]] = {}
        for string in dict.fromkeys(strings):
            self._starting.setdefault(string[0], []).append(string)
        self._begun: dict[str, int] = {}
        self._held = ""
        self._is_kept = is_kept
        self.matched: str | None = None

    def push(self, text: str) -> str:
        """Add `text`; return what may be shown now. Nothing may follow a match."""
        assert self.matched is None
        for i, character in enumerate(text):
            if not self._begun and character not in self._starting:
                continue
            self.matched = self._step(character)
            if self.matched is not None:
                shown = self._held + text[: i + 1]
                self._held = ""
                return shown if self._is_kept else shown[: -len(self.matched)]
        pending = self._held + text
        num_shown = len(pending) - max(self._begun.values(), default=0)
        self._held = pending[num_shown:]
        return pending[:num_shown]

    def flush(self) -> str:
        """What was held back; no text may follow."""
        held, self._held = self._held, ""
        return held

    def _step(self, character: str) -> str | None:
        """Take one character; return the longest string that it completes."""
        lengths = {string: _longer(string, length, character) for string, length in self._begun.items()}
        for string in self._starting.get(character, ()):
            lengths.setdefault(string, 1)
        self._begun = {string: length for string, length in lengths.items() if length}
        whole = [string for string, length in self._begun.items() if length == len(string)]
        return max(whole, key=len, default=None)


def _longer(string: str, length: int, character: str) -> int:
    """How much of `string` the text ends with after `character`, when it ended with `length` characters of it."""
    while length and string[length] != character:
        length = _borders(string)[length - 1]
    return length + 1 if string[length] == character else 0


@lru_cache(maxsize=1024)
def _borders(string: str) -> array[int]:
    """For each beginning of `string`, the length of its longest end that is also its beginning, itself excepted."""
    borders = array("I", [0]) * len(string)
    length = 0
    for i in range(1, len(string)):
        while length and string[i] != string[length]:
            length = borders[length - 1]
        length += string[i] == string[length]
        borders[i] = length
    return borders
