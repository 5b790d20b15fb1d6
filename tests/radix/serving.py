"""Short ways to run a request through a cache."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from radix.cache import Lease, Namespace, PrefixCache

CHAT = Namespace("model", None, "")
OTHER = Namespace("model", None, "other")


def ids(tokens: Iterable[int]) -> np.ndarray:
    return np.array(list(tokens), np.int32)


def start(cache: PrefixCache, tokens: Iterable[int], namespace: Namespace = CHAT) -> Lease:
    """Lease and get pages for all of `tokens`; the last is always computed, as in the scheduler."""
    token_ids = ids(tokens)
    lease = cache.lease(namespace, token_ids, max_reuse_tokens=len(token_ids) - 1)
    cache.extend(lease, len(token_ids))
    return lease


def serve(cache: PrefixCache, tokens: Iterable[int], namespace: Namespace = CHAT) -> Lease:
    """Run a whole request; returns its released lease."""
    tokens = list(tokens)
    lease = start(cache, tokens, namespace)
    cache.release(lease, ids(tokens))
    cache.check()
    return lease
