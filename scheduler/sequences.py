"""Recent sequences of tokens, to find the one that begins like a prompt, to the token. Of bounded size.

Knows no pages of the pool and no requests.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

import numpy as np

from radix.journal import chained

from .request import TokenIds

_STRIDE_TOKENS = 16
"""Beginnings are looked up at every so many tokens, and compared token by token behind the last."""

_BRANCHES = 8
"""So many sequences that part within a stride are compared, those that came last."""


@dataclass(frozen=True, slots=True)
class _Sequence:
    token_ids: TokenIds
    beginnings: list[int]
    """Hashes of its beginnings: of the first 16 tokens, the first 32, and so on; before them that of nothing."""


class Sequences:
    """Sequences by number. The oldest go when there are more than `most_tokens` tokens of them.

    >>> sequences = Sequences(most_tokens=1000)
    >>> tokens = np.arange(40, dtype=np.int32)
    >>> sequences.add(0, 7, tokens)
    >>> sequences.longest(7, tokens[:20]), sequences.longest(7, np.append(tokens[:37], np.int32(0)))
    ((0, 20), (0, 37))
    >>> sequences.longest(8, tokens)
    """

    def __init__(self, *, most_tokens: int) -> None:
        self._most_tokens = most_tokens
        self._num_tokens = 0
        self._sequences: OrderedDict[int, _Sequence] = OrderedDict()
        self._latest: dict[int, int] = {}
        self._branches: dict[tuple[int, int], list[int]] = {}

    def longest(self, nothing: int, token_ids: TokenIds) -> tuple[int, int] | None:
        """The number of the sequence that shares most with `token_ids`, and how much; None when none shares anything.

        `nothing` is the hash before the first token: sequences of another one share nothing.
        """
        hashes = chained(nothing, token_ids.tobytes(), page_tokens=_STRIDE_TOKENS)
        before, depth, numbers = nothing, 0, list[int]()
        for hashed in hashes:
            if hashed not in self._latest:
                break
            before, depth, numbers = hashed, depth + _STRIDE_TOKENS, [self._latest[hashed]]
        if depth < len(token_ids):
            numbers = [*numbers, *self._branches.get((before, int(token_ids[depth])), ())]
        shared = [
            (depth + _common(self._sequences[each].token_ids[depth:], token_ids[depth:]), each) for each in numbers
        ]
        if not shared:
            return None
        most, number = max(shared)
        return number, most

    def add(self, number: int, nothing: int, token_ids: TokenIds) -> None:
        """Remember a sequence; where it begins like others, it is the one that is found from now on."""
        beginnings = [nothing, *chained(nothing, token_ids.tobytes(), page_tokens=_STRIDE_TOKENS)]
        earlier = {self._latest[hashed] for hashed in beginnings[1:] if hashed in self._latest}
        self._latest.update(dict.fromkeys(beginnings[1:], number))
        starts = token_ids[::_STRIDE_TOKENS].tolist()
        for branch in zip(beginnings, starts, strict=False):
            self._branches.setdefault(branch, []).append(number)
            del self._branches[branch][:-_BRANCHES]
        self._sequences[number] = _Sequence(token_ids, beginnings)
        self._num_tokens += len(token_ids)
        for each in earlier:
            if self._sequences[each].token_ids.tobytes() == token_ids[: len(self._sequences[each].token_ids)].tobytes():
                self._forget(each)
        while self._num_tokens > self._most_tokens and len(self._sequences) > 1:
            self._forget(next(iter(self._sequences)))

    def _forget(self, number: int) -> None:
        gone = self._sequences.pop(number)
        self._num_tokens -= len(gone.token_ids)
        for hashed in gone.beginnings[1:]:
            if self._latest.get(hashed) == number:
                del self._latest[hashed]
        for branch in zip(gone.beginnings, gone.token_ids[::_STRIDE_TOKENS].tolist(), strict=False):
            numbers = self._branches.get(branch, [])
            if number in numbers:
                numbers.remove(number)
                if not numbers:
                    del self._branches[branch]


def _common(one: TokenIds, other: TokenIds) -> int:
    """Count the equal tokens at the start of both."""
    length = min(len(one), len(other))
    differs = np.flatnonzero(one[:length] != other[:length])
    return int(differs[0]) if len(differs) else length
