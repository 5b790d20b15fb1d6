"""What does watching cost: causes of misses, gap report, doctor, recording, KV events, metrics scraped, all at once?

Two servers of the embedded model, one with all of it on and one with all of it off, take turns at the same load: waves
of requests that share half of their prompt, so that they decode together. Prints tokens a second of each wave and the
ratio, of medians and of neighbours.
    python -m bench.observing --repeats 9
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import statistics
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from pathlib import Path

from tqdm import tqdm

from bench import results, summary
from bench.client import Client, connected
from bench.command import CannotMeasure, count, exit_status, parser_of
from bench.server import add_launch_flags, launched
from bench.summary import Failure
from bench.words import text_of

OFF = ("--no-explain-misses", "--no-gap-report", "--doctor-prompts", "0")
REQUEST_S = 600.0
SCRAPE_S = 1.0


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
        urls = {name: servers.enter_context(launched([*args.serve_flags, *each])).url for name, each in flags.items()}
        rates = asyncio.run(_waves(urls, args.rows, args.prompt_tokens, args.output_tokens, args.repeats))
    rows = {
        f"wave {i}": {"off_per_s": off, "on_per_s": watched, "on_over_off_ratio": watched / off}
        for i, (off, watched) in enumerate(zip(rates["off"], rates["on"], strict=True), start=1)
    }
    figures = {name: statistics.median(row[name] for row in rows.values()) for name in rows["wave 1"]}
    print(summary.table({**rows, "median": figures}))
    results.write(args.json, figures, results.command_line("bench.observing"))
    return 0


async def _waves(
    urls: dict[str, str], num_rows: int, prompt_tokens: int, output_tokens: int, repeats: int
) -> dict[str, list[float]]:
    """Tokens a second, of prompts and answers together, of each server's waves."""
    rates: dict[str, list[float]] = {name: [] for name in urls}
    seeds = itertools.count()
    async with AsyncExitStack() as stack:
        clients = {name: await stack.enter_async_context(connected(url, None)) for name, url in urls.items()}
        await stack.enter_async_context(_scraped(clients["on"]))
        for i in tqdm(range(repeats + 1), unit=" pairs", disable=None):
            shared = text_of(prompt_tokens // 2, seed=next(seeds))
            prompts = [f"{shared} {text_of(prompt_tokens // 2, seed=next(seeds))}" for _ in range(num_rows)]
            # The order changes, so that neither is always the one behind the other's heat.
            for name in sorted(clients, reverse=bool(i % 2)):
                rate = await _wave(clients[name], prompts, output_tokens)
                if i:  # the first pair warms up
                    rates[name].append(rate)
    return rates


async def _wave(client: Client, prompts: Sequence[str], output_tokens: int) -> float:
    """Tokens a second of a wave.

    Raises:
        CannotMeasure: a request failed.
    """
    started_s = time.perf_counter()
    answers = await asyncio.gather(
        *(client.complete(prompt, max_tokens=output_tokens, timeout_s=REQUEST_S) for prompt in prompts)
    )
    took_s = time.perf_counter() - started_s
    tokens = 0
    for answer in answers:
        if isinstance(answer, Failure):
            raise CannotMeasure(f"a request failed: {answer.kind}: {answer.detail}")
        tokens += answer.prompt_tokens + answer.completion_tokens
    return tokens / took_s


@asynccontextmanager
async def _scraped(client: Client) -> AsyncIterator[None]:
    """Read the server's metrics every second meanwhile."""

    async def scrape() -> None:
        while True:
            await client.metrics()
            await asyncio.sleep(SCRAPE_S)

    task = asyncio.create_task(scrape())
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


if __name__ == "__main__":
    raise SystemExit(exit_status(main))
