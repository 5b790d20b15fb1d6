"""Tokenises what is new in a text that begins like an earlier one, so that turn 30 of a chat costs what turn 30 added.

A special token cuts a text in two: the tokenizers library takes such tokens out of the raw text first and treats what
lies between them on its own. So `encode(text)` equals `encode(text[:cut]) + encode(text[cut:])` wherever a special
token begins, and the ids of an earlier text are good up to the last special token that lies wholly in the prefix that
both share. Each earlier text is found by digests of its beginnings up to such tokens, however many there are, and
compared before it's used. Knows no requests.
"""

from __future__ import annotations

import re
import sys
import threading
from array import array
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import NamedTuple

import numpy as np
from xxhash import xxh3_64_intdigest

MIN_CHARACTERS = 2048
"""Shorter texts are tokenised whole; they cost less than the bookkeeping."""

MAX_BYTES = 32 * 1024 * 1024
"""Memory of what is kept, about: of English, 16 million characters. Of more, what was used longest ago goes."""

_BEGINNING_BYTES = 160
"""What it costs that a text can be found by one of its beginnings."""

_BLOCK_CHARACTERS = 16_384
"""Compared at once: a slice as long as a chat takes longer to make than to compare."""

_FEW_PATTERNS = 8
"""First characters that are looked for one by one, at most."""


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
    """A text, its ids, and the special tokens that cut it: of each its end, the place of its id, and its digest."""

    text: str
    token_ids: array[int]
    ends: array[int]
    places: array[int]
    digests: array[int]
    num_bytes: int


class _Cut(NamedTuple):
    """A special token that seems to cut a text: where it stands, and the digest of all up to its end."""

    start: int
    end: int
    digest: int


class PrefixEncoder:
    """Encodes like `encode`, reusing the ids of earlier texts up to a special token."""

    def __init__(self, encode: Callable[[str], Sequence[int]], added: Sequence[AddedToken]) -> None:
        self._encode = encode
        self._added = {token.text: token for token in added if token.text}
        self._added_ids = np.array([token.token_id for token in self._added.values()], np.int32)
        # One inside a longer one is no cut: what follows it may make the longer one of it.
        self._cutting = frozenset(
            text
            for text, token in self._added.items()
            if token.is_plain and not any(text in other and text != other for other in self._added)
        )
        self._pattern = any_of(self._added)
        self._cut_patterns = _by_first_character(self._cutting)
        self._known = _KnownTexts()
        self._lock = threading.Lock()

    def encode(self, text: str) -> array[int]:
        """Token ids of `text`, the same as those of a full tokenisation. May be called from several threads."""
        if len(text) < MIN_CHARACTERS or not (cuts := self._cuts(text)):
            return array("i", self._encode(text))
        with self._lock:
            known, num_cuts, start = self._known.nearest(text, cuts)
        new = self._extended(known, num_cuts, text, start, cuts)
        with self._lock:
            self._known.keep(new)
        return new.token_ids

    def is_cut(self, text: str, index: int) -> bool:
        """Whether a special token that cuts the text in two begins at `index`."""
        return any(text.startswith(token, index) for token in self._cutting)

    def _cuts(self, text: str) -> list[_Cut]:
        """Where special tokens seem to cut the text; `_extended` finds out whether the tokenizer sees them too."""
        cuts, end, digest = list[_Cut](), 0, 0
        for start, stop in sorted(match.span() for pattern in self._cut_patterns for match in pattern.finditer(text)):
            digest = xxh3_64_intdigest(text[end:stop].encode("utf-8", "surrogatepass"), digest)
            end = stop
            cuts.append(_Cut(start, stop, digest))
        return cuts

    def _extended(self, known: _Known, num_cuts: int, text: str, start: int, cuts: Sequence[_Cut]) -> _Known:
        """Encode `text` from `start` on, behind what is known up to its cut `num_cuts`; note cuts if the ids agree."""
        assert self._pattern is not None
        place = known.places[num_cuts] if start else 0
        new_ids = self._encode(text[start:])
        token_ids = known.token_ids[:place]
        token_ids.extend(new_ids)
        ends, places, digests = (each[:num_cuts] for each in (known.ends, known.places, known.digests))
        matches = list(self._pattern.finditer(text, start))
        found = (place + np.flatnonzero(np.isin(np.asarray(new_ids, np.int32), self._added_ids))).tolist()
        if [self._added[match.group()].token_id for match in matches] == [token_ids[index] for index in found]:
            digest_of = {(cut.start, cut.end): cut.digest for cut in cuts if cut.start >= start}
            for match, index in zip(matches, found, strict=True):
                if (digest := digest_of.get(match.span())) is not None:
                    ends.append(match.end())
                    places.append(index)
                    digests.append(digest)
        num_bytes = sys.getsizeof(text) + sys.getsizeof(token_ids) + _BEGINNING_BYTES * len(digests)
        return _Known(text, token_ids, ends, places, digests, num_bytes)


