"""A step being decided, and the pages that its rows take; others are retracted where pages run short."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from radix.cache import OutOfPages, PageId
from wire.messages.to_runner import Admission, Chunk

from .cost import Work
from .fit import promise
from .leave import retract
from .request import Running
from .state import State


@dataclass(slots=True)
class Draft:
    """What the step will hold so far, beside the decoding rows; `grown` are those of them that get a page."""

    admissions: list[tuple[Running, Admission]] = field(default_factory=list)
    grown: list[tuple[Running, PageId]] = field(default_factory=list)
    chunks: list[tuple[Running, Chunk]] = field(default_factory=list)
    work: Work = field(default_factory=Work)


def extend_each(state: State, draft: Draft, growing: list[Running]) -> None:
    """Give each of these decoding rows its next page, the oldest first where pages run short."""
    try:
        pages = state.cache.extend_each([running.lease for running in growing])
    except OutOfPages:
        for running in sorted(growing, key=lambda each: each.request.arrival):
            own = extend(state, draft, running, running.planned_tokens + 1) if running.is_live else None
            if own:
                draft.grown.append((running, own[0]))
        return
    state.scores.clear(pages)
    draft.grown += zip(growing, pages, strict=True)
    for running in growing:
        promise(state, running)


def extend(state: State, draft: Draft, running: Running, num_tokens: int) -> Sequence[PageId] | None:
    """Give `running` pages for `num_tokens`, retracting others or at last itself; None when it was retracted."""
    while True:
        try:
            pages = state.cache.extend(running.lease, num_tokens)
        except OutOfPages:
            victim = _victim(state, running)
            retract(state, victim)
            if victim is running:
                return None
        else:
            state.scores.clear(pages)
            promise(state, running)
            return pages


def _victim(state: State, running: Running) -> Running:
    """Of the requests that came later than `running`, one that holds many pages alone and is cheap to resume.

    Many is at least half of what the largest holds, cheap is little time to compute again what it has computed in them;
    among equals the youngest goes. The oldest request is never a victim of a younger one, so somebody always advances.
    """
    younger = [each for each in state.running.values() if each.request.arrival > running.request.arrival]
    own_pages = {each.row: state.cache.own_pages(each.lease) for each in younger}
    most = max(own_pages.values(), default=0)

    def price(each: Running) -> tuple[float, int]:
        num_tokens = min(each.computed_tokens, own_pages[each.row] * state.cache.page_tokens)
        resume_s = state.cost.prefill_s(start=each.computed_tokens - num_tokens, num_tokens=num_tokens)
        return resume_s, -each.request.arrival

    return min((each for each in younger if 2 * own_pages[each.row] >= most), key=price, default=running)
