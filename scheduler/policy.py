"""The order in which waiting requests are tried. Reads the tree, changes nothing in it."""

from __future__ import annotations

from .request import Request, Running
from .state import State

FOLLOW_S = 10.0
"""How long a request waits, at most, for a page that another one is computing."""


def in_order(state: State, *, now_s: float) -> list[Request]:
    """Waiting requests, first to be tried first.

    `longest-prefix`: longest cached prefix first. A request is overdue, and goes before all that are not, once later
    requests have computed `overtake_tokens` since it came, or it has been overtaken and has waited `overtake_seconds`,
    or it was retracted. Overdue ones go by age.
    """
    waiting = list(state.waiting)
    if state.config.policy == "fcfs":
        return sorted(waiting, key=lambda request: request.arrival)
    for request in waiting:
        refresh_match(state, request)

    def rank(request: Request) -> tuple[bool, int, int]:
        if is_overdue(state, request, now_s=now_s):
            return False, 0, request.arrival
        return True, -request.matched_tokens, request.arrival

    return sorted(waiting, key=rank)


def is_overdue(state: State, request: Request, *, now_s: float) -> bool:
    """Whether others have gone before this request for long enough."""
    if request.num_retractions or request.overtaken_tokens >= state.config.overtake_tokens:
        return True
    return request.overtaken_tokens > 0 and now_s - request.arrived_s >= state.config.overtake_seconds


def refresh_match(state: State, request: Request) -> None:
    """Bring `matched_tokens` up to date with the tree."""
    if request.matched_version != state.cache.version:
        request.matched_tokens = state.cache.match(request.namespace, request.token_ids[: request.reusable_tokens])
        request.matched_version = state.cache.version


def leader_of(state: State, request: Request, prefilling: list[Running]) -> Running | None:
    """The one of `prefilling` that is computing the page which `request` would compute first, if there is one."""
    page_tokens = state.cache.page_tokens
    shared = request.matched_tokens // page_tokens * page_tokens + page_tokens
    wanted = request.prompt_bytes[: 4 * shared]
    if shared > request.reusable_tokens or len(wanted) < 4 * shared:
        return None
    for running in prefilling:
        leader = running.request
        if (
            running.computed_tokens < shared <= running.target_tokens
            and leader.namespace == request.namespace
            and leader.prompt_bytes[: 4 * shared] == wanted
        ):
            return running
    return None


def may_go(state: State, request: Request, prefilling: list[Running], *, now_s: float) -> bool:
    """Whether `request` should be admitted now rather than wait for pages that are being computed for another.

    It waits `FOLLOW_S` at most; when its leader is cancelled or ends, it goes (or follows another) at once.
    """
    if leader_of(state, request, prefilling) is None:
        request.follows_until_s = None
        return True
    if request.follows_until_s is None:
        request.follows_until_s = now_s + FOLLOW_S
    return now_s >= request.follows_until_s
