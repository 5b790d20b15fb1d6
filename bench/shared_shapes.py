"""Shapes of single requests, of which many begin with the same text: few-shot, documents, prefixes; and none at all."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Literal, get_args

from bench.questions import Example, sample
from bench.words import Draw
from bench.workload import Conversation, Turn, Workload, chain

Order = Literal["shuffled", "grouped", "round-robin"]
ORDERS: tuple[Order, ...] = get_args(Order)
SHOTS = 5
EVENT_KINDS = 6


def few_shot(
    draw: Draw,
    *,
    groups: int = 10,
    per_group: int = 16,
    prefix_tokens: int = 800,
    question_tokens: int = 80,
    output_tokens: int = 1,
    order: Order = "shuffled",
    questions: Sequence[Example] = (),
) -> Workload:
    """For every subject one prompt of worked examples, shared by many short questions."""
    shot_tokens = prefix_tokens / SHOTS

    def shots(subject: int) -> str:
        if questions:
            examples = [f"Question: {example.question}\nAnswer: {example.answer}" for example in drawn[subject][:SHOTS]]
            return "\n\n".join(examples)
        invented = [f"Question: {draw.text(shot_tokens, less=6)}.\nAnswer: {draw.text(1)}" for _ in range(SHOTS)]
        return "\n\n".join([f"{draw.text(3).capitalize()}.", *invented])

    def question(subject: int, number: int) -> str:
        asked = drawn[subject][SHOTS + number].question if questions else draw.text(question_tokens, less=6) + "."
        return f"\n\nQuestion: {asked}\nAnswer:"

    drawn = [sample(draw.random, questions, SHOTS + per_group) for _ in range(groups)] if questions else []
    return _grouped(
        "w1", draw, [per_group] * groups, order, prefix=shots, question=question, output_tokens=output_tokens
    )


def generative_agents(
    draw: Draw,
    *,
    groups: int = 25,
    per_group: int = 40,
    prefix_tokens: int = 512,
    question_tokens: int = 128,
    output_tokens: int = 32,
) -> Workload:
    """Events in the lives of agents, one after the other: each is an agent's memory, a task of six, and what is new."""
    tasks = [f"\n{draw.text(question_tokens / 2)}\n" for _ in range(EVENT_KINDS)]

    def memory(agent: int) -> str:
        return draw.text(prefix_tokens)

    def event(agent: int, number: int) -> str:
        return draw.random.choice(tasks) + draw.text(question_tokens / 2)

    sizes = [per_group] * groups
    return _grouped("w3", draw, sizes, "shuffled", prefix=memory, question=event, output_tokens=output_tokens)


def documents(
    draw: Draw,
    *,
    groups: int = 4,
    per_group: int = 16,
    prefix_tokens: int = 8192,
    question_tokens: int = 32,
    output_tokens: int = 64,
    order: Order = "grouped",
) -> Workload:
    """Long documents, each with many questions about it."""
    return _plain("w8", draw, [per_group] * groups, order, prefix_tokens, question_tokens, output_tokens)


def shared_prefix(
    draw: Draw,
    *,
    groups: int = 16,
    per_group: int = 8,
    prefix_tokens: int = 2048,
    question_tokens: int = 128,
    output_tokens: int = 256,
    turns: int = 1,
    zipf: float = 0.0,
    order: Order = "shuffled",
) -> Workload:
    """Groups of prompts with one long system text a group; with `zipf` the first groups have the most prompts."""
    sizes = _zipf_sizes(groups * per_group, groups, zipf, draw) if zipf else [per_group] * groups
    return _plain("w9", draw, sizes, order, prefix_tokens, question_tokens, output_tokens, turns=turns)


def reuse_distance(
    draw: Draw,
    *,
    groups: int = 8,
    per_group: int = 8,
    prefix_tokens: int = 8192,
    question_tokens: int = 64,
    output_tokens: int = 32,
    order: Order = "round-robin",
) -> Workload:
    """A question to each long document in turn, then the next question to each: as far apart as reuse can be."""
    return _plain("w11", draw, [per_group] * groups, order, prefix_tokens, question_tokens, output_tokens)


