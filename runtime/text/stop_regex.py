"""Regular expressions that end a growing text. Knows neither tokens nor requests.

RE2's syntax and running time: linear in the text whatever the pattern, which comes from a client. Linear can still be
50 ms for a kilobyte, so patterns that keep costing more than others do end their own request.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import re2

from wire.errors import Refused

LONGEST_MATCH_CHARACTERS = 1024
"""A match that is longer is not surely found."""

_MAX_PATTERN_BYTES = 1 << 18
"""What one compiled pattern and its automaton may take; `a{1000}{1000}` is refused."""

_GRACE_S = 0.2
_PUSH_S = 0.002
"""Processor time that the patterns of one request may take: at once, and for each piece of text. Usual is 20 us."""


class StopPatterns:
    """Lets text through up to the end of the first match, which is the one that ends first.

    What matched is kept, for it may have been shown already. `$` is the end of what has come so far.

    >>> stop = StopPatterns(["[0-9]{2}"])
    >>> stop.push("a1"), stop.push("23b"), stop.matched
    ('a1', '2', '[0-9]{2}')
    """

    def __init__(self, patterns: Sequence[str]) -> None:
        self._patterns = [(pattern, compiled(pattern)) for pattern in patterns]
        self._left_s = _GRACE_S
        self._tail = ""
        self._is_cut = False
        self.matched: str | None = None

    def push(self, text: str) -> str:
        """Add `text`; return the part of it up to a match. Nothing may follow a match.

        Raises:
            Refused: the patterns take too much time.
        """
        assert self.matched is None
        self._left_s = min(_GRACE_S, self._left_s + _PUSH_S)
        window = self._tail + text
        # The first character of a cut tail is only context for ^ and \b.
        start = 1 if self._is_cut else 0
        found = [pair for pair in self._patterns if self._is_in(window, start, pair)]
        for end in range(len(self._tail) + 1, len(window) + 1) if found else ():
            for pair in found:
                if self._is_in(window[:end], start, pair):
                    self.matched = pair[0]
                    return text[: end - len(self._tail)]
        self._is_cut = self._is_cut or len(window) > LONGEST_MATCH_CHARACTERS
        self._tail = window[-LONGEST_MATCH_CHARACTERS:]
        return text

    def _is_in(self, window: str, start: int, pair: tuple[str, Any]) -> bool:
        source, pattern = pair
        began_s = time.thread_time()
        is_found = pattern.search(window, start) is not None
        self._left_s -= time.thread_time() - began_s
        if self._left_s < 0:
            raise Refused(
                f"stop_regex takes more than {_PUSH_S * 1000:g} ms for each piece of text; the last one searched for "
                f"was {source!r}. Use simpler patterns, with smaller repetitions.",
                field="stop_regex",
            )
        return is_found


@lru_cache(maxsize=64)
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
