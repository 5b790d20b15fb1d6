"""Which waiting request is tried next, and when others have gone before it for long enough."""

from __future__ import annotations

from collections.abc import Iterator

from .request import Request
from .state import State


def in_order(state: State, *, now_s: float) -> Iterator[tuple[Request, bool]]:
    """Give those that need not wait for a page that is being computed for another, and whether they are overdue.

    First comes who is to be tried first. `longest-prefix`: longest cached prefix first, in whole pages; `fcfs`: in
    order of arrival; both within a priority, the higher one first. But requests that are overdue go before all that
    are not, the retracted ones first, then by age. `depth-first`: one sweep after another over the prompts in the order
    of their tokens. An overdue request comes twice. Nothing may change while this is read.
    """
    for request in state.waiting.by_age():
        if not is_overdue(state, request, now_s=now_s):
            break
        yield request, True
    for request in state.waiting.by_policy():
        yield request, False


def is_overdue(state: State, request: Request, *, now_s: float) -> bool:
    """Whether others have gone before this request for long enough.

    It is once later requests have computed `overtake_tokens` since it came, or it has been overtaken and has waited
    `overtake_seconds`, or it was retracted. If a request is overdue, so are all that came before it. A depth-first
    sweep comes to everybody anyway.
    """
    if request.num_retractions or state.config.policy == "depth-first":
        return request.num_retractions > 0
    overtaken_tokens = state.waiting.overtaken_tokens(request)
    if overtaken_tokens >= state.config.overtake_tokens:
        return True
    return overtaken_tokens > 0 and now_s - request.arrived_s >= state.config.overtake_seconds
