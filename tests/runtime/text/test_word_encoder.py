from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from pathlib import Path

import pytest
import tokenizers
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, normalizers, pre_tokenizers

from runtime.model_files import resolve_model
from runtime.text import word_encoder as module
from runtime.text.word_encoder import LLAMA3_WORDS, QWEN2_WORDS, WordEncoder, word_encoder

BYTES_ALONE = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
GPT2 = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
RULES = {
    "smollm": pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), GPT2]),
    "gpt2": GPT2,
    "llama3": pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(LLAMA3_WORDS), "isolated"), BYTES_ALONE]),
    "qwen2": pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(QWEN2_WORDS), "isolated"), BYTES_ALONE]),
}

ASCII = [chr(code) for code in range(128)]
STRANGE = ["é", "ſ", "\u0301", "\u00a0", "\u2028", "\x85", "中", "👩‍🚀", "①", "ß", "\u0130"]
PIECES = [
    *ASCII,
    *STRANGE,
    "\n\n",
    "  ",
    " \n",
    "\r\n",
    "'s",
    "'LL",
    "1234",
    "word",
    " Word",
    "<|im_start|>",
    "<|im_end|>",
    "<|im",
]

Encode = Callable[[str], list[int]]
Pair = tuple[WordEncoder, Encode]


def backend_of(rules: str) -> tokenizers.Tokenizer:
    """The embedded model's tokens, cut by other rules."""
    backend = tokenizers.Tokenizer.from_file(str(Path(resolve_model(None).tokenizer_dir) / "tokenizer.json"))
    backend.pre_tokenizer = RULES[rules]
    if rules == "qwen2":
        backend.normalizer = normalizers.NFC()
    return backend


def pair_of(backend: tokenizers.Tokenizer) -> tuple[WordEncoder | None, Encode]:
    def encode(text: str) -> list[int]:
        return list(backend.encode(text, add_special_tokens=False).ids)

    return word_encoder(backend, encode), encode


@pytest.fixture(scope="module", params=RULES)
def pair(request: pytest.FixtureRequest) -> Pair:
    encoder, encode = pair_of(backend_of(request.param))
    assert encoder is not None
    return encoder, encode


@settings(max_examples=400, deadline=None)
@given(pieces=st.lists(st.sampled_from(PIECES), max_size=40))
@example(pieces=["word", "\n", "  ", "\n", "\n", "word", "\n", "word"])
@example(pieces=["1", " ", " ", "1", " ", "word", "1234", "'s"])
def test_any_text_has_the_ids_of_a_full_tokenisation(pair: Pair, pieces: list[str]) -> None:
    encoder, encode = pair
    text = "".join(pieces)
    assert encoder.encode(text).tolist() == encode(text)


def test_each_three_ascii_characters_have_the_ids_of_a_full_tokenisation(pair: Pair) -> None:
    encoder, encode = pair
    kinds = ["a", "Z", "s", "0", "7", " ", "\n", "\r", "\t", "\x0b", "\x1c", "\x1f", "\x00", "'", ".", "_", "<", "\x7f"]
    for middle in ASCII:
        text = "".join(before + middle + behind + "|" for before, behind in itertools.product(kinds, kinds))
        assert encoder.encode(text).tolist() == encode(text), repr(middle)


@pytest.mark.parametrize("segment_characters", [1, 7, 64])
def test_where_a_long_text_is_cut_makes_no_difference(
    pair: Pair, segment_characters: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoder, encode = pair
    monkeypatch.setattr(module, "_SEGMENT_CHARACTERS", segment_characters)
    lines = [
        "def f(x):",
        "    return x;",
        "",
        "  ",
        "Zoë said: 'tis",
        "it's 12345 ...",
        "\tend\r",
        "中文",
        "a",
        "e\u0301",
    ]
    text = "\n".join(line for lines_ in itertools.permutations(lines, 3) for line in lines_)
    assert encoder.encode(text).tolist() == encode(text)


def test_the_library_is_asked_for_what_is_no_ascii_and_for_endless_words_alone() -> None:
    backend, asked = backend_of("smollm"), list[str]()

    def encode(text: str) -> list[int]:
        asked.append(text)
        return list(backend.encode(text, add_special_tokens=False).ids)

    encoder = word_encoder(backend, encode)
    assert encoder is not None
    for _ in range(3):
        encoder.encode(f"one two one two<|im_end|>\n one {'x' * 100}\nZoë\n")
    assert sorted(asked) == [" " + "x" * 100, *["Zoë\n"] * 3]


@pytest.mark.parametrize("length", [63, 64, 65, 5000])
def test_a_long_word_has_the_ids_of_a_full_tokenisation(pair: Pair, length: int) -> None:
    encoder, encode = pair
    for text in ("word" * length, "=" * length, " " * length + "end", "\x00\x7f" * length):
        assert encoder.encode(text).tolist() == encode(text)


def test_words_are_forgotten_before_they_fill_the_memory(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    encoder, encode = pair
    monkeypatch.setattr(module, "MAX_BYTES", 10_000)
    for i in range(200):
        text = f"alpha{'x' * i} beta{'y' * i}"
        assert encoder.encode(text).tolist() == encode(text)
        assert sum(len(word) + len(token_ids) for word, token_ids in encoder._known.items()) <= 10_000


@pytest.mark.parametrize(
    "rules",
    [
        pre_tokenizers.ByteLevel(add_prefix_space=True, use_regex=True),
        pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(r"\p{L}+"), "isolated"), BYTES_ALONE]),
        pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=False), GPT2]),
        pre_tokenizers.Metaspace(),
        None,
    ],
)
def test_rules_that_are_not_known_are_left_to_the_library(rules: pre_tokenizers.PreTokenizer | None) -> None:
    backend = backend_of("smollm")
    if rules is None:
        data = json.loads(backend.to_str()) | {"pre_tokenizer": None}
        backend = tokenizers.Tokenizer.from_str(json.dumps(data))
    else:
        backend.pre_tokenizer = rules
    assert pair_of(backend)[0] is None


def test_tokens_that_look_around_and_normalizers_that_change_ascii_are_left_to_the_library() -> None:
    backend = backend_of("smollm")
    backend.normalizer = normalizers.Lowercase()
    assert pair_of(backend)[0] is None
    backend = backend_of("smollm")
    backend.add_tokens([AddedToken("<stripped>", lstrip=True, normalized=False)])
    assert pair_of(backend)[0] is None
