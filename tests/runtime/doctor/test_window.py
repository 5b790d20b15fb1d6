from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from runtime.doctor.window import PromptWindow


def _take(window: PromptWindow, name: str, num_characters: int) -> None:
    message = {"role": "user", "content": name}
    window.take([message], (), salt="", num_tokens=1, num_characters=num_characters)


def _names(window: PromptWindow) -> list[object]:
    return [seen.messages[0]["content"] for seen in window.prompts()]


@given(st.lists(st.integers(0, 40), max_size=30), st.integers(0, 6))
def test_the_window_holds_the_last_prompts_that_fit(sizes: list[int], most: int) -> None:
    window = PromptWindow(most, max_characters=30)
    kept: list[tuple[str, int]] = []
    for i, size in enumerate(sizes):
        _take(window, str(i), size)
        if most and size <= 30:
            kept.append((str(i), size))
        while len(kept) > most or sum(size for _, size in kept) > 30:
            kept.pop(0)
        assert _names(window) == [name for name, _ in kept]


def test_a_window_of_0_keeps_nothing() -> None:
    window = PromptWindow(0)
    _take(window, "a", 1)
    assert window.prompts() == []
