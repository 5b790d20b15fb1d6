"""What is told of sessions, requests that go on one from the other: whether they find their pages again."""

from __future__ import annotations

from msgspec import Struct


class Chance(Struct, frozen=True, kw_only=True):
    """Of the session whose `num_requests`-th request was scheduled, if that had ended at once.

    It is expected back within `expected_return_s`, and finds all its pages with the probability `survival`; None where
    too little has happened to tell.
    """

    num_requests: int
    expected_return_s: float | None
    survival: float | None


class SessionState(Struct, frozen=True, kw_only=True):
    """A session, named by its last request, whose prompt had `prompt_tokens`.

    `idle_s` is the time since that ended, None while it runs; `tokens_in_cache`, in whole pages, are cached now of what
    it left, its answer included. `expected_return_s` counts from that end too.
    """

    request_id: str
    num_requests: int
    prompt_tokens: int
    tokens_in_cache: int
    idle_s: float | None
    expected_return_s: float | None
    survival: float | None


class SurvivalCounts(Struct, frozen=True, kw_only=True):
    """Sessions that are not running, by `survival`: 0, below 0.5, below 0.9, from there on; or not known."""

    gone: int = 0
    unlikely: int = 0
    likely: int = 0
    safe: int = 0
    unknown: int = 0
