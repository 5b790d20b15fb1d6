"""How the scheduler's time for a step grows: with ten times as much cached, as many waiting, as many sessions.

Every step is planned and settled. The pool is filled beforehand with prompts that nobody asks for again.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from bench.simulation.price import Price
from bench.simulation.workload import Session, TokenIds, Turn, Workload, one_by_one, to_bytes
from bench.simulation.world import make_world
from radix.cache import Namespace, PrefixCache
from scheduler.config import SchedulerConfig

VOCABULARY = 150_000
FILLER_TOKENS = 2000
PROMPT_TOKENS = 1000
QUESTION_TOKENS = 64
ANSWER_TOKENS = 16
TURNS = 3
ROWS = 32
FACTOR = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """What grows: tokens of others in the cache, requests that wait, sessions that are served one after the other."""

    cached_tokens: int = 1_000_000
    waiting: int = 32
    sessions: int = 200


BASE = Size()
GROWN = {
    "base": BASE,
    "10 x tokens cached": replace(BASE, cached_tokens=FACTOR * BASE.cached_tokens),
    "10 x waiting": replace(BASE, waiting=FACTOR * BASE.waiting, sessions=FACTOR * BASE.waiting + ROWS),
    "10 x sessions": replace(BASE, sessions=FACTOR * BASE.sessions),
}


def step_ms(size: Size, config: SchedulerConfig, price: Price, *, seed: int) -> float:
    """Processor time in plan and settle over the steps that were made."""
    draw = np.random.default_rng(seed)
    per_session = PROMPT_TOKENS + TURNS * (QUESTION_TOKENS + ANSWER_TOKENS)
    pool_tokens = size.cached_tokens + 2 * per_session * (size.sessions + ROWS)
    workload = Workload(_sessions(size.sessions, draw), concurrency=ROWS + size.waiting)
    config = replace(config, max_running=ROWS)
    world = make_world(workload, config, price, pool_tokens=pool_tokens, is_fast=False)
    _fill(world.state.cache, size.cached_tokens, draw)
    world.run()
    return 1e3 * world.cpu.step_s / world.cpu.planned_steps


def _sessions(count: int, draw: np.random.Generator) -> Iterator[Session]:
    for _ in range(count):
        session = one_by_one(_turns(draw))
        assert session is not None
        yield session


def _turns(draw: np.random.Generator) -> Iterator[Turn]:
    said = _tokens(draw, PROMPT_TOKENS)
    for _ in range(TURNS):
        said = np.concatenate([said, _tokens(draw, QUESTION_TOKENS)])
        answer = _tokens(draw, ANSWER_TOKENS)
        yield Turn(to_bytes(said), answer)
        said = np.concatenate([said, answer])


def _fill(cache: PrefixCache, num_tokens: int, draw: np.random.Generator) -> None:
    namespace = Namespace("simulated", None, "")
    for _ in range(num_tokens // FILLER_TOKENS):
        token_ids = _tokens(draw, FILLER_TOKENS)
        lease = cache.lease(namespace, token_ids, max_reuse_tokens=FILLER_TOKENS)
        cache.extend(lease, FILLER_TOKENS)
        cache.release(lease, token_ids)


def _tokens(draw: np.random.Generator, count: int) -> TokenIds:
    return draw.integers(0, VOCABULARY, count, dtype=np.int32)
