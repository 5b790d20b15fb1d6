"""The model's tokenizer as its files describe it: text to token ids and back, special tokens, end-of-sequence ids.

Uses the `tokenizers` library alone. Knows no requests; importing it loads neither transformers nor torch.
"""

from __future__ import annotations

import contextlib
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import orjson
import tokenizers
from tokenizers import decoders, pre_tokenizers

from .prefix_encoder import AddedToken, PrefixEncoder
from .word_encoder import word_encoder

_SPECIAL_NAMES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFiles:
    """The JSON files beside a tokenizer; an absent file is an empty dictionary."""

    tokenizer_config: dict[str, object]
    model_config: dict[str, object]
    generation_config: dict[str, object]

    @classmethod
    def read(cls, directory: Path) -> ModelFiles:
        """Read `tokenizer_config.json`, `config.json` and `generation_config.json`."""
        return cls(
            tokenizer_config=_read_json(directory / "tokenizer_config.json"),
            model_config=_read_json(directory / "config.json"),
            generation_config=_read_json(directory / "generation_config.json"),
        )


class Tokenizer:
    """Text to token ids and back.

    `special_tokens` are the named ones (`bos_token`, ...) as text; `special_ids` all that `skip_special_tokens` leaves
    out; `eos_token_ids` those that end an answer. No token stands for more than `longest_token_characters`; that is
    None where an unknown word of any length may become one token. `whole_texts` has the texts of the tokens that were
    asked for already and that are whole characters.
    """

    def __init__(self, backend: tokenizers.Tokenizer, files: ModelFiles) -> None:
        backend.no_truncation()
        backend.no_padding()
        added = backend.get_added_tokens_decoder()
        self._backend = backend
        self._token_bytes: dict[int, bytes] = {}
        self.whole_texts: dict[int, str] = {}
        self.is_byte_level = isinstance(backend.decoder, decoders.ByteLevel)
        self.special_ids = frozenset(token_id for token_id, token in added.items() if token.special)
        self.special_tokens = _special_tokens(files.tokenizer_config)
        self.eos_token_ids = _eos_token_ids(backend, files, self.special_tokens.get("eos_token"))
        self._words = word_encoder(backend, partial(self._encode_text, add_special_tokens=False))
        self._frame = _frame(backend)
        self._prefixes = PrefixEncoder(
            self._encode_plain,
            [
                AddedToken(
                    text=token.content,
                    token_id=token_id,
                    is_plain=not (token.normalized or token.lstrip or token.rstrip or token.single_word),
                )
                for token_id, token in added.items()
            ],
        )
        self.vocabulary = backend.get_vocab_size(with_added_tokens=True)
        self.longest_token_characters = (
            max(map(len, backend.get_vocab(with_added_tokens=True))) if self.is_byte_level else None
        )

    @classmethod
    def load(cls, directory: Path) -> Tokenizer:
        """Read the tokenizer that `directory` holds.

        Raises:
            FileNotFoundError: there is no `tokenizer.json`.
            ValueError: a file is not what its name says.
        """
        path = directory / "tokenizer.json"
        if not path.is_file():
            raise FileNotFoundError(f"{path} does not exist; a model directory needs a tokenizer.json")
        try:
            backend = tokenizers.Tokenizer.from_file(str(path))
        except Exception as error:  # the library raises plain Exception
            raise ValueError(f"{path} is no tokenizer that can be read: {error}") from error
        return cls(backend, ModelFiles.read(directory))

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """Token ids of `text`; other threads run meanwhile.

        Without special tokens to add, as for a rendered chat, only what no earlier text began with is tokenised.
        """
        if not add_special_tokens:
            return self.encode_chat(text).tolist()
        if self._frame is None:
            return self._encode_text(text, add_special_tokens=True)
        before, behind = self._frame
        return [*before, *self._encode_plain(text), *behind]

    def encode_chat(self, text: str) -> array[int]:
        """Token ids of a rendered chat, of which only what no earlier text began with is tokenised; not to be changed.

        80,000 ids as an array of int32 cost nothing to hand on; as a list, several milliseconds.
        """
        return self._prefixes.encode(text)

    def is_cut(self, text: str, index: int) -> bool:
        """Whether a special token begins at `index`, so that what stands before it is tokenised on its own."""
        return self._prefixes.is_cut(text, index)

    def _encode_plain(self, text: str) -> Sequence[int]:
        """Token ids of the whole text, without special tokens of the tokenizer's own."""
        if self._words is not None:
            return self._words.encode(text)
        return self._encode_text(text, add_special_tokens=False)

    def _encode_text(self, text: str, *, add_special_tokens: bool) -> list[int]:
        # The library's plain `encode` would hold the interpreter's lock.
        return self._backend.encode_batch_fast([text], add_special_tokens=add_special_tokens)[0].ids

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool) -> str:
        """Text of `token_ids`."""
        return self._backend.decode(token_ids, skip_special_tokens=skip_special_tokens)

    def to_json(self) -> str:
        """The tokenizer as the text of a `tokenizer.json`."""
        return str(self._backend.to_str())

    def token_bytes(self, token_id: int) -> bytes:
        """What one token stands for; exact for byte-level tokenizers, else its text alone."""
        known = self._token_bytes.get(token_id)
        if known is None:
            known = self._token_bytes[token_id] = self._compute_token_bytes(token_id)
            with contextlib.suppress(UnicodeDecodeError):
                self.whole_texts[token_id] = known.decode()
        return known

    def token_text(self, token_id: int) -> str:
        """One token as text; part of a character becomes U+FFFD."""
        return self.token_bytes(token_id).decode("utf-8", errors="replace")

    def _compute_token_bytes(self, token_id: int) -> bytes:
        if not self.is_byte_level:
            return self._backend.decode([token_id], skip_special_tokens=False).encode()
        token = self._backend.id_to_token(token_id)
        if token is None:
            return b""
        # As the library's decoder does: a token with any character outside the byte alphabet stands for itself.
        values = [_BYTE_OF.get(character) for character in token]
        known = bytes(value for value in values if value is not None)
        return known if len(known) == len(values) else token.encode()


