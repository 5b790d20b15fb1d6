"""What steps and outputs have been costing, learned as they retire. Knows no requests."""

from __future__ import annotations

from dataclasses import dataclass

_MEMORY = 0.2
"""Weight of the newest observation in the running means."""

_MEASURED_FROM_TOKENS = 32
"""Steps with less prefill than this say little about the price of a prefill token."""


@dataclass(slots=True)
class StepCost:
    """Running means of a step's seconds: `base_s` without prefill, `token_s` for each prefill token on top."""

    base_s: float = 0.02
    token_s: float = 0.001

    def observe(self, *, prefill_tokens: int, elapsed_s: float) -> None:
        """Learn from one retired step."""
        if prefill_tokens == 0:
            self.base_s += _MEMORY * (elapsed_s - self.base_s)
        elif prefill_tokens >= _MEASURED_FROM_TOKENS:
            token_s = max(1e-7, elapsed_s - self.base_s) / prefill_tokens
            self.token_s += _MEMORY * (token_s - self.token_s)

    def predict_s(self, *, prefill_tokens: int) -> float:
        """Seconds that a step is expected to take."""
        return self.base_s + prefill_tokens * self.token_s

    def affordable_tokens(self, *, budget_s: float) -> int:
        """Prefill tokens that fit into a step of `budget_s` seconds."""
        return max(0, int((budget_s - self.base_s) / self.token_s))


@dataclass(slots=True)
class OutputLength:
    """Running mean of output lengths, for admission."""

    mean_tokens: float = 128.0

    def observe(self, output_tokens: int) -> None:
        """Learn from one finished request."""
        self.mean_tokens += _MEMORY * (output_tokens - self.mean_tokens)

    def expected_tokens(self, *, max_new_tokens: int, num_retractions: int) -> int:
        """Output tokens to reserve pages for; doubled with every retraction, so that none is readmitted in vain."""
        return min(max_new_tokens, int(self.mean_tokens * 2.0**num_retractions) + 1)
