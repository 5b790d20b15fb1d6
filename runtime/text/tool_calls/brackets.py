"""Finds where brackets that have opened close again, in a text that grows. Linear in the text, however it comes."""

from __future__ import annotations

import re

_OPENING = "{[("


class Brackets:
    """The brackets that open at `start`; strings between any of `quotes` are passed over.

    >>> brackets = Brackets(1, '"')
    >>> brackets.end('x{"a": "}'), brackets.end('x{"a": "}"} y')
    (None, 11)
    """

    def __init__(self, start: int, quotes: str) -> None:
        self.at = start
        self._depth = 0
        self._quote = ""
        self._outside = re.compile(rf"[{{}}\[\](){quotes}]")
        self._inside = {quote: re.compile(rf"[\\{quote}]") for quote in quotes}

    def end(self, text: str) -> int | None:
        """The index behind the closing bracket, if it is there; `text` is what the last call had, and more."""
        while True:
            pattern = self._inside[self._quote] if self._quote else self._outside
            found = pattern.search(text, self.at)
            if found is None:
                self.at = max(self.at, len(text))
                return None
            self.at = found.end()
            if self._take(found[0]):
                return self.at

    def _take(self, character: str) -> bool:
        """Take one that matters; True when it closes the first."""
        if character == "\\":
            self.at += 1  # whatever is escaped
        elif self._quote:
            self._quote = ""
        elif character in _OPENING:
            self._depth += 1
        elif character in "}])":
            self._depth -= 1
            return self._depth == 0
        else:
            self._quote = character
        return False
