"""The shapes of load by name: who shares which text with whom, and how many tokens go in and out.

Plain text drawn from a word list by a seed, about one token a word, so that any server can be asked; what a prompt
really has in tokens is the server's or the given tokenizer's to say. Knows no server and no clock.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from bench import growing_shapes, shared_shapes
from bench.command import CannotMeasure
from bench.json_shape import json_records
from bench.trace_shape import recorded
from bench.words import Draw
from bench.workload import Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """How a shape is sent unless the command line says otherwise: so many conversations at a time, or turns at random
    times, `turns_per_s` on average, or all as recorded.
    """

    closed: int | None = 8
    turns_per_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """One shape: `make` takes a `Draw` and the parameters that its signature names and gives defaults for."""

    about: str
    make: Callable[..., Workload]
    pace: Pace = Pace()

    @property
    def parameters(self) -> dict[str, object]:
        """Names and defaults of the shape's own parameters."""
        found = inspect.signature(self.make).parameters.values()
        return {each.name: each.default for each in found if each.kind is each.KEYWORD_ONLY}


SHAPES: Mapping[str, Shape] = {
    "w1": Shape(about="few-shot questions, one prefix a subject", make=shared_shapes.few_shot),
    "w2": Shape(about="agents' loops over shared examples", make=growing_shapes.react),
    "w3": Shape(about="events of agents, one at a time", make=shared_shapes.generative_agents, pace=Pace(closed=1)),
    "w4": Shape(about="trees of thought, 39 requests a question", make=growing_shapes.tree_of_thought),
    "w5": Shape(about="articles judged six times over, then a verdict", make=growing_shapes.judge),
    "w6": Shape(about="chats of four turns", make=growing_shapes.chat),
    "w7": Shape(about="answers that must be JSON of a given form", make=json_records),
    "w8": Shape(about="many questions to long documents", make=shared_shapes.documents),
    "w9": Shape(about="groups of prompts with a long shared prefix, shuffled", make=shared_shapes.shared_prefix),
    "w10": Shape(
        about="growing conversations under memory pressure, turns at random times",
        make=growing_shapes.pressure,
        pace=Pace(closed=None, turns_per_s=8.0),
    ),
    "w11": Shape(about="documents asked in turn (--order grouped: one by one)", make=shared_shapes.reuse_distance),
    "w12": Shape(about="a recorded trace (--trace FILE)", make=recorded, pace=Pace(closed=None)),
    "w13": Shape(about="95 % hot prompts, 5 % cold ones", make=shared_shapes.hot_and_cold, pace=Pace(closed=16)),
    "w14": Shape(
        about="a herd: 64 requests at once with one new document", make=shared_shapes.herd, pace=Pace(closed=64)
    ),
    "w15": Shape(about="nothing shared at all", make=shared_shapes.no_reuse),
}


def make_workload(name: str, parameters: Mapping[str, object], *, scale: float, seed: int) -> Workload:
    """The workload of a shape, with `parameters` in place of its own defaults.

    Raises:
        CannotMeasure: the shape does not have one of the parameters, or needs one that is not there.
    """
    shape = SHAPES[name]
    known = shape.parameters
    for parameter in parameters:
        if parameter not in known:
            raise CannotMeasure(f"{flag_of(parameter)} means nothing for --shape {name}; leave it out")
    for parameter, default in known.items():
        if default is inspect.Parameter.empty and parameter not in parameters:
            raise CannotMeasure(f"--shape {name} needs {flag_of(parameter)}")
    return shape.make(Draw(seed=seed, scale=scale), **parameters)


def flag_of(parameter: str) -> str:
    """The flag that sets a parameter."""
    return "--" + parameter.replace("_", "-")
