"""The last prompts of a tokenizer process, in memory only and bounded; they are looked at when somebody asks."""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import orjson

from runtime.chat_source import MESSAGE_BYTES
from runtime.generation import Prompt

from .prompts import SeenPrompt

MAX_BYTES = 32 * 1024 * 1024
"""Text of all prompts in the window, and what stands around it; a longer prompt is not kept."""


@dataclass(frozen=True, slots=True)
class _Kept:
    """A prompt whose tools are JSON, which takes a tenth of their objects' memory; equal ones are kept once."""

    messages: Sequence[Mapping[str, object]]
    tools: bytes
    salt: str
    at_s: float
    num_tokens: int
    num_bytes: int


class PromptWindow:
    """The last `max_prompts` prompts, fewer when they are long; 0 keeps none."""

    def __init__(self, max_prompts: int, *, max_bytes: int = MAX_BYTES) -> None:
        self._max_prompts = max_prompts
        self._max_bytes = max_bytes
        self._kept: deque[_Kept] = deque()
        self._num_bytes = 0

    def take(
        self,
        messages: Sequence[Mapping[str, object]],
        tools: Sequence[Mapping[str, object]],
        *,
        salt: str,
        num_tokens: int,
        text: str,
    ) -> None:
        """Keep a prompt, whose text is `text`. Messages are kept as they are, unread; O(1) but for its tools."""
        num_bytes = sys.getsizeof(text) + MESSAGE_BYTES * len(messages)
        if not self._max_prompts or num_bytes > self._max_bytes:
            return
        packed = orjson.dumps(tools) if tools else b""
        if self._kept and self._kept[-1].tools == packed:
            packed = self._kept[-1].tools
        self._kept.append(_Kept(messages, packed, salt, time.time(), num_tokens, num_bytes))
        self._num_bytes += num_bytes
        while len(self._kept) > self._max_prompts or self._num_bytes > self._max_bytes:
            self._num_bytes -= self._kept.popleft().num_bytes

    def take_texts(self, texts: Sequence[str], prompts: Sequence[Prompt]) -> None:
        """Keep texts without a chat; `prompts` is what they became, as many for each."""
        samples = len(prompts) // max(1, len(texts))
        for text, prompt in zip(texts, prompts[::samples], strict=False):
            message = {"role": "prompt", "content": text}
            self.take([message], (), salt=prompt.salt, num_tokens=len(prompt.token_ids), text=text)

    def prompts(self) -> list[SeenPrompt]:
        """The prompts, oldest first."""
        tools = {kept.tools: orjson.loads(kept.tools) if kept.tools else [] for kept in list(self._kept)}
        return [
            SeenPrompt(
                tools=tools[kept.tools],
                messages=kept.messages,
                salt=kept.salt,
                at_s=kept.at_s,
                num_tokens=kept.num_tokens,
            )
            for kept in list(self._kept)
        ]
