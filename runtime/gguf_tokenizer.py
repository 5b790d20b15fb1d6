"""Builds a `tokenizer.json` that gives the ids of the model's original tokenizer out of a GGUF file's metadata.

Knows the byte-level BPE of GPT-2's descendants and the SentencePiece BPE of Llama 2. Knows no chat template engine and
reads no files.
"""

from __future__ import annotations

from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, normalizers, pre_tokenizers, processors
from tokenizers.models import BPE

from .errors import BadModel
from .text.word_encoder import LLAMA3_WORDS, QWEN2_WORDS

_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED = 1, 2, 3, 4

_NEEDED = {"gpt2": ("tokens", "merges"), "llama": ("tokens", "scores")}

_LLAMA3_NAMES = ("llama-bpe", "llama3", "llama-v3")
_QWEN2_NAMES = ("qwen2", "deepseek-r1-qwen")
_SMOLLM_NAMES = ("smollm",)
_GPT2_NAMES = ("gpt-2", "gpt2", "default")


def tokenizer_from_gguf(metadata: dict[str, Any], warnings: list[str]) -> Tokenizer:
    """The tokenizer that the metadata describes; what may make its ids differ is appended to `warnings`.

    Raises:
        BadModel: a kind of tokenizer that axil does not know, or none in the file.
    """
    model = metadata.get("tokenizer.ggml.model")
    for name in _NEEDED.get(str(model), ()):
        if f"tokenizer.ggml.{name}" not in metadata:
            raise BadModel(f"the GGUF file lacks tokenizer.ggml.{name}; convert the model to GGUF anew")
    match model:
        case "gpt2":
            tokenizer = _byte_level(metadata, warnings)
        case "llama":
            tokenizer = _sentencepiece(metadata)
        case None:
            raise BadModel("the GGUF file has no tokenizer; convert it anew with the tokenizer's files at hand")
        case _:
            raise BadModel(f"the GGUF file has a tokenizer of type {model!r}; axil knows gpt2 and llama")
    tokens, kinds = metadata["tokenizer.ggml.tokens"], _kinds(metadata)
    for kind, is_special in ((_UNKNOWN, True), (_CONTROL, True), (_USER_DEFINED, False)):
        added = [token for token, its_kind in zip(tokens, kinds, strict=True) if its_kind == kind]
        # Must be added in the order of their ids: a later one that contains an earlier one still wins by length.
        tokenizer.add_tokens([AddedToken(token, special=is_special, normalized=False) for token in added])
    _frame(tokenizer, metadata)
    return tokenizer


def tokenizer_config_from_gguf(metadata: dict[str, Any]) -> dict[str, Any]:
    """What transformers would keep in `tokenizer_config.json`: special tokens and the chat template."""
    tokens = metadata["tokenizer.ggml.tokens"]
    config: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        "add_bos_token": _adds_bos(metadata),
        "add_eos_token": bool(metadata.get("tokenizer.ggml.add_eos_token", False)),
    }
    for name, key in (("bos", "bos"), ("eos", "eos"), ("unk", "unknown"), ("pad", "padding")):
        token_id = metadata.get(f"tokenizer.ggml.{key}_token_id")
        if token_id is not None:
            config[f"{name}_token"] = tokens[token_id]
    if "tokenizer.chat_template" in metadata:
        config["chat_template"] = metadata["tokenizer.chat_template"]
    return config


