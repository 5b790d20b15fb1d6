"""Admission: which waiting requests get a row in this step."""

from __future__ import annotations

from bisect import bisect_right, insort

from wire.messages.encoding import ids_to_bytes
from wire.messages.to_runner import Admission
from wire.messages.to_tokenizer import Miss, Reuse

from . import prompt_logprobs
from .draft import Draft
from .fit import can_fit, lease_if_fits
from .following import put_off
from .policy import in_order
from .request import Request, Running
from .state import State

LOOK = 8
"""How many requests are tried in vain in one step."""

LOOK_PUT_OFF = 32
"""How many are put off in one step, to wait for a part of a page or for logprobs."""

MAX_SKIPS = 16
"""So many others may be admitted past a request that does not fit; then pages are kept for it."""


def admit(state: State, draft: Draft, *, budget_tokens: int, now_s: float) -> None:
    """Admit waiting requests that would get prefill tokens in this step and whose pages can be had.

    O((admitted + LOOK + LOOK_PUT_OFF) log waiting), whatever the number that wait.
    """
    queue = state.waiting
    if not queue or not state.free_rows:
        return
    for recalled in queue.leaders.drop(now_s=now_s, step=state.next_step):
        if queue.get(recalled.request_id) is recalled:
            prompt_logprobs.look_up(state, recalled)
            queue.enlist(recalled)
    lefts = sorted(running.prefill_left_tokens for running in state.prefilling.values())
    tried: set[str] = set()
    skipped: list[Request] = []
    num_vain = num_put_off = 0
    order = in_order(state, now_s=now_s)
    while state.free_rows and num_vain < LOOK and num_put_off < LOOK_PUT_OFF:
        request, is_overdue = next((each for each in order if each[0].request_id not in tried), (None, False))
        if request is None:
            return
        tried.add(request.request_id)
        place = queue.place(request)
        if put_off(state, request, place, is_overdue=is_overdue):
            num_put_off += 1
            order = in_order(state, now_s=now_s)
            continue
        left_tokens = request.num_tokens - place.depth
        # Those with no more left are served first; what is left of the budget for this request?
        if not is_overdue and sum(lefts[: bisect_right(lefts, left_tokens)]) >= budget_tokens:
            num_vain += 1
            continue
        is_tried = can_fit(state, request, place)
        running = lease_if_fits(state, request) if is_tried else None
        if running is None:
            num_vain += 1
            skipped.append(request)
            if is_overdue or request.num_skips >= MAX_SKIPS:
                return
        else:
            _enter(state, draft, running, now_s=now_s)
            insort(lefts, running.prefill_left_tokens)
            for each in skipped:
                each.num_skips += 1
            if any(each.num_skips >= MAX_SKIPS for each in skipped):
                return
        if is_tried:
            # Also where it got nothing its copy may have evicted; else what is being read is as it was.
            order = in_order(state, now_s=now_s)


def _enter(state: State, draft: Draft, running: Running, *, now_s: float) -> None:
    request = running.request
    if request.reuse is None:
        _count_first_scheduling(state, running, now_s=now_s)
    state.waiting.take(running, now_s=now_s)
    state.running[request.request_id] = running
    draft.admissions.append((running, _admission(running)))


def _explained(state: State, running: Running) -> Miss | None:
    if state.explainer is None:
        return None
    computing = [*state.prefilling.values(), *(each for sent in state.in_flight for each, _ in sent.chunks)]
    miss = state.explainer.explain(running.request, running.lease, computing)
    if state.belt is not None and (idle_s := state.explainer.returned_s(running.lease, miss)) is not None:
        state.belt.note_return(idle_s)
    return miss


def _admission(running: Running) -> Admission:
    """What the runner must know of the request; its ids only when sampling looks back at them."""
    request, sampling = running.request, running.request.sampling
    return Admission(
        row=running.row,
        request_id=request.request_id,
        sampling=sampling,
        num_cached_tokens=running.lease.cached_tokens,
        page_ids=ids_to_bytes(running.lease.page_ids),
        num_prompt_tokens=request.prompt_tokens,
        prompt_ids=request.prompt_bytes if sampling.needs_prompt_ids else b"",
        first_logprob=_first_logprob(request),
        output_ids=ids_to_bytes(request.output_ids.tolist()) if sampling.needs_output_ids else b"",
    )


def _first_logprob(request: Request) -> int | None:
    """The first prompt token whose logprob has to be computed."""
    if request.next_logprob is None:
        return None
    first = request.next_logprob + request.num_known_logprobs
    return first if first < request.prompt_tokens else None


def _count_first_scheduling(state: State, running: Running, *, now_s: float) -> None:
    request, lease, counters = running.request, running.lease, state.counters
    miss = _explained(state, running)
    request.reuse = Reuse(
        prompt_tokens=request.prompt_tokens,
        cached_tokens=lease.cached_tokens,
        copied_tokens=lease.copied_tokens,
        queue_s=now_s - request.arrived_s,
        idle_s=state.explainer.idle_s(lease) if state.explainer is not None else None,
        miss=miss,
        session=state.sessions.chance(state.sessions.scheduled(request, lease, miss))
        if state.sessions is not None
        else None,
    )
    if state.gap is not None:
        state.gap.scheduled(request, now_s=now_s)
    counters.prompt_tokens_total += request.prompt_tokens
    counters.cached_tokens_total += lease.cached_tokens
    counters.copied_tokens_total += lease.copied_tokens
    if request.next_logprob is not None:
        found = state.cache.match(request.namespace, request.token_ids[:-1])
        counters.bypassed_tokens_total += max(0, found - lease.cached_tokens)
    counters.worst_displacement_tokens = max(
        counters.worst_displacement_tokens, state.waiting.overtaken_tokens(request)
    )
    counters.worst_wait_s = max(counters.worst_wait_s, now_s - request.arrived_s)
