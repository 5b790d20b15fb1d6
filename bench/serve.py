"""How fast does a server answer a shape of load, and how much of the shared text does it reuse?

Asks any OpenAI-compatible server, or one that it starts itself:
    python -m bench.serve --launch
    python -m bench.serve --url http://127.0.0.1:30000 --shape w6 --answers long --closed 4 --flush
Time to first token counts from sending to the first non-empty text; inter-token latency between pieces of text.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import random
import sys
import time
from collections.abc import Sequence

from tqdm import tqdm

from bench import load, results, summary
from bench.client import Client, connected
from bench.command import count, exit_status, parser_of, positive
from bench.server import add_server_flags, chosen
from bench.shapes import SHAPES, SIZES, Workload, limited
from bench.summary import Failure, Run, Sent

FOREIGN_FLAGS = {
    "w1": ("answers",),
    "w6": ("per_group", "prefix_tokens", "question_tokens", "output_tokens"),
    "w9": ("answers",),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print the table; 1 when any request failed."""
    args = parse(argv)
    with chosen(args) as url:
        runs = asyncio.run(measure(url, args))
    rows = [summary.summarise(run) for run in runs]
    columns = {f"repeat {number}": row for number, row in enumerate(rows, start=1)}
    figures = summary.merged(rows)
    print(summary.table({**columns, "all": figures} if len(rows) > 1 else columns))
    name = workload_of(args, seed=args.seed).name
    named = {f"{name}_{figure}": value for figure, value in figures.items()}
    results.write(args.json, named, results.command_line("bench.serve"))
    failures = [failure for run in runs for failure in run.failures]
    if failures:
        print(f"failed:\n{summary.failures_by_kind(failures)}", file=sys.stderr)
    return 1 if failures else 0


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """The command line, checked."""
    parser = parser_of("bench.serve", __doc__)
    add_server_flags(parser)
    shape = parser.add_argument_group("shape of the load")
    shape.add_argument(
        "--shape",
        choices=sorted(SHAPES),
        default="w9",
        help="w1: few-shot questions, one prefix a subject; w6: chats of four turns; w9: groups of prompts with a "
        "long shared prefix, shuffled (default)",
    )
    shape.add_argument(
        "--scale", type=positive, default=1 / 8, help="share of the full token counts: 1 on a GPU (default: 1/8)"
    )
    shape.add_argument("--seed", type=int, default=42, help="another seed, other words (default: 42)")
    for field in ("groups", "per_group", "prefix_tokens", "question_tokens", "output_tokens"):
        sizes = ", ".join(
            f"{name} {getattr(size, field)}" for name, size in SIZES.items() if field not in FOREIGN_FLAGS[name]
        )
        scaling = "" if field in ("groups", "per_group") else "before scaling; "
        shape.add_argument(f"--{field.replace('_', '-')}", type=count, help=f"{scaling}default: {sizes}")
    shape.add_argument(
        "--answers", choices=("short", "long"), help="w6: 4 to 8 tokens or 256 to 512, before scaling (default: short)"
    )
    limits = parser.add_argument_group("pace and limits")
    pace = limits.add_mutually_exclusive_group()
    pace.add_argument("--closed", type=count, default=8, metavar="N", help="N conversations at a time (default: 8)")
    pace.add_argument(
        "--open", type=positive, metavar="RATE", help="conversations begun a second, on average (Poisson)"
    )
    limits.add_argument("--requests", type=count, help="send only the first so many requests of the shape")
    limits.add_argument("--repeats", type=count, default=1, help="runs, each with words of its own (default: 1)")
    limits.add_argument("--flush", action="store_true", help="empty the server's cache before each repeat, if it can")
    limits.add_argument("--request-timeout", type=positive, default=300.0, metavar="S", help="seconds (default: 300)")
    limits.add_argument(
        "--time-limit", type=positive, default=1800.0, metavar="S", help="seconds for everything (default: 1800)"
    )
    results.add_json_flag(parser)
    args = parser.parse_args(argv)
    for field in FOREIGN_FLAGS[args.shape]:
        if getattr(args, field) is not None:
            parser.error(f"--{field.replace('_', '-')} means nothing for --shape {args.shape}; leave it out")
    return args


def workload_of(args: argparse.Namespace, *, seed: int) -> Workload:
    """The conversations that the flags ask for."""
    size = SIZES[args.shape]
    names = [field.name for field in dataclasses.fields(size)]
    given = {name: getattr(args, name) for name in names if getattr(args, name) is not None}
    workload = SHAPES[args.shape](dataclasses.replace(size, **given), scale=args.scale, seed=seed)
    return limited(workload, args.requests) if args.requests else workload


async def measure(url: str, args: argparse.Namespace) -> list[Run]:
    """Run the workload `--repeats` times, the first with `--seed` and the others with seeds drawn from it."""
    draw = random.Random(args.seed)
    seeds = [args.seed, *(draw.randrange(2**32) for _ in range(args.repeats - 1))]
    limits = load.Limits(request_s=args.request_timeout, deadline_s=time.monotonic() + args.time_limit)
    runs = []
    async with connected(url, args.model) as client:
        for number, seed in enumerate(seeds, start=1):
            if args.flush and not await client.flush():
                print("the server has no /flush_cache; its cache stays as it is", file=sys.stderr)
            workload = workload_of(args, seed=seed)
            pace = load.Closed(args.closed) if args.open is None else load.Open(args.open, seed)
            runs.append(await _run(client, workload, pace, limits, title=f"repeat {number} of {args.repeats}"))
    return runs


async def _run(
    client: Client, workload: Workload, pace: load.Closed | load.Open, limits: load.Limits, *, title: str
) -> Run:
    num_failed = 0
    with tqdm(total=workload.num_requests, desc=title, unit=" requests", disable=None) as bar:

        def on_sent(sent: Sent) -> None:
            nonlocal num_failed
            if isinstance(sent.result, Failure):
                num_failed += 1
                bar.set_postfix(failed=num_failed, refresh=False)
            bar.update()

        run = await load.run(client, workload, pace, limits, on_sent)
    lengths = await load.prefix_lengths(client, workload, limits)
    if isinstance(lengths, Failure):
        print(f"what was shareable stays unknown: {lengths.kind}: {lengths.detail}", file=sys.stderr)
        return run
    return dataclasses.replace(run, prefix_tokens=lengths)


if __name__ == "__main__":
    raise SystemExit(exit_status(main))
