"""The calls that programs have made, noted on their way to a backend, and the prompt tokens that they need at best."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from axil.lang.backend import Answer, Backend, Prompt, Scores, Wish
from axil.lang.home import Home
from axil.lang.turns import Turns
from bench.reuse import common_length

TOKEN_BYTES = 4


@dataclass(frozen=True, slots=True)
class Exchange:
    """One call and its answer's text."""

    prompt: Prompt
    answer: str


class Noted:
    """A backend that notes each call to another."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self.exchanges: list[Exchange] = []

    @property
    def home(self) -> Home:
        """The other's."""
        return self._backend.home

    @property
    def turns(self) -> Turns:
        """The other's."""
        return self._backend.turns

    async def generate(self, prompt: Prompt, wish: Wish, put: Callable[[str], None] | None) -> Answer:
        """Pass on, and note."""
        answer = await self._backend.generate(prompt, wish, put)
        self.exchanges.append(Exchange(prompt, answer.texts[0]))
        return answer

    async def score(self, prompt: Prompt, choices: Sequence[str]) -> Scores:
        """Pass on."""
        return await self._backend.score(prompt, choices)

    async def score_alone(self, token_ids: Sequence[Sequence[int]]) -> Scores:
        """Pass on."""
        return await self._backend.score_alone(token_ids)


def optimum_tokens(prompts: Sequence[Sequence[int]], answered: Sequence[Sequence[int]]) -> int:
    """Prompt tokens that must be computed when nothing is forgotten and the order is the best.

    Every distinct beginning is computed once, but for what an answer has computed already; a prompt's last token is
    always computed, for its answer's first. `answered` are the prompts with their answers, in the same order; where
    the two together are cut into other tokens than the prompt alone, the answer counts for nothing.

    >>> optimum_tokens([[1, 2, 3], [1, 2, 4], [1, 2, 4]], [[1, 2, 3, 0], [1, 2, 4, 0], [1, 2, 4, 0]])
    5
    >>> optimum_tokens([[1, 2], [1, 2, 7, 8, 5]], [[1, 2, 7, 8], [1, 2, 7, 8, 5, 0]])
    4
    """
    calls = sorted((_key(prompt), _key(whole[:-1])) for prompt, whole in zip(prompts, answered, strict=True))
    total = 0
    before = b""
    for i, (prompt, _) in enumerate(calls):
        # What an answer has computed stands behind a prompt that this one begins with, and that comes before it.
        known = [before, *(whole for asked, whole in calls[:i] if prompt.startswith(asked) and whole.startswith(asked))]
        shared = max(common_length(prompt, other) for other in known) // TOKEN_BYTES
        total += max(1, len(prompt) // TOKEN_BYTES - shared)
        before = prompt
    return total


def _key(token_ids: Sequence[int]) -> bytes:
    """Bytes whose order and common beginnings are those of the tokens."""
    return np.asarray(token_ids, ">u4").tobytes()
