"""How much of a decode step passes outside the model runner (scheduler, sockets), with pipelining on and off?

Starts `axil serve` twice, with --overlap and with --no-overlap; each time eight long decodes run together, and over a
window in which all eight decode, the runner's waiting time is set against its waiting and computing time:
    python -m bench.step_share
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import uvloop
from prometheus_client.parser import text_string_to_metric_families

from bench import results, summary
from bench.client import Client, connected
from bench.command import CannotMeasure, count, exit_status, parser_of, positive
from bench.server import add_launch_flags, launched
from bench.summary import Failure
from bench.words import text_of

BUSY = "axil_runner_busy_seconds_total"
IDLE = "axil_runner_idle_seconds_total"
PROMPT_TOKENS = 32
FRESH_WITHIN_S = 10.0
REQUEST_S = 600.0
POLL_S = 0.05
MODES = {"overlap": "--overlap", "no_overlap": "--no-overlap"}


@dataclass(frozen=True, slots=True)
class RunnerTime:
    """What the runner has spent since its start."""

    busy_s: float
    idle_s: float


def main(argv: Sequence[str] | None = None) -> int:
    """Measure both modes and print the table."""
    parser = parser_of("bench.step_share", __doc__)
    add_launch_flags(parser)
    parser.add_argument("--batch", type=count, default=8, help="decodes that run together (default: 8)")
    parser.add_argument("--output-tokens", type=count, default=2000, help="longest output of each (default: 2000)")
    parser.add_argument("--window", type=positive, default=5.0, metavar="S", help="seconds in a window (default: 5)")
    parser.add_argument("--windows", type=count, default=3, help="windows one after the other (default: 3)")
    results.add_json_flag(parser)
    args = parser.parse_args(argv)
    shares = {}
    for mode, flag in MODES.items():
        with launched([*args.serve_flags, flag]) as server:
            shares[mode] = uvloop.run(measure(server.url, args))
    columns = {mode: {f"window {i}": value for i, value in enumerate(shares[mode], start=1)} for mode in MODES}
    medians = {mode: statistics.median(shares[mode]) for mode in MODES}
    print(f"percent of step time outside the runner, {args.batch} rows decoding")
    print(summary.table({mode: {**columns[mode], "median": medians[mode]} for mode in MODES}))
    figures = {f"outside_runner_share_{mode}_percent": medians[mode] for mode in MODES}
    results.write(args.json, figures, results.command_line("bench.step_share"))
    return 0


async def measure(url: str, args: argparse.Namespace) -> list[float]:
    """The share in percent over each window.

    Raises:
        CannotMeasure: a decode failed or ended before the last window did, or the server lacks the two counters.
    """
    async with connected(url, None) as client:
        runner_time(await client.metrics())
        started = [asyncio.Event() for _ in range(args.batch)]
        decodes = [
            asyncio.create_task(
                client.complete(
                    text_of(PROMPT_TOKENS, seed=seed),
                    max_tokens=args.output_tokens,
                    timeout_s=REQUEST_S,
                    on_text=event.set,
                )
            )
            for seed, event in enumerate(started)
        ]
        windows = asyncio.create_task(_windows(client, args, started))
        try:
            await asyncio.wait([windows, *decodes], return_when=asyncio.FIRST_COMPLETED)
            if not windows.done():
                raise CannotMeasure(_why_too_early(decodes))
            return windows.result()
        finally:
            for task in (windows, *decodes):
                task.cancel()
            await asyncio.gather(windows, *decodes, return_exceptions=True)


async def _windows(client: Client, args: argparse.Namespace, started: Sequence[asyncio.Event]) -> list[float]:
    for event in started:
        await event.wait()
    before = await _next_snapshot(client, runner_time(await client.metrics()))
    shares = []
    for _ in range(args.windows):
        await asyncio.sleep(args.window)
        after = await _next_snapshot(client, before)
        shares.append(share_percent(before, after))
        before = after
    return shares


async def _next_snapshot(client: Client, before: RunnerTime) -> RunnerTime:
    """The counters when they next differ from `before`: the server may renew them only every second."""
    try:
        async with asyncio.timeout(FRESH_WITHIN_S):
            while (now := runner_time(await client.metrics())) == before:
                await asyncio.sleep(POLL_S)
    except TimeoutError:
        raise CannotMeasure(f"{BUSY} and {IDLE} stood still for {FRESH_WITHIN_S:.0f} s of decoding") from None
    return now


def share_percent(before: RunnerTime, after: RunnerTime) -> float:
    """Waiting time in percent of waiting and computing time between two readings that differ."""
    busy_s, idle_s = after.busy_s - before.busy_s, after.idle_s - before.idle_s
    return 100 * idle_s / (busy_s + idle_s)


def runner_time(metrics: str) -> RunnerTime:
    """The runner's two counters from the text of `/metrics`, summed over their labels.

    Raises:
        CannotMeasure: one of them is missing.
    """
    totals: dict[str, float] = {}
    for family in text_string_to_metric_families(metrics):
        for sample in family.samples:
            if sample.name in (BUSY, IDLE):
                totals[sample.name] = totals.get(sample.name, 0.0) + sample.value
    missing = [name for name in (BUSY, IDLE) if name not in totals]
    if missing:
        raise CannotMeasure(f"/metrics has no {' and no '.join(missing)}; the share can't be told without")
    return RunnerTime(totals[BUSY], totals[IDLE])


def _why_too_early(decodes: Sequence[asyncio.Task[object]]) -> str:
    for decode in decodes:
        if decode.done() and isinstance(result := decode.result(), Failure):
            return f"a decode failed: {result.kind}: {result.detail}"
    return "a decode ended before the last window did; raise --output-tokens, or lower --window or --windows"


if __name__ == "__main__":
    raise SystemExit(exit_status(main))
