"""How many tokens a second does a server decode, alone and in batches, and prefill? End to end, through HTTP.

Starts `axil serve` once for each form of the weights. Rows decode behind prompts of their own; what counts is the time
in which all of them decode. A prefill counts from sending to the first token. Rates are medians of --repeats:
    python -m bench.ladder --contexts 256 --batches 1 8
`axil bench` measures the same without the server, beside what the machine allows.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from collections.abc import Iterator, Sequence

import uvloop

from bench import results, summary
from bench.client import Client, connected
from bench.command import count, exit_status, parser_of
from bench.decoding import asked, batch_rate, ttft_s
from bench.processes import resident_mb
from bench.server import Server, add_launch_flags, launched
from model_runner.host import usable_cores
from model_runner.kernel_choice import load_library
from model_runner.ladder import measure_reading

WEIGHTS = {"bf16": (), "int8": ("--quantize", "int8"), "int4": ("--quantize", "int4")}
PREFILLED = ("bf16", "int8")
PREFILL_TOKENS = 512
CACHED_TOKENS = 2048
FIRST_ID, NUM_IDS = 1000, 20_000


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print the table."""
    parser = parser_of("bench.ladder", __doc__)
    add_launch_flags(parser)
    parser.add_argument("--weights", nargs="+", choices=WEIGHTS, default=list(WEIGHTS), help="forms of the weights")
    parser.add_argument("--contexts", nargs="+", type=count, default=[256, 1024, 4096], metavar="TOKENS")
    parser.add_argument("--batches", nargs="+", type=count, default=[1, 8, 32], metavar="ROWS")
    parser.add_argument("--output-tokens", type=count, default=64, help="tokens of each answer (default: 64)")
    parser.add_argument("--repeats", type=count, default=3, help="of each figure, which is their median (default: 3)")
    results.add_json_flag(parser)
    args = parser.parse_args(argv)
    figures: dict[str, float] = {}
    read_gb_s = _read_gb_s()
    for weights in args.weights:
        started = time.perf_counter()
        with launched(["--dtype", "bfloat16", *WEIGHTS[weights], *args.serve_flags]) as server:
            figures |= uvloop.run(measure(server, weights, args, started=started))
        read_gb_s += _read_gb_s()
    if read_gb_s:
        figures["stream_read_gb_s"] = statistics.median(read_gb_s)
    print(summary.table({"end to end": figures}))
    results.write(args.json, figures, results.command_line("bench.ladder"))
    return 0


async def measure(server: Server, weights: str, args: argparse.Namespace, *, started: float) -> dict[str, float]:
    """All figures of one server; `started` is when its start began.

    Raises:
        CannotMeasure: a request failed, or its answer came in one piece.
    """
    ids = _ids()
    figures: dict[str, float] = {}
    async with connected(server.url, None) as client:
        await asked(client, _prompt(ids, 16), max_tokens=1)
        if weights == "bf16":
            figures["start_to_first_answer_s"] = time.perf_counter() - started
            figures["resident_mb"] = resident_mb("model_runner.process", server.process_id)
        for context in args.contexts:
            for batch in args.batches:
                prompts = [_prompt(ids, context) for _ in range(batch)]
                rates = [await batch_rate(client, prompts, num_tokens=args.output_tokens) for _ in range(args.repeats)]
                figures[f"decode_{weights}_ctx{context}_b{batch}_tok_s"] = statistics.median(rates)
        if weights in PREFILLED:
            figures[f"prefill_{weights}_tok_s"] = await _prefill_rate(client, (), ids, repeats=args.repeats)
        if weights == "bf16":
            prefix = _prompt(ids, CACHED_TOKENS)
            await asked(client, prefix, max_tokens=1)
            figures["prefill_bf16_behind_2k_tok_s"] = await _prefill_rate(client, prefix, ids, repeats=args.repeats)
    return figures


async def _prefill_rate(client: Client, prefix: tuple[int, ...], ids: Iterator[int], *, repeats: int) -> float:
    """The median over prompts that begin with `prefix`, which is cached, and are new behind it."""
    answers = [await asked(client, prefix + _prompt(ids, PREFILL_TOKENS), max_tokens=2) for _ in range(repeats)]
    return PREFILL_TOKENS / statistics.median(map(ttft_s, answers))


def _read_gb_s() -> list[float]:
    """What memory gives just now; nothing where there are no kernels to read it with."""
    library = load_library()
    if library is None:
        return []
    library.set_threads(usable_cores())
    return [measure_reading(library)]


def _ids() -> Iterator[int]:
    draw = random.Random(0)
    while True:
        yield FIRST_ID + draw.randrange(NUM_IDS)


def _prompt(ids: Iterator[int], num_tokens: int) -> tuple[int, ...]:
    return tuple(next(ids) for _ in range(num_tokens))


if __name__ == "__main__":
    raise SystemExit(exit_status(main))
