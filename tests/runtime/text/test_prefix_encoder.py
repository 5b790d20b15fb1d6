from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st

from runtime.model_files import resolve_model
from runtime.text import prefix_encoder
from runtime.text.prefix_encoder import AddedToken, PrefixEncoder


@pytest.fixture(scope="module")
def backend() -> tokenizers.Tokenizer:
    return tokenizers.Tokenizer.from_file(str(Path(resolve_model(None).tokenizer_dir) / "tokenizer.json"))


@pytest.fixture
def counted(backend: tokenizers.Tokenizer) -> tuple[PrefixEncoder, Callable[[str], list[int]], list[int]]:
    """An encoder, the full tokenisation, and the lengths of the texts that were really tokenised."""
    lengths: list[int] = []

    def whole(text: str) -> list[int]:
        return list(backend.encode(text, add_special_tokens=False).ids)

    def encode(text: str) -> list[int]:
        lengths.append(len(text))
        return whole(text)

    added = [
        AddedToken(
            text=token.content,
            token_id=token_id,
            is_plain=not (token.lstrip or token.rstrip or token.single_word or token.normalized),
        )
        for token_id, token in backend.get_added_tokens_decoder().items()
    ]
    return PrefixEncoder(encode, added), whole, lengths


Counted = tuple[PrefixEncoder, Callable[[str], list[int]], list[int]]


def turn(role: str, content: str) -> str:
    return f"<|im_start|>{role}\n{content}<|im_end|>\n"


def test_a_growing_chat_tokenises_only_what_is_new(counted: Counted) -> None:
    encoder, whole, lengths = counted
    chat = turn("system", "You help with code. " * 200)
    for i in range(10):
        chat += turn("user", f"Question {i}: what does x[{i}] = {i * 37} do?") + "<|im_start|>assistant\n"
        assert encoder.encode(chat).tolist() == whole(chat)
        chat += f"It sets {i}.<|im_end|>\n"
    assert lengths[0] > 4000
    assert max(lengths[1:]) < 300


def test_a_chat_that_parts_from_an_earlier_one_reuses_it_up_to_the_last_special_token(counted: Counted) -> None:
    encoder, whole, lengths = counted
    system = turn("system", "Many shared words. " * 300)
    for content in ("first question", "first quest", "another", "first question and more"):
        chat = system + turn("user", content)
        assert encoder.encode(chat).tolist() == whole(chat)
    assert max(lengths[1:]) < 100


def test_a_text_without_special_tokens_is_tokenised_whole(counted: Counted) -> None:
    encoder, whole, lengths = counted
    text = "no marker in sight, number 12345. " * 200
    assert encoder.encode(text).tolist() == whole(text)
    assert encoder.encode(text + "more").tolist() == whole(text + "more")
    assert lengths == [len(text), len(text) + 4]


def test_of_a_chat_whose_end_changes_with_each_turn_one_text_is_kept(counted: Counted) -> None:
    encoder, whole, lengths = counted
    chat = turn("system", "You help with code. " * 200)
    for i in range(10):
        chat += turn("user", f"Question {i}?")
        asked = chat + f"<|im_start|>assistant\n<think>{i}"  # the next turn leaves out what began the answer
        assert encoder.encode(asked).tolist() == whole(asked)
        chat += turn("assistant", f"Answer {i}.")
    assert max(lengths[1:]) < 300
    assert len(encoder._known._num_found_by) == 1


def test_thousands_of_chats_with_one_system_prompt_are_all_found_and_cost_no_more_than_a_few(counted: Counted) -> None:
    encoder, whole, lengths = counted
    system = turn("system", "Many shared words. " * 150)
    chats = [system + turn("user", f"I am {i}. " * 20) for i in range(2000)]
    costs_s = []
    for some in (chats[:200], chats[200:1800], chats[1800:]):
        began_s = time.thread_time()
        for chat in some:
            encoder.encode(chat)
        costs_s.append(time.thread_time() - began_s)
    assert costs_s[2] < 5 * costs_s[0] + 0.05, costs_s  # compared one by one, it was a hundred times
    lengths.clear()
    for chat in chats[::100]:
        assert encoder.encode(chat + turn("user", "And?")).tolist() == whole(chat + turn("user", "And?"))
    assert max(lengths) < 100


