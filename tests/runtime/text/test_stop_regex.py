from __future__ import annotations

import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.text.stop_regex import LONGEST_MATCH_CHARACTERS, StopPatterns, compiled
from wire.errors import Refused


def _pushed(patterns: list[str], pieces: list[str]) -> tuple[str, str | None]:
    stop = StopPatterns(patterns)
    shown = ""
    for piece in pieces:
        shown += stop.push(piece)
        if stop.matched is not None:
            break
    return shown, stop.matched


@pytest.mark.parametrize("pattern", ["b+a", "(a|b)c", r"\bca", "^ab", "a.b", "é|b{3}"])
@given(pieces=st.lists(st.text("abc é", max_size=5), max_size=8))
def test_text_ends_where_the_pattern_first_matches_however_it_is_cut(pattern: str, pieces: list[str]) -> None:
    text = "".join(pieces)
    ends = [end for end in range(len(text) + 1) if re.search(pattern, text[:end], re.ASCII)]
    expected = (text[: ends[0]], pattern) if ends else (text, None)
    assert _pushed([pattern], pieces) == expected


def test_of_several_patterns_the_one_that_ends_first_counts() -> None:
    assert _pushed(["world", "o"], ["hello world"]) == ("hello", "o")


def test_a_match_may_begin_far_back_but_not_without_limit() -> None:
    for length, matched in ((LONGEST_MATCH_CHARACTERS - 2, "<.*>"), (LONGEST_MATCH_CHARACTERS + 1, None)):
        assert _pushed(["<.*>"], ["<", *"x" * length, ">"])[1] == matched


def test_the_beginning_of_a_long_text_is_only_at_its_beginning() -> None:
    assert _pushed(["^x"], ["ab", *"x" * 3000])[1] is None
    assert _pushed([r"\bxyz"], [*"x" * 3000, "xyz"])[1] is None


@pytest.mark.parametrize("pattern", ["(a", "a{1000}{1000}", r"(a)\1", "(?=a)", "a*", "^", "x|"])
def test_a_pattern_that_cannot_be_used_is_refused_by_name(pattern: str) -> None:
    with pytest.raises(Refused) as error:
        compiled(pattern)
    assert error.value.field == "stop_regex"
    assert repr(pattern) in error.value.message


def test_a_pattern_that_others_take_for_ever_on_is_quick() -> None:
    started = time.process_time()
    assert _pushed(["(a+)+$b", "(a|a)*c"], ["a" * 50] * 200)[1] is None
    assert time.process_time() - started < 60


def test_patterns_that_are_slow_all_the_time_end_their_request_and_usual_ones_never() -> None:
    slow = StopPatterns([rf"({i}?.?a?b?){{200}}Q" for i in range(8)])
    started = time.thread_time()
    with pytest.raises(Refused, match="stop_regex takes more than"):
        for _ in range(10_000):
            slow.push("abxy")
    assert time.thread_time() - started < 20  # all of them take minutes
    usual = [r"\d{4}-\d{2}-\d{2}", r"(?i)the end", r"(?s)```.*```", r"[^.!?]{20,}[!?]", r"</?[a-z]+>", r"\p{Han}{3}"]
    assert _pushed(usual, ["ab cd, "] * 3000)[1] is None
