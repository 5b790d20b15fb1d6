"""Prompts made up for recorded requests: what shared tokens when it was recorded shares them again, to the token.

Knows no server: answers are told by whoever gets them.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from wire.recording import BLOCK_TOKENS, RecordedRequest

TokenIds = npt.NDArray[np.int32]
Fresh = Callable[[str, int], TokenIds]
"""So many tokens that stand for a name: the same for the same name, and for others, as far as chance has it, others."""


class RecordedPrompts:
    """The prompts of `rows`, which are numbered by their places here.

    >>> import msgspec
    >>> one = RecordedRequest(timestamp=0, input_length=3, output_length=2, hash_ids=(), row=0)
    >>> two = msgspec.structs.replace(one, timestamp=9, input_length=6, row=1, follows=0, shared_tokens=4)
    >>> rows = [one, two]
    >>> prompts = RecordedPrompts(rows, random_tokens(1000))
    >>> prompts.needs_answer(1)
    0
    >>> first = prompts.prompt(0).tolist()
    >>> prompts.tell_answer(0, np.array([7, 8], np.int32))
    >>> prompts.prompt(1).tolist()[:4] == [*first, 7]
    True
    """

    def __init__(self, rows: Sequence[RecordedRequest], fresh: Fresh) -> None:
        self._rows = rows
        self._fresh = fresh
        self._place = {row.row: place for place, row in enumerate(rows) if row.row is not None}
        self._prompts: dict[int, TokenIds] = {}
        self._answers: dict[int, TokenIds] = {}

    def needs_answer(self, place: int) -> int | None:
        """The place of the request whose answer this prompt continues; None when it can be made without any."""
        follows = self._followed(place)
        if follows is None or self._rows[place].prompt_ids is not None:
            return None
        return follows if self._rows[place].shared_tokens > self._rows[follows].input_length else None

    def tell_answer(self, place: int, token_ids: TokenIds) -> None:
        """What was answered to the request at this place; empty when it failed."""
        self._answers[place] = token_ids

    def prompt(self, place: int) -> TokenIds:
        """Its token ids; the answer that it needs has been told."""
        pending = [place]
        while pending:
            last = pending[-1]
            follows = self._followed(last)
            if follows is not None and follows not in self._prompts and self._rows[last].prompt_ids is None:
                pending.append(follows)
            else:
                self._prompts[last] = self._made(last, follows)
                pending.pop()
        return self._prompts[place]

    def _followed(self, place: int) -> int | None:
        follows = self._rows[place].follows
        return None if follows is None else self._place.get(follows)

    def _made(self, place: int, follows: int | None) -> TokenIds:
        row = self._rows[place]
        if row.prompt_ids is not None:
            return np.array(row.prompt_ids, np.int32)
        if row.row is None:
            blocks = [self._fresh(f"block {block}", BLOCK_TOKENS) for block in row.hash_ids]
            known = np.concatenate(blocks)[: row.input_length] if blocks else np.empty(0, np.int32)
        elif follows is None:
            known = np.empty(0, np.int32)
        else:
            answer = self._answers.get(follows, np.empty(0, np.int32))
            known = np.concatenate([self._prompts[follows], answer])[: row.shared_tokens]
        return np.concatenate([known, self._fresh(f"row {place}", row.input_length - len(known))])


def random_tokens(vocabulary: int) -> Fresh:
    """Fresh tokens out of a vocabulary."""

    def fresh(name: str, count: int) -> TokenIds:
        draw = np.random.default_rng(random.Random(name).getrandbits(64))
        return draw.integers(0, vocabulary, count, np.int32)

    return fresh
