"""A step being decided, and the pages that its rows take; others are retracted where pages run short."""

from __future__ import annotations

from dataclasses import dataclass, field

from radix.cache import OutOfPages
from wire.messages import Admission, RowStep

from .leave import retract
from .request import Running
from .state import State


@dataclass(slots=True)
class Draft:
    """What the step will hold so far; `prefill_tokens` sums the chunks in `rows`."""

    admissions: list[tuple[Running, Admission]] = field(default_factory=list)
    rows: list[tuple[Running, RowStep]] = field(default_factory=list)
    prefill_tokens: int = 0


def extend(state: State, draft: Draft, running: Running, num_tokens: int) -> list[int] | None:
    """Give `running` pages for `num_tokens`, retracting others or at last itself; None when it was retracted."""
    while True:
        try:
            return [int(page) for page in state.cache.extend(running.lease, num_tokens)]
        except OutOfPages:
            victim = _victim(state, running)
            retract(state, victim)
            draft.rows = [pair for pair in draft.rows if pair[0] is not victim]
            if victim is running:
                return None


def _victim(state: State, running: Running) -> Running:
    """The row with most pages of its own among those that came later than `running`, else `running` itself.

    The oldest request is never a victim of a younger one, so somebody always advances.
    """
    younger = [each for each in state.running.values() if each.request.arrival > running.request.arrival]
    return max(younger, key=lambda each: (each.lease.own_pages, each.request.arrival), default=running)