@settings(max_examples=60, deadline=None)
@given(
    pieces=st.lists(
        st.one_of(
            st.sampled_from(
                ["<|im_start|>", "<|im_end|>", "<|endoftext|>", "<|im_", "<", "\n", " ", "12", "é", "日本"]
            ),
            st.text(max_size=8),
        ),
        min_size=1,
        max_size=30,
    ),
    cuts=st.lists(st.integers(0, 30), min_size=2, max_size=6),
)
def test_any_sequence_of_texts_is_encoded_as_a_full_tokenisation_would(
    backend: tokenizers.Tokenizer, pieces: list[str], cuts: list[int]
) -> None:
    def whole(text: str) -> list[int]:
        return list(backend.encode(text, add_special_tokens=False).ids)

    added = [
        AddedToken(text=token.content, token_id=token_id, is_plain=True)
        for token_id, token in backend.get_added_tokens_decoder().items()
    ]
    encoder = PrefixEncoder(whole, added)
    base = turn("system", "word " * 500)
    for cut in cuts:
        # Some begin alike and part, others differ from their first character on.
        text = "o" * (cut % 2) + base + "".join(pieces[:cut]) + "tail" * (cut % 3) + "".join(pieces[cut + 1 :])
        assert encoder.encode(text).tolist() == whole(text)


def test_texts_of_equal_digests_are_told_apart(counted: Counted, monkeypatch: pytest.MonkeyPatch) -> None:
    encoder, whole, lengths = counted
    monkeypatch.setattr(prefix_encoder, "xxh3_64_intdigest", lambda _, seed: seed + 1)
    monkeypatch.setattr(prefix_encoder, "_BLOCK_CHARACTERS", 100)
    chat = turn("system", "word " * 500) + turn("user", "Hello")
    for place in (13, 100, 163, 2000, len(chat) - 13, 0):
        other = chat[:place] + "7" + chat[place + 1 :]
        assert encoder.encode(chat).tolist() == whole(chat)
        assert encoder.encode(other).tolist() == whole(other)
    assert encoder.encode(chat + turn("user", "And?")).tolist() == whole(chat + turn("user", "And?"))
    assert lengths[-1] < 100


def test_what_is_kept_is_bounded_and_the_oldest_goes_first(counted: Counted, monkeypatch: pytest.MonkeyPatch) -> None:
    encoder, _, lengths = counted
    monkeypatch.setattr(prefix_encoder, "MAX_BYTES", 25_000)
    chats = [turn("system", f"{i} other words " * 300) for i in range(4)]
    for chat in chats:
        encoder.encode(chat)
    lengths.clear()
    encoder.encode(chats[-1] + turn("user", "x"))
    encoder.encode(chats[0] + turn("user", "x"))
    assert lengths[0] < 100
    assert lengths[1] > 3000


@pytest.mark.parametrize("texts", [["<a>", "[b]", "(c)"], [f"{chr(0x100 + i)}>" for i in range(40)]])
def test_tokens_that_begin_with_different_characters_are_found(texts: list[str]) -> None:
    backend = tokenizers.Tokenizer(tokenizers.models.WordLevel({"w": 0, "?": 1}, unk_token="?"))
    backend.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    backend.add_special_tokens([tokenizers.AddedToken(text, normalized=False) for text in texts])
    lengths: list[int] = []

    def encode(text: str) -> list[int]:
        lengths.append(len(text))
        return list(backend.encode(text).ids)

    added = [AddedToken(text=text, token_id=backend.token_to_id(text), is_plain=True) for text in texts]
    encoder, chat = PrefixEncoder(encode, added), "w " * 2000
    for text in texts:
        chat += text + "w w"
        assert encoder.encode(chat).tolist() == backend.encode(chat).ids
    assert max(lengths[1:]) < 20


@pytest.mark.parametrize("before", ["!!", "a=", ")", "\n\n", "/", "->", "</", "''"])
def test_a_special_token_that_a_later_text_breaks_off_is_no_cut(counted: Counted, before: str) -> None:
    encoder, whole, _ = counted
    base = turn("system", "word " * 500) + before
    encoder.encode(base + "<|im_end|>")
    for later in ("<|im_end>", "<|im_x", "<", "<|=", "</"):
        assert encoder.encode(base + later).tolist() == whole(base + later)


def test_a_token_inside_a_longer_one_is_no_cut() -> None:
    backend = tokenizers.Tokenizer(tokenizers.models.WordLevel({"w": 0, "?": 1}, unk_token="?"))
    backend.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokens = ["<b>", "x<b>yz"]
    backend.add_special_tokens([tokenizers.AddedToken(text, normalized=False) for text in tokens])

    def whole(text: str) -> list[int]:
        return list(backend.encode(text).ids)

    encoder = PrefixEncoder(
        whole, [AddedToken(text=text, token_id=backend.token_to_id(text), is_plain=True) for text in tokens]
    )
    base = "w " * 2000
    for text in (base + "x<b>yq", base + "x<b>yz"):
        assert encoder.encode(text).tolist() == whole(text)
