from __future__ import annotations

import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, decoders, models

from runtime.text.detokenizer import detokenizer
from runtime.text.tokenizer import ModelFiles, Tokenizer
from tests.fakes import EOS, VOCABULARY, byte_tokenizer

NO_FILES = ModelFiles(tokenizer_config={}, model_config={}, generation_config={})


def _byte_level() -> Tokenizer:
    backend = byte_tokenizer()
    # One added token that is not special, one whose characters are not of the byte alphabet.
    backend.add_tokens([AddedToken("<tool>", special=False), AddedToken("→日", special=False)])
    return Tokenizer(backend, NO_FILES)


def _sentencepiece() -> Tokenizer:
    words = ["▁the", "▁", "cat", "▁sat", "é", "日本", "▁x", "<s>", "</s>"]
    vocabulary = {f"<0x{byte:02X}>": byte for byte in range(256)} | {word: 256 + i for i, word in enumerate(words)}
    backend = tokenizers.Tokenizer(models.BPE(vocab=vocabulary, merges=[], byte_fallback=True))
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    backend.add_special_tokens(["<s>", "</s>"])
    return Tokenizer(backend, NO_FILES)


BYTE_LEVEL, SENTENCEPIECE = _byte_level(), _sentencepiece()


def _streamed(tokenizer: Tokenizer, token_ids: list[int], *, skip_special_tokens: bool) -> list[str]:
    stream = detokenizer(tokenizer, skipped_ids=tokenizer.special_ids if skip_special_tokens else frozenset())
    return [*(stream.push(token_id) for token_id in token_ids), stream.flush()]


@given(st.lists(st.integers(0, VOCABULARY + 4)), st.booleans())
def test_the_pieces_joined_are_the_whole_decoded_whatever_the_bytes(token_ids: list[int], skips: bool) -> None:
    pieces = _streamed(BYTE_LEVEL, token_ids, skip_special_tokens=skips)
    assert "".join(pieces) == BYTE_LEVEL.decode(token_ids, skip_special_tokens=skips)


@given(st.text())
def test_no_character_is_shown_before_its_last_byte(text: str) -> None:
    pieces = _streamed(BYTE_LEVEL, list(text.encode()), skip_special_tokens=True)
    assert "".join(pieces) == text
    assert "\ufffd" in text or not any("\ufffd" in piece for piece in pieces)
    assert pieces[-1] == ""


@given(
    st.lists(
        st.one_of(
            st.integers(256, 264).map(lambda token_id: [token_id]),
            st.text(min_size=1, max_size=3).map(lambda text: list(text.encode())),
        )
    ),
    st.booleans(),
)
def test_a_decoder_that_looks_at_neighbours_streams_the_same_text(parts: list[list[int]], skips: bool) -> None:
    token_ids = [token_id for part in parts for token_id in part]
    pieces = _streamed(SENTENCEPIECE, token_ids, skip_special_tokens=skips)
    assert "".join(pieces) == SENTENCEPIECE.decode(token_ids, skip_special_tokens=skips)


def test_bytes_that_are_no_character_do_not_hold_text_back_for_ever() -> None:
    pieces = _streamed(SENTENCEPIECE, [0xE4] * 20, skip_special_tokens=True)
    assert all(any(pieces[i : i + 5]) for i in range(0, 15, 5))


def test_special_tokens_are_shown_when_asked_for() -> None:
    assert "".join(_streamed(BYTE_LEVEL, [65, EOS], skip_special_tokens=False)) == "A</s>"
    assert "".join(_streamed(BYTE_LEVEL, [65, EOS], skip_special_tokens=True)) == "A"
