from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.text.answer_form import THOUGHT_TAGS, AnswerReader
from runtime.text.pieces import Piece, Text, Thought
from runtime.text.reasoning import ThoughtReader
from tests.runtime.text.answers import read

THINK = THOUGHT_TAGS["think"]


def _read(text: str, cuts: list[int] | None = None, *, is_open: bool = False) -> list[Piece]:
    return read(AnswerReader(ThoughtReader(THINK, is_open=is_open), None), text, cuts or [])


@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        ("<think>\nHm.\n</think>\n\nYes.\n", [Thought("Hm."), Text("Yes.\n")]),
        ("\n<think>a</think>b", [Thought("a"), Text("b")]),
        ("<think>\n\n</think>\n\nYes.", [Text("Yes.")]),
        ("No <think>x</think>", [Text("No <think>x</think>")]),
        ("<think>a\n\nb </thin", [Thought("a\n\nb </thin")]),
        ("<thi", [Text("<thi")]),
        ("", []),
    ],
)
def test_a_thought_at_the_start_is_parted_from_the_answer(text: str, pieces: list[Piece]) -> None:
    assert _read(text) == pieces


def test_an_answer_to_a_prompt_that_opens_a_thought_begins_inside_it() -> None:
    assert THINK.is_open_in("<|im_start|>assistant\n<think>\n")
    assert not THINK.is_open_in("<|im_start|>assistant\n<think>\n\n</think>\n\n")
    assert _read("Hm.</think>Yes.", is_open=True) == [Thought("Hm."), Text("Yes.")]


@given(
    st.lists(st.sampled_from(["<think>", "</think>", "<", "</th", "\n", " ", "a", "é"]), max_size=12).map("".join),
    st.lists(st.integers(0, 60), max_size=10),
    st.booleans(),
)
def test_any_cuts_give_the_same_as_the_whole(text: str, cuts: list[int], is_open: bool) -> None:
    whole = _read(text, is_open=is_open)
    assert _read(text, cuts, is_open=is_open) == whole
    assert _read(text, list(range(len(text))), is_open=is_open) == whole
    said = "".join(piece.text for piece in whole if isinstance(piece, Text | Thought))
    bare = "".join(text.split())
    without_end = bare.replace("</think>", "", 1)
    written = {bare, without_end, bare.replace("<think>", "", 1), without_end.replace("<think>", "", 1)}
    assert "".join(said.split()) in written