_NOTHING = _Known("", array("i"), array("q"), array("q"), array("Q"), 0)


class _KnownTexts:
    """Earlier texts by their beginnings, each of which finds the latest text that has it."""

    def __init__(self) -> None:
        self.num_bytes = 0
        self._by_beginning: dict[int, _Known] = {}
        self._num_found_by: dict[_Known, int] = {}

    def nearest(self, text: str, cuts: Sequence[_Cut]) -> tuple[_Known, int, int]:
        """The known text that shares most of the `cuts`, how many stand before the last shared one, and its start."""
        for cut in reversed(cuts):
            if (known := self._by_beginning.get(cut.digest)) is not None:
                index = known.digests.index(cut.digest)
                # The digest finds; what is equal is told by comparing.
                if known.ends[index] == cut.end and _begin_alike(text, known.text, cut.end):
                    return known, index, cut.start
        return _NOTHING, 0, 0

    def keep(self, new: _Known) -> None:
        """Remember a text; one that nothing leads to any more is forgotten, and what is too much."""
        if not new.digests:
            return
        self._num_found_by[new] = 0
        self.num_bytes += new.num_bytes
        for digest in new.digests:
            self._take(digest, new)
        while self.num_bytes > MAX_BYTES:
            self._forget(next(iter(self._num_found_by)))

    def _take(self, digest: int, new: _Known) -> None:
        before = self._by_beginning.get(digest)
        if before is new:
            return
        self._by_beginning[digest] = new
        self._num_found_by[new] += 1
        if before is not None:
            self._num_found_by[before] -= 1
            if not self._num_found_by[before]:
                self._forget(before)

    def _forget(self, known: _Known) -> None:
        del self._num_found_by[known]
        self.num_bytes -= known.num_bytes
        for digest in known.digests:
            if self._by_beginning.get(digest) is known:
                del self._by_beginning[digest]


def _begin_alike(one: str, other: str, num_characters: int) -> bool:
    """Whether so many characters are the same in both."""
    return all(
        one.startswith(other[start : min(start + _BLOCK_CHARACTERS, num_characters)], start)
        for start in range(0, num_characters, _BLOCK_CHARACTERS)
    )


def _by_first_character(texts: Collection[str]) -> list[re.Pattern[str]]:
    """What together finds any of the texts: `re` looks for one first character 20 times faster than for two."""
    groups = [list(group) for _, group in groupby(sorted(texts), key=lambda text: text[0])]
    if len(groups) > _FEW_PATTERNS:
        groups = [list(texts)]
    return [pattern for group in groups if (pattern := any_of(group)) is not None]


def any_of(texts: Iterable[str]) -> re.Pattern[str] | None:
    """What finds added tokens in a text, as its one group; None without any.

    >>> any_of(["<|im|>", "<|im|>s"]).split("a<|im|>s<|im|>")
    ['a', '<|im|>s', '', '<|im|>', '']
    """
    # Longest first: of several tokens that begin at one place the library takes the longest.
    alternatives = sorted(texts, key=len, reverse=True)
    return re.compile(f"({'|'.join(map(re.escape, alternatives))})") if alternatives else None
