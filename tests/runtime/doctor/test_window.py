from __future__ import annotations

import sys

from hypothesis import given
from hypothesis import strategies as st

from runtime.doctor.window import PromptWindow


def _take(window: PromptWindow, name: str, num_characters: int) -> None:
    message = {"role": "user", "content": name}
    window.take([message], (), salt="", num_tokens=1, text="x" * num_characters)


_BESIDE = 256 + sys.getsizeof("")
"""What a message takes beside its characters."""


def _names(window: PromptWindow) -> list[object]:
    return [seen.messages[0]["content"] for seen in window.prompts()]


@given(st.lists(st.integers(0, 400), max_size=30), st.integers(0, 6))
def test_the_window_holds_the_last_prompts_that_fit(sizes: list[int], most: int) -> None:
    window = PromptWindow(most, max_bytes=3 * _BESIDE + 30)
    kept: list[tuple[str, int]] = []
    for i, size in enumerate(sizes):
        _take(window, str(i), size)
        if most:
            kept.append((str(i), size + _BESIDE))
        while len(kept) > most or sum(size for _, size in kept) > 3 * _BESIDE + 30:
            kept.pop(0)
        assert _names(window) == [name for name, _ in kept]


def test_a_window_of_0_keeps_nothing() -> None:
    window = PromptWindow(0)
    _take(window, "a", 1)
    assert window.prompts() == []


def test_a_prompt_that_is_longer_than_the_window_leaves_the_others() -> None:
    window = PromptWindow(4, max_bytes=1000)
    _take(window, "short", 10)
    _take(window, "long", 2000)
    assert _names(window) == ["short"]


def test_a_character_of_another_script_counts_with_all_its_bytes() -> None:
    window = PromptWindow(4, max_bytes=3000)
    for name, text in (("latin", "x" * 1000), ("cjk", "漢" * 1000)):
        window.take([{"role": "user", "content": name}], (), salt="", num_tokens=1, text=text)
    assert _names(window) == ["cjk"]


def test_tools_come_back_in_their_order_with_their_keys_in_order() -> None:
    window = PromptWindow(4)
    tools = [{"b": 1, "a": 2}, {"a": 1}]
    for each in (tools, tools, tools[::-1], []):
        window.take([], each, salt="", num_tokens=1, text="x")
    assert [list(map(list, seen.tools)) for seen in window.prompts()] == [
        [["b", "a"], ["a"]],
        [["b", "a"], ["a"]],
        [["a"], ["b", "a"]],
        [],
    ]
