"""Chooses a step: decode rows first, then prefill chunks of several requests within a time budget.

Knows no sockets, clocks or logging.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from radix.cache import OutOfPages
from wire.messages import Admission, PageCopy, Reuse, RowStep, StepPlan, ids_to_bytes

from .leave import retract
from .policy import in_order, is_overdue, may_go, refresh_match
from .request import Request, Running
from .state import Sent, State

MAX_SKIPS = 16
"""How often others may be admitted past a request that does not fit, before pages are kept for it."""

_LEAST_PREFILL_TOKENS = 16
_LEAST_PREFILL_SHARE = 1.0
"""Prefill gets at least this multiple of a decode step's time, and this many tokens, also where decode alone takes
longer than the budget: on a slow machine the queue must move too."""


@dataclass(slots=True)
class _Draft:
    admissions: list[tuple[Running, Admission]] = field(default_factory=list)
    rows: list[tuple[Running, RowStep]] = field(default_factory=list)
    prefill_tokens: int = 0


def plan(state: State, *, now_s: float) -> StepPlan | None:
    """Decide the next step and enter it into `state.in_flight`; None when there is nothing to run."""
    draft = _Draft()
    _decode(state, draft)
    budget_tokens = _prefill_budget(state, has_decode=bool(draft.rows))
    _admit(state, draft, budget_tokens=budget_tokens, now_s=now_s)
    _prefill(state, draft, budget_tokens=budget_tokens, now_s=now_s)
    _forget_retracted(state, draft)
    return _sealed(state, draft, now_s=now_s) if draft.rows else None


def _decode(state: State, draft: _Draft) -> None:
    """One token for every row that has finished its prefill; retracts rows while pages run short."""
    for running in sorted(state.running.values(), key=lambda each: each.request.arrival):
        if not (running.is_live and running.wants_decode):
            continue
        pages = _extend(state, draft, running, running.planned_tokens + 1)
        if pages is None:
            continue
        step = RowStep(row=running.row, num_new_tokens=1, is_sampled=True, page_ids=ids_to_bytes(pages))
        draft.rows.append((running, step))


def _extend(state: State, draft: _Draft, running: Running, num_tokens: int) -> list[int] | None:
    """Give `running` pages for `num_tokens`, retracting others or at last itself; None when it was retracted."""
    while True:
        try:
            return [int(page) for page in state.cache.extend(running.lease, num_tokens)]
        except OutOfPages:
            victim = _victim(state, running)
            retract(state, victim)
            draft.rows = [pair for pair in draft.rows if pair[0] is not victim]
            if victim is running:
                return None


def _victim(state: State, running: Running) -> Running:
    """The row with most pages of its own among those that came later than `running`, else `running` itself.

    The oldest request is never a victim of a younger one, so somebody always advances.
    """
    younger = [each for each in state.running.values() if each.request.arrival > running.request.arrival]
    return max(younger, key=lambda each: (each.lease.own_pages, each.request.arrival), default=running)


def _prefill_budget(state: State, *, has_decode: bool) -> int:
    budget_s = (state.config.decode_step_ms if has_decode else state.config.prefill_step_ms) / 1000
    budget_s = max(budget_s, (1 + _LEAST_PREFILL_SHARE) * state.cost.base_s)
    tokens = state.cost.affordable_tokens(budget_s=budget_s)
    return min(state.config.prefill_tokens, max(_LEAST_PREFILL_TOKENS, tokens))


def _admit(state: State, draft: _Draft, *, budget_tokens: int, now_s: float) -> None:
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


def _enter(state: State, draft: _Draft, running: Running, *, now_s: float) -> None:
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


def _prefill(state: State, draft: _Draft, *, budget_tokens: int, now_s: float) -> None:
    """Chunks for rows with prompt left: overdue ones by age, then the one with least left first."""
    prefilling = [running for running in state.running.values() if running.prefill_left_tokens]

    def rank(running: Running) -> tuple[bool, int, int]:
        if now_s - running.request.arrived_s >= state.config.overtake_seconds:
            return False, 0, running.request.arrival
        return True, running.prefill_left_tokens, running.request.arrival

    for running in sorted(prefilling, key=rank):
        chunk = min(running.prefill_left_tokens, budget_tokens - draft.prefill_tokens)
        if chunk <= 0:
            return
        if not running.is_live:
            continue
        start, stop = running.planned_tokens, running.planned_tokens + chunk
        pages = _extend(state, draft, running, stop)
        if pages is None:
            continue
        step = RowStep(
            row=running.row,
            num_new_tokens=chunk,
            is_sampled=stop == running.target_tokens and running.planned_samples < running.request.max_new_tokens,
            token_ids=running.request.token_ids[start:stop].astype("<i4").tobytes(),
            page_ids=ids_to_bytes(pages),
        )
        draft.rows.append((running, step))
        draft.prefill_tokens += chunk


def _forget_retracted(state: State, draft: _Draft) -> None:
    """A row admitted in this very draft and retracted again never reaches the runner; nor does its page copy."""
    for running, _ in draft.admissions:
        if not running.is_live:
            state.released_rows.remove(running.row)
    draft.admissions = [pair for pair in draft.admissions if pair[0].is_live]


def _sealed(state: State, draft: _Draft, *, now_s: float) -> StepPlan:
    """Turn the draft into a plan and book it as in flight."""
    admissions = draft.admissions
    copies = [running.lease.copy for running, _ in admissions if running.lease.copy is not None]
    prefill_tokens = sum(step.num_new_tokens for _, step in draft.rows if step.token_ids)
    sealed = StepPlan(
        step=state.next_step,
        released=tuple(state.released_rows),
        copies=tuple(PageCopy(source=source, destination=destination) for source, destination in copies),
        admissions=tuple(admission for _, admission in admissions),
        rows=tuple(step for _, step in draft.rows),
    )
    for running, step in draft.rows:
        running.planned_tokens += step.num_new_tokens
        running.planned_samples += step.is_sampled
    for running, _ in admissions:
        state.cache.copied(running.lease)
    rows = tuple((running, step.num_new_tokens, step.is_sampled) for running, step in draft.rows)
    state.in_flight.append(Sent(step=state.next_step, sent_s=now_s, prefill_tokens=prefill_tokens, rows=rows))
    state.next_step += 1
    state.released_rows.clear()
    return sealed
