"""Text of others, made safe to show in a terminal: what a model writes must not move the cursor or set the title."""

from __future__ import annotations

import unicodedata

_KEPT = "\n\t"
_DRIVING = frozenset({"Cc", "Cf", "Zl", "Zp", "Cs"})
"""Controls, invisible marks (some turn the direction of writing round), line separators, lone surrogates."""

_JOINERS = "\u200c\u200d"
"""Invisible marks that scripts and emoji are spelled with."""


def printable(text: str) -> str:
    r"""The text with an escape in the place of each character that would drive the terminal.

    >>> printable("ring\a and \x1b[31mred")
    'ring\\x07 and \\x1b[31mred'
    """
    if text.isprintable():
        return text
    return "".join(map(_shown, text))


def _shown(character: str) -> str:
    if character in _KEPT or character in _JOINERS or unicodedata.category(character) not in _DRIVING:
        return character
    return ascii(character)[1:-1]
