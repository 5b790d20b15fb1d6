from __future__ import annotations

import tracemalloc

from hypothesis import given
from hypothesis import strategies as st

from runtime.text.stop import StopStrings

TEXT = st.text(alphabet="ab<", max_size=40)
STOPS = st.lists(st.text(alphabet="ab<", min_size=1, max_size=5), min_size=1, max_size=6)


def _first_end(text: str, stops: list[str]) -> tuple[int, str] | None:
    """The stop string that ends first, the longest of those that end there, and where it ends."""
    for end in range(1, len(text) + 1):
        ending = [stop for stop in stops if text[:end].endswith(stop)]
        if ending:
            return end, max(ending, key=len)
    return None


def _fed(stop: StopStrings, pieces: list[str]) -> list[str]:
    shown = []
    for piece in pieces:
        shown.append(stop.push(piece))
        if stop.matched is not None:
            return shown
    return [*shown, stop.flush()]


@given(st.lists(TEXT, max_size=12), STOPS, st.booleans())
def test_the_text_up_to_the_first_stop_string_is_shown_however_it_is_cut(
    pieces: list[str], stops: list[str], is_kept: bool
) -> None:
    text = "".join(pieces)
    found = _first_end(text, stops)
    stop = StopStrings(stops, is_kept=is_kept)
    shown = "".join(_fed(stop, pieces))
    if found is None:
        assert stop.matched is None
        assert shown == text
    else:
        end, matched = found
        assert stop.matched == matched
        assert shown == (text[:end] if is_kept else text[: end - len(matched)])


@given(TEXT, STOPS)
def test_only_the_longest_suffix_that_could_begin_a_stop_string_is_held_back(text: str, stops: list[str]) -> None:
    stop = StopStrings(stops, is_kept=False)
    shown = stop.push(text)
    if stop.matched is not None:
        return
    held = text[len(shown) :]
    beginnings = [text[i:] for i in range(len(text)) if any(each.startswith(text[i:]) for each in stops)]
    assert held == max(beginnings, key=len, default="")


def test_a_stop_string_inside_the_beginning_of_a_longer_one_is_found() -> None:
    stop = StopStrings(["abcd", "bc"], is_kept=False)
    assert stop.push("xabc") == "xa"
    assert stop.matched == "bc"


def test_many_long_stop_strings_cost_no_more_than_themselves() -> None:
    strings = [f"{i:04}" * 256 for i in range(32)]
    tracemalloc.start()
    try:
        many = [StopStrings(strings, is_kept=False) for _ in range(200)]
        assert tracemalloc.get_traced_memory()[1] < 4e6, "a batch of a thousand prompts would take gigabytes"
    finally:
        tracemalloc.stop()
    assert many[0].push("x" + strings[7]) == "x"
