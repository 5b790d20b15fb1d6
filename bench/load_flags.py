"""The flags that say which load is sent and how fast, and what they come to. Knows no servers."""

from __future__ import annotations

import argparse
import dataclasses
import time
from collections.abc import Callable
from pathlib import Path

from bench import load
from bench.command import CannotMeasure, count, positive
from bench.context import Speaker, load_tokenizer
from bench.growing_shapes import ANSWERS
from bench.questions import read_questions
from bench.shapes import SHAPES, flag_of, make_workload
from bench.shared_shapes import ORDERS
from bench.trace_shape import read_trace
from bench.workload import Workload, limited

PARAMETERS: dict[str, Callable[[str], object]] = {
    "groups": count,
    "per_group": count,
    "prefix_tokens": count,
    "document_tokens": count,
    "question_tokens": count,
    "tool_tokens": count,
    "output_tokens": count,
    "turns": count,
    "branches": count,
    "tool_wait": positive,
    "cold_percent": positive,
    "zipf": positive,
    "trace_speed": positive,
}
"""The shapes' parameters that are numbers; those in tokens are before scaling."""

HELP = {
    "groups": "prefixes, chats, documents, questions: whatever the shape has several of",
    "per_group": "requests in each group",
    "branches": "branches at each fork",
    "tool_wait": "mean seconds that an agent's tool takes",
    "cold_percent": "share of prompts that share nothing",
    "zipf": "exponent by which the first groups have more prompts",
    "trace_speed": "how much faster than recorded the trace is sent",
}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What the flags ask for."""

    shape: str
    parameters: dict[str, object]
    scale: float
    num_requests: int | None
    args: argparse.Namespace

    @property
    def name(self) -> str:
        """The workload's name, as figures carry it."""
        return self.workload(seed=self.args.seed).name

    def workload(self, *, seed: int) -> Workload:
        """The conversations, with the words of `seed`."""
        workload = make_workload(self.shape, self.parameters, scale=self.scale, seed=seed)
        return workload if self.num_requests is None else limited(workload, self.num_requests)

    def pace(self, *, seed: int) -> load.Pace:
        """When they are sent: as the flags say, or else as the shape's own pace says."""
        args, own = self.args, SHAPES[self.shape].pace
        if args.closed is not None:
            return load.Closed(args.closed)
        if args.open is not None:
            return load.Open(args.open, seed)
        turns_per_s = args.open_turns or own.turns_per_s
        if turns_per_s is not None:
            return load.OpenTurns(turns_per_s, seed, args.most)
        return load.Recorded() if own.closed is None else load.Closed(own.closed)

    def limits(self) -> load.Limits:
        """The time limits, counted from now."""
        return load.Limits(request_s=self.args.request_timeout, deadline_s=time.monotonic() + self.args.time_limit)

    def speaker(self) -> Speaker:
        """How contexts are sent."""
        return Speaker(None if self.args.tokenizer is None else load_tokenizer(self.args.tokenizer))


def add_load_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags of shape, pace and limits."""
    shape = parser.add_argument_group("shape of the load")
    known = {name: each.about for name, each in SHAPES.items()}
    shape.add_argument(
        "--shape",
        choices=list(SHAPES),
        default="w9",
        help="; ".join(f"{name}: {about}" for name, about in known.items()).replace("%", "%%") + " (default: w9)",
    )
    shape.add_argument(
        "--scale", type=positive, default=1 / 8, help="share of the full token counts: 1 on a GPU (default: 1/8)"
    )
    shape.add_argument("--seed", type=int, default=42, help="another seed, other words (default: 42)")
    for name, kind in PARAMETERS.items():
        unit = "before scaling; " if name.endswith("_tokens") else ""
        about = f"{HELP[name]}; " if name in HELP else ""
        shape.add_argument(flag_of(name), type=kind, help=f"{about}{unit}default: {_defaults(name)}")
    shape.add_argument("--order", choices=ORDERS, help=f"default: {_defaults('order')}")
    shape.add_argument(
        "--answers", choices=ANSWERS, help="w6: 4 to 8 tokens or 256 to 512; w7: characters or cities (default: short)"
    )
    shape.add_argument("--questions", type=Path, metavar="FILE", help="w1, w4: real questions, of GSM8K's form")
    shape.add_argument("--trace", type=Path, metavar="FILE", help="w12: the trace, of Mooncake's form")
    shape.add_argument("--requests", type=count, help="send only the first so many requests of the shape")
    shape.add_argument(
        "--tokenizer",
        type=Path,
        metavar="FILE",
        help="a tokenizer.json: send token ids, the same to every server, and count reuse exactly",
    )
    limits = parser.add_argument_group("pace and limits")
    pace = limits.add_mutually_exclusive_group()
    pace.add_argument(
        "--closed", type=count, metavar="N", help="N conversations at a time (default: 8 for most shapes)"
    )
    pace.add_argument(
        "--open", type=positive, metavar="RATE", help="conversations begun a second, on average (Poisson)"
    )
    pace.add_argument(
        "--open-turns", type=positive, metavar="RATE", help="turns sent a second, each of a random conversation"
    )
    limits.add_argument("--most", type=count, default=128, help="--open-turns: requests at a time (default: 128)")
    limits.add_argument("--request-timeout", type=positive, default=300.0, metavar="S", help="seconds (default: 300)")
    limits.add_argument(
        "--time-limit", type=positive, default=1800.0, metavar="S", help="seconds for each run (default: 1800)"
    )


def load_of(args: argparse.Namespace) -> Load:
    """What the flags of `add_load_flags` ask for.

    Raises:
        CannotMeasure: the shape does not have one of the flags, needs one that is not there, or a file can't be read.
    """
    names = (*PARAMETERS, "order", "answers")
    parameters = {name: getattr(args, name) for name in names if getattr(args, name) is not None}
    if args.questions is not None:
        parameters["questions"] = read_questions(args.questions)
    if args.trace is not None:
        parameters["trace"] = read_trace(args.trace, args.requests)
    asked = Load(shape=args.shape, parameters=parameters, scale=args.scale, num_requests=args.requests, args=args)
    if not asked.workload(seed=args.seed).conversations:
        raise CannotMeasure(f"--shape {args.shape} came out empty")
    return asked


def _defaults(name: str) -> str:
    defaults = {shape: each.parameters.get(name) for shape, each in SHAPES.items()}
    return ", ".join(f"{shape} {value}" for shape, value in defaults.items() if value is not None)
