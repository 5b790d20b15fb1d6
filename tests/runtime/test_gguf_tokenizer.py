from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, pre_tokenizers
from transformers import AutoTokenizer, LlamaTokenizer, PreTrainedTokenizerFast
from transformers.convert_slow_tokenizer import Qwen2Converter

from runtime.embedded_model import find_embedded_model
from runtime.errors import BadModel
from runtime.gguf_header import read_header
from runtime.gguf_tokenizer import tokenizer_config_from_gguf, tokenizer_from_gguf

from .gguf_files import byte_characters, byte_level_tokenizer

CORPUS = [
    "",
    " ",
    "   two   spaces  and a tab\tand newlines\n\n\r\nend  ",
    "1234567890 and 3.14159, 1,000,000 or -42; 2024-12-31T23:59:59Z",
    "x1y22z333 v4.0.0-rc1 0xDEADBEEF ١٢٣ ४५६ ½ ² Ⅷ",
    "def f(x: int) -> int:\n    return x**2  # square\n\n\nclass A:\n\tpass\n",
    "for (int i = 0; i < 10; ++i) { sum += a[i]; }",
    '{"key": [1, 2.5, null], "s": "a\\"b"}',
    "<|im_start|>system\nYou are helpful.<|im_end|>\n<|im_start|>user\nHi!<|im_end|>\n<|im_start|>assistant\n",
    "<|endoftext|><|im_start|><|im_end|> <|im_end|>text<|im_start|>",
    "<|im_start <|im_end| > < |im_start|>",
    "<repo_name>axil<file_sep>a.py\n<jupyter_code>1+1<jupyter_output>2<empty_output>",
    "I'm you're he'll we've they'd it's 'tis O'Neil don't WON'T",
    "Grüße, naïve café, Ελληνικά, русский, 日本語のテキスト, 한국어, العربية, עברית, हिन्दी",
    "🙂 👩‍👩‍👧‍👦 🇩🇪 ✈️ ❤️‍🔥 a🙂b",
    "e\u0301 vs \u00e9, \u200b zero width, \ufeff bom, \u00a0 nbsp \u2028 line",
    "\x00\x01\x7f\x1b[0m control",
    "https://example.org/a/b?c=d&e=%20#f user@example.org",
    "a" * 300 + "1" * 50 + " " * 40 + "\n" * 20,
]
WORDS = [
    "the",
    "of",
    "12",
    "in",
    "7",
    "tree",
    "radix",
    "page",
    "3x",
    "leaf\n",
    "node",
    "2025",
    ",",
    ".",
    "(",
    ")",
    "=",
    "'",
    '"',
]


def corpus() -> list[str]:
    """The texts above and some hundred mixtures of words, numbers and spaces."""
    mixtures = [
        "".join(WORDS[(i * j * 7 + j * j) % len(WORDS)] + " " * ((i + j) % 3 == 0) for j in range(1, 40))
        for i in range(300)
    ]
    return CORPUS + mixtures


@pytest.fixture(scope="module")
def metadata() -> dict[str, Any]:
    return read_header(find_embedded_model()).metadata


@pytest.fixture(scope="module")
def ours(metadata: dict[str, Any]) -> Tokenizer:
    warnings: list[str] = []
    tokenizer = tokenizer_from_gguf(metadata, warnings)
    assert warnings == []
    return tokenizer


@pytest.fixture(scope="module")
def reference() -> Tokenizer:
    """Transformers' conversion of the same file, with SmolLM's rule on digits, which it loses."""
    path = find_embedded_model()
    tokenizer: Tokenizer = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name).backend_tokenizer
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), tokenizer.pre_tokenizer]
    )
    return tokenizer


def test_the_embedded_model_s_ids_equal_the_reference_s(ours: Tokenizer, reference: Tokenizer) -> None:
    for text in corpus():
        assert ours.encode(text).ids == reference.encode(text).ids, text


