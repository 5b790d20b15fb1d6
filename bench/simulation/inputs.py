"""What can be simulated by name: the shapes of `bench.shapes`, and recorded traces whose files are given.

An input makes the same workload every time that it is asked, so that policies and pools can be compared on it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from bench.command import CannotMeasure
from bench.shapes import SHAPES, make_workload
from bench.simulation.instant import Prompt, agent_prompts, mooncake_prompts
from bench.simulation.spoken import sessions_of
from bench.simulation.traces import agent_sessions, mooncake_sessions, read_sessions, recorded_sessions
from bench.simulation.workload import Workload
from bench.trace_shape import read_trace
from wire.recording import BLOCK_TOKENS

SHAPE_POOLS = {"w10": (200_000, 400_000, 800_000), "w11": (40_000, 80_000)}
SHAPE_POOL = (500_000,)
MOONCAKE_POOLS = tuple(blocks * BLOCK_TOKENS for blocks in (1000, 3000, 10_000, 30_000, 50_000))
SESSION_POOLS = (500_000, 1_000_000, 2_000_000, 4_000_000, 8_000_000)
AGENT_BLOCK_TOKENS = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Input:
    """A workload by name, the pools that show most of it, and its prompts alone where they are recorded.

    In the tree-only mode, pages are of `block_tokens`.
    """

    name: str
    make: Callable[[], Workload]
    pools: tuple[int, ...]
    prompts: Callable[[], Iterable[Prompt]] | None = None
    cut_prompts: Callable[[], Iterable[Prompt]] | None = None
    block_tokens: int = BLOCK_TOKENS


def shape(name: str, *, scale: float, seed: int) -> Input:
    """One of the shapes, sent at its own pace.

    Raises:
        CannotMeasure: there is no such shape, or it needs a file.
    """
    spoken = make_workload(name, {}, scale=scale, seed=seed)
    pace = SHAPES[name].pace

    def make() -> Workload:
        count = len(spoken.conversations)
        pause_s = count / pace.turns_per_s if pace.turns_per_s else 0.0
        sessions = sessions_of(spoken.conversations, seed=seed, mean_pause_s=pause_s)
        return Workload(sessions, pace.closed)

    return Input(name=name, make=make, pools=SHAPE_POOLS.get(name, SHAPE_POOL))


def mooncake(path: Path, *, speed: float, concurrency: int | None) -> Input:
    """A trace of Mooncake's form, or recorded by `axil serve`: at its own times, or so many requests open at any time.

    Raises:
        CannotMeasure: the file is absent or holds something else.
    """
    trace = read_trace(path, None)
    if not trace:
        raise CannotMeasure(f"--trace {path} is empty")
    sessions = mooncake_sessions if trace[0].row is None else recorded_sessions
    return Input(
        name=path.stem,
        make=lambda: Workload(sessions(trace, speed=speed), concurrency),
        pools=MOONCAKE_POOLS,
        prompts=lambda: mooncake_prompts(trace),
        cut_prompts=lambda: mooncake_prompts(trace, is_whole=False),
    )


def agents(path: Path, *, num_sessions: int, concurrency: int, most_gap_s: float, seed: int) -> Input:
    """Recorded sessions of a coding agent in closed loop, so many open at any time.

    Raises:
        CannotMeasure: the file is absent or holds something else.
    """
    sessions = read_sessions(path, num_sessions=num_sessions, seed=seed)
    return Input(
        name="sessions",
        make=lambda: Workload(agent_sessions(sessions, most_think_s=most_gap_s), concurrency),
        pools=SESSION_POOLS,
        prompts=lambda: agent_prompts(sessions, most_gap_s=most_gap_s),
        block_tokens=AGENT_BLOCK_TOKENS,
    )
