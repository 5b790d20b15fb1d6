"""What is left of a server's decoding while other processes compute all the time, at its own priority?

Starts `axil serve`. Rows decode alone and beside the neighbours in turns; of both the median is told, and of the pairs'
ratios. As many neighbours as cores leave half in proportion, since each of the runner's threads then shares its core
with one:
    python -m bench.neighbours --busy 2 --batches 1 8
"""

from __future__ import annotations

import argparse
import random
import statistics
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

import uvloop
from tqdm import tqdm

from bench import results, summary
from bench.client import Client, connected
from bench.command import count, exit_status, parser_of
from bench.decoding import batch_rate
from bench.server import Server, add_launch_flags, launched
from model_runner.host import usable_cores

# It ends with the process that started it, also where that is killed.
_NEIGHBOUR = "import os\nparent = os.getppid()\nwhile os.getppid() == parent: sum(range(100_000))"


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print the table."""
    parser = parser_of("bench.neighbours", __doc__)
    add_launch_flags(parser)
    parser.add_argument("--busy", type=count, default=usable_cores(), help="neighbours (default: one for each core)")
    parser.add_argument("--batches", nargs="+", type=count, default=[1, 8], metavar="ROWS")
    parser.add_argument("--context", type=count, default=256, help="tokens behind which rows decode (default: 256)")
    parser.add_argument("--output-tokens", type=count, default=64, help="tokens of each answer (default: 64)")
    parser.add_argument("--repeats", type=count, default=5, help="pairs of both (default: 5)")
    results.add_json_flag(parser)
    args = parser.parse_args(argv)
    with launched(args.serve_flags) as server:
        figures = uvloop.run(measure(server, args))
    print(summary.table({"end to end": figures}))
    results.write(args.json, figures, results.command_line("bench.neighbours"))
    return 0


async def measure(server: Server, args: argparse.Namespace) -> dict[str, float]:
    """The figures of all batches.

    Raises:
        CannotMeasure: a request failed, or its answer came in one piece.
    """
    figures: dict[str, float] = {}
    async with connected(server.url, None) as client:
        for batch in args.batches:
            pairs = [
                await _pair(client, batch, args, seed=repeat)
                for repeat in tqdm(range(args.repeats), unit=" pairs", disable=None)
            ]
            alone, beside = zip(*pairs, strict=True)
            figures[f"decode_b{batch}_alone_tok_s"] = statistics.median(alone)
            figures[f"decode_b{batch}_beside_{args.busy}_tok_s"] = statistics.median(beside)
            shares = [slow / fast for fast, slow in pairs]
            figures[f"decode_b{batch}_left_share"] = statistics.median(shares)
            figures[f"decode_b{batch}_least_left_share"] = min(shares)
    return figures


@contextmanager
def neighbours(number: int) -> Iterator[list[subprocess.Popen[bytes]]]:
    """So many processes that compute until the end, of this one's priority and session."""
    with ExitStack() as stack:
        yield [stack.enter_context(_neighbour()) for _ in range(number)]


@contextmanager
def _neighbour() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen([sys.executable, "-c", _NEIGHBOUR]) as process:
        try:
            yield process
        finally:
            process.kill()


async def _pair(client: Client, batch: int, args: argparse.Namespace, *, seed: int) -> tuple[float, float]:
    """Tokens a second of the same prompts, alone and beside the neighbours."""
    draw = random.Random(f"{batch} {seed}")
    prompts = [tuple(draw.randrange(1000, 20_000) for _ in range(args.context)) for _ in range(batch)]
    alone = await batch_rate(client, prompts, num_tokens=args.output_tokens)
    with neighbours(args.busy):
        return alone, await batch_rate(client, prompts, num_tokens=args.output_tokens)


if __name__ == "__main__":
    raise SystemExit(exit_status(main))
