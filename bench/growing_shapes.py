"""Shapes whose requests build on each other's answers: chats, agents' loops, trees of thought, a judge's votes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, get_args

from bench.questions import Example, sample
from bench.words import Draw
from bench.workload import Conversation, Turn, Workload, chain

Answers = Literal["short", "long"]
ANSWERS: tuple[Answers, ...] = get_args(Answers)
CHAT_QUESTION_TOKENS = (256, 512)
CHAT_ANSWER_TOKENS = {"short": (4, 8), "long": (256, 512)}
FEWEST_CHAT_ANSWER_TOKENS = 4
STEPS_OF_THOUGHT = ("Plan", "Solution", "Reflection")
VERDICT_TOKENS = 2


def react(
    draw: Draw,
    *,
    groups: int = 100,
    turns: int = 6,
    prefix_tokens: int = 1536,
    question_tokens: int = 32,
    tool_tokens: int = 192,
    output_tokens: int = 64,
    tool_wait: float = 0.0,
) -> Workload:
    """Agents: shared examples, a question, then thought, tool and observation again and again, each resent whole."""
    examples = draw.text(prefix_tokens)

    def agent() -> Conversation:
        texts = [f"\nQuestion: {draw.text(question_tokens)}\nThought:"]
        texts += [f"\nObservation: {draw.text(tool_tokens)}\nThought:" for _ in range(turns - 1)]
        waits_s = [0.0, *[tool_wait * draw.random.uniform(0.5, 1.5) for _ in range(turns - 1)]]
        steps = zip(texts, waits_s, strict=True)
        said = chain(Turn(text=text, wait_s=wait_s, output_tokens=draw.tokens(output_tokens)) for text, wait_s in steps)
        return Conversation(prefix=examples, turns=(said,))

    return Workload(name="w2", conversations=tuple(agent() for _ in range(groups)))


def tree_of_thought(
    draw: Draw,
    *,
    groups: int = 200,
    branches: int = 3,
    prefix_tokens: int = 512,
    question_tokens: int = 64,
    output_tokens: int = 256,
    questions: Sequence[Example] = (),
) -> Workload:
    """For each question some plans, for each plan some solutions, for each solution some reflections.

    Siblings differ by their texts, not by sampling, so that every server sees the same tree at temperature 0.
    """
    instruction = draw.text(prefix_tokens)
    drawn = sample(draw.random, questions, groups) if questions else []

    def step(level: int) -> tuple[Turn, ...]:
        if level == len(STEPS_OF_THOUGHT):
            return ()
        return tuple(
            Turn(
                text=f"\n{STEPS_OF_THOUGHT[level]} {number}, {draw.text(8)}:",
                output_tokens=draw.tokens(output_tokens),
                then=step(level + 1),
            )
            for number in range(1, branches + 1)
        )

    def tree(number: int) -> Conversation:
        asked = drawn[number].question if questions else draw.text(question_tokens)
        return Conversation(prefix=f"{instruction}\nQuestion: {asked}", turns=step(0))

    return Workload(name="w4", conversations=tuple(tree(number) for number in range(groups)))


def judge(
    draw: Draw,
    *,
    groups: int = 20,
    branches: int = 6,
    prefix_tokens: int = 1024,
    question_tokens: int = 32,
    output_tokens: int = 256,
) -> Workload:
    """Articles, each judged under several aspects at once; then a verdict over all judgements."""

    def article() -> Conversation:
        aspects = [f"\nAspect {number}, {draw.text(question_tokens)}:" for number in range(1, branches + 1)]
        return Conversation(
            prefix=draw.text(prefix_tokens),
            turns=tuple(Turn(text=aspect, output_tokens=draw.tokens(output_tokens)) for aspect in aspects),
            final=Turn(text="\nVerdict:", output_tokens=VERDICT_TOKENS),
        )

    return Workload(name="w5", conversations=tuple(article() for _ in range(groups)))


def chat(draw: Draw, *, groups: int = 20, turns: int = 4, answers: Answers = "short") -> Workload:
    """Chats, each turn sent with the real answers to the turns before; nothing else is shared."""

    def said() -> Turn:
        answer_tokens = draw.random.randint(*CHAT_ANSWER_TOKENS[answers])
        return Turn(
            text=draw.text(draw.random.randint(*CHAT_QUESTION_TOKENS)),
            output_tokens=draw.tokens(answer_tokens, at_least=FEWEST_CHAT_ANSWER_TOKENS),
        )

    chats = [Conversation(turns=(chain([said() for _ in range(turns)]),)) for _ in range(groups)]
    return Workload(name=f"w6_{answers}", conversations=tuple(chats), is_chat=True)


def pressure(
    draw: Draw, *, groups: int = 256, turns: int = 5, question_tokens: int = 512, output_tokens: int = 64
) -> Workload:
    """More growing conversations than the cache holds, whose turns come at random times."""

    def client() -> Conversation:
        separators = ["", *["\n"] * (turns - 1)]
        said = [
            Turn(text=separator + draw.text(question_tokens), output_tokens=draw.tokens(output_tokens))
            for separator in separators
        ]
        return Conversation(turns=(chain(said),))

    return Workload(name="w10", conversations=tuple(client() for _ in range(groups)))