@settings(max_examples=200, deadline=None)
@given(text=st.text(max_size=60))
def test_any_text_gives_the_reference_s_ids(ours: Tokenizer, reference: Tokenizer, text: str) -> None:
    assert ours.encode(text).ids == reference.encode(text).ids


@settings(max_examples=100, deadline=None)
@given(text=st.text(alphabet=st.characters(categories=("L", "N", "P", "S", "Z")), max_size=60))
def test_text_survives_the_way_there_and_back(text: str) -> None:
    tokenizer = tokenizer_from_gguf(_prefixed(byte_level_tokenizer()), [])
    assert tokenizer.decode(tokenizer.encode(text).ids) == text


def test_digits_are_split_one_by_one(ours: Tokenizer) -> None:
    assert ours.encode("in 2025").tokens == ["in", "Ġ", "2", "0", "2", "5"]


def test_chat_markers_are_single_tokens_and_are_left_out_of_plain_text(ours: Tokenizer) -> None:
    ids = ours.encode("<|im_start|>user\nHi 🙂!<|im_end|>").ids
    assert ids[0] == 1
    assert ids[-1] == 2
    assert ours.decode(ids) == "user\nHi 🙂!"
    assert ours.decode(ids, skip_special_tokens=False) == "<|im_start|>user\nHi 🙂!<|im_end|>"


def test_the_embedded_model_s_special_tokens_and_template_are_named(metadata: dict[str, Any]) -> None:
    config = tokenizer_config_from_gguf(metadata)
    assert (config["bos_token"], config["eos_token"], config["pad_token"]) == (
        "<|im_start|>",
        "<|im_end|>",
        "<|im_end|>",
    )
    assert config["unk_token"] == "<|endoftext|>"
    assert not config["add_bos_token"]
    assert "<|im_start|>" in config["chat_template"]


def test_a_converted_directory_opens_with_transformers(
    tmp_path: Path, ours: Tokenizer, metadata: dict[str, Any]
) -> None:
    ours.save(str(tmp_path / "tokenizer.json"))
    names = {key: value for key, value in tokenizer_config_from_gguf(metadata).items() if key.endswith("_token")}
    opened = PreTrainedTokenizerFast(tokenizer_file=str(tmp_path / "tokenizer.json"), **names)
    assert opened("Hi 12").input_ids == ours.encode("Hi 12").ids


def test_user_defined_tokens_are_whole_but_not_special() -> None:
    tokenizer = tokenizer_from_gguf(_prefixed(byte_level_tokenizer()), [])
    ids = tokenizer.encode("a<tool>b<|end|>").ids
    assert len(ids) == 4
    assert tokenizer.decode(ids) == "a<tool>b"


def test_llama_3_splits_numbers_in_threes_takes_whole_words_and_begins_with_bos() -> None:
    fields = byte_level_tokenizer(pre="llama-bpe", bos_token_id=260)
    fields["tokens"] = [*fields["tokens"], "xyz"]
    fields["token_type"] = [*fields["token_type"], 1]
    tokenizer = tokenizer_from_gguf(_prefixed(fields), [])
    assert tokenizer.encode("1212").tokens == ["<|end|>", "12", "1", "2"]
    assert tokenizer.encode("xyz").tokens == ["<|end|>", "xyz"]  # a whole word needs no merges
    assert tokenizer.encode("xyz", add_special_tokens=False).tokens == ["xyz"]
    without = tokenizer_from_gguf(_prefixed(fields | {"add_bos_token": False}), [])
    assert without.encode("xyz").tokens == ["xyz"]


def test_qwen_2_splits_and_normalises_as_transformers_does() -> None:
    fields = byte_level_tokenizer(pre="qwen2")
    tokenizer = tokenizer_from_gguf(_prefixed(fields), [])
    vocabulary = {token: i for i, token in enumerate(fields["tokens"])}
    merges = [tuple(merge.split(" ")) for merge in fields["merges"]]
    expected = Qwen2Converter(None).converted(vocabulary, merges)
    for text in corpus():
        plain = text.replace("<|end|>", "").replace("<tool>", "")
        assert tokenizer.encode(plain).ids == expected.encode(plain).ids, text


