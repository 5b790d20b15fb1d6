"""Admission: which waiting requests get a row in this step, and the pages that must be left for those that run."""

from __future__ import annotations

from wire.messages import Admission, Reuse, ids_to_bytes

from .draft import Draft
from .policy import in_order, is_overdue, may_go, refresh_match
from .request import Request, Running
from .state import State

MAX_SKIPS = 16
"""How often others may be admitted past a request that does not fit, before pages are kept for it."""


def admit(state: State, draft: Draft, *, budget_tokens: int, now_s: float) -> None:
    """Admit waiting requests that would get prefill tokens in this step and whose pages can be had."""
    if not state.waiting or not state.free_rows:
        return
    prefilling = [running for running in state.running.values() if running.computed_tokens < running.target_tokens]
    for request in in_order(state, now_s=now_s):
        if not state.free_rows:
            return
        refresh_match(state, request)
        left_tokens = request.num_tokens - request.matched_tokens
        if _tokens_before(prefilling, left_tokens) >= budget_tokens and not is_overdue(state, request, now_s=now_s):
            continue
        if not may_go(state, request, prefilling, now_s=now_s):
            continue
        running = _lease(state, request)
        if running is not None:
            _enter(state, draft, running, now_s=now_s)
            prefilling.append(running)
            continue
        request.num_skips += 1
        if request.num_skips > MAX_SKIPS or is_overdue(state, request, now_s=now_s):
            return


def _tokens_before(prefilling: list[Running], left_tokens: int) -> int:
    """Prefill tokens of running requests that have no more left than this: they are served first."""
    lefts = (running.prefill_left_tokens for running in prefilling)
    return sum(left for left in lefts if left <= left_tokens)


def _lease(state: State, request: Request) -> Running | None:
    """Pin the request's prefix and take a row, if its pages and those promised to running requests can be had."""
    known = request.num_tokens
    lease = state.cache.lease(
        request.namespace, request.token_ids, max_reuse_tokens=request.reusable_tokens, hints=request.hints
    )
    if state.running:
        needed = _expected_pages(state, request) - len(lease.page_ids) + _promised_pages(state)
    else:
        needed = _pages_of(state, known + 1) - len(lease.page_ids)
    if needed > state.cache.free_pages + state.cache.evictable_pages:
        state.cache.release(lease, request.token_ids[:0])
        return None
    return Running(
        request=request,
        row=state.free_rows.pop(),
        lease=lease,
        target_tokens=known,
        computed_tokens=lease.cached_tokens,
        planned_tokens=lease.cached_tokens,
        planned_samples=request.output_tokens,
    )


def _promised_pages(state: State) -> int:
    """Pages that running requests are expected to need beyond those that they have."""
    lacks = (
        _expected_pages(state, running.request) - len(running.lease.page_ids) for running in state.running.values()
    )
    return sum(lack for lack in lacks if lack > 0)


def _expected_pages(state: State, request: Request) -> int:
    expected = state.output_length.expected_tokens(
        max_new_tokens=request.max_new_tokens, num_retractions=request.num_retractions
    )
    return _pages_of(state, max(request.num_tokens, request.prompt_tokens + expected))


def _pages_of(state: State, num_tokens: int) -> int:
    return -(-num_tokens // state.cache.page_tokens)


def _enter(state: State, draft: Draft, running: Running, *, now_s: float) -> None:
    request, lease = running.request, running.lease
    del state.waiting[request.request_id]
    state.running[request.request_id] = running
    draft.admissions.append((running, _admission(running)))
    if request.reuse is None:
        _count_first_scheduling(state, running, now_s=now_s)
    computed = request.num_tokens - lease.cached_tokens
    for other in state.waiting.values():
        if other.arrival < request.arrival:
            other.overtaken_tokens += computed


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
        first_logprob=request.next_logprob,
        output_ids=ids_to_bytes(request.output_ids.tolist()) if sampling.needs_output_ids else b"",
    )


def _count_first_scheduling(state: State, running: Running, *, now_s: float) -> None:
    request, lease, counters = running.request, running.lease, state.counters
    request.reuse = Reuse(
        prompt_tokens=request.prompt_tokens,
        cached_tokens=lease.cached_tokens,
        copied_tokens=lease.copied_tokens,
        queue_s=now_s - request.arrived_s,
    )
    counters.prompt_tokens_total += request.prompt_tokens
    counters.cached_tokens_total += lease.cached_tokens
    counters.copied_tokens_total += lease.copied_tokens
    if request.next_logprob is not None:
        found = state.cache.match(request.namespace, request.token_ids[:-1])
        counters.bypassed_tokens_total += max(0, found - lease.cached_tokens)
    counters.worst_displacement_tokens = max(counters.worst_displacement_tokens, request.overtaken_tokens)
    counters.worst_wait_s = max(counters.worst_wait_s, now_s - request.arrived_s)
