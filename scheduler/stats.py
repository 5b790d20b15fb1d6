"""The scheduler's numbers for the outside."""

from __future__ import annotations

from dataclasses import asdict

from wire.messages.to_tokenizer import Stats

from .state import State


def make_stats(state: State, *, now_s: float, scheduler_busy_s: float, stuck: str | None) -> Stats:
    """A snapshot of the state and all counters."""
    cache, limits = state.cache, state.limits
    oldest = state.waiting.oldest()
    belt = asdict(state.belt.reading()) if state.belt is not None else {}
    return Stats(
        model_fingerprint=limits.model_fingerprint,
        device=limits.device,
        context_tokens=limits.context_tokens,
        vocabulary=limits.vocabulary,
        max_running=state.config.max_running,
        num_waiting=len(state.waiting),
        num_running=len(state.running),
        pending_tokens=state.waiting.pending_tokens,
        num_pages=cache.num_pages,
        page_tokens=cache.page_tokens,
        free_pages=cache.free_pages,
        cached_pages=cache.cached_pages,
        evictable_pages=cache.evictable_pages,
        quarantined_pages=cache.quarantined_pages,
        evicted_pages_total=cache.evicted_pages_total,
        ledger_mismatches_total=cache.mismatches_total,
        oldest_wait_s=0.0 if oldest is None else now_s - oldest.arrived_s,
        scheduler_busy_s_total=scheduler_busy_s,
        is_paused=state.is_paused,
        stuck=stuck,
        sessions=state.sessions.counts() if state.sessions is not None else None,
        lost=state.gap.lost(now_s=now_s) if state.gap is not None else None,
        **asdict(state.counters),
        **belt,
    )
