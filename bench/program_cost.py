"""What do programs cost their own process: processor time a call over HTTP, and memory a state while many wait?

python -m bench.program_cost --launch
python -m bench.program_cost --launch --calls 500 --states 10000 --questions gsm8k_test.jsonl
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil

import axil
from axil.lang.backend import Answer, Prompt, Scores, Usage, Wish
from axil.lang.home import Home
from axil.lang.turns import Turns
from bench import results
from bench.command import CannotMeasure, count, exit_status, parser_of
from bench.program_shapes import Sources, all_shapes, few_shot
from bench.questions import read_questions
from bench.server import add_server_flags, chosen
from bench.words import Draw

Items = Sequence[Mapping[str, Any]]


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print."""
    parser = parser_of("bench.program_cost", __doc__)
    add_server_flags(parser)
    parser.add_argument("--calls", type=count, default=500, help="few-shot prompts of a batch (default: 500)")
    parser.add_argument("--repeats", type=count, default=3, help="batches; the median is shown (default: 3)")
    parser.add_argument("--states", type=count, default=10_000, help="programs that wait at once (default: 10,000)")
    parser.add_argument("--questions", type=Path, metavar="FILE", help="questions to ask, in GSM8K's form")
    results.add_json_flag(parser)
    args = parser.parse_args(argv)
    calls = _few_shot(args, args.calls)
    with chosen(args) as url, axil.Server(url) as backend:
        first_ms, *call_ms = (_call_ms(backend, calls) for _ in range(1 + args.repeats))
    states_mb = waiting_mb(_few_shot(args, args.states))
    print(
        f"processor time a call, ms: median {statistics.median(call_ms):.2f}, {min(call_ms):.2f} to {max(call_ms):.2f}"
    )
    print(f"memory a waiting state, KB: {states_mb / args.states * 1000:.1f}")
    figures = {
        "client_cpu_per_call_ms": statistics.median(call_ms),
        "client_cpu_per_first_call_ms": first_ms,
        "memory_of_a_thousand_states_mb": states_mb / args.states * 1000,
    }
    results.write(args.json, figures, results.command_line("bench.program_cost"))
    return 0


def waiting_mb(items: Items) -> float:
    """The memory that a batch takes while each of its programs waits for an answer, in MB."""
    backend = Held(len(items))
    gc.collect()
    before_bytes = psutil.Process().memory_info().rss
    batch = few_shot.using(backend=backend).run_batch(items, concurrency=len(items))
    backend.home.close()
    if batch.errors:
        raise CannotMeasure(f"program {batch.errors[0][0]} failed: {batch.errors[0][1]}")
    return (backend.most_bytes - before_bytes) / 1e6


class Held:
    """A backend that answers nobody before all have asked, and then notes this process's memory."""

    def __init__(self, num_calls: int) -> None:
        self.home = Home()
        self.turns = Turns(max_open=num_calls)
        self.most_bytes = 0
        self._awaited = num_calls
        self._all_asked = asyncio.Event()

    async def generate(self, prompt: Prompt, wish: Wish, put: Callable[[str], None] | None) -> Answer:
        """Wait for the others."""
        self._awaited -= 1
        if not self._awaited:
            self.most_bytes = psutil.Process().memory_info().rss
            self._all_asked.set()
        await self._all_asked.wait()
        return Answer(texts=("",), finish_reasons=("length",), usage=Usage())

    async def score(self, prompt: Prompt, choices: Sequence[str]) -> Scores:
        """Refuse."""
        raise NotImplementedError

    async def score_alone(self, token_ids: Sequence[Sequence[int]]) -> Scores:
        """Refuse."""
        raise NotImplementedError


def _call_ms(backend: axil.Server, items: Items) -> float:
    """Processor time of this process for each call of a batch, in milliseconds."""
    program = few_shot.using(backend=backend, temperature=0.0, ignore_eos=True)
    began_s = time.process_time()
    batch = program.run_batch(items)
    spent_s = time.process_time() - began_s
    if batch.errors:
        raise CannotMeasure(f"program {batch.errors[0][0]} failed: {batch.errors[0][1]}")
    return 1000 * spent_s / len(items)


def _few_shot(args: argparse.Namespace, num_items: int) -> Items:
    """Items of the few-shot shape W1, as many as wished for; questions come again when there are too few."""
    questions = read_questions(args.questions) if args.questions else ()
    runs = min(num_items, 200) // 8 + 1
    items = all_shapes(Sources(draw=Draw(seed=1, scale=1 / 8), questions=questions), runs=runs)["w1"].items
    return [{**items[i % len(items)], "output_tokens": 1} for i in range(num_items)]


if __name__ == "__main__":
    sys.exit(exit_status(main))
