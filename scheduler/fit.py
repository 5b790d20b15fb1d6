"""Whether a waiting request fits: pages it is expected to need, beside those that running requests are promised."""

from __future__ import annotations

from .request import Request, Running
from .state import State


def lease_if_fits(state: State, request: Request) -> Running | None:
    """Pin the request's prefix and take a row, if its pages and those promised to running requests can be had."""
    known = request.num_tokens
    lease = state.cache.lease(request.namespace, request.token_ids, max_reuse_tokens=request.reusable_tokens)
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
