"""Reads what a request wishes for its cached pages; the scheduler weighs it when it evicts."""

from __future__ import annotations

from wire.errors import Refused

from .fields import Fields

MAX_CACHE_PRIORITY = 10
MAX_CACHE_TTL_S = 86400


def read_cache_priority(fields: Fields) -> int:
    """How much longer than others the request's pages stay cached, in turnovers of the pool.

    Raises:
        Refused: it is no whole number or out of range.
    """
    priority = fields.integer("cache_priority") or 0
    if 0 <= priority <= MAX_CACHE_PRIORITY:
        return priority
    raise _out_of_range("cache_priority", MAX_CACHE_PRIORITY, priority)


def read_cache_ttl_s(fields: Fields) -> float:
    """For how many seconds after its end the request's pages are kept before others.

    Raises:
        Refused: it is no number or out of range.
    """
    ttl_s = fields.number("cache_ttl_s") or 0.0
    if 0 <= ttl_s <= MAX_CACHE_TTL_S:
        return ttl_s
    raise _out_of_range("cache_ttl_s", MAX_CACHE_TTL_S, ttl_s)


def _out_of_range(field: str, limit: float, value: float) -> Refused:
    return Refused(f"{field} must be in [0, {limit}], got {value}. Change {field}.", field=field)
