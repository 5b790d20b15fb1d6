"""Tokenises what is new in a text that begins like an earlier one, so that turn 30 of a chat costs what turn 30 added.

A special token cuts a text in two: the tokenizers library takes such tokens out of the raw text first and treats what
lies between them on its own. So `encode(text)` equals `encode(text[:cut]) + encode(text[cut:])` wherever a special
token begins, and the ids of an earlier text are good up to the last special token that lies wholly in the prefix that
both share. Knows no requests.
"""

from __future__ import annotations

import re
import threading
from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

MIN_CHARACTERS = 2048
"""Shorter texts are tokenised whole; they cost less than the bookkeeping."""

MAX_CHARACTERS = 16 * 1024 * 1024
"""Text kept in all; about 2 bytes of memory a character."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AddedToken:
    """A token that the library takes out of the raw text.

    `is_plain` when it is matched before normalisation, strips nothing around it and needs no word boundary.
    """

    text: str
    token_id: int
    is_plain: bool


@dataclass(frozen=True, slots=True, eq=False)
class _Known:
    """A text, its ids, and where special tokens lie in it.

    The i-th one covers the characters [cuts[i], cut_ends[i]) and is the id at `cut_ids[i]`.
    """

    text: str
    token_ids: array[int]
    cuts: array[int]
    cut_ends: array[int]
    cut_ids: array[int]

    def before(self, index: int) -> _Known:
        """What comes before the special token `index`."""
        return _Known(
            self.text[: self.cuts[index]],
            self.token_ids[: self.cut_ids[index]],
            self.cuts[:index],
            self.cut_ends[:index],
            self.cut_ids[:index],
        )


_NOTHING = _Known("", array("i"), array("q"), array("q"), array("q"))


class PrefixEncoder:
    """Encodes like `encode`, reusing the ids of earlier texts up to a special token."""

    def __init__(self, encode: Callable[[str], Sequence[int]], added: Sequence[AddedToken]) -> None:
        self._encode = encode
        self._added = {token.text: token for token in added if token.text}
        self._added_ids = frozenset(token.token_id for token in self._added.values())
        # One inside a longer one is no cut: what follows it may make the longer one of it.
        self._cutting = frozenset(
            text
            for text, token in self._added.items()
            if token.is_plain and not any(text in other and text != other for other in self._added)
        )
        self._pattern = any_of(self._added)
        self._known: dict[int, _Known] = {}
        self._num_characters = 0
        self._next_key = 0
        self._lock = threading.Lock()

    def encode(self, text: str) -> array[int]:
        """Token ids of `text`, the same as those of a full tokenisation. May be called from several threads."""
        if self._pattern is None or len(text) < MIN_CHARACTERS:
            return array("i", self._encode(text))
        key, nearest, common = self._nearest(text)
        last = bisect_right(nearest.cut_ends, common) - 1 if nearest is not None else -1
        kept = nearest.before(last) if nearest is not None and last >= 0 else _NOTHING
        new = self._extended(kept, text)
        is_covered = nearest is not None and common == len(nearest.text)
        self._keep(new, replaced=key if is_covered else None)
        return new.token_ids

    def is_cut(self, text: str, index: int) -> bool:
        """Whether a special token that cuts the text in two begins at `index`."""
        return any(text.startswith(token, index) for token in self._cutting)

    def _nearest(self, text: str) -> tuple[int, _Known | None, int]:
        """The known text with the longest common prefix, and that prefix's length."""
        best_key, best, best_common = -1, None, 0
        with self._lock:
            candidates = list(self._known.items())
        for key, known in reversed(candidates):
            if known.text[: best_common + 1] == text[: best_common + 1]:
                best_key, best, best_common = key, known, common_prefix(known.text, text)
        return best_key, best, best_common

    def _extended(self, kept: _Known, text: str) -> _Known:
        """Encode the rest of `text` behind what is kept, and note its cuts, if ids and text agree about them."""
        assert self._pattern is not None
        start = len(kept.text)
        new_ids = self._encode(text[start:])
        matches = list(self._pattern.finditer(text, start))
        found = [(i, token_id) for i, token_id in enumerate(new_ids) if token_id in self._added_ids]
        cuts, ends, cut_ids = kept.cuts[:], kept.cut_ends[:], kept.cut_ids[:]
        if [self._added[match.group()].token_id for match in matches] == [token_id for _, token_id in found]:
            for match, (index, _) in zip(matches, found, strict=True):
                if match.group() in self._cutting:
                    cuts.append(match.start())
                    ends.append(match.end())
                    cut_ids.append(len(kept.token_ids) + index)
        return _Known(text, kept.token_ids + array("i", new_ids), cuts, ends, cut_ids)

    def _keep(self, new: _Known, *, replaced: int | None) -> None:
        with self._lock:
            if replaced is not None and replaced in self._known:
                self._num_characters -= len(self._known.pop(replaced).text)
            self._known[self._next_key] = new
            self._next_key += 1
            self._num_characters += len(new.text)
            while self._num_characters > MAX_CHARACTERS and len(self._known) > 1:
                self._num_characters -= len(self._known.pop(next(iter(self._known))).text)


def any_of(texts: Iterable[str]) -> re.Pattern[str] | None:
    """What finds added tokens in a text, as its one group; None without any.

    >>> any_of(["<|im|>", "<|im|>s"]).split("a<|im|>s<|im|>")
    ['a', '<|im|>s', '', '<|im|>', '']
    """
    # Longest first: of several tokens that begin at one place the library takes the longest.
    alternatives = sorted(texts, key=len, reverse=True)
    return re.compile(f"({'|'.join(map(re.escape, alternatives))})") if alternatives else None


def common_prefix(one: str, other: str) -> int:
    """Count the characters at the start that two texts share, by comparing halves.

    >>> common_prefix("abcd", "abxd"), common_prefix("ab", "abcd"), common_prefix("", "a")
    (2, 2, 0)
    """
    low, high = 0, min(len(one), len(other))
    if one[:high] == other[:high]:
        return high
    while high - low > 1:
        middle = (low + high) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle
    return low
