"""Names that may have been meant by one that there isn't: for messages about settings, flags and parameters."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def near(name: str, known: Iterable[str]) -> str:
    """The names that may have been meant, as the end of a sentence.

    >>> near("temprature", ["temperature", "top_k"]), near("x", ["temperature"])
    ('; did you mean temperature?', '')
    """
    names = list(known)
    matches = difflib.get_close_matches(name, names, n=3) or sorted(other for other in names if name in other)[:3]
    return f"; did you mean {' or '.join(matches)}?" if matches else ""
