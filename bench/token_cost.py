"""How much CPU time does the tokenizer process spend on each streamed token?

Starts that process alone, between streams of this process and a scheduler played by it, which sends each stream one
token of plain text a step. Nothing is computed, so the figure holds for any model with the same kind of tokenizer:
    python -m bench.token_cost --streams 64
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
from collections.abc import Sequence
from dataclasses import replace

import uvloop

from bench import results, summary
from bench.client import GENERATE, connected
from bench.command import CannotMeasure, count, exit_status, parser_of, positive
from bench.lone_tokenizer import Cost, lone_tokenizer
from bench.summary import Failure
from bench.words import text_of

WARM_STEPS = 20
PROMPT_TOKENS = 32
REQUEST_S = 120.0
ROUTES = {"completions": "", "generate": GENERATE}


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print the table."""
    parser = parser_of("bench.token_cost", __doc__)
    parser.add_argument("--streams", type=count, default=64, help="streams at a time (default: 64)")
    parser.add_argument("--steps", type=count, default=200, help="tokens of each stream (default: 200)")
    parser.add_argument("--pace", type=positive, default=25.0, metavar="MS", help="time of a step (default: 25 ms)")
    parser.add_argument("--repeats", type=count, default=5, help="runs of all streams (default: 5)")
    parser.add_argument("--route", choices=sorted(ROUTES), default="completions", help="default: completions")
    results.add_json_flag(parser)
    args = parser.parse_args(argv)
    if args.steps <= WARM_STEPS + 1:
        parser.error(f"--steps must be more than {WARM_STEPS + 1}: the first {WARM_STEPS} are not counted")
    costs = measure(args)
    rows = {f"repeat {number}": _row(cost, args) for number, cost in enumerate(costs, start=1)}
    figures = {name: statistics.median(row[name] for row in rows.values()) for name in next(iter(rows.values()))}
    print(summary.table({**rows, "median": figures}))
    results.write(args.json, figures, results.command_line("bench.token_cost"))
    return 0


def measure(args: argparse.Namespace) -> list[Cost]:
    """The cost of each repeat.

    Raises:
        CannotMeasure: a stream failed.
    """
    costs = []
    with lone_tokenizer() as (url, scheduler):
        for repeat in range(args.repeats):
            scheduler.begin(
                num_streams=args.streams,
                num_steps=args.steps,
                pace_s=args.pace / 1e3,
                seed=repeat,
                warm_steps=WARM_STEPS,
            )
            try:
                num_pieces = uvloop.run(_streams(url + ROUTES[args.route], args.streams, args.steps))
            except* CannotMeasure as errors:
                raise CannotMeasure(str(errors.exceptions[0])) from errors
            pieces_per_token = num_pieces / (args.streams * args.steps)
            costs.append(replace(scheduler.cost(), pieces_per_token=pieces_per_token))
    return costs


async def _streams(url: str, num_streams: int, num_tokens: int) -> int:
    """Read all streams to their ends; gives the number of pieces of text that came."""
    num_pieces = 0
    async with connected(url, None) as client, asyncio.TaskGroup() as tasks:

        async def stream(prompt: str) -> None:
            nonlocal num_pieces
            answer = await client.complete(prompt, max_tokens=num_tokens, timeout_s=REQUEST_S)
            if isinstance(answer, Failure):
                raise CannotMeasure(f"a stream failed: {answer.kind}: {answer.detail}")
            num_pieces += len(answer.pieces)

        for seed in range(num_streams):
            tasks.create_task(stream(text_of(PROMPT_TOKENS, seed=seed)))
    return num_pieces


def _row(cost: Cost, args: argparse.Namespace) -> dict[str, float]:
    counted_s = args.pace / 1e3 * (args.steps - WARM_STEPS - 1)
    return {
        "cpu_per_token_us": cost.microseconds,
        "cpu_busy_percent": 100 * cost.cpu_s / counted_s,
        "pieces_per_token_ratio": cost.pieces_per_token,
    }


if __name__ == "__main__":
    raise SystemExit(exit_status(main))
