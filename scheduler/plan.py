"""Chooses a step: decode rows first, then prefill chunks of several requests within a time budget.

Knows no sockets, clocks or logging.
"""

from __future__ import annotations

from wire.messages import PageCopy, RowStep, StepPlan, ids_to_bytes

from .admit import admit
from .draft import Draft, extend
from .request import Running
from .state import Sent, State

_LEAST_PREFILL_TOKENS = 16
_LEAST_PREFILL_SHARE = 1.0
"""Prefill gets at least this multiple of a decode step's time, and this many tokens, also where decode alone takes
longer than the budget: on a slow machine the queue must move too."""


def plan(state: State, *, now_s: float) -> StepPlan | None:
    """Decide the next step and enter it into `state.in_flight`; None when there is nothing to run."""
    draft = Draft()
    state.cache.tell_time(now_s)
    _decode(state, draft)
    budget_tokens = _prefill_budget(state, has_decode=bool(draft.rows))
    admit(state, draft, budget_tokens=budget_tokens, now_s=now_s)
    _prefill(state, draft, budget_tokens=budget_tokens, now_s=now_s)
    _forget_retracted(state, draft)
    return _sealed(state, draft, now_s=now_s) if draft.rows else None


def _decode(state: State, draft: Draft) -> None:
    """One token for every row that has finished its prefill; retracts rows while pages run short."""
    for running in sorted(state.running.values(), key=lambda each: each.request.arrival):
        if not (running.is_live and running.wants_decode):
            continue
        pages = extend(state, draft, running, running.planned_tokens + 1)
        if pages is None:
            continue
        step = RowStep(row=running.row, num_new_tokens=1, is_sampled=True, page_ids=ids_to_bytes(pages))
        draft.rows.append((running, step))


def _prefill_budget(state: State, *, has_decode: bool) -> int:
    budget_s = (state.config.decode_step_ms if has_decode else state.config.prefill_step_ms) / 1000
    budget_s = max(budget_s, (1 + _LEAST_PREFILL_SHARE) * state.cost.base_s)
    tokens = state.cost.affordable_tokens(budget_s=budget_s)
    return min(state.config.prefill_tokens, max(_LEAST_PREFILL_TOKENS, tokens))


def _prefill(state: State, draft: Draft, *, budget_tokens: int, now_s: float) -> None:
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
        pages = extend(state, draft, running, stop)
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


def _forget_retracted(state: State, draft: Draft) -> None:
    """A row admitted in this very draft and retracted again never reaches the runner; nor does its page copy."""
    for running, _ in draft.admissions:
        if not running.is_live:
            state.released_rows.remove(running.row)
    draft.admissions = [pair for pair in draft.admissions if pair[0].is_live]


def _sealed(state: State, draft: Draft, *, now_s: float) -> StepPlan:
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
