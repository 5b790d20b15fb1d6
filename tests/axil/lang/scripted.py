"""A backend for tests: answers by a function of the prompt, holds calls back when told to, notes what it was asked."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from axil.lang.backend import Answer, Prompt, Scored, Scores, Usage, Wish
from axil.lang.home import Home
from axil.lang.turns import Turns
from tests.deadline import DEADLINE_S


class Scripted:
    def __init__(self, answer: Callable[[Prompt], str] = lambda prompt: "ok", *, max_open: int = 64) -> None:
        self.home = Home()
        self.turns = Turns(max_open)
        self.answer = answer
        self.asked: list[tuple[Prompt, Wish]] = []
        self.scores: dict[str, tuple[float, ...]] = {}
        self.alone: dict[str, tuple[float, ...]] = {}
        self.num_open = 0
        self.most_open = 0
        self.wait_for_open: int | None = None
        self.hold_from: int | None = None
        self.num_cancelled = 0
        self._enough: asyncio.Event | None = None

    @property
    def keys(self) -> list[str]:
        return [prompt.key for prompt, _ in self.asked]

    async def generate(self, prompt: Prompt, wish: Wish, put: Callable[[str], None] | None) -> Answer:
        self.asked.append((prompt, wish))
        await self._held()
        text = self.answer(prompt)
        if put is not None:
            for character in text:
                put(character)
                await asyncio.sleep(0)
        usage = Usage(prompt_tokens=len(prompt.key), cached_tokens=1, completion_tokens=len(text))
        return Answer(texts=(text,) * wish.n, finish_reasons=("stop",) * wish.n, usage=usage)

    async def score(self, prompt: Prompt, choices: Sequence[str]) -> Scores:
        self.asked.append((prompt, Wish()))
        scored = tuple(
            Scored(token_ids=(i,) * len(self.scores[c]), logprobs=self.scores[c]) for i, c in enumerate(choices)
        )
        self._choices = list(choices)
        return Scores(choices=scored, usage=Usage(prompt_tokens=10, cached_tokens=8))

    async def score_alone(self, token_ids: Sequence[Sequence[int]]) -> Scores:
        scored = tuple(Scored(token_ids=tuple(ids), logprobs=self.alone[self._choices[ids[0]]]) for ids in token_ids)
        return Scores(choices=scored, usage=Usage())

    async def _held(self) -> None:
        """Hold every call back until `wait_for_open` of them are open."""
        if self.hold_from is not None and len(self.asked) > self.hold_from:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                self.num_cancelled += 1
                raise
        self.num_open += 1
        self.most_open = max(self.most_open, self.num_open)
        if self.wait_for_open is not None:
            if self._enough is None:
                self._enough = asyncio.Event()
            if self.num_open >= self.wait_for_open:
                self._enough.set()
            await asyncio.wait_for(self._enough.wait(), DEADLINE_S)
        self.num_open -= 1
