"""Regular expressions that end a growing text. Knows neither tokens nor requests.

RE2's syntax and running time: linear in the text whatever the pattern, which comes from a client.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import re2

from wire.errors import Refused

LONGEST_MATCH_CHARACTERS = 1024
"""A match that is longer is not surely found."""

_MAX_PATTERN_BYTES = 1 << 20
"""What one compiled pattern and its automaton may take; `a{1000}{1000}` is refused."""


class StopPatterns:
    """Lets text through up to the end of the first match, which is the one that ends first.

    What matched is kept, for it may have been shown already. `$` is the end of what has come so far.

    >>> stop = StopPatterns(["[0-9]{2}"])
    >>> stop.push("a1"), stop.push("23b"), stop.matched
    ('a1', '2', '[0-9]{2}')
    """

    def __init__(self, patterns: Sequence[str]) -> None:
        self._patterns = [(pattern, compiled(pattern)) for pattern in patterns]
        self._tail = ""
        self._is_cut = False
        self.matched: str | None = None

    def push(self, text: str) -> str:
        """Add `text`; return the part of it up to a match. Nothing may follow a match."""
        assert self.matched is None
        window = self._tail + text
        # The first character of a cut tail is only context for ^ and \b.
        start = 1 if self._is_cut else 0
        found = [pattern for pattern in self._patterns if pattern[1].search(window, start) is not None]
        for end in range(len(self._tail) + 1, len(window) + 1) if found else ():
            for source, pattern in found:
                if pattern.search(window[:end], start) is not None:
                    self.matched = source
                    return text[: end - len(self._tail)]
        self._is_cut = self._is_cut or len(window) > LONGEST_MATCH_CHARACTERS
        self._tail = window[-LONGEST_MATCH_CHARACTERS:]
        return text


def compiled(pattern: str) -> Any:  # noqa: ANN401 - re2 has no types
    """The pattern, ready to search with.

    Raises:
        Refused: it is not in RE2's syntax, too large, or matches the empty text.
    """
    options = re2.Options()
    options.max_mem = _MAX_PATTERN_BYTES
    options.log_errors = False
    try:
        made = re2.compile(pattern, options)
    except re2.error as error:
        reason = error.args[0].decode(errors="replace") if isinstance(error.args[0], bytes) else error
        raise Refused(
            f"stop_regex {pattern!r} can't be used: {reason}. Write it in RE2's syntax.", field="stop_regex"
        ) from error
    if made.search("") is not None:
        raise Refused(
            f"stop_regex {pattern!r} matches the empty text, which would stop at once. Change it.", field="stop_regex"
        )
    return made
