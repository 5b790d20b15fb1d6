"""Short ways to run a request through a cache."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from radix.cache import Lease, Namespace, PageId, PrefixCache
from radix.native.ledger import Figure, SharedLedger
from radix.pages import PagePool

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


def put_on_free_list(cache: PrefixCache, pages: Iterable[PageId]) -> None:
    """Break the ledger: pages that are held are to be given out."""
    ledger = cache.core.ledger
    for page in pages:
        if isinstance(ledger, SharedLedger):
            ledger.free_table[ledger.figures[Figure.FREE]] = page
            ledger.figures[Figure.FREE] += 1
        else:
            assert isinstance(ledger, PagePool)
            ledger.free_ids.append(page)
