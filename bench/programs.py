"""What do programs of many calls gain from the tree, beside the same calls sent plainly and with the cache off?

Runs the shapes W1 to W8 on a server, each in three ways that take turns: as axil programs, by the `openai` client
without any order, and so with nothing reused. Every run begins with an empty cache:
    python -m bench.programs --launch
    python -m bench.programs --launch --questions gsm8k_test.jsonl --agent-runs swe_agent/ --repeats 3
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import uvloop

import axil
from axil.lang.backends.chat_answers import open_turn
from axil.lang.backends.http import Connection
from axil.lang.report import Report
from bench import results, summary
from bench.client import connected
from bench.command import CannotMeasure, count, directory, exit_status, parser_of, positive
from bench.plain_calls import PlainCalls
from bench.program_calls import Exchange, Noted, optimum_tokens
from bench.program_shapes import Shape, Sources, all_shapes, read_runs
from bench.questions import read_questions
from bench.server import add_server_flags, chosen
from bench.words import Draw

WAYS = ("programs", "plain", "no cache")
NAMES = tuple(f"w{i}" for i in range(1, 9))
PATIENCE_S = 600.0


@dataclass(frozen=True, slots=True)
class Run:
    """One shape run once in one way; the optimum is that of its own calls."""

    report: Report
    optimum_tokens: int

    @property
    def over_optimum(self) -> float:
        """Prompt tokens computed, as a multiple of the least that would do."""
        return self.report.computed_tokens / self.optimum_tokens


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print a table."""
    parser = parser_of("bench.programs", __doc__)
    add_server_flags(parser)
    parser.add_argument("--only", choices=NAMES, nargs="+", default=NAMES, help="shapes (default: all)")
    parser.add_argument("--runs", type=count, default=4, help="programs of each shape (default: 4)")
    parser.add_argument("--scale", type=positive, default=1 / 8, help="length of texts and answers (default: 1/8)")
    parser.add_argument("--repeats", type=count, default=1, help="runs of each way; medians are shown (default: 1)")
    parser.add_argument("--seed", type=int, default=1, help="another seed, other texts (default: 1)")
    parser.add_argument("--questions", type=Path, metavar="FILE", help="questions to ask, in GSM8K's form")
    parser.add_argument("--agent-runs", type=directory, metavar="FOLDER", help="recorded agent runs (.traj) to replay")
    results.add_json_flag(parser)
    args = parser.parse_args(argv)
    shapes = _shapes(args)
    with chosen(args) as url:
        model = uvloop.run(served_model(url, args.model))
        figures: dict[str, float] = {}
        for name in args.only:
            runs: dict[str, list[Run]] = {way: [] for way in WAYS}
            for _ in range(args.repeats):
                for way in WAYS:
                    runs[way].append(measure(url, model, shapes[name], way))
            print(f"{name} {shapes[name].title}, {len(shapes[name].items)} programs")
            print(summary.table({way: _row(runs[way], runs["programs"]) for way in WAYS}))
            figures |= _figures(name, runs)
    results.write(args.json, figures, results.command_line("bench.programs"))
    return 0


def measure(url: str, model: str, shape: Shape, way: str) -> Run:
    """Run a shape on an empty cache.

    Raises:
        CannotMeasure: a program failed, or the server's cache can't be emptied.
    """
    uvloop.run(_flush(url))
    backend: axil.Server | PlainCalls
    backend = axil.Server(url) if way == "programs" else PlainCalls(url, model, is_cached=way == "plain")
    with backend:
        noted = Noted(backend)
        program = shape.program.using(backend=noted, temperature=0.0, ignore_eos=True)
        batch = program.run_batch(shape.items, concurrency=shape.concurrency)
        if batch.errors:
            i, error = batch.errors[0]
            raise CannotMeasure(f"program {i} of {shape.title} failed ({way}): {error}")
    prompts, answered = uvloop.run(_token_ids(url, noted.exchanges))
    return Run(batch.report, optimum_tokens(prompts, answered))


def _shapes(args: argparse.Namespace) -> dict[str, Shape]:
    draw = Draw(seed=args.seed, scale=args.scale)
    questions = read_questions(args.questions) if args.questions else ()
    agent_runs = read_runs(args.agent_runs, draw) if args.agent_runs else ()
    told = [f"questions from {args.questions}" if args.questions else "invented questions (--questions is absent)"]
    told += [f"agent runs from {args.agent_runs}" if agent_runs else "invented agent runs (--agent-runs is absent)"]
    print("; ".join(told))
    return all_shapes(Sources(draw=draw, questions=questions, runs=agent_runs), runs=args.runs)


async def served_model(url: str, model: str | None) -> str:
    """The name of the model to ask for: the server's first, where none is given."""
    async with connected(url, model) as client:
        return client.model


async def _flush(url: str) -> None:
    async with connected(url, None) as client:
        if not await client.flush():
            raise CannotMeasure(f"{url} has no /flush_cache: each run must begin with an empty cache")


async def _token_ids(url: str, exchanges: Sequence[Exchange]) -> tuple[list[list[int]], list[list[int]]]:
    """Token ids of the prompts, and of the prompts with their answers."""
    connection = Connection(url, api_key=None, timeout_s=PATIENCE_S, retry_s=0)

    async def ids(body: Mapping[str, Any]) -> list[int]:
        found: list[int] = (await connection.post("/tokenize", dict(body)))["tokens"]
        return found

    def body(exchange: Exchange, more: str) -> dict[str, Any]:
        prompt = exchange.prompt
        return {"prompt": prompt.text + more} if prompt.role is None else open_turn(prompt, more)

    try:
        prompts = [await ids(body(exchange, "")) for exchange in exchanges]
        answered = [await ids(body(exchange, exchange.answer)) for exchange in exchanges]
    finally:
        await connection.aclose()
    return prompts, answered


def _row(runs: Sequence[Run], programs: Sequence[Run]) -> dict[str, float]:
    seconds = [run.report.seconds for run in runs]
    middle_s = statistics.median(seconds)
    programs_s = statistics.median(run.report.seconds for run in programs)
    return {
        "calls": runs[0].report.calls,
        "prompt_tokens": runs[0].report.prompt_tokens,
        "cached_percent": 100 * statistics.median(run.report.saved_share for run in runs),
        "computed_over_optimum": statistics.median(run.over_optimum for run in runs),
        "median_s": middle_s,
        "least_s": min(seconds),
        "most_s": max(seconds),
        "time_over_programs": middle_s / programs_s,
    }


def _figures(name: str, runs: Mapping[str, Sequence[Run]]) -> dict[str, float]:
    figures = {}
    for way, several in runs.items():
        prefix = f"{name}_{way.replace(' ', '_')}"
        figures[f"{prefix}_s"] = statistics.median(run.report.seconds for run in several)
        figures[f"{prefix}_cached_share"] = statistics.median(run.report.saved_share for run in several)
        figures[f"{prefix}_computed_over_optimum_ratio"] = statistics.median(run.over_optimum for run in several)
    return figures


if __name__ == "__main__":
    sys.exit(exit_status(main))