def _frame(backend: tokenizers.Tokenizer) -> tuple[list[int], list[int]] | None:
    """The special tokens that go before and behind any text, or None when that can't be told."""
    post_processor = backend.post_processor
    steps = orjson.loads(post_processor.__getstate__()) if post_processor is not None else {"type": "ByteLevel"}
    kinds = {step["type"] for step in steps.get("processors", [steps])}
    if not kinds <= {"ByteLevel", "TemplateProcessing"}:
        return None
    bare = backend.encode("a", add_special_tokens=False).ids
    framed = backend.encode("a", add_special_tokens=True).ids
    for start in range(len(framed) - len(bare) + 1):
        if framed[start : start + len(bare)] == bare:
            return framed[:start], framed[start + len(bare) :]
    return None


def _byte_alphabet() -> dict[str, int]:
    """The character that byte-level BPE writes for each byte: itself where printable, else 256 + n, in order."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    rest = [byte for byte in range(256) if byte not in printable]
    alphabet = {chr(byte): byte for byte in printable} | {chr(256 + i): byte for i, byte in enumerate(rest)}
    assert set(alphabet) == set(pre_tokenizers.ByteLevel.alphabet())
    return alphabet


_BYTE_OF = _byte_alphabet()


def _read_json(path: Path) -> dict[str, object]:
    if not path.is_file():
        return {}
    try:
        data = orjson.loads(path.read_bytes())
    except orjson.JSONDecodeError as error:
        raise ValueError(f"{path} is no valid JSON: {error}") from error
    if not isinstance(data, dict):
        raise ValueError(f"{path} holds no JSON object")
    return data


def _special_tokens(config: dict[str, object]) -> dict[str, str]:
    found = {}
    for name in _SPECIAL_NAMES:
        token = config.get(name)
        if isinstance(token, dict):
            token = token.get("content")
        if isinstance(token, str):
            found[name] = token
    return found


def _eos_token_ids(backend: tokenizers.Tokenizer, files: ModelFiles, eos_token: str | None) -> tuple[int, ...]:
    ids = {}
    for config in (files.generation_config, files.model_config):
        value = config.get("eos_token_id")
        for token_id in value if isinstance(value, list) else [value]:
            if isinstance(token_id, int):
                ids[token_id] = True
    named = backend.token_to_id(eos_token) if eos_token else None
    if named is not None:
        ids[named] = True
    return tuple(ids)
