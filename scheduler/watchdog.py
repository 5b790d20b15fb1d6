"""Tells a runner that hangs from one that is busy, and that its ranks keep step."""

from __future__ import annotations

from dataclasses import dataclass, field

from .settle import OutOfStep
from .state import State

PATIENCE_S = 30.0
"""A plan may always take this long; beyond it, ten times what was predicted."""

HEARTBEAT_PATIENCE_S = 10.0
"""Each rank beats every second, from a thread of its own."""


@dataclass(slots=True)
class Watchdog:
    """When each rank of the runner was last heard of, and the step that ranks behind the first retire next."""

    heard_s: list[float]
    next_steps: dict[int, int] = field(init=False)

    def __post_init__(self) -> None:
        self.next_steps = dict.fromkeys(range(1, len(self.heard_s)), 0)

    def heard(self, rank: int, *, now_s: float) -> None:
        """Note that a rank lives."""
        self.heard_s[rank] = now_s

    def acknowledged(self, rank: int, step: int) -> None:
        """Note that a rank has retired a step.

        Raises:
            OutOfStep: it is not the one behind its last.
        """
        if step != self.next_steps[rank]:
            raise OutOfStep(f"rank {rank} retired step {step} where step {self.next_steps[rank]} was awaited")
        self.next_steps[rank] += 1

    def stuck(self, state: State, *, now_s: float) -> str | None:
        """The sentence that says what hangs, or None while all is well; a long prefill is not stuck."""
        for rank, heard_s in enumerate(self.heard_s):
            if now_s - heard_s > HEARTBEAT_PATIENCE_S:
                return f"{self._name(rank)} has not been heard of for {now_s - heard_s:.0f} s"
        if not state.in_flight:
            return None
        oldest = state.in_flight[0]
        allowed_s = max(PATIENCE_S, 10 * state.cost.predict_s(oldest.work))
        age_s = now_s - oldest.sent_s
        return f"step {oldest.step} has been running for {age_s:.0f} s" if age_s > allowed_s else None

    def _name(self, rank: int) -> str:
        return "the model runner" if len(self.heard_s) == 1 else f"rank {rank} of the model runner"