def hot_and_cold(
    draw: Draw,
    *,
    groups: int = 1,
    per_group: int = 200,
    prefix_tokens: int = 1920,
    question_tokens: int = 80,
    output_tokens: int = 64,
    cold_percent: float = 5.0,
) -> Workload:
    """Prompts of which nearly all of the text is shared, and a few among them as long that share nothing."""
    prefixes = [draw.text(prefix_tokens) for _ in range(groups)]
    num_cold = round(groups * per_group * cold_percent / 100)
    kinds = [*["cold"] * num_cold, *["hot"] * (groups * per_group - num_cold)]
    draw.random.shuffle(kinds)
    conversations = [
        Conversation(
            label=kind,
            prefix=draw.random.choice(prefixes) if kind == "hot" else draw.text(prefix_tokens),
            turns=(Turn(text=" " + draw.text(question_tokens), output_tokens=draw.tokens(output_tokens)),),
        )
        for kind in kinds
    ]
    return Workload(name="w13", conversations=tuple(conversations))


def herd(
    draw: Draw,
    *,
    groups: int = 1,
    per_group: int = 64,
    prefix_tokens: int = 1024,
    document_tokens: int = 8192,
    question_tokens: int = 16,
    output_tokens: int = 16,
) -> Workload:
    """A system text that the server knows, then at once many requests with one document that it does not."""
    system = draw.text(prefix_tokens)
    known = Turn(text=" " + draw.text(question_tokens), output_tokens=1)

    def document(group: int) -> str:
        return f"{system} {draw.text(document_tokens)}"

    def question(group: int, number: int) -> str:
        return " " + draw.text(question_tokens)

    sizes = [per_group] * groups
    workload = _grouped("w14", draw, sizes, "grouped", prefix=document, question=question, output_tokens=output_tokens)
    warmup = Conversation(prefix=system, turns=(known,))
    return Workload(name="w14", conversations=workload.conversations, warmup=(warmup,))


def no_reuse(draw: Draw, *, groups: int = 64, question_tokens: int = 512, output_tokens: int = 64) -> Workload:
    """Requests that have nothing in common."""
    return Workload(
        name="w15",
        conversations=tuple(
            Conversation(turns=(Turn(text=draw.text(question_tokens), output_tokens=draw.tokens(output_tokens)),))
            for _ in range(groups)
        ),
    )


def _plain(
    name: str,
    draw: Draw,
    sizes: Sequence[int],
    order: Order,
    prefix_tokens: int,
    question_tokens: int,
    output_tokens: int,
    *,
    turns: int = 1,
) -> Workload:
    def prefix(group: int) -> str:
        return draw.text(prefix_tokens)

    def question(group: int, number: int) -> str:
        return " " + draw.text(question_tokens)

    return _grouped(
        name, draw, sizes, order, prefix=prefix, question=question, output_tokens=output_tokens, turns=turns
    )


def _grouped(
    name: str,
    draw: Draw,
    sizes: Sequence[int],
    order: Order,
    *,
    prefix: Callable[[int], str],
    question: Callable[[int, int], str],
    output_tokens: float,
    turns: int = 1,
) -> Workload:
    groups = []
    for group, size in enumerate(sizes):
        text = prefix(group)
        asked = ([question(group, number) for _ in range(turns)] for number in range(size))
        groups.append(
            [
                Conversation(
                    prefix=text,
                    turns=(chain(Turn(text=each, output_tokens=draw.tokens(output_tokens)) for each in texts),),
                )
                for texts in asked
            ]
        )
    return Workload(name=name, conversations=tuple(_ordered(groups, order, draw)))


def _ordered(groups: Sequence[Sequence[Conversation]], order: Order, draw: Draw) -> list[Conversation]:
    if order == "round-robin":
        rounds = itertools.zip_longest(*groups)
        return [conversation for each in rounds for conversation in each if conversation is not None]
    conversations = [conversation for group in groups for conversation in group]
    if order == "shuffled":
        draw.random.shuffle(conversations)
    return conversations


def _zipf_sizes(num_prompts: int, groups: int, alpha: float, draw: Draw) -> list[int]:
    weights = [1 / rank**alpha for rank in range(1, groups + 1)]
    picks = draw.random.choices(range(groups), weights, k=num_prompts)
    return [picks.count(group) for group in range(groups)]
