"""The same requests to a real server and to the simulator: do the two agree on how much is found cached?

Both get the same conversations at the same pace. The server counts its own tokens; the simulator those of the given
tokenizer, or a word as one, which makes prompts a little shorter and leaves what they share the same share.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import tokenizers

from bench import load
from bench.client import Client
from bench.command import CannotMeasure
from bench.context import Speaker
from bench.shapes import SHAPES, make_workload
from bench.simulation import report
from bench.simulation.price import Price
from bench.simulation.spoken import sessions_of
from bench.simulation.workload import Workload
from bench.simulation.world import make_world
from bench.summary import Sent, failures_by_kind
from bench.workload import Workload as Spoken
from scheduler.config import SchedulerConfig

REQUEST_S = 300.0
RUN_S = 1800.0


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


async def compare(client: Client, name: str, simulated: Simulated, *, scale: float, seed: int) -> Agreement:
    """Send a shape, with the server's cache emptied before, and simulate it.

    Raises:
        CannotMeasure: a request failed, or the server does not tell what it found cached.
    """
    spoken = make_workload(name, {}, scale=scale, seed=seed)
    closed = SHAPES[name].pace.closed
    if closed is None:
        raise CannotMeasure(f"--against needs a shape in closed loop, and {name} is not")
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