def test_an_unknown_pre_tokenizer_is_warned_about_and_treated_as_gpt_2() -> None:
    warnings: list[str] = []
    tokenizer = tokenizer_from_gguf(_prefixed(byte_level_tokenizer(pre="mystery")), warnings)
    assert len(warnings) == 1
    assert "'mystery'" in warnings[0]
    assert "smollm" in warnings[0]
    gpt2 = tokenizer_from_gguf(_prefixed(byte_level_tokenizer()), [])
    assert tokenizer.encode("the 12").ids == gpt2.encode("the 12").ids


def sentencepiece_fields(**fields: Any) -> dict[str, Any]:  # noqa: ANN401 - any GGUF value
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    pieces = ["▁t", "he", "▁the", "th", "▁", "t", "h", "e", "a"]
    return {
        "model": "llama",
        "tokens": [*tokens, *pieces],
        "token_type": [2, 3, 3] + [6] * 256 + [1] * len(pieces),
        "scores": [0.0] * len(tokens) + [-float(i) for i in range(len(pieces))],
        "bos_token_id": 1,
        "eos_token_id": 2,
        "unknown_token_id": 0,
    } | fields


def test_sentencepiece_merges_by_score_prefixes_a_space_and_falls_back_to_bytes() -> None:
    tokenizer = tokenizer_from_gguf(_prefixed(sentencepiece_fields()), [])
    assert tokenizer.encode("the").tokens == ["<s>", "▁the"]
    assert tokenizer.encode("a the").tokens == ["<s>", "▁", "a", "▁the"]
    assert tokenizer.encode("é").tokens == ["<s>", "▁", "<0xC3>", "<0xA9>"]
    for text in ("the 🙂 a", "  the\n\na ", "é"):
        assert tokenizer.decode(tokenizer.encode(text).ids) == text
    assert tokenizer.encode("a</s>").ids[-1] == 2


def test_sentencepiece_gives_the_ids_of_transformers_llama_tokenizer() -> None:
    fields = sentencepiece_fields()
    tokenizer = tokenizer_from_gguf(_prefixed(fields), [])
    merges = [("▁", "t"), ("h", "e"), ("▁t", "he"), ("t", "h")]
    expected = LlamaTokenizer(vocab={token: i for i, token in enumerate(fields["tokens"])}, merges=merges)
    for text in corpus():
        if not text.startswith(" "):  # there SentencePiece adds its space all the same, and transformers does not
            ids = expected(text, add_special_tokens=False).input_ids
            assert tokenizer.encode(text, add_special_tokens=False).ids == ids, text


def test_sentencepiece_without_a_space_prefix_adds_none() -> None:
    tokenizer = tokenizer_from_gguf(_prefixed(sentencepiece_fields(add_space_prefix=False)), [])
    assert tokenizer.encode("a").tokens == ["<s>", "a"]


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({}, "no tokenizer"),
        ({"model": "bert"}, "'bert'; axil knows gpt2 and llama"),
        ({"model": "gpt2", "tokens": ["a"]}, r"lacks tokenizer\.ggml\.merges"),
    ],
)
def test_other_tokenizers_are_refused(fields: dict[str, Any], why: str) -> None:
    with pytest.raises(BadModel, match=why):
        tokenizer_from_gguf(_prefixed(fields), [])


def _prefixed(fields: dict[str, Any]) -> dict[str, Any]:
    return {f"tokenizer.ggml.{name}": value for name, value in fields.items()}


def test_the_byte_characters_of_these_tests_are_gpt_2_s() -> None:
    assert set(byte_characters()) == set(pre_tokenizers.ByteLevel.alphabet())
