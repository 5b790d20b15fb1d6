"""The last prompts of a tokenizer process, as references to what their requests brought; bounded, in memory only."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping, Sequence

from runtime.generation import Prompt

from .prompts import SeenPrompt

MAX_CHARACTERS = 16 * 1024 * 1024
"""Text of all prompts in the window; a longer prompt alone is not kept."""


class PromptWindow:
    """The last `max_prompts` prompts, fewer when they are long; 0 keeps none."""

    def __init__(self, max_prompts: int, *, max_characters: int = MAX_CHARACTERS) -> None:
        self._max_prompts = max_prompts
        self._max_characters = max_characters
        self._kept: deque[tuple[SeenPrompt, int]] = deque()
        self._num_characters = 0

    def take(
        self,
        messages: Sequence[Mapping[str, object]],
        tools: Sequence[Mapping[str, object]],
        *,
        salt: str,
        num_tokens: int,
        num_characters: int,
    ) -> None:
        """Keep a prompt of that size. O(1) but for what has to go; nothing is copied or looked at."""
        if not self._max_prompts or num_characters > self._max_characters:
            return
        seen = SeenPrompt(tools=tools, messages=messages, salt=salt, at_s=time.time(), num_tokens=num_tokens)
        self._kept.append((seen, num_characters))
        self._num_characters += num_characters
        while len(self._kept) > self._max_prompts or self._num_characters > self._max_characters:
            self._num_characters -= self._kept.popleft()[1]

    def take_texts(self, texts: Sequence[str], prompts: Sequence[Prompt]) -> None:
        """Keep texts without a chat; `prompts` is what they became, as many for each."""
        samples = len(prompts) // max(1, len(texts))
        for text, prompt in zip(texts, prompts[::samples], strict=False):
            message = {"role": "prompt", "content": text}
            num_tokens = len(prompt.token_ids)
            self.take([message], (), salt=prompt.salt, num_tokens=num_tokens, num_characters=len(text))

    def prompts(self) -> list[SeenPrompt]:
        """The prompts, oldest first."""
        return [seen for seen, _ in self._kept]
