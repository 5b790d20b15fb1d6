"""Tokenises text by looking up its words, where the rules that cut it into words are known and the text is ASCII.

A byte-level tokenizer cuts text into words by a regular expression and merges bytes within each word alone, so a word
has the same ids wherever it stands. Cutting is what the tokenizers library spends most of its time on (it keeps track
of where each character came from); over ASCII the standard library's `re` does the same many times faster, and a word
is merged once, by the library's model alone. Other characters, other rules: the library does it all. Knows no requests.

Rules: GPT-2's of https://github.com/openai/gpt-2/blob/master/src/encoder.py, SmolLM's (the same, each digit cut off
before), and those that Llama 3's and Qwen 2's `tokenizer.json` hold.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Callable, Iterator
from itertools import chain

import orjson
import tokenizers
from tokenizers import models, pre_tokenizers

from .prefix_encoder import any_of

_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|"
_REST = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
LLAMA3_WORDS = _CONTRACTIONS + r"\p{N}{1,3}" + _REST
QWEN2_WORDS = _CONTRACTIONS + r"\p{N}" + _REST
_GPT2_WORDS = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
# A digit is cut off before anything else looks, so white space before it stands at an end.
_SMOLLM_WORDS = r"\p{N}|'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?[^\s\p{L}\p{N}]+|\s+(?![^\s\p{N}])|\s+"

_SEGMENT_CHARACTERS = 32_768
"""Cut into words in one go, about a millisecond: `re` holds the interpreter's lock meanwhile."""

MAX_BYTES = 32 * 1024 * 1024
"""Memory of the words remembered, about; then all are forgotten."""

_WORD_BYTES = 160
"""What a word costs beside its characters and ids: two objects, and its places in a hash table."""

_SHORT_CHARACTERS = 64
"""A longer word is no word of a language. Merging it may take long, so it's done where other threads run meanwhile."""

_BYTES_ALONE = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
_WRITTEN = {code: _BYTES_ALONE.pre_tokenize_str(chr(code))[0][0] for code in range(128)}
"""The characters that byte-level BPE writes for ASCII."""

_CUT = re.compile(r"(?<=\S)\n(?=[A-Za-z])")
"""A line end that is a word, or the end of one, by all of these rules: what comes behind it begins another."""

_PROPERTY = re.compile(r"(\[[^]]*\])|\\p\{([LN])\}")
_ASCII = {"L": "a-zA-Z", "N": "0-9"}


class WordEncoder:
    """Encodes like `encode_whole` does a text without special tokens of its own; from several threads.

    `words` cuts ASCII text; `added` has the texts that are tokens of their own, whatever stands around them.
    """

    def __init__(
        self,
        model: models.BPE,
        encode_whole: Callable[[str], list[int]],
        words: re.Pattern[str],
        added: dict[str, int],
    ) -> None:
        self._model = model
        self._encode_whole = encode_whole
        self._words = words
        self._added = added
        self._split = any_of(added)
        self._known = _KnownWords(self._encode_word)

    def encode(self, text: str) -> array[int]:
        """Token ids of `text`."""
        token_ids = array("i")
        for part in self._split.split(text) if self._split is not None else (text,):
            added = self._added.get(part)
            if added is not None:
                token_ids.append(added)
                continue
            for segment in _segments(part):
                self._append(token_ids, segment)
        return token_ids

    def _append(self, token_ids: array[int], segment: str) -> None:
        if not segment.isascii():
            token_ids.extend(self._encode_whole(segment))
            return
        known = self._known
        token_ids.frombytes(b"".join(map(known.__getitem__, self._words.findall(segment))))
        if self._known.num_bytes > MAX_BYTES:
            self._known = _KnownWords(self._encode_word)

    def _encode_word(self, word: str) -> list[int]:
        if len(word) > _SHORT_CHARACTERS:
            return self._encode_whole(word)
        return [token.id for token in self._model.tokenize(word.translate(_WRITTEN))]


