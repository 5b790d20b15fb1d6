"""What a request says of the queue and of the cache, in the words of all APIs. The hints weigh; they pin nothing."""

from __future__ import annotations

import re
from dataclasses import dataclass

from runtime.generation import MAX_CACHE_TTL_S
from wire.errors import Refused

from .cache_hints import HINT_FIELDS, read_cache_priority, read_cache_ttl_s
from .fields import Fields
from .sampling import CACHE_FIELDS, read_priority, read_salt
from .schema import Schema, record, shown, string

_UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_DURATION = re.compile(r"(\d{1,9})([smhd])")

PLACE_FIELDS: dict[str, Schema] = {**CACHE_FIELDS, **HINT_FIELDS}
"""The names of our own, which all APIs take."""

OPENAI_PLACE_FIELDS: dict[str, Schema] = {
    **PLACE_FIELDS,
    "prompt_cache_key": string(text="Taken and not needed: prefixes are found by what they hold."),
    "prompt_cache_retention": string(text="in_memory, or how long to keep the prompt's pages, such as 24h."),
    "prompt_cache_options": record(
        {"mode": string(), "ttl": string(text="How long to keep the prompt's pages before others, such as 30m.")}
    ),
}
"""Those, and OpenAI's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Which cache a request may use, how early it goes, and how long its pages are kept before others."""

    salt: str
    priority: int
    cache_priority: int
    cache_ttl_s: float


def read_place(fields: Fields) -> Place:
    """The place in names of our own.

    Raises:
        Refused: a salt is given twice.
    """
    return Place(
        salt=read_salt(fields),
        priority=read_priority(fields),
        cache_priority=read_cache_priority(fields),
        cache_ttl_s=read_cache_ttl_s(fields),
    )


def read_openai_place(fields: Fields) -> Place:
    """The place in names of our own and of OpenAI's; of several times the longest counts.

    Raises:
        Refused: a time is none.
    """
    fields.string("prompt_cache_key")
    retention, options = fields.string("prompt_cache_retention"), fields.fields("prompt_cache_options")
    options.string("mode")
    ttl_s = seconds(options.string("ttl"), field=options.name("ttl"))
    if retention != "in_memory":
        ttl_s = max(ttl_s, seconds(retention, field=fields.name("prompt_cache_retention")))
    return kept_for(read_place(fields), ttl_s)


def kept_for(place: Place, ttl_s: float) -> Place:
    """The place, its pages kept for that long at least."""
    return Place(
        salt=place.salt,
        priority=place.priority,
        cache_priority=place.cache_priority,
        cache_ttl_s=max(place.cache_ttl_s, ttl_s),
    )


def seconds(duration: str | None, *, field: str) -> float:
    """A duration such as 5m, 1h or 24h, at most `MAX_CACHE_TTL_S`; none is 0.

    Raises:
        Refused: it is none.
    """
    if not duration:
        return 0.0
    found = _DURATION.fullmatch(duration)
    if found is None:
        raise Refused(f"{field} must be a duration such as 5m or 24h, got {shown(duration)}. Change it.", field=field)
    return float(min(int(found[1]) * _UNITS_S[found[2]], MAX_CACHE_TTL_S))
