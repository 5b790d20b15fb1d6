"""How quickly does /health answer while the server is busy with streams and long prompts?

The load runs in a process of its own, so that its work does not count as the server's delay: 16 streams, begun anew as
they end, and long prompts one after the other. Only probes sent while all of that was under way count.
    python -m bench.health_latency --launch
"""

from __future__ import annotations

import argparse
import asyncio
import http.client
import itertools
import multiprocessing
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from urllib.parse import urlsplit

import uvloop

from bench import results, summary
from bench.client import connected
from bench.command import CannotMeasure, count, exit_status, parser_of, positive
from bench.server import add_server_flags, chosen, health
from bench.summary import Failure, percentile
from bench.words import text_of

STREAM_PROMPT_TOKENS = 64
STREAM_OUTPUT_TOKENS = 256
LONG_OUTPUT_TOKENS = 1
REQUEST_S = 300.0
PAUSE_S = 0.01
FEWEST_PROBES = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """When the load was complete, on `time.monotonic`, and what went wrong with it."""

    from_s: float
    until_s: float
    failures: tuple[Failure, ...]


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print the table; 1 when a probe was not answered 200, or (without figures) when the load failed."""
    parser = parser_of("bench.health_latency", __doc__)
    add_server_flags(parser)
    parser.add_argument("--streams", type=count, default=16, help="streams at a time (default: 16)")
    parser.add_argument("--long-prompt-tokens", type=count, default=4000, help="length of a long one (default: 4000)")
    parser.add_argument("--seconds", type=positive, default=30.0, help="time under load (default: 30)")
    results.add_json_flag(parser)
    args = parser.parse_args(argv)
    with chosen(args) as url:
        probes, loaded = measure(url, args)
    if loaded.failures:
        print(f"the load failed:\n{summary.failures_by_kind(loaded.failures)}", file=sys.stderr)
        return 1
    counted = [probe for probe in probes if loaded.from_s <= probe.sent_s < loaded.until_s]
    unhealthy = sum(probe.status != 200 for probe in counted)
    if len(counted) - unhealthy < FEWEST_PROBES:
        raise CannotMeasure(f"only {len(counted)} probes under load, {unhealthy} of them not 200; raise --seconds")
    took_ms = [1e3 * probe.took_s for probe in counted if probe.status == 200]
    figures = {f"health_p{percent}_ms": percentile(took_ms, percent) for percent in (50, 99)}
    figures |= {"health_max_ms": max(took_ms), "health_probes_count": len(counted), "unhealthy_count": unhealthy}
    print(summary.table({"under load": figures}))
    results.write(args.json, figures, results.command_line("bench.health_latency"))
    return 1 if unhealthy else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """One GET /health; `status` is None when nobody answered."""

    sent_s: float
    took_s: float
    status: int | None


def measure(url: str, args: argparse.Namespace) -> tuple[list[Probe], Loaded]:
    """Probe /health on one kept connection while the load runs in another process."""
    with ProcessPoolExecutor(max_workers=1, mp_context=multiprocessing.get_context("spawn")) as pool:
        load = pool.submit(run_load, url, args)
        probes = probe_until(load.done, url)
        return probes, load.result()


def probe_until(is_over: Callable[[], bool], url: str) -> list[Probe]:
    """Probe /health, with a short pause after each answer, until `is_over`."""
    parts = urlsplit(url)
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    connection = kind(parts.hostname or "", parts.port, timeout=REQUEST_S)
    probes = []
    try:
        while not is_over():
            sent_s = time.monotonic()
            status = health(connection)
            probes.append(Probe(sent_s=sent_s, took_s=time.monotonic() - sent_s, status=status))
            time.sleep(PAUSE_S)
    finally:
        connection.close()
    return probes


def run_load(url: str, args: argparse.Namespace) -> Loaded:
    """Keep the streams and long prompts going for `--seconds` after all have begun; for a process of its own."""
    return uvloop.run(_load(url, args))


async def _load(url: str, args: argparse.Namespace) -> Loaded:
    failures: list[Failure] = []
    seeds = itertools.count()
    async with connected(url, args.model) as client:
        await client.flush()

        async def again_and_again(prompt_tokens: int, max_tokens: int, has_begun: asyncio.Event) -> None:
            while not failures:
                result = await client.complete(
                    text_of(prompt_tokens, seed=next(seeds)),
                    max_tokens=max_tokens,
                    timeout_s=REQUEST_S,
                    on_text=has_begun.set,
                )
                if isinstance(result, Failure):
                    failures.append(result)

        begun = [asyncio.Event() for _ in range(args.streams)]
        tasks = [
            asyncio.create_task(again_and_again(STREAM_PROMPT_TOKENS, STREAM_OUTPUT_TOKENS, event)) for event in begun
        ]
        all_begun = asyncio.create_task(_all(begun))
        await asyncio.wait([all_begun, *tasks], return_when=asyncio.FIRST_COMPLETED)
        tasks.append(asyncio.create_task(again_and_again(args.long_prompt_tokens, LONG_OUTPUT_TOKENS, asyncio.Event())))
        from_s = time.monotonic()
        await asyncio.wait(tasks, timeout=args.seconds, return_when=asyncio.FIRST_COMPLETED)
        until_s = time.monotonic()
        for task in (all_begun, *tasks):
            task.cancel()
        await asyncio.gather(all_begun, *tasks, return_exceptions=True)
    return Loaded(from_s=from_s, until_s=until_s, failures=tuple(failures))


async def _all(events: Sequence[asyncio.Event]) -> None:
    for event in events:
        await event.wait()


if __name__ == "__main__":
    raise SystemExit(exit_status(main))