class _KnownWords(dict[str, bytes]):
    """The ids of words, as bytes of int32; one that is asked for the first time is encoded."""

    def __init__(self, encode: Callable[[str], list[int]]) -> None:
        self._encode = encode
        self.num_bytes = 0

    def __missing__(self, word: str) -> bytes:
        token_ids = self[word] = array("i", self._encode(word)).tobytes()
        self.num_bytes += _WORD_BYTES + len(word) + len(token_ids)
        return token_ids


def word_encoder(backend: tokenizers.Tokenizer, encode_whole: Callable[[str], list[int]]) -> WordEncoder | None:
    """What encodes like `backend` by words, or None when its rules are not known or its added tokens look around."""
    added = backend.get_added_tokens_decoder()
    if any(token.normalized or token.lstrip or token.rstrip or token.single_word for token in added.values()):
        return None
    model, normalizer = backend.model, _steps(backend.normalizer)
    if (
        not isinstance(model, models.BPE)
        or model.dropout
        or model.continuing_subword_prefix
        or model.end_of_word_suffix
    ):
        return None
    if any(step["type"] not in ("NFC", "NFKC") for step in normalizer):
        return None
    rules = _rules(_steps(backend.pre_tokenizer))
    if rules is None:
        return None
    texts = {token.content: token_id for token_id, token in added.items() if token.content}
    return WordEncoder(model, encode_whole, re.compile(_over_ascii(rules), re.ASCII), texts)


def _segments(text: str) -> Iterator[str]:
    """The text in pieces that can be encoded one by one: short ones of ASCII, where there are line ends to cut at."""
    if not text:
        return
    if text.isascii() and len(text) <= _SEGMENT_CHARACTERS:
        yield text
        return
    begin = end = 0
    is_ascii = True
    for cut in chain((match.end() for match in _CUT.finditer(text)), (len(text),)):
        is_line_ascii = text[end:cut].isascii()
        if end > begin and (is_line_ascii != is_ascii or cut - begin > _SEGMENT_CHARACTERS):
            yield text[begin:end]
            begin = end
        is_ascii, end = is_line_ascii, cut
    yield text[begin:]


def _rules(steps: list[dict[str, object]]) -> str | None:
    """The words of a pre-tokenizer, as its regular expression."""
    match steps:
        case [{"type": "ByteLevel", "add_prefix_space": False, "use_regex": True}]:
            return _GPT2_WORDS
        case [
            {"type": "Digits", "individual_digits": True},
            {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True},
        ]:
            return _SMOLLM_WORDS
        case [
            {"type": "Split", "pattern": {"Regex": str(words)}, "behavior": "Isolated", "invert": False},
            {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False},
        ] if words in (LLAMA3_WORDS, QWEN2_WORDS):
            return words
        case _:
            return None


def _steps(
    part: tokenizers.normalizers.Normalizer | tokenizers.pre_tokenizers.PreTokenizer | None,
) -> list[dict[str, object]]:
    """A normalizer's or pre-tokenizer's steps, as `tokenizer.json` describes them."""
    if part is None:
        return []
    described = orjson.loads(part.__getstate__())
    steps = described.get("pretokenizers") or described.get("normalizers")
    return list(steps) if described["type"] == "Sequence" else [described]


def _over_ascii(pattern: str) -> str:
    """A pattern with the letters and digits of ASCII in place of all of Unicode's, which `re` doesn't know.

    >>> _over_ascii(r"\\p{N}{1,3}| ?[^\\s\\p{L}]+")
    '[0-9]{1,3}| ?[^\\\\sa-zA-Z]+'
    """

    def ascii_of(match: re.Match[str]) -> str:
        if match[1] is not None:
            return re.sub(r"\\p\{([LN])\}", lambda name: _ASCII[name[1]], match[1])
        return f"[{_ASCII[match[2]]}]"

    return _PROPERTY.sub(ascii_of, pattern)
