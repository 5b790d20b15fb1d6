from __future__ import annotations

import pytest

from runtime.printable import printable


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain, é 日本 👩\u200d🚀\n\ttext", "plain, é 日本 👩\u200d🚀\n\ttext"),
        ("\x1b]0;title\x07", "\\x1b]0;title\\x07"),
        ("safe\rOVER", "safe\\rOVER"),
        ("\x9b31m", "\\x9b31m"),
        ("\u202egnp.exe", "\\u202egnp.exe"),
        ("\udc80", "\\udc80"),
    ],
)
def test_what_would_drive_a_terminal_is_shown_as_an_escape_and_all_else_as_it_is(text: str, shown: str) -> None:
    assert printable(text) == shown
