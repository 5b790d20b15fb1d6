"""How much later does the first token of a cached 2,000-token prompt come because of HTTP and the tokenizer?

Starts the tokenizer process alone, between one client and a scheduler played by this process, which answers a request
with a token as soon as it is there, as if all were cached and computing took no time. What the client waits for is then
HTTP, JSON, the text's way to token ids and back, and the sockets between the processes, on both sides. Waiting for a
processor counts too: on a machine that does other work, look at the lowest and at the processor time:
    python -m bench.edge --repeats 100
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

import uvloop

from bench import results, summary
from bench.client import GENERATE, Client, connected
from bench.command import CannotMeasure, count, exit_status, parser_of
from bench.lone_tokenizer import VOCABULARY, PlayedScheduler, cpu_time_s, lone_tokenizer
from bench.summary import Answer, Failure, percentile
from bench.words import text_of

NUM_STEPS = 2
WARM_REQUESTS = 5
TIMEOUT_S = 30.0

Ask = Callable[[int], Awaitable[Answer | Failure]]
"""Asks with the prompt of a seed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Overhead:
    """Times to first tokens, less what the scheduler had the request for, and what each request, to its end, cost."""

    took_ms: list[float]
    cpu_ms: list[float]
    prompt_tokens: int

    def row(self) -> dict[str, float]:
        """What the table tells."""
        return {
            "p50_ms": percentile(self.took_ms, 50),
            "p10_ms": percentile(self.took_ms, 10),
            "least_ms": min(self.took_ms),
            "tokenizer_cpu_p50_ms": percentile(self.cpu_ms, 50),
            "prompt_tokens": self.prompt_tokens,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asked:
    """An answer, how long the scheduler held its first token back, and the tokenizer's processor time."""

    answer: Answer
    held_s: float
    cpu_s: float


def main(argv: Sequence[str] | None = None) -> int:
    """Measure each way to ask, and print the table."""
    parser = parser_of("bench.edge", __doc__)
    parser.add_argument("--repeats", type=count, default=100, help="requests of each kind (default: 100)")
    parser.add_argument("--tokens", type=count, default=2000, help="length of the prompts, about (default: 2000)")
    results.add_json_flag(parser)
    args = parser.parse_args(argv)
    with lone_tokenizer() as (url, scheduler):
        found = uvloop.run(measure(url, scheduler, args))
    rows = {kind: overhead.row() for kind, overhead in found.items()}
    print(summary.table(rows))
    figures = {f"edge_{kind.replace(' ', '_')}_{name}": row[name] for kind, row in rows.items() for name in row}
    results.write(args.json, figures, results.command_line("bench.edge"))
    return 0


async def measure(url: str, scheduler: PlayedScheduler, args: argparse.Namespace) -> dict[str, Overhead]:
    """Ask in each way, taking turns, so that what else the machine does falls on all of them.

    Raises:
        CannotMeasure: a request failed.
    """
    num_rounds = WARM_REQUESTS + args.repeats
    async with connected(url + GENERATE, None) as native, connected(url, None) as openai:
        ways = _ways(native, openai, args.tokens)
        asked: dict[str, list[_Asked]] = {kind: [] for kind in ways}
        for round_number in range(num_rounds):
            for kind, ask in ways.items():
                scheduler.begin(num_streams=1, num_steps=NUM_STEPS)
                before_s = cpu_time_s(scheduler.process_id)
                answer = _answered(await ask(round_number))
                cpu_s = cpu_time_s(scheduler.process_id) - before_s
                asked[kind].append(_Asked(answer=answer, held_s=scheduler.held_s, cpu_s=cpu_s))
    return {kind: _overhead(each[WARM_REQUESTS:]) for kind, each in asked.items()}


def _ways(native: Client, openai: Client, num_tokens: int) -> dict[str, Ask]:
    async def ids(seed: int) -> Answer | Failure:
        drawn = tuple(random.Random(0).choices(range(100, VOCABULARY), k=num_tokens))
        return await native.complete(drawn, max_tokens=NUM_STEPS, timeout_s=TIMEOUT_S)

    async def text(seed: int) -> Answer | Failure:
        return await native.complete(text_of(num_tokens, seed=0), max_tokens=NUM_STEPS, timeout_s=TIMEOUT_S)

    async def new_text(seed: int) -> Answer | Failure:
        return await native.complete(text_of(num_tokens, seed=1 + seed), max_tokens=NUM_STEPS, timeout_s=TIMEOUT_S)

    async def chat(seed: int) -> Answer | Failure:
        messages = [
            {"role": "system", "content": text_of(num_tokens - 20, seed=0)},
            {"role": "user", "content": text_of(20, seed=1 + seed)},
        ]
        return await openai.chat(messages, max_tokens=NUM_STEPS, timeout_s=TIMEOUT_S)

    return {"ids": ids, "text": text, "new text": new_text, "chat": chat}


def _answered(result: Answer | Failure) -> Answer:
    match result:
        case Failure() as failure:
            raise CannotMeasure(f"a request failed: {failure.kind}: {failure.detail}")
        case Answer() as answer:
            return answer


def _overhead(asked: Sequence[_Asked]) -> Overhead:
    took_ms = [1e3 * (each.answer.ttft_s - each.held_s) for each in asked if each.answer.ttft_s is not None]
    if len(took_ms) < len(asked):
        raise CannotMeasure("an answer had no text, so there is no time to its first token")
    return Overhead(
        took_ms=took_ms,
        cpu_ms=[1e3 * each.cpu_s for each in asked],
        prompt_tokens=asked[-1].answer.prompt_tokens,
    )


if __name__ == "__main__":
    raise SystemExit(exit_status(main))
