"""Programs of many dependent calls, in the shapes that the field compares servers by: W1 to W8.

Every call has a fixed length at temperature 0, so that all ways to run a program do the same work. Texts are invented
words, or the questions and agent runs that are given.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import axil
from axil.lang.program import Program
from bench.command import CannotMeasure
from bench.questions import Example, sample
from bench.words import Draw

SHOTS = 5
BRANCHES = 3
SIDES = ("clarity", "grammar", "style", "facts", "order", "tone")

AnyProgram: TypeAlias = Program[..., None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """A program and the arguments of each of its runs; `concurrency` runs at a time."""

    title: str
    program: AnyProgram
    items: Sequence[Mapping[str, Any]]
    concurrency: int = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Sources:
    """Where texts come from; without questions or runs they are invented."""

    draw: Draw
    questions: Sequence[Example] = ()
    runs: Sequence[Sequence[str]] = ()


@axil.function
def few_shot(s: axil.State, shots: str, question: str, output_tokens: int) -> None:
    """One question behind worked examples."""
    s += shots
    s += question
    s += axil.gen("answer", max_tokens=output_tokens)


@axil.function
def react(s: axil.State, task: str, observations: Sequence[str], output_tokens: int) -> None:
    """An agent whose thoughts are generated and whose observations are replayed."""
    s += task
    for i, observation in enumerate(observations):
        s += f"\nThought {i + 1}:" + axil.gen(f"thought {i}", max_tokens=output_tokens)
        s += f"\nObservation {i + 1}: {observation}"
    s += "\nAnswer:" + axil.gen("answer", max_tokens=output_tokens)


@axil.function
def events(s: axil.State, memory: str, tasks: Sequence[str], output_tokens: int) -> None:
    """What happens to one agent, one event after the other: each begins with its memory."""
    for task in tasks:
        with s.copy() as event:
            event += memory
            event += task + axil.gen("act", max_tokens=output_tokens)
            event.sync()


@axil.function
def tree_of_thought(s: axil.State, question: str, output_tokens: int) -> None:
    """Plans, solutions of each, reflections on each."""
    s += question
    plans = s.fork(BRANCHES)
    plans += lambda i: f"\nPlan {i + 1}:" + axil.gen("plan", max_tokens=output_tokens)
    solutions = [plan.fork(BRANCHES) for plan in plans]
    for branches in solutions:
        branches += lambda i: f"\nSolution {i + 1}:" + axil.gen("solution", max_tokens=output_tokens)
    for branches in solutions:
        for branch in branches:
            reflections = branch.fork(BRANCHES)
            reflections += lambda i: f"\nReflection {i + 1}:" + axil.gen("reflection", max_tokens=output_tokens)


@axil.function
def judge(s: axil.State, article: str, output_tokens: int) -> None:
    """Looks at an article from six sides at the same time, then sums up."""
    s += article
    sides = s.fork(len(SIDES))
    sides += lambda i: f"\nAbout its {SIDES[i]}:" + axil.gen("note", max_tokens=output_tokens)
    sides.join()
    s += "\nNotes: " + "\n".join(s["note"]) + "\nVerdict:" + axil.gen("verdict", max_tokens=2)


@axil.function
def chat(s: axil.State, questions: Sequence[str], output_tokens: int) -> None:
    """A conversation of several turns."""
    for i, question in enumerate(questions):
        s += axil.user(question)
        s += axil.assistant(axil.gen(f"answer {i}", max_tokens=output_tokens))


@axil.function
def character(s: axil.State, description: str) -> None:
    """A form to be filled, by a pattern."""
    s += description
    s += '\n{"age": ' + axil.gen("age", max_tokens=4, regex="[1-9][0-9]", ignore_eos=False)
    s += ', "house": "' + axil.gen("house", max_tokens=8, regex="(red|green|blue|yellow)", ignore_eos=False)
    s += '", "alive": ' + axil.gen("alive", max_tokens=4, regex="(true|false)", ignore_eos=False)


def all_shapes(sources: Sources, *, runs: int) -> dict[str, Shape]:
    """W1 to W8; `runs` is the number of programs of each, W1's and W8's questions being eight times as many."""
    draw, questions = sources.draw, sources.questions
    length = draw.tokens(64, at_least=4)

    def question(i: int) -> str:
        return drawn[i].question if questions else draw.text(80)

    drawn = sample(draw.random, questions, SHOTS + 8 * runs) if questions else []
    shots = "".join(
        f"Question: {example.question}\nAnswer: {example.answer}\n\n" for example in drawn[:SHOTS]
    ) or "".join(f"Question: {draw.text(160)}\nAnswer: {draw.text(80)}\n\n" for _ in range(SHOTS))
    asked = [f"Question: {question(SHOTS + i)}\nAnswer:" for i in range(8 * runs)]
    document = draw.text(8192)
    memories = [draw.text(1024) for _ in range(runs)]
    examples = draw.text(2048)
    histories = sources.runs or [[draw.text(256) for _ in range(6)] for _ in range(runs)]
    return {
        "w1": Shape(
            title="few-shot",
            program=few_shot,
            items=[{"shots": shots, "question": each, "output_tokens": 4} for each in asked],
        ),
        "w2": Shape(
            title="agent",
            program=react,
            items=[
                {
                    "task": f"{examples}\nTask: {asked[i]}",
                    "observations": histories[i % len(histories)],
                    "output_tokens": length,
                }
                for i in range(runs)
            ],
        ),
        "w3": Shape(
            title="events, serial",
            program=events,
            items=[
                {"memory": memory, "tasks": [draw.text(128) for _ in range(6)], "output_tokens": length}
                for memory in memories
            ],
            concurrency=1,
        ),
        "w4": Shape(
            title="tree of thought",
            program=tree_of_thought,
            items=[{"question": asked[i], "output_tokens": 2 * length} for i in range(max(1, runs // 2))],
        ),
        "w5": Shape(
            title="judge",
            program=judge,
            items=[{"article": draw.text(1024), "output_tokens": 2 * length} for _ in range(runs)],
        ),
        "w6": Shape(
            title="chat",
            program=chat,
            items=[{"questions": [draw.text(384) for _ in range(4)], "output_tokens": length} for _ in range(runs)],
        ),
        "w7": Shape(
            title="JSON by patterns",
            program=character,
            items=[{"description": f"{examples}\nWho is {draw.text(2)}?"} for _ in range(2 * runs)],
        ),
        "w8": Shape(
            title="questions about a document",
            program=few_shot,
            items=[{"shots": document, "question": f"\n{each}", "output_tokens": length} for each in asked[: 4 * runs]],
        ),
    }


def read_runs(folder: Path, draw: Draw) -> list[list[str]]:
    """The observations of recorded agent runs (`.traj`, as SWE-agent writes them), cut to the draw's scale.

    Raises:
        CannotMeasure: the folder holds none, or one can't be read.
    """
    runs = []
    for path in sorted(folder.glob("*.traj")):
        try:
            steps = json.loads(path.read_text())["trajectory"]
            texts = [str(step["observation"]) for step in steps]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise CannotMeasure(f"{path} is no recorded agent run: {error!r}") from error
        # About four characters are a token.
        runs.append([text[: 4 * draw.tokens(512)] for text in texts if text][:8])
    if not runs:
        raise CannotMeasure(f"--agent-runs {folder} holds no .traj files")
    return runs
