"""What does watching cost: causes of misses, gap report, doctor, recording, KV events, metrics scraped, all at once?

Two servers of the embedded model, one with all of it on and one with all of it off, take turns at the same load: waves
of requests that share half of their prompt, so that they decode together. Prints tokens a second and their ratio, and
what depends less on what else the machine does: the processor time of scheduler and tokenizer for each request, and
what watching adds to that, in percent of the processor time of the whole server. Of each the median of all pairs of
waves, and between which figures it lies with 95 % confidence.
    python -m bench.observing --repeats 30 --prompt-tokens 32 --output-tokens 32
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import math
import statistics
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import uvloop
from tqdm import tqdm

from bench import results, summary
from bench.client import Client, connected
from bench.command import CannotMeasure, count, exit_status, parser_of
from bench.lone_tokenizer import cpu_time_s
from bench.processes import child_running
from bench.server import Server, add_launch_flags, launched
from bench.summary import Failure
from bench.words import text_of
from runtime.config import MODULES

OFF = ("--no-explain-misses", "--no-gap-report", "--doctor-prompts", "0")
REQUEST_S = 600.0
PARTS = ("scheduler", "tokenizer", "model runner")
SCRAPE_S = 1.0
CONFIDENCE = 0.95


def on(folder: Path) -> tuple[str, ...]:
    """The flags of a server that is watched in every way."""
    events = ("--kv-events", f"ipc://{folder}/events", "--kv-events-replay", f"ipc://{folder}/replay")
    return ("--log-misses", "0.1", "--record", str(folder / "requests.jsonl"), *events)


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print the table."""
    parser = parser_of("bench.observing", __doc__)
    add_launch_flags(parser)
    parser.add_argument("--rows", type=count, default=32, help="requests of a wave (default: 32)")
    parser.add_argument("--prompt-tokens", type=count, default=256, help="about so many, half of them shared")
    parser.add_argument("--output-tokens", type=count, default=64, help="tokens of each answer (default: 64)")
    parser.add_argument("--repeats", type=count, default=5, help="waves of each server (default: 5)")
    results.add_json_flag(parser)
    args = parser.parse_args(argv)
    with tempfile.TemporaryDirectory(prefix="axil-bench-") as folder, ExitStack() as servers:
        flags = {"off": OFF, "on": on(Path(folder))}
        pair = {name: servers.enter_context(launched([*args.serve_flags, *each])) for name, each in flags.items()}
        waves = uvloop.run(_waves(pair, args.rows, args.prompt_tokens, args.output_tokens, args.repeats))
    pairs = [_compared(off, watched, args.rows) for off, watched in zip(waves["off"], waves["on"], strict=True)]
    values = {name: sorted(pair[name] for pair in pairs) for name in pairs[0]}
    left_out = num_outside(len(pairs))
    columns = {
        "median": {name: statistics.median(each) for name, each in values.items()},
        "at least": {name: each[left_out] for name, each in values.items()},
        "at most": {name: each[-1 - left_out] for name, each in values.items()},
    }
    print(summary.table(columns))
    figures = {
        f"{column}_{name}".replace(" ", "_"): value for column in columns for name, value in columns[column].items()
    }
    results.write(args.json, figures, results.command_line("bench.observing"))
    return 0


def num_outside(num_values: int) -> int:
    """How many of so many values may be left out at each end so that the median is among the others 95 times of 100.

    Whatever their distribution is, as each lies on either side of the median by chance. Too few values leave none out.

    >>> [num_outside(num_values) for num_values in (5, 6, 20, 40)]
    [0, 0, 5, 13]
    """
    tail, k = 0.0, 0
    while (tail := tail + math.comb(num_values, k) / 2**num_values) <= (1 - CONFIDENCE) / 2:
        k += 1
    return max(0, k - 1)


@dataclass(frozen=True, slots=True)
class Wave:
    """So many tokens, of prompts and answers together, in `took_s`; for so long each of `PARTS` computed."""

    tokens: int
    took_s: float
    cpu_s: tuple[float, ...]

    @property
    def host_cpu_s(self) -> float:
        """What scheduler and tokenizer computed: all but the model."""
        return sum(self.cpu_s[:-1])


def _compared(off: Wave, watched: Wave, num_rows: int) -> dict[str, float]:
    """What a wave cost on one server and on the other."""
    rate, watched_rate = off.tokens / off.took_s, watched.tokens / watched.took_s
    return {
        "off_per_s": rate,
        "on_per_s": watched_rate,
        "on_over_off_percent": 100 * watched_rate / rate,
        "off_cpu_ms": 1e3 * off.host_cpu_s / num_rows,
        "on_cpu_ms": 1e3 * watched.host_cpu_s / num_rows,
        "added_cpu_percent": 100 * (watched.host_cpu_s - off.host_cpu_s) / sum(off.cpu_s),
    }


def cpu_s_of(server: Server) -> tuple[float, ...]:
    """How long each of the `PARTS` of a server has computed so far."""
    return tuple(cpu_time_s(child_running(MODULES[part], server.process_id)) for part in PARTS)


async def _waves(
    servers: dict[str, Server], num_rows: int, prompt_tokens: int, output_tokens: int, repeats: int
) -> dict[str, list[Wave]]:
    """The waves of each server."""
    waves: dict[str, list[Wave]] = {name: [] for name in servers}
    seeds = itertools.count()
    async with AsyncExitStack() as stack:
        clients = {
            name: await stack.enter_async_context(connected(server.url, None)) for name, server in servers.items()
        }
        for i in tqdm(range(repeats + 1), unit=" pairs", disable=None):
            shared = text_of(prompt_tokens // 2, seed=next(seeds))
            prompts = [f"{shared} {text_of(prompt_tokens // 2, seed=next(seeds))}" for _ in range(num_rows)]
            # The order changes, so that neither is always the one behind the other's heat.
            for name in sorted(clients, reverse=bool(i % 2)):
                # Read while its own wave runs only: else the other server's would pay for it too.
                async with _scraped(clients[name]) if name == "on" else contextlib.nullcontext():
                    wave = await _wave(clients[name], servers[name], prompts, output_tokens)
                if i:  # the first pair warms up
                    waves[name].append(wave)
    return waves


async def _wave(client: Client, server: Server, prompts: Sequence[str], output_tokens: int) -> Wave:
    """Send a wave and wait for its end.

    Raises:
        CannotMeasure: a request failed.
    """
    before_s, started_s = cpu_s_of(server), time.perf_counter()
    answers = await asyncio.gather(
        *(client.complete(prompt, max_tokens=output_tokens, timeout_s=REQUEST_S) for prompt in prompts)
    )
    took_s = time.perf_counter() - started_s
    cpu_s = tuple(after - before for after, before in zip(cpu_s_of(server), before_s, strict=True))
    tokens = 0
    for answer in answers:
        if isinstance(answer, Failure):
            raise CannotMeasure(f"a request failed: {answer.kind}: {answer.detail}")
        tokens += answer.prompt_tokens + answer.completion_tokens
    return Wave(tokens, took_s, cpu_s)


@asynccontextmanager
async def _scraped(client: Client) -> AsyncIterator[None]:
    """Read the server's metrics every second meanwhile."""

    is_over = asyncio.Event()

    async def scrape() -> None:
        while not is_over.is_set():
            await client.metrics()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(is_over.wait(), SCRAPE_S)

    task = asyncio.create_task(scrape())
    try:
        yield
    finally:
        is_over.set()
        await task


if __name__ == "__main__":
    raise SystemExit(exit_status(main))
