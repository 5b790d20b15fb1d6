"""Whether a request that could start had better wait for a part of a page that another one is computing.

Requests that fork from one answer share a few tokens behind it which nobody has computed when all of them arrive. Whole
pages are waited for in any case; for less than one it must be worth it. Knows no order and no pages.
"""

from __future__ import annotations

from .cost import Work
from .leaders import Coming
from .request import Request
from .state import State

LEAST_TOKENS = 4
"""Fewer tokens are computed again rather than waited for."""

LEAST_SHARE = 1 / 16
"""Nor are any that cost less than this part of the constant cost of a step.

Waiting takes a request one step longer, or two where a step is already under way. The leader is served earlier by all
that the others compute later, and every step is shorter by what nobody computes twice; several usually wait for the
same. On a CPU a step costs as much as 10 to 40 tokens, so four are worth it; on a large GPU as much as some 150, and
ten are.
"""

MOST_STEPS = 4
"""So many steps are waited for one page at most: one in flight, one of the leader's that begins, and one to spare."""


def put_off(state: State, request: Request) -> bool:
    """Take a request out of the order if a leader computes enough of its next page in the next steps; returns whether.

    O(log waiting) where no leader computes behind what it finds cached, else O(its tokens).
    """
    place = state.waiting.place(request)
    coming = state.waiting.leaders.page_coming(request, place)
    if coming is None or not _is_worth_it(state, request, coming, cached_tokens=place.depth):
        return False
    if request.put_off is None or request.put_off[0] != place.depth:
        request.put_off = place.depth, state.next_step
    until_step = request.put_off[1] + MOST_STEPS
    if state.next_step >= until_step:
        return False
    state.waiting.put_off(request, coming.leader, until_tokens=coming.until_tokens, until_step=until_step)
    return True


def _is_worth_it(state: State, request: Request, coming: Coming, *, cached_tokens: int) -> bool:
    """Whether enough tokens come beyond those that can be had now, of which `cached_tokens` are known."""
    constant_s, token_s = state.cost.predict_s(Work()), state.cost.prefill_s(start=0, num_tokens=1)
    wanted_tokens = coming.until_tokens - max(LEAST_TOKENS, LEAST_SHARE * constant_s / token_s)
    if cached_tokens > wanted_tokens:
        return False
    return state.cache.match(request.namespace, request.token_ids[: request.reusable_tokens]) <= wanted_tokens
