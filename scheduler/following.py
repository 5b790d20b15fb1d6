"""Whether a request that could start had better wait for a part of a page, or for logprobs, that another one computes.

Requests that fork from one answer share a few tokens behind it which nobody has computed when all of them arrive. Whole
pages are waited for in any case; for less than one it must be worth it. Who wants a prompt's logprobs has no use for
pages alone: it waits for one that computes both. Knows no order and no pages.
"""

from __future__ import annotations

import math

from radix.lease import Place

from .cost import Work
from .request import Request
from .state import State

LEAST_TOKENS = 4
"""Fewer tokens are computed again rather than waited for."""

LEAST_SHARE = 1 / 16
"""Nor are any that cost less than this part of the constant cost of a step.

Waiting takes a request one step longer, or two where a step is already under way. The leader is served earlier by all
that the others compute later, and every step is shorter by what nobody computes twice; several usually wait for the
same. On two cores (AVX2, SmolLM2-135M) a step of one row took 15 ms and a further prompt token 2.8, on a busy machine:
there four tokens are nearly a step. A large GPU is taken to need 6 ms and 0.04 (as `bench.simulate` does): there fewer
than ten are not worth one.
"""

MOST_STEPS = 4
"""So many steps are waited for one page at most: one in flight, one of the leader's that begins, and one to spare."""


def put_off(state: State, request: Request, place: Place, *, is_overdue: bool) -> bool:
    """Take a request out of the order for as long as a leader computes what it could have soon; returns whether.

    `place` is where the whole cached pages that it would find end. An overdue one waits for no part of a page. For
    logprobs it does, as for whole pages: it would compute a whole prompt. O(log waiting) where there is no such leader,
    else O(its tokens).
    """
    return _put_off_for_logprobs(state, request) or (not is_overdue and _put_off_for_a_page(state, request, place))


def _put_off_for_logprobs(state: State, request: Request) -> bool:
    coming = state.waiting.leaders.scores_coming(request)
    if coming is None or coming.until_tokens - request.reusable_tokens < _least_tokens(state):
        return False
    state.waiting.put_off(request, coming.leader, until_tokens=coming.until_tokens, until_step=math.inf)
    return True


def _put_off_for_a_page(state: State, request: Request, place: Place) -> bool:
    coming = state.waiting.leaders.page_coming(request, place)
    if coming is None or coming.until_tokens - place.depth < (least := _least_tokens(state)):
        return False
    present = state.cache.match(request.namespace, request.token_ids[: request.reusable_tokens])
    if coming.until_tokens - present < least:
        return False
    if request.put_off is None or request.put_off[0] != place.depth:
        request.put_off = place.depth, state.next_step
    until_step = request.put_off[1] + MOST_STEPS
    if state.next_step >= until_step:
        return False
    state.waiting.put_off(request, coming.leader, until_tokens=coming.until_tokens, until_step=until_step)
    return True


def _least_tokens(state: State) -> float:
    constant_s, token_s = state.cost.predict_s(Work()), state.cost.prefill_s(start=0, num_tokens=1)
    return max(LEAST_TOKENS, LEAST_SHARE * constant_s / token_s)
