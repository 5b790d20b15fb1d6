"""Answers of real vocabularies, in any script: what is streamed is the whole text, up to a stop string.

SmolLM2's tokens are bytes; Gemma 3's are characters, with bytes for those it lacks, and are read by their neighbours.
"""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.model_files import resolve_model, tokenizer_files
from runtime.text.detokenizer import detokenizer
from runtime.text.stop import StopStrings
from runtime.text.tokenizer import Tokenizer
from tests.model_runner.gemma_files import join_gemma

HARD = [
    "👩‍👩‍👧‍👦🏳️‍🌈🦔👍🏽",
    "漢字かなカナ한국어。𠮷",
    "é é ﷺ",
    "naïve\u200b\u2028\r\n",
    "नमस्ते ไทย עברית العربية",
    "\ufffd\u0000\U0010ffff",
]
TEXTS = st.lists(st.one_of(st.text(max_size=12), st.sampled_from(HARD)), max_size=8).map("".join)


@pytest.fixture(scope="module", params=["smollm2", "gemma3"])
def tokenizer(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    if request.param == "smollm2":
        return Tokenizer.load(tokenizer_files(None)[0])
    directory = tmp_path_factory.mktemp("gemma")
    path = join_gemma(directory / "gemma-3-270m.gguf")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(directory))
        return Tokenizer.load(resolve_model(str(path)).tokenizer_dir)


def streamed(tokenizer: Tokenizer, token_ids: list[int], stop: StopStrings | None = None) -> list[str]:
    """What is shown of an answer, token by token."""
    text = detokenizer(tokenizer, skipped_ids=frozenset())
    pieces = []
    for new in (*map(text.push, token_ids), text.flush()):
        pieces.append(new if stop is None or not new else stop.push(new))
        if stop is not None and stop.matched is not None:
            return pieces
    return pieces if stop is None else [*pieces, stop.flush()]


def written(tokenizer: Tokenizer, text: str) -> tuple[list[int], str]:
    """Tokens of `text` and what they say: SmolLM2's vocabulary lacks a few bytes, which no model could write."""
    token_ids = tokenizer.encode(text, add_special_tokens=False)
    return token_ids, tokenizer.decode(token_ids, skip_special_tokens=False)


@given(given_text=TEXTS)
def test_the_pieces_joined_are_the_text_and_none_is_torn(tokenizer: Tokenizer, given_text: str) -> None:
    token_ids, text = written(tokenizer, given_text)
    pieces = streamed(tokenizer, token_ids)
    assert "".join(pieces) == text
    assert "\ufffd" in text or not any("\ufffd" in piece for piece in pieces)


@given(given_text=TEXTS, at=st.integers(0, 100), length=st.integers(1, 6))
def test_a_stop_string_is_found_wherever_tokens_part_it(
    tokenizer: Tokenizer, given_text: str, at: int, length: int
) -> None:
    token_ids, text = written(tokenizer, given_text)
    stop = text[at % (len(text) + 1) :][:length] or "never"
    pieces = streamed(tokenizer, token_ids, StopStrings([stop], is_kept=False))
    assert "".join(pieces) == text.partition(stop)[0]


@given(texts=st.lists(st.one_of(st.characters(codec="utf-8"), st.sampled_from(HARD)), max_size=20))
def test_characters_of_which_each_has_tokens_of_its_own_are_streamed_whole(
    tokenizer: Tokenizer, texts: list[str]
) -> None:
    """A model may write a character in other tokens than its text would be cut into."""
    token_ids = [token_id for text in texts for token_id in tokenizer.encode(text, add_special_tokens=False)]
    pieces = streamed(tokenizer, token_ids)
    assert "".join(pieces) == tokenizer.decode(token_ids, skip_special_tokens=False)


def test_every_character_of_unicode_is_streamed_as_it_is(tokenizer: Tokenizer) -> None:
    every = [chr(code) for code in range(0x110000) if not 0xD800 <= code < 0xE000]
    text = " ".join(every[::37])
    token_ids, said = written(tokenizer, text)
    assert "".join(streamed(tokenizer, token_ids)) == said


@pytest.mark.parametrize("piece", ["漢字", "👩‍👩‍👧‍👦 ", "word ", "é\u0301"])
def test_an_answer_of_ten_thousand_tokens_streams_in_linear_time(tokenizer: Tokenizer, piece: str) -> None:
    token_ids = tokenizer.encode(piece * 10_000, add_special_tokens=False)[:10_000]
    costs_s = []
    for num_tokens in (2_000, 10_000):
        began_s = time.thread_time()
        pieces = streamed(tokenizer, token_ids[:num_tokens], StopStrings(["漢漢", "\n\n"], is_kept=False))
        costs_s.append(time.thread_time() - began_s)
    assert "".join(pieces) == tokenizer.decode(token_ids, skip_special_tokens=False)
    # Five times the tokens; a cost that grew with the text would be 25 times. Room for the clock of a busy machine.
    assert costs_s[1] < 12 * costs_s[0] + 0.05, costs_s
