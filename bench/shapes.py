"""The shapes of load: who shares which text with whom, and how many tokens go in and out.

Plain text drawn from a word list by a seed, about one token a word, so that any server can be asked; what a prompt
really has in tokens is the server's to say. Knows no server and no clock.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, replace

from bench.words import WORDS

SHOTS = 5
CHAT_TURNS = 4
QUESTION_TOKENS = (256, 512)
ANSWER_TOKENS = {"short": (4, 8), "long": (256, 512)}
FEWEST_ANSWER_TOKENS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversation:
    """Requests sent one after the other: a single one, or the turns of a chat.

    All conversations of a `group` begin with the same `prefix`; the first question follows it.
    """

    group: int
    prefix: str = ""
    questions: tuple[str, ...]
    output_tokens: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """The conversations of one run, in the order in which they start."""

    name: str
    is_chat: bool
    conversations: tuple[Conversation, ...]

    @property
    def num_requests(self) -> int:
        """Requests in all conversations together."""
        return sum(len(conversation.questions) for conversation in self.conversations)


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """The numbers of a shape before scaling; a chat has no use for `per_group` and `prefix_tokens`."""

    groups: int
    per_group: int = 1
    prefix_tokens: int = 0
    question_tokens: int = 0
    output_tokens: int = 0
    answers: str = "short"


SIZES = {
    "w1": Size(groups=10, per_group=16, prefix_tokens=SHOTS * 160, question_tokens=80, output_tokens=1),
    "w6": Size(groups=20),
    "w9": Size(groups=16, per_group=8, prefix_tokens=2048, question_tokens=128, output_tokens=256),
}


def few_shot(size: Size, *, scale: float, seed: int) -> Workload:
    """W1: for every subject one prompt of worked examples, shared by many short questions."""
    draw = random.Random(seed)
    shot_tokens = _scaled(size.prefix_tokens / SHOTS, scale)

    def prefix() -> str:
        shots = [f"Question: {_words(draw, shot_tokens - 6)}.\nAnswer: {_words(draw, 1)}" for _ in range(SHOTS)]
        return "\n\n".join([f"{_words(draw, 3).capitalize()}.", *shots])

    def question() -> str:
        return f"\n\nQuestion: {_words(draw, _scaled(size.question_tokens, scale) - 6)}.\nAnswer:"

    output_tokens = _scaled(size.output_tokens, scale)
    return _grouped("w1", size, draw, prefix=prefix, question=question, output_tokens=output_tokens)


def shared_prefix(size: Size, *, scale: float, seed: int) -> Workload:
    """W9: groups of prompts with one long system text a group, all shuffled."""
    draw = random.Random(seed)

    def prefix() -> str:
        return _words(draw, _scaled(size.prefix_tokens, scale))

    def question() -> str:
        return " " + _words(draw, _scaled(size.question_tokens, scale))

    output_tokens = _scaled(size.output_tokens, scale)
    return _grouped("w9", size, draw, prefix=prefix, question=question, output_tokens=output_tokens)


def chat(size: Size, *, scale: float, seed: int) -> Workload:
    """W6: conversations of four turns, each sent with the real answers to the turns before; nothing else is shared."""
    draw = random.Random(seed)
    low, high = ANSWER_TOKENS[size.answers]

    def conversation(group: int) -> Conversation:
        lengths = [_scaled(draw.randint(*QUESTION_TOKENS), scale) for _ in range(CHAT_TURNS)]
        answers = [_scaled(draw.randint(low, high), scale, at_least=FEWEST_ANSWER_TOKENS) for _ in range(CHAT_TURNS)]
        return Conversation(
            group=group,
            questions=tuple(_words(draw, length) for length in lengths),
            output_tokens=tuple(answers),
        )

    name = f"w6_{size.answers}"
    return Workload(name=name, is_chat=True, conversations=tuple(conversation(group) for group in range(size.groups)))


SHAPES: dict[str, Callable[..., Workload]] = {"w1": few_shot, "w6": chat, "w9": shared_prefix}


def limited(workload: Workload, num_requests: int) -> Workload:
    """The first `num_requests` requests of a workload; the last chat is cut where needed."""
    kept: list[Conversation] = []
    left = num_requests
    for conversation in workload.conversations:
        if left < 1:
            break
        kept.append(
            replace(
                conversation,
                questions=conversation.questions[:left],
                output_tokens=conversation.output_tokens[:left],
            )
        )
        left -= len(kept[-1].questions)
    return replace(workload, conversations=tuple(kept))


def text_of(num_tokens: int, *, seed: int) -> str:
    """Words that make about `num_tokens` tokens; another seed shares nothing with it."""
    return _words(random.Random(seed), num_tokens)


def _grouped(
    name: str,
    size: Size,
    draw: random.Random,
    *,
    prefix: Callable[[], str],
    question: Callable[[], str],
    output_tokens: int,
) -> Workload:
    conversations = []
    for group in range(size.groups):
        text = prefix()
        conversations += [
            Conversation(group=group, prefix=text, questions=(question(),), output_tokens=(output_tokens,))
            for _ in range(size.per_group)
        ]
    draw.shuffle(conversations)
    return Workload(name=name, is_chat=False, conversations=tuple(conversations))


def _words(draw: random.Random, count: int) -> str:
    return " ".join(draw.choices(WORDS, k=max(1, count)))


def _scaled(tokens: float, scale: float, *, at_least: int = 1) -> int:
    return max(at_least, round(tokens * scale))