def _byte_level(metadata: dict[str, Any], warnings: list[str]) -> Tokenizer:
    rules = metadata.get("tokenizer.ggml.pre", "default")
    merges = [tuple(merge.split(" ", 1)) for merge in metadata["tokenizer.ggml.merges"]]
    vocabulary = {token: i for i, token in enumerate(metadata["tokenizer.ggml.tokens"])}
    tokenizer = Tokenizer(BPE(vocab=vocabulary, merges=merges, ignore_merges=rules in _LLAMA3_NAMES))
    if rules in _QWEN2_NAMES:
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = _pre_tokenizer(rules, warnings)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _pre_tokenizer(rules: str, warnings: list[str]) -> pre_tokenizers.PreTokenizer:
    if rules in _LLAMA3_NAMES:
        return _split_by(LLAMA3_WORDS)
    if rules in _QWEN2_NAMES:
        return _split_by(QWEN2_WORDS)
    gpt2 = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    if rules in _SMOLLM_NAMES:
        return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), gpt2])
    if rules not in _GPT2_NAMES:
        known = ", ".join((*_GPT2_NAMES, *_SMOLLM_NAMES, *_LLAMA3_NAMES, *_QWEN2_NAMES))
        warnings.append(
            f"THE TOKENS MAY BE WRONG: the GGUF file names the pre-tokenizer {rules!r}, which axil does not know; "
            f"GPT-2's rules are used instead. Known: {known}. Serve the original directory with its tokenizer.json."
        )
    return gpt2


def _split_by(words: str) -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(words), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )


def _sentencepiece(metadata: dict[str, Any]) -> Tokenizer:
    tokens = metadata["tokenizer.ggml.tokens"]
    has_prefix = metadata.get("tokenizer.ggml.add_space_prefix", True)
    tokenizer = Tokenizer(
        BPE(
            vocab={token: i for i, token in enumerate(tokens)},
            merges=_merges_by_score(tokens, metadata["tokenizer.ggml.scores"], _kinds(metadata)),
            unk_token=tokens[metadata.get("tokenizer.ggml.unknown_token_id", 0)],
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    spaces = normalizers.Replace(" ", "▁")
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), spaces] if has_prefix else [spaces])
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence([*steps, decoders.Strip(" ", left=1)] if has_prefix else steps)
    return tokenizer


def _merges_by_score(tokens: list[str], scores: list[float], kinds: list[int]) -> list[tuple[str, str]]:
    """SentencePiece merges the pair whose whole has the highest score; BPE wants the pairs in that order."""
    normal = {token: i for i, token in enumerate(tokens) if kinds[i] == _NORMAL}
    ranked = []
    for token, i in normal.items():
        for cut in range(1, len(token)):
            left, right = token[:cut], token[cut:]
            if left in normal and right in normal:
                ranked.append((-scores[i], i, left, right))
    return [(left, right) for _, _, left, right in sorted(ranked)]


def _kinds(metadata: dict[str, Any]) -> list[int]:
    tokens = metadata["tokenizer.ggml.tokens"]
    kinds: list[int] = metadata.get("tokenizer.ggml.token_type") or [_NORMAL] * len(tokens)
    return kinds


def _adds_bos(metadata: dict[str, Any]) -> bool:
    is_default = metadata["tokenizer.ggml.model"] == "llama" or metadata.get("tokenizer.ggml.pre") in _LLAMA3_NAMES
    return bool(metadata.get("tokenizer.ggml.add_bos_token", is_default))


def _frame(tokenizer: Tokenizer, metadata: dict[str, Any]) -> None:
    """Let encoding add the beginning and end tokens that the file asks for."""
    tokens = metadata["tokenizer.ggml.tokens"]
    bos = metadata.get("tokenizer.ggml.bos_token_id") if _adds_bos(metadata) else None
    eos = metadata.get("tokenizer.ggml.eos_token_id") if metadata.get("tokenizer.ggml.add_eos_token") else None
    before = [] if bos is None else [tokens[bos]]
    after = [] if eos is None else [tokens[eos]]
    if before or after:
        tokenizer.post_processor = processors.TemplateProcessing(
            single=[*before, "$A", *after],
            pair=[*before, "$A", *after, *(f"{token}:1" for token in before), "$B:1", *(f"{t}:1" for t in after)],
            special_tokens=[(tokens[i], i) for i in {bos, eos} - {None}],
        )
