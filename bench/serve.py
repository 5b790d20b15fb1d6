"""How fast do servers answer a shape of load, and how much of the shared text do they reuse?

Asks any OpenAI-compatible server, or one that it starts itself, or several in turn:
    python -m bench.serve --launch
    python -m bench.serve --url http://127.0.0.1:30000 --shape w6 --answers long --closed 4 --flush
    python -m bench.serve --servers a=http://127.0.0.1:30000 b=http://127.0.0.1:8000 --repeats 3 --plots .
Several take turns within each repeat, with the same words, so that a drift of the machine hits all alike; the first is
what the others' ratios refer to. A URL ending in /generate is asked by that route, which tells token ids.
Time to first token counts from sending to the first non-empty text; inter-token latency between pieces of text.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import random
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, contextmanager

from tqdm import tqdm

from bench import comparison, counters, load, plots, results, summary
from bench.client import connected, require_loopback
from bench.command import count, directory, exit_status, parser_of
from bench.load_flags import Load, add_load_flags, load_of
from bench.server import add_server_flags, chosen
from bench.summary import Failure, Run, Sent


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print the table; 1 when any request failed."""
    args = parse(argv)
    if args.plots is not None:
        plots.require_matplotlib()
    asked = load_of(args)
    with _servers(args) as servers:
        runs = asyncio.run(measure(servers, asked, model=args.model))
    rows = {server: [summary.summarise(run) for run in each] for server, each in runs.items()}
    if args.servers:
        print(comparison.table(rows))
        results.write(args.json, comparison.named_figures(asked.name, rows), results.command_line("bench.serve"))
    else:
        _report_one(args, asked.name, next(iter(rows.values())))
    if args.plots is not None:
        print(f"drawn: {plots.draw(args.plots, asked.name, rows)}")
    return report_failures(runs)


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """The command line, checked."""
    parser = parser_of("bench.serve", __doc__)
    add_server_flags(parser)
    parser.add_argument(
        "--servers", nargs="+", type=_named_url, metavar="NAME=URL", help="servers to compare, instead of --url"
    )
    add_load_flags(parser)
    add_repeat_flags(parser)
    parser.add_argument("--plots", type=directory, metavar="DIR", help="also draw the figures into DIR")
    results.add_json_flag(parser)
    args = parser.parse_args(argv)
    if args.servers and (args.launch or args.url or args.serve_flags):
        parser.error("--servers names all servers; leave out --url, --launch and --serve-flags")
    if args.servers and len(dict(args.servers)) < len(args.servers):
        parser.error("--servers has one name twice")
    return args


def add_repeat_flags(parser: argparse.ArgumentParser) -> None:
    """Add how often all is run, and whether with an emptied cache."""
    parser.add_argument("--repeats", type=count, default=1, help="runs, each with words of its own (default: 1)")
    parser.add_argument("--flush", action="store_true", help="empty a server's cache before each run, if it can")


async def measure(servers: Mapping[str, str], asked: Load, *, model: str | None) -> dict[str, list[Run]]:
    """Run the load on every server in turn, `--repeats` times.

    The first time has the words of `--seed` and the others those of seeds drawn from it. The server that begins is
    another each time.
    """
    args = asked.args
    draw = random.Random(args.seed)
    seeds = [args.seed, *(draw.randrange(2**32) for _ in range(args.repeats - 1))]
    speaker = asked.speaker()
    runs: dict[str, list[Run]] = {server: [] for server in servers}
    async with AsyncExitStack() as stack:
        clients = {server: await stack.enter_async_context(connected(url, model)) for server, url in servers.items()}
        for number, seed in enumerate(seeds):
            workload = asked.workload(seed=seed)
            for server in _rotated(list(servers), number):
                client = clients[server]
                if args.flush and not await client.flush():
                    print(f"{server} has no /flush_cache; its cache stays as it is", file=sys.stderr)
                title = f"{server}, repeat {number + 1} of {args.repeats}"
                before = await counters.counters(client)
                with _progress(title, workload.num_requests) as on_sent:
                    pace = asked.pace(seed=seed)
                    run = await load.run(client, speaker, workload, pace, asked.limits(), on_sent)
                runs[server].append(dataclasses.replace(run, server_figures=await counters.since(client, before)))
    return runs


def report_failures(runs: Mapping[str, Sequence[Run]]) -> int:
    """Print which requests failed; 1 when any did."""
    status = 0
    for server, each in runs.items():
        failures = [failure for run in each for failure in run.failures]
        if failures:
            print(f"failed at {server}:\n{summary.failures_by_kind(failures)}", file=sys.stderr)
            status = 1
    return status


def _report_one(args: argparse.Namespace, name: str, rows: Sequence[Mapping[str, float]]) -> None:
    columns = {f"repeat {number}": row for number, row in enumerate(rows, start=1)}
    figures = summary.merged(rows)
    print(summary.table({**columns, "all": figures} if len(rows) > 1 else columns))
    named = {f"{name}_{figure}": value for figure, value in figures.items()}
    results.write(args.json, named, results.command_line("bench.serve"))


@contextmanager
def _servers(args: argparse.Namespace) -> Iterator[dict[str, str]]:
    if args.servers:
        for _, url in args.servers:
            require_loopback(url, is_remote_allowed=args.allow_remote)
        yield dict(args.servers)
        return
    with chosen(args) as url:
        yield {"the server": url}


@contextmanager
def _progress(title: str, num_requests: int) -> Iterator[load.OnSent]:
    num_failed = 0
    with tqdm(total=num_requests, desc=title, unit=" requests", disable=None) as bar:

        def on_sent(sent: Sent) -> None:
            nonlocal num_failed
            if isinstance(sent.result, Failure):
                num_failed += 1
                bar.set_postfix(failed=num_failed, refresh=False)
            bar.update()

        yield on_sent


def _rotated(names: Sequence[str], by: int) -> list[str]:
    start = by % len(names)
    return [*names[start:], *names[:start]]


def _named_url(text: str) -> tuple[str, str]:
    name, equals, url = text.partition("=")
    if not name or not equals or not url:
        raise argparse.ArgumentTypeError(f"must look like name=http://127.0.0.1:30000, got {text}")
    return name, url


if __name__ == "__main__":
    raise SystemExit(exit_status(main))
