"""The shapes of `bench.shapes` in token ids: a tokenizer's, or one for each word; answers are of random tokens.

What is shared between two prompts is what they share as text, up to how a tokenizer would cut the words. Knows no
scheduler.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import tokenizers

from bench import workload as texts
from bench.simulation.workload import Session, TokenIds, Turn, to_bytes

VOCABULARY = 150_000


@dataclass(slots=True)
class Speech:
    """Words as token ids, in the order in which they are first said unless a tokenizer is given; random answers."""

    random: np.random.Generator
    mean_pause_s: float = 0.0
    tokenizer: tokenizers.Tokenizer | None = None
    ids: dict[str, int] = field(default_factory=dict)

    def tokens(self, text: str) -> TokenIds:
        """The ids of a text."""
        if self.tokenizer is not None:
            return np.array(self.tokenizer.encode(text, add_special_tokens=False).ids, np.int32)
        ids = self.ids
        return np.array([ids.setdefault(word, len(ids)) for word in text.split()], np.int32)

    def answer(self, count: int) -> TokenIds:
        """So many random tokens."""
        return self.random.integers(0, VOCABULARY, max(1, count), dtype=np.int32)

    def pause_s(self) -> float:
        """A random pause before a turn."""
        return float(self.random.exponential(self.mean_pause_s)) if self.mean_pause_s else 0.0


def sessions_of(
    conversations: Sequence[texts.Conversation],
    *,
    seed: int,
    mean_pause_s: float = 0.0,
    tokenizer: tokenizers.Tokenizer | None = None,
) -> list[Session]:
    """Every conversation as a session that starts at once, or at its recorded time; pauses come before each turn."""
    speech = Speech(np.random.default_rng(seed), mean_pause_s, tokenizer)
    return [_session(conversation, speech) for conversation in conversations]


def _session(conversation: texts.Conversation, speech: Speech) -> Session:
    begun = _begun(conversation.turns, conversation.final, speech.tokens(conversation.prefix), speech)
    return Session(begun, conversation.starts_s or 0.0)


def _begun(turns: Sequence[texts.Turn], final: texts.Turn | None, said: TokenIds, speech: Speech) -> Sequence[Turn]:
    """Sibling turns after `said`; the last one to be answered brings the `final` one."""
    answered: list[TokenIds] = []

    def join() -> Sequence[Turn]:
        if final is None or len(answered) < len(turns):
            return ()
        return (_turn(final, np.concatenate([said, *answered]), speech, _nothing_more),)

    def made(turn: texts.Turn) -> Turn:
        def on_answer(spoken: TokenIds) -> Sequence[Turn]:
            answered.append(spoken)
            return join()

        return _turn(turn, said, speech, on_answer)

    return [made(turn) for turn in turns]


def _turn(turn: texts.Turn, said: TokenIds, speech: Speech, on_answer: Callable[[TokenIds], Sequence[Turn]]) -> Turn:
    text, output = speech.tokens(turn.text), speech.answer(turn.output_tokens)
    prompt = np.concatenate([said, text])

    def follow() -> Sequence[Turn]:
        own = _begun(turn.then, turn.final, np.concatenate([prompt, output]), speech)
        return [*own, *on_answer(np.concatenate([text, output]))]

    return Turn(to_bytes(prompt), output, turn.wait_s + speech.pause_s(), follow=follow)


def _nothing_more(spoken: TokenIds) -> Sequence[Turn]:
    return ()
