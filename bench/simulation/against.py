"""The same requests to a real server and to the simulator: do the two agree on how much is found cached?

Both get the same conversations at the same pace. The server counts its own tokens; the simulator those of the given
tokenizer, or a word as one, which makes prompts a little shorter and leaves what they share the same share.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields

import tokenizers

from bench import load, summary
from bench.client import Client, connected, require_loopback
from bench.command import CannotMeasure
from bench.context import Speaker, load_tokenizer
from bench.server import launched
from bench.shapes import SHAPES, make_workload
from bench.simulation import report
from bench.simulation.price import Price
from bench.simulation.sections import Figures, Setting
from bench.simulation.spoken import sessions_of
from bench.simulation.workload import Workload
from bench.simulation.world import make_world
from bench.summary import Sent, failures_by_kind
from bench.workload import Workload as Spoken
from runtime.model_files import resolve_model
from scheduler.config import SchedulerConfig

REQUEST_S = 300.0
RUN_S = 1800.0
AGAINST_POOL = 50_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreement:
    """Hit rates of one shape, in percent of all prompt tokens."""

    simulated_percent: float
    served_percent: float

    @property
    def difference_percent(self) -> float:
        """How far apart they are, in points."""
        return abs(self.simulated_percent - self.served_percent)


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulated:
    """The server as the simulator has it."""

    config: SchedulerConfig
    price: Price
    pool_tokens: int
    tokenizer: tokenizers.Tokenizer | None


def compared(args: argparse.Namespace, setting: Setting) -> Figures:
    """Hit rates of simulator and server for each shape of `--only`, on `--against` or a server of `--launch`."""
    with _server(args, setting) as url:
        return asyncio.run(_compare_all(args, setting, url))


async def compare(client: Client, name: str, simulated: Simulated, *, scale: float, seed: int) -> Agreement:
    """Send a shape, with the server's cache emptied before, and simulate it.

    Raises:
        CannotMeasure: a request failed, or the server does not tell what it found cached.
    """
    spoken = make_workload(name, {}, scale=scale, seed=seed)
    closed = SHAPES[name].pace.closed
    if closed is None:
        raise CannotMeasure(f"a server is sent shapes in closed loop, and {name} is none")
    return Agreement(
        simulated_percent=_hit_percent(spoken, closed, simulated, seed=seed),
        served_percent=await _served(client, spoken, closed),
    )


async def _served(client: Client, spoken: Spoken, closed: int) -> float:
    if not await client.flush():
        raise CannotMeasure("the server has no /flush_cache, so what it knew before would count")
    limits = load.Limits(request_s=REQUEST_S, deadline_s=time.monotonic() + RUN_S)
    run = await load.run(client, Speaker(), spoken, load.Closed(closed), limits, _ignore)
    if run.failures:
        raise CannotMeasure(f"requests failed:\n{failures_by_kind(run.failures)}")
    answers = [answer for _, answer in run.answered]
    cached = [answer.cached_tokens for answer in answers if answer.cached_tokens is not None]
    if len(cached) < len(answers):
        raise CannotMeasure("the server does not tell how many tokens it found cached")
    return 100 * sum(cached) / sum(answer.prompt_tokens for answer in answers)


def _hit_percent(spoken: Spoken, closed: int, simulated: Simulated, *, seed: int) -> float:
    """The hit rate of the conversations, after those of the warm-up have ended."""
    both = [*spoken.warmup, *spoken.conversations]
    sessions = sessions_of(both, seed=seed, tokenizer=simulated.tokenizer)
    known, asked = sessions[: len(spoken.warmup)], sessions[len(spoken.warmup) :]
    world = make_world(Workload(known, closed), simulated.config, simulated.price, pool_tokens=simulated.pool_tokens)
    world.run()
    num_known = len(world.account.outcomes)
    world.workload, world.sessions = Workload(asked, closed), iter(asked)
    world.run()
    return report.hit_percent(world.account.outcomes[num_known:])


def _ignore(sent: Sent) -> None:
    """Hear of an answer and do nothing."""


@contextmanager
def _server(args: argparse.Namespace, setting: Setting) -> Iterator[str]:
    """The server to compare with: one that runs, or one that is started with the simulated pool and scheduler."""
    if args.against:
        require_loopback(args.against, is_remote_allowed=False)
        yield args.against
        return
    flags = scheduler_flags(setting.config, pool_tokens=_pool_tokens(args))
    with launched([*args.serve_flags, *flags]) as server:
        yield server.url


def scheduler_flags(config: SchedulerConfig, *, pool_tokens: int) -> list[str]:
    """What axil serve is told to schedule as it is simulated; how many may wait is left to it."""
    flags = [f"--max-total-tokens={pool_tokens}"]
    for field in fields(SchedulerConfig):
        flag, value = field.name.replace("_", "-"), getattr(config, field.name)
        if field.name == "max_queued_requests" or value == field.default:
            continue
        if isinstance(value, bool):
            flags.append(f"--{flag}" if value else f"--no-{flag}")
        else:
            flags.append(f"--{flag}={value}")
    return flags


def _pool_tokens(args: argparse.Namespace) -> int:
    pool_tokens: int = args.pool_tokens[0] if args.pool_tokens else AGAINST_POOL
    return pool_tokens


def _tokenizer(args: argparse.Namespace) -> tokenizers.Tokenizer | None:
    """The server's: the given file's, or the embedded model's when that is started."""
    if args.tokenizer is not None:
        return load_tokenizer(args.tokenizer)
    return load_tokenizer(resolve_model(None).tokenizer_dir / "tokenizer.json") if args.launch else None


async def _compare_all(args: argparse.Namespace, setting: Setting, url: str) -> Figures:
    simulated = Simulated(
        config=setting.config, price=setting.price, pool_tokens=_pool_tokens(args), tokenizer=_tokenizer(args)
    )
    columns = {}
    async with connected(url, None) as client:
        for name in args.only:
            if name not in SHAPES:
                raise CannotMeasure(f"a server is sent shapes, and {name} is none")
            found = await compare(client, name, simulated, scale=args.scale, seed=args.seed)
            columns[name] = {
                "simulated_hit_percent": found.simulated_percent,
                "served_hit_percent": found.served_percent,
                "apart_percent": found.difference_percent,
            }
    print(summary.table(columns))
    return {f"{name}_{figure}": value for name, each in columns.items() for figure, value in each.items()}
