"""Chooses a step: decode rows first, then prefill chunks of several requests within a time budget.

Knows no sockets, clocks or logging.
"""

from __future__ import annotations

from wire.messages.encoding import TOKEN_BYTES, ids_to_bytes
from wire.messages.to_runner import Chunk, PageCopy, StepPlan

from .admit import admit
from .cost import Work
from .draft import Draft, extend, extend_each
from .request import Running
from .state import Sent, State

_LEAST_PREFILL_TOKENS = 16
_LEAST_PREFILL_SHARE = 1.0
"""Prefill gets at least this multiple of a decode step's time, and this many tokens, also where decode alone takes
longer than the budget: on a slow machine the queue must move too."""


def plan(state: State, *, now_s: float) -> StepPlan | None:
    """Decide the next step and enter it into `state.in_flight`; None when there is nothing to run, or all is paused."""
    if state.is_paused:
        return None
    state.cache.tell_time(now_s)
    num_retractions = state.counters.retractions_total
    step = _planned(state, now_s=now_s)
    if step is None and state.counters.retractions_total > num_retractions:
        # All that ran went back to the queue. With no result to come, nothing else would have it looked at again.
        step = _planned(state, now_s=now_s)
    return step


def _planned(state: State, *, now_s: float) -> StepPlan | None:
    draft = Draft()
    _grow_decoding(state, draft)
    draft.work.decodes = len(state.decoding)
    if state.prefilling or (state.waiting and state.free_rows):
        prefill_s = _prefill_budget_s(state, draft)
        budget_tokens = _most_tokens(state, draft, start=0, left_s=prefill_s)
        admit(state, draft, budget_tokens=budget_tokens, now_s=now_s)
        _prefill(state, draft, budget_s=prefill_s, now_s=now_s)
    _forget_retracted(state, draft)
    return _sealed(state, draft, now_s=now_s) if state.decoding or draft.chunks else None


def _grow_decoding(state: State, draft: Draft) -> None:
    """A page for every decoding row whose next token begins one."""
    page_tokens = state.cache.page_tokens
    growing = [running for running in state.decoding.values() if not running.planned_tokens % page_tokens]
    if growing:
        extend_each(state, draft, growing)


def _prefill_budget_s(state: State, draft: Draft) -> float:
    """Time for prefill beside the decoding rows."""
    budget_ms = state.config.decode_step_ms if draft.work.decodes else state.config.prefill_step_ms
    decode_s = state.cost.predict_s(draft.work)
    return max(budget_ms / 1000 - decode_s, _LEAST_PREFILL_SHARE * decode_s)


def _most_tokens(state: State, draft: Draft, *, start: int, left_s: float) -> int:
    """The longest chunk behind `start` tokens for which the step has time and room left."""
    used_tokens = draft.work.prefill_tokens
    affordable = state.cost.affordable_tokens(start=start, budget_s=left_s)
    return min(state.config.prefill_tokens - used_tokens, max(_LEAST_PREFILL_TOKENS - used_tokens, affordable))


def _prefill(state: State, draft: Draft, *, budget_s: float, now_s: float) -> None:
    """Chunks for answers with forced tokens, as if they decoded; then for rows with prompt left.

    Of those overdue ones go by age, then by priority the one with least left first.
    """

    def rank(running: Running) -> tuple[bool, bool, int, int, int]:
        request = running.request
        if now_s - request.arrived_s >= state.config.overtake_seconds:
            return not running.is_forced, False, 0, 0, request.arrival
        return not running.is_forced, True, -request.priority, running.prefill_left_tokens, request.arrival

    left_s = budget_s
    for running in sorted(state.prefilling.values(), key=rank):
        start = running.planned_tokens
        num_tokens = min(running.prefill_left_tokens, _most_tokens(state, draft, start=start, left_s=left_s))
        if num_tokens <= 0:
            return
        stop = start + num_tokens
        pages = extend(state, draft, running, stop) if running.is_live else None
        if pages is None:
            continue
        chunk = Chunk(
            row=running.row,
            token_ids=running.request.token_ids[start:stop].astype("<i4").tobytes(),
            is_sampled=stop == running.target_tokens <= running.last_tokens,
            page_ids=ids_to_bytes(pages),
        )
        draft.chunks.append((running, chunk))
        draft.work.add_chunk(start=start, num_tokens=num_tokens)
        left_s -= state.cost.prefill_s(start=start, num_tokens=num_tokens)


def _forget_retracted(state: State, draft: Draft) -> None:
    """A row admitted in this very draft and retracted again never reaches the runner; nor does its page copy."""
    for running, _ in draft.admissions:
        if not running.is_live:
            state.released_rows.remove(running.row)
    draft.admissions = [pair for pair in draft.admissions if pair[0].is_live]
    draft.grown = [pair for pair in draft.grown if pair[0].is_live]
    draft.chunks = [pair for pair in draft.chunks if pair[0].is_live]


def _sealed(state: State, draft: Draft, *, now_s: float) -> StepPlan:
    """Turn the draft into a plan and book it as in flight."""
    copies = [running.lease.copy for running, _ in draft.admissions if running.lease.copy is not None]
    sealed = StepPlan(
        step=state.next_step,
        released=tuple(state.released_rows),
        copies=tuple(PageCopy(source=source, destination=destination) for source, destination in copies),
        admissions=tuple(admission for _, admission in draft.admissions),
        decodes=ids_to_bytes(state.decoding),
        grown_rows=ids_to_bytes(running.row for running, _ in draft.grown),
        grown_page_ids=ids_to_bytes(page for _, page in draft.grown),
        chunks=tuple(chunk for _, chunk in draft.chunks),
    )
    for running, _ in draft.admissions:
        state.cache.copied(running.lease)
    decodes = tuple(state.decoding.values())
    work = Work(decodes=len(decodes))
    _advance_decoding(state, decodes)
    for running, chunk in draft.chunks:
        num_tokens = len(chunk.token_ids) // TOKEN_BYTES
        work.add_chunk(start=running.planned_tokens, num_tokens=num_tokens)
        _advance_prefill(state, running, num_tokens)
    sent = Sent(
        step=state.next_step,
        sent_s=now_s,
        work=work,
        decodes=decodes,
        chunks=tuple(draft.chunks),
    )
    state.in_flight.append(sent)
    state.next_step += 1
    state.released_rows.clear()
    return sealed


def _advance_decoding(state: State, decodes: tuple[Running, ...]) -> None:
    for running in decodes:
        running.planned_tokens += 1
        if running.planned_tokens == running.last_tokens:
            del state.decoding[running.row]


def _advance_prefill(state: State, running: Running, num_tokens: int) -> None:
    running.planned_tokens += num_tokens
    if running.planned_tokens == running.target_tokens:
        del state.prefilling[running.row]
        if running.target_tokens < running.last_tokens:
            state.decoding[running.row] = running
