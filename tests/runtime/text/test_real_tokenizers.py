"""Answers of a real vocabulary, in any script: what is streamed is the whole text, up to a stop string."""

from __future__ import annotations

import functools
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.model_files import tokenizer_files
from runtime.text.detokenizer import detokenizer
from runtime.text.stop import StopStrings
from runtime.text.tokenizer import Tokenizer

HARD = [
    "👩‍👩‍👧‍👦🏳️‍🌈🦔👍🏽",
    "漢字かなカナ한국어。𠮷",
    "é é ﷺ",
    "naïve\u200b\u2028\r\n",
    "नमस्ते ไทย עברית العربية",
    "\ufffd\u0000\U0010ffff",
]
TEXTS = st.lists(st.one_of(st.text(max_size=12), st.sampled_from(HARD)), max_size=8).map("".join)


@functools.cache
def tokenizer() -> Tokenizer:
    directory, _ = tokenizer_files(None)
    return Tokenizer.load(directory)


def streamed(token_ids: list[int], stop: StopStrings | None = None) -> list[str]:
    """What is shown of an answer, token by token."""
    text = detokenizer(tokenizer(), skipped_ids=frozenset())
    pieces = []
    for new in (*map(text.push, token_ids), text.flush()):
        pieces.append(new if stop is None or not new else stop.push(new))
        if stop is not None and stop.matched is not None:
            return pieces
    return pieces if stop is None else [*pieces, stop.flush()]


def written(text: str) -> tuple[list[int], str]:
    """Tokens of `text` and what they say: this vocabulary lacks a few bytes, which no model could write."""
    token_ids = tokenizer().encode(text, add_special_tokens=False)
    return token_ids, tokenizer().decode(token_ids, skip_special_tokens=False)


@given(TEXTS)
def test_the_pieces_joined_are_the_text_and_none_is_torn(given_text: str) -> None:
    token_ids, text = written(given_text)
    pieces = streamed(token_ids)
    assert "".join(pieces) == text
    assert "\ufffd" in text or not any("\ufffd" in piece for piece in pieces)


@given(TEXTS, st.integers(0, 100), st.integers(1, 6))
def test_a_stop_string_is_found_wherever_tokens_part_it(given_text: str, at: int, length: int) -> None:
    token_ids, text = written(given_text)
    stop = text[at % (len(text) + 1) :][:length] or "never"
    pieces = streamed(token_ids, StopStrings([stop], is_kept=False))
    assert "".join(pieces) == text.partition(stop)[0]


@pytest.mark.parametrize("piece", ["漢字", "👩‍👩‍👧‍👦 ", "word ", "é\u0301"])
def test_an_answer_of_ten_thousand_tokens_streams_in_linear_time(piece: str) -> None:
    token_ids = tokenizer().encode(piece * 10_000, add_special_tokens=False)[:10_000]
    costs_s = []
    for num_tokens in (2_000, 10_000):
        began_s = time.thread_time()
        pieces = streamed(token_ids[:num_tokens], StopStrings(["漢漢", "\n\n"], is_kept=False))
        costs_s.append(time.thread_time() - began_s)
    assert "".join(pieces) == tokenizer().decode(token_ids, skip_special_tokens=False)
    # Five times the tokens; a cost that grew with the text would be 25 times. Room for the clock of a busy machine.
    assert costs_s[1] < 12 * costs_s[0] + 0.05, costs_s
