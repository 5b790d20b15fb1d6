from __future__ import annotations

import sys

import pytest

from runtime.batch_progress import BatchProgress


@pytest.mark.parametrize(
    ("is_terminal", "num_prompts", "is_shown", "is_drawn"),
    [(True, 2, True, True), (False, 2, True, False), (True, 0, True, False), (True, 2, False, False)],
)
def test_a_bar_is_drawn_where_there_are_prompts_and_a_terminal(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    is_terminal: bool,
    num_prompts: int,
    is_shown: bool,
    is_drawn: bool,
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: is_terminal)
    with BatchProgress(num_prompts, is_shown=is_shown):
        pass
    assert ("generate" in capsys.readouterr().err) == is_drawn
