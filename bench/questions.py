"""Real questions with worked answers, read from a file of GSM8K's form: a JSON object with both on each line."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from bench.command import CannotMeasure


@dataclass(frozen=True, slots=True)
class Example:
    """A question and its worked answer."""

    question: str
    answer: str


def read_questions(path: Path) -> list[Example]:
    """The examples in a file.

    Raises:
        CannotMeasure: it can't be read, or a line has another form.
    """
    try:
        return msgspec.json.Decoder(Example).decode_lines(path.read_bytes())
    except OSError as error:
        raise CannotMeasure(f"--questions {path} can't be read: {error.strerror}") from error
    except (msgspec.ValidationError, msgspec.DecodeError) as error:
        raise CannotMeasure(
            f'--questions {path} must have {{"question": "…", "answer": "…"}} on each line: {error}'
        ) from error


def sample(draw: random.Random, examples: Sequence[Example], count: int) -> list[Example]:
    """`count` different examples.

    Raises:
        CannotMeasure: there are not so many.
    """
    if count > len(examples):
        raise CannotMeasure(
            f"the shape needs {count} questions and --questions has {len(examples)}; lower --groups or --per-group"
        )
    return draw.sample(examples, count)
