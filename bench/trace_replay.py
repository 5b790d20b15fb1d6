"""Replays the prompts of a public trace through the tree alone: in trace order, one at a time, outputs not inserted.

A block of the trace becomes one page that holds one token, the block's id. Knows two formats: Mooncake's JSON lines
(`hash_ids` of 512 tokens) and gzipped agent sessions (`keep` and `new` runs of ids, mostly of 64 tokens).
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random

import numpy as np
import numpy.typing as npt

from radix.cache import Namespace, PrefixCache
from radix.eviction.cost_aware import ATTENTION_TOKENS, CostAware
from radix.eviction.policy import Policy
from wire.recording import BLOCK_TOKENS

from .command import CannotMeasure
from .trace_shape import read_trace

GAP_CAP_S = 600.0


@dataclass(frozen=True, slots=True)
class Prompt:
    """One request's prompt: block ids that mean something within `scope`, and its length in tokens."""

    scope: str
    blocks: npt.NDArray[np.int32]
    num_tokens: int


@dataclass(frozen=True, slots=True)
class Trace:
    """Prompts in the order of their arrival; the last block of a prompt may be partly filled."""

    block_tokens: int
    prompts: list[Prompt]


def read_mooncake(path: Path) -> Trace:
    """Read the blocks of each request."""
    rows = read_trace(path, None)
    prompts = [Prompt("", np.array(row.hash_ids, np.int32), row.input_length) for row in rows]
    return Trace(BLOCK_TOKENS, prompts)


def read_sessions(path: Path, *, num_sessions: int, seed: int) -> Trace:
    """Draw sessions and interleave them by their own times, gaps capped at ten minutes; sub-agents are left out."""
    with gzip.open(path, "rt") as lines:
        sessions = [json.loads(line) for line in lines]
    if num_sessions > len(sessions):
        raise CannotMeasure(f"{path} has {len(sessions)} sessions, {num_sessions} were asked for")
    drawn = Random(seed).sample(sessions, num_sessions)
    timed: list[tuple[float, int, Prompt]] = []
    for session in drawn:
        now_s, last_s = 0.0, None
        ids: list[int] = []
        for request in session["requests"]:
            if request["type"] == "subagent":
                continue
            ids = ids[: request["keep"]] + [i for first, n in request["new"] for i in range(first, first + n)]
            if last_s is not None:
                now_s += min(max(request["t"] - last_s, 0.0), GAP_CAP_S)
            last_s = request["t"]
            timed.append((now_s, len(timed), Prompt(session["id"], np.array(ids, np.int32), request["in"])))
    timed.sort(key=lambda entry: entry[:2])
    return Trace(drawn[0]["block_size"], [prompt for _, _, prompt in timed])


def hit_percent(trace: Trace, policy: Callable[[int], Policy], *, pool_blocks: int) -> float:
    """Share of all prompt tokens that were found cached in a pool of `pool_blocks`."""
    cache = PrefixCache(num_pages=pool_blocks, page_tokens=1, policy=policy(pool_blocks))
    found = total = 0
    for prompt in trace.prompts:
        blocks = prompt.blocks[:pool_blocks]
        lease = cache.lease(Namespace("trace", None, prompt.scope), blocks, max_reuse_tokens=len(blocks))
        found += min(lease.cached_tokens * trace.block_tokens, prompt.num_tokens)
        total += prompt.num_tokens
        cache.extend(lease, len(blocks))
        cache.release(lease, blocks)
    return 100 * found / total


def unlimited_blocks(trace: Trace) -> int:
    """A pool in which nothing is ever evicted."""
    return sum(len(prompt.blocks) for prompt in trace.prompts) + 1


def rows(trace: Trace, policies: dict[str, Callable[[int], Policy]], pools: Iterable[int]) -> Iterable[str]:
    """A table of hit rates, one line a policy."""
    pools = [*pools, unlimited_blocks(trace)]
    # A page holds one token here and stands for many.
    policies = {**policies, "cost": partial(CostAware, attention_tokens=ATTENTION_TOKENS / trace.block_tokens)}
    yield "policy".ljust(16) + "".join(f"{pool:>10,}" for pool in pools[:-1]) + " unlimited"
    for name, policy in policies.items():
        rates = (hit_percent(trace, policy, pool_blocks=pool) for pool in pools)
        yield name.ljust(16) + "".join(f"{rate:>9.1f}%" for rate in rates)
