"""What the tree's figures are measured on: long chains, many leaves, and three traces of whole requests."""

from __future__ import annotations

import time
import tracemalloc
from collections.abc import Iterator
from random import Random
from statistics import median

import numpy as np
import numpy.typing as npt

from radix.cache import Namespace, PrefixCache
from radix.native.core import NativeCore

NAMESPACE = Namespace("model", None, "")
PAGE_TOKENS = 16
TURN_TOKENS = 64
POOL_TOKENS = 65536

Ids = npt.NDArray[np.int32]
Request = tuple[bytes, Ids]
"""A request's prompt as its message carries it, and prompt and output together."""


def chain(num_turns: int, *, is_forked: bool) -> tuple[PrefixCache, Ids]:
    """A conversation that was inserted turn by turn, each with a sibling beside it when `is_forked`."""
    random = np.random.default_rng(7)
    tokens = random.integers(0, 1 << 17, num_turns * TURN_TOKENS, np.int32)
    siblings = random.integers(0, 1 << 17, (num_turns, TURN_TOKENS), np.int32)
    cache = PrefixCache(num_pages=2 * len(tokens) // PAGE_TOKENS, page_tokens=PAGE_TOKENS)
    lease = cache.lease(NAMESPACE, tokens, max_reuse_tokens=0)
    for end in range(TURN_TOKENS, len(tokens) + 1, TURN_TOKENS):
        cache.extend(lease, end)
        cache.commit(lease, tokens[:end])
    for turn in range(num_turns if is_forked else 0):
        _serve(cache, np.concatenate([tokens[: turn * TURN_TOKENS], siblings[turn]]))
    return cache, tokens


def match_ms(cache: PrefixCache, tokens: Ids) -> float:
    """CPU time of one match of all `tokens`, which are cached."""
    started = time.thread_time()
    found = cache.match(NAMESPACE, tokens)
    elapsed = time.thread_time() - started
    assert found == len(tokens)
    return elapsed * 1e3


def full_of_leaves(num_leaves: int) -> PrefixCache:
    """A full pool of one-page prompts that share nothing."""
    cache = PrefixCache(num_pages=num_leaves, page_tokens=PAGE_TOKENS)
    tokens = np.random.default_rng(8).integers(0, 1 << 30, (num_leaves, PAGE_TOKENS), np.int32)
    for prompt in tokens:
        _serve(cache, prompt)
    return cache


def evictions_us(cache: PrefixCache, *, count: int) -> Iterator[float]:
    """CPU time of taking one page from a full pool, `count` times."""
    lease = cache.lease(NAMESPACE, np.zeros(0, np.int32), max_reuse_tokens=0)
    for pages in range(1, count + 1):
        started = time.thread_time()
        cache.extend(lease, pages * PAGE_TOKENS)
        yield (time.thread_time() - started) * 1e6


def agent() -> list[Request]:
    """32 sessions of 12 turns, interleaved: 720 tokens shared by all, 64 to 390 new ones a turn, 20 out."""
    random = np.random.default_rng(9)
    lengths = Random(9)
    contexts = [_ids(random, 720)] * 32
    requests = []
    for _ in range(12):
        for session, context in enumerate(contexts):
            prompt = np.concatenate([context, _ids(random, lengths.randint(64, 390))])
            contexts[session] = np.concatenate([prompt, _ids(random, 20)])
            requests.append((prompt.tobytes(), contexts[session]))
    return requests


def few_shot() -> list[Request]:
    """2,000 requests of 1,024 shared tokens and 32 of their own, 16 out."""
    random = np.random.default_rng(10)
    shared = _ids(random, 1024)
    return [_request(random, np.concatenate([shared, _ids(random, 32)]), 16) for _ in range(2000)]


def unique() -> list[Request]:
    """2,000 requests of 256 tokens that share nothing, 64 out."""
    random = np.random.default_rng(11)
    return [_request(random, _ids(random, 256), 64) for _ in range(2000)]


def bookkeeping_us(requests: list[Request], *, pool_tokens: int = POOL_TOKENS) -> float:
    """CPU time a request of its whole bookkeeping: match, lease, pages, commit, release."""
    cache = PrefixCache(num_pages=pool_tokens // PAGE_TOKENS, page_tokens=PAGE_TOKENS)
    started = time.thread_time()
    replay(cache, requests)
    return (time.thread_time() - started) / len(requests) * 1e6


def replay(cache: PrefixCache, requests: list[Request]) -> None:
    """Run requests one after the other, from the message's buffer to the release."""
    for message, tokens in requests:
        prompt = np.frombuffer(message, np.int32)
        lease = cache.lease(NAMESPACE, prompt, max_reuse_tokens=len(prompt) - 1)
        cache.extend(lease, len(tokens))
        cache.copied(lease)
        cache.release(lease, tokens)


def bytes_per_cached_token() -> float:
    """Memory of tree, pool and ledger for each token cached once the agent trace has filled the pool.

    What the compiled tree takes by itself is its own count: Python doesn't see it.
    """
    requests = agent()
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    cache = PrefixCache(num_pages=POOL_TOKENS // PAGE_TOKENS, page_tokens=PAGE_TOKENS)
    replay(cache, requests)
    after, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    compiled = cache.core.num_bytes if isinstance(cache.core, NativeCore) else 0
    return (after - before + compiled) / (cache.cached_pages * PAGE_TOKENS)


def middle(values: list[float]) -> float:
    """The median."""
    return float(median(values))


def _serve(cache: PrefixCache, tokens: Ids) -> None:
    lease = cache.lease(NAMESPACE, tokens, max_reuse_tokens=len(tokens))
    cache.extend(lease, len(tokens))
    cache.release(lease, tokens)


def _ids(random: np.random.Generator, num_tokens: int) -> Ids:
    return random.integers(0, 1 << 17, num_tokens, np.int32)


def _request(random: np.random.Generator, prompt: Ids, output_tokens: int) -> Request:
    return prompt.tobytes(), np.concatenate([prompt, _ids(random, output_tokens)])
