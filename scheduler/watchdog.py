"""Tells a runner that hangs from one that is busy."""

from __future__ import annotations

from dataclasses import dataclass

from .state import State

PATIENCE_S = 30.0
"""A plan may always take this long; beyond it, ten times what was predicted."""

HEARTBEAT_PATIENCE_S = 10.0
"""The runner beats every second, from a thread of its own."""


@dataclass(slots=True)
class Watchdog:
    """When the runner was last heard of."""

    heard_s: float

    def stuck(self, state: State, *, now_s: float) -> str | None:
        """The sentence that says what hangs, or None while all is well; a long prefill is not stuck."""
        silent_s = now_s - self.heard_s
        if silent_s > HEARTBEAT_PATIENCE_S:
            return f"the model runner has not been heard of for {silent_s:.0f} s"
        if not state.in_flight:
            return None
        oldest = state.in_flight[0]
        allowed_s = max(PATIENCE_S, 10 * state.cost.predict_s(oldest.work))
        age_s = now_s - oldest.sent_s
        return f"step {oldest.step} has been running for {age_s:.0f} s" if age_s > allowed_s else None
