from __future__ import annotations

import time

from hypothesis import given
from hypothesis import strategies as st

from runtime.doctor.differences import differences

LINES = "\n".join(f"Line {word} of the text." for word in ("one", "two", "three", "four"))


def test_equal_texts_have_none() -> None:
    assert differences(LINES, LINES) == []


def test_a_value_is_told_whole_with_what_stands_before_it() -> None:
    one = f"Begin.\nThe time is 2026-03-09 18:00:31 here.\n{LINES}"
    found = differences(one, one.replace("18:00:31", "18:01:05"))
    assert found is not None
    (each,) = found
    assert (each.kind, each.one, each.other) == ("timestamp", "18:00:31", "18:01:05")
    assert each.context == "The time is 2026-03-09 "
    assert one[each.at :].startswith("18:00:31")


def test_several_values_are_told_in_their_order() -> None:
    one = f"id=6fa459ea-ee8a-3ca4-894e-db77e160355e\n{LINES}\nDate: 2026-03-09\n{LINES}"
    other = one.replace("6fa459ea", "7fa459ea").replace("03-09", "03-10")
    found = differences(one, other)
    assert found is not None
    assert [(each.kind, each.context) for each in found] == [("uuid", "id="), ("date", "Date: ")]


def test_a_line_that_comes_or_goes_is_told() -> None:
    found = differences(LINES, LINES.replace("Line two of the text.\n", ""))
    assert found is not None
    assert [(each.one, each.other) for each in found] == [("Line two of the text.\n", "")]


def test_texts_with_little_in_common_are_not_compared() -> None:
    assert differences("What is gravity?", "How tall is the tower over there?") is None


def test_a_long_text_in_one_line_takes_no_time() -> None:
    words = " ".join(f"word{i}" for i in range(50_000))
    start = time.perf_counter()
    found = differences(f"at 18:00:31 {words}", f"at 18:01:05 {words}")
    assert time.perf_counter() - start < 30  # where it is not linear, it takes hours
    assert found is not None
    assert [(each.kind, each.one, each.other) for each in found] == [("timestamp", "18:00:31", "18:01:05")]


_TEXTS = st.text(alphabet="ab1 \n:", max_size=40)


@given(_TEXTS, _TEXTS, _TEXTS)
def test_each_difference_stands_where_it_says(front: str, one: str, back: str) -> None:
    text = front + one + back
    for each in differences(text, front + back) or []:
        assert text[each.at : each.at + len(each.one)] == each.one
