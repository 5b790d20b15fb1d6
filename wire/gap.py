"""The gap report: what of all prompt tokens was found cached, what could have been, and whose each lost share is.

Shares are of the prompt tokens of requests that were scheduled. Knows no pages and no time.
"""

from __future__ import annotations

from msgspec import Struct


class Lost(Struct, frozen=True, kw_only=True):
    """What was not found, by its owner; sums to 1 - `hit`.

    - `workload`: never seen before, or at the end of a prompt that doesn't fill its page: no cache finds it.
    - `capacity`: seen, but more was seen between than the pool holds, whatever is evicted.
    - `restart`: the cache was flushed since it was last used.
    - `policy`: the rest: another choice of victims would have kept it, or it was still being computed.
    """

    workload: float
    capacity: float
    policy: float
    restart: float


class Gap(Struct, frozen=True, kw_only=True):
    """One window of one namespace, or of all.

    `hit` is measured. `ceiling` is what a cache finds that forgets nothing, `oracle` one of this size that evicts what
    is used last again, `lru` one of this size that evicts what was used longest ago, and so do those of half, twice
    and four times the size. All ideals are estimates from a sample, and None where it has nothing of the window.
    """

    requests: int
    prompt_tokens: int
    hit: float
    ceiling: float | None = None
    oracle: float | None = None
    lru: float | None = None
    lru_half: float | None = None
    lru_double: float | None = None
    lru_quadruple: float | None = None
    lost: Lost | None = None


class GapWindow(Struct, frozen=True, kw_only=True):
    """What came in the last `seconds`, or with None since the start; namespaces by digests of their salts."""

    seconds: int | None
    all: Gap
    namespaces: dict[str, Gap]


class GapReport(Struct, frozen=True, kw_only=True):
    """All windows. `sampled_share` of the pages were followed; with 1 the ideals are exact.

    The server started `started_s` ago: what one before it had cached is not known, and its loss the workload's.
    """

    started_s: float
    pool_tokens: int
    page_tokens: int
    sampled_share: float
    windows: tuple[GapWindow, ...]
