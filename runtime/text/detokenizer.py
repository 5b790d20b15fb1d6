"""Token ids to text, one token at a time, without ever taking back a character.

The pieces of a detokenizer joined equal the text of all its tokens. Knows no stop strings and no requests.
"""

from __future__ import annotations

import codecs
from typing import Protocol

from .tokenizer import Tokenizer

_LONGEST_PARTIAL_CHARACTER = 3
"""A UTF-8 character has at most four bytes, so at most three tokens can be the beginning of one."""

_REPLACEMENT = "\ufffd"


class Detokenizer(Protocol):
    """The text of one growing list of token ids."""

    def push(self, token_id: int) -> str:
        """The text that is certain with this token; empty while a character is incomplete."""

    def flush(self) -> str:
        """What was held back; no token may follow."""


def detokenizer(tokenizer: Tokenizer, *, skipped_ids: frozenset[int]) -> Detokenizer:
    """The detokenizer that suits `tokenizer`; tokens of `skipped_ids` have no text."""
    if tokenizer.is_byte_level:
        return _ByteLevel(tokenizer, skipped_ids)
    return _Windowed(tokenizer, skipped_ids)


class _ByteLevel:
    """Tokens are byte strings; characters appear as soon as their last byte does. O(bytes of the token)."""

    def __init__(self, tokenizer: Tokenizer, skipped: frozenset[int]) -> None:
        self._token_bytes = tokenizer.token_bytes
        self._whole_texts = tokenizer.whole_texts
        self._skipped = skipped
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._is_inside_character = False

    def push(self, token_id: int) -> str:
        if token_id in self._skipped:
            return ""
        if not self._is_inside_character and (text := self._whole_texts.get(token_id)) is not None:
            return text
        text = self._decoder.decode(self._token_bytes(token_id))
        self._is_inside_character = bool(self._decoder.getstate()[0])
        return text

    def flush(self) -> str:
        return self._decoder.decode(b"", True)


class _Windowed:
    """For decoders that look at neighbours: decodes a short window, and emits what its last tokens add.

    tokens:  [ emitted, forgotten | emitted, as context | held back )
                                  0               num_context     len
    """

    def __init__(self, tokenizer: Tokenizer, skipped: frozenset[int]) -> None:
        self._tokenizer = tokenizer
        self._skipped = skipped
        self._window: list[int] = []
        self._num_context = 0
        self._context_text = ""

    def push(self, token_id: int) -> str:
        if token_id in self._skipped:
            return ""
        self._window.append(token_id)
        text = self._text(self._window)
        is_partial = text.endswith(_REPLACEMENT)
        if is_partial and len(self._window) - self._num_context <= _LONGEST_PARTIAL_CHARACTER:
            return ""
        return self._emit(text)

    def flush(self) -> str:
        return self._emit(self._text(self._window))

    def _emit(self, text: str) -> str:
        piece = text[len(self._context_text) :]
        self._window = self._window[self._num_context :]
        self._num_context = len(self._window)
        self._context_text = self._text(self._window)
        return piece

    def _text(self, token_ids: list[int]) -> str:
        return self._tokenizer.decode(token_ids, skip_special_tokens=False)
