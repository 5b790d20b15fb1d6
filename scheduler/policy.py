"""Which waiting request is tried next, and when others have gone before it for long enough."""

from __future__ import annotations

from collections.abc import Iterator

from .request import Request
from .state import State

GRANTED_REQUESTS = 16
"""How many may be put before a request that came earlier however short the queue is."""


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

    It is when it has been overtaken and has waited `overtake_seconds`, or was retracted, or when as many have overtaken
    it as may: `overtake_share` of those that wait, or of the work that the whole queue holds. So with a half a wait
    grows to about one and a half times what first come, first served would make of it. Sixteen requests, and the work
    of one full step, are always granted, but never more than `overtake_tokens`. If a request is
    overdue, so are all that came before it. A depth-first sweep comes to everybody anyway. Who waits for what a leader
    computes is overtaken meanwhile, and is tried when that is there or has not come (`leaders`).
    """
    queue, config = state.waiting, state.config
    if request.num_retractions or config.policy == "depth-first":
        return request.num_retractions > 0
    num_overtaken = queue.overtaken_requests(request)
    if num_overtaken == 0:
        return False
    fair_tokens = max(config.prefill_tokens, config.overtake_share * queue.pending_tokens)
    return (
        num_overtaken >= max(GRANTED_REQUESTS, config.overtake_share * len(queue))
        or queue.overtaken_tokens(request) >= min(config.overtake_tokens, fair_tokens)
        or now_s - request.arrived_s >= config.overtake_seconds
    )
