"""The tree alone: prompts in their order, one at a time, outputs not inserted. Knows no scheduler and no steps.

Prompts are whole blocks, as the traces give them; a hit counts up to the prompt's length in tokens.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from bench.simulation.traces import AgentSession, tokens_of_blocks
from bench.simulation.workload import LARGEST_ID, TokenIds
from radix.cache import Namespace, PrefixCache
from scheduler.config import SchedulerConfig
from scheduler.state import Limits, make_state
from wire.recording import RecordedRequest

NAMESPACE = Namespace("simulated", None, "")


@dataclass(frozen=True, slots=True, eq=False)
class Prompt:
    """The token ids of a prompt's blocks, and how many of them are the prompt's."""

    token_ids: TokenIds
    num_tokens: int


@dataclass(slots=True)
class Hits:
    """Prompt tokens, and those found cached."""

    prompt_tokens: int = 0
    cached_tokens: int = 0

    def add(self, num_tokens: int, cached_tokens: int) -> None:
        """Count one prompt."""
        self.prompt_tokens += num_tokens
        self.cached_tokens += min(num_tokens, cached_tokens)

    @property
    def percent(self) -> float:
        """The hit rate."""
        return 100 * self.cached_tokens / max(1, self.prompt_tokens)


def mooncake_prompts(trace: Sequence[RecordedRequest], *, is_whole: bool = True) -> Iterator[Prompt]:
    """The prompts of a Mooncake trace in its order; without `is_whole` the last block is cut to the prompt's length."""
    for row in trace:
        token_ids = tokens_of_blocks(row.hash_ids)
        yield Prompt(token_ids if is_whole else token_ids[: row.input_length], row.input_length)


def agent_prompts(sessions: Sequence[AgentSession], *, most_gap_s: float) -> Iterator[Prompt]:
    """All sessions from the same moment on, each at its own pace with gaps of at most `most_gap_s`."""
    first_id = 0
    timed = []
    for number, session in enumerate(sessions):
        timed.append(_timed(session, first_id, number, most_gap_s))
        first_id += session.num_tokens
    for _, _, prompt in heapq.merge(*timed, key=lambda each: each[:2]):
        yield prompt


def make_cache(config: SchedulerConfig, *, num_pages: int, page_tokens: int) -> PrefixCache:
    """An empty cache, as the scheduler makes it."""
    limits = Limits(
        model_fingerprint="simulated",
        context_tokens=LARGEST_ID,
        vocabulary=LARGEST_ID,
        pool_tokens=num_pages * page_tokens,
    )
    return make_state(config, limits, page_tokens=page_tokens).cache


def replay(prompts: Iterable[Prompt], cache: PrefixCache) -> Hits:
    """Every prompt through the product's cache; of one that is longer than the pool, the beginning that fits."""
    hits = Hits()
    pool_tokens = cache.num_pages * cache.page_tokens
    for prompt in prompts:
        token_ids = prompt.token_ids
        lease = cache.lease(NAMESPACE, token_ids, max_reuse_tokens=len(token_ids))
        hits.add(prompt.num_tokens, lease.cached_tokens)
        kept = min(len(token_ids), pool_tokens)
        cache.extend(lease, kept)
        cache.release(lease, token_ids[:kept])
    return hits


def _timed(session: AgentSession, first_id: int, number: int, most_gap_s: float) -> Iterator[tuple[float, int, Prompt]]:
    now_s = 0.0
    for request in session.requests(first_id):
        now_s += min(request.gap_s, most_gap_s)
        if len(request.tokens):
            yield now_s, number, Prompt(request.tokens, max(request.prompt_tokens, len(request.tokens)))
