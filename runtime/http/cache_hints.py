"""Reads what a request wishes for its cached pages; the scheduler weighs it when it evicts."""

from __future__ import annotations

from runtime.generation import MAX_CACHE_PRIORITY, MAX_CACHE_TTL_S

from .fields import Fields
from .schema import Schema, integer, number

HINT_FIELDS: dict[str, Schema] = {
    "cache_priority": integer(
        0, MAX_CACHE_PRIORITY, text="How much longer than others its pages stay cached, in turnovers of the pool."
    ),
    "cache_ttl_s": number(0, MAX_CACHE_TTL_S, text="Seconds after its end for which its pages are kept before others."),
}
"""What a request wishes for its cached pages; wishes weigh when pages are evicted, and pin nothing."""


def read_cache_priority(fields: Fields) -> int:
    """How much longer than others the request's pages stay cached, in turnovers of the pool."""
    return fields.integer("cache_priority") or 0


def read_cache_ttl_s(fields: Fields) -> float:
    """For how many seconds after its end the request's pages are kept before others."""
    return fields.number("cache_ttl_s") or 0.0
