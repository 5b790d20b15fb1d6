"""Whether a request fits: the pages it is expected to need, beside those that running requests are promised."""

from __future__ import annotations

from radix.cache import Lease
from radix.lease import Place

from . import prompt_logprobs
from .output_length import Estimate
from .request import Request, Running
from .state import State


def lease_if_fits(state: State, request: Request) -> Running | None:
    """Pin the request's prefix and take a row, if its pages and those promised to running requests can be had.

    Where nothing runs there is nobody to wait for: then it need only begin. A retracted request therefore stays out
    until what it's expected to need is there, and that is more with every retraction.
    """
    known = request.num_tokens
    logprobs = prompt_logprobs.look_up(state, request)
    lengths = state.output_length.of(request.namespace)
    expected_pages = _expected_pages(state, request, lengths)
    needed_pages = expected_pages + state.promised_pages if state.running else _pages_to_begin(state, request)
    lease = _lease(state, request, request.reusable_tokens, needed_pages=needed_pages)
    if lease is None:
        return None
    if lease.copy is not None:
        state.scores.copy(*lease.copy, num_tokens=lease.copied_tokens)
    running = Running(
        request=request,
        row=state.free_rows.pop(),
        lease=lease,
        target_tokens=known,
        computed_tokens=lease.cached_tokens,
        planned_tokens=lease.cached_tokens,
        last_tokens=request.prompt_tokens + request.max_new_tokens - 1,
        page_end_tokens=_pages_of(state, known) * state.cache.page_tokens,
        lengths=lengths,
        promised_pages=expected_pages - len(lease.page_ids),
    )
    if request.next_logprob is not None and len(logprobs):
        running.found_logprobs = prompt_logprobs.found(running.row, request.next_logprob, logprobs)
    state.promised_pages += running.promised_pages
    state.prefilling[running.row] = running
    return running


def _lease(state: State, request: Request, max_reuse_tokens: int, *, needed_pages: int) -> Lease | None:
    """Pin what is cached, if it and what can be had beside it are so many pages."""
    cache = state.cache
    lease = cache.lease(
        request.namespace,
        request.token_ids,
        max_reuse_tokens=max_reuse_tokens,
        hints=request.hints,
        holder=request.request_id,
    )
    if needed_pages - len(lease.page_ids) <= cache.free_pages + cache.evictable_pages:
        return lease
    cache.release(lease, request.token_ids[:0])
    if lease.copy is None or state.running:
        return None
    # Nothing else runs, and no more will be free than now: the page that is copied from may be the one that is missing.
    return _lease(state, request, lease.depth, needed_pages=needed_pages)


def promise(state: State, running: Running) -> None:
    """Estimate again, after it got pages, how many more a running request will need: what goes on tends to go on."""
    expected_pages = _expected_pages(state, running.request, running.lengths)
    promised_pages = max(0, expected_pages - len(running.lease.page_ids))
    state.promised_pages += promised_pages - running.promised_pages
    running.promised_pages = promised_pages


def _expected_pages(state: State, request: Request, lengths: Estimate) -> int:
    """Pages for prompt and expected output; the last token of an output needs no place."""
    expected = lengths.expected_tokens(
        output_tokens=len(request.output),
        max_new_tokens=request.max_new_tokens,
        num_retractions=request.num_retractions,
    )
    return _pages_of(state, max(request.num_tokens, request.prompt_tokens + expected - 1))


def _pages_of(state: State, num_tokens: int) -> int:
    return -(-num_tokens // state.cache.page_tokens)


def can_fit(state: State, request: Request, place: Place) -> bool:
    """Whether a lease is worth a try; `place` is where the cached pages end that it would find.

    False only where `lease_if_fits` would find too few pages, and true where it would find enough, were nothing copied.
    """
    cache = state.cache
    if not state.running:
        return True
    expected_pages = _expected_pages(state, request, state.output_length.of(request.namespace))
    missing = expected_pages - place.depth // cache.page_tokens + state.promised_pages
    available = cache.free_pages + cache.evictable_pages
    # What is cached for it can't be evicted for it too; this is asked only of the few that would fit otherwise.
    return missing <= available and missing <= available - cache.unpinned_pages(place)


def can_begin(state: State, request: Request) -> bool:
    """Whether the pages that a request needs for its next token can be had when nothing else runs."""
    return _pages_to_begin(state, request) <= state.cache.free_pages + state.cache.evictable_pages


def _pages_to_begin(state: State, request: Request) -> int:
    return _pages_of(state, request.num_tokens + 1)
