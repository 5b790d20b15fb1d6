"""What steps have been costing, learned as they retire, and what the next one may therefore hold. Knows no requests."""

from __future__ import annotations

import math
import operator
from dataclasses import dataclass, field

_MEMORY = 0.99
"""What each observation leaves of the weight of those before it."""

_MOST_WEIGHT = 1e100

_INERTIA = 0.1
"""Observations that the present estimate is worth, where what is remembered says nothing against it."""

_LEAST_SHARE = 1 / 8
"""A step counts as having taken at least this share of what was predicted: one wrong clock must not decide."""


@dataclass(slots=True)
class Work:
    """What a step computes; `prefill_context` sums, over prefill tokens, how many tokens each of them looks back at."""

    decodes: int = 0
    prefill_tokens: int = 0
    prefill_context: float = 0.0

    def add_chunk(self, *, start: int, num_tokens: int) -> None:
        """Count a chunk of a prompt that begins behind `start` tokens."""
        self.prefill_tokens += num_tokens
        self.prefill_context += num_tokens * (start + num_tokens / 2)


@dataclass(slots=True)
class StepCost:
    """Seconds of a step: a constant, each decode row, each prefill token, and each token that one looks back at.

    Least squares of the error relative to what was measured, over steps with decay, by one pass of coordinate descent
    for each observation. Measuring the error so, a step that was held up by something else weighs little; what the
    remembered steps do not tell apart stays as it was; no coefficient goes to zero.
    """

    base_s: float = 0.02
    decode_s: float = 0.001
    token_s: float = 0.001
    context_s: float = 0.001 / 8192
    _products: list[list[float]] = field(default_factory=lambda: [[0.0] * 4 for _ in range(4)])
    _sums: list[float] = field(default_factory=lambda: [0.0] * 4)
    _weight: float = 1.0

    def observe(self, work: Work, *, elapsed_s: float) -> None:
        """Learn from one retired step. One without prefill tells of the first two coefficients only."""
        measured_s = max(elapsed_s, _LEAST_SHARE * self.predict_s(work))
        # New observations gain weight instead of old ones losing it: what a step says nothing of is not touched.
        self._weight /= _MEMORY
        if self._weight > _MOST_WEIGHT:
            self._rescale()
        held = (
            1 / measured_s,
            work.decodes / measured_s,
            work.prefill_tokens / measured_s,
            work.prefill_context / measured_s,
        )
        told = held if work.prefill_tokens else held[:2]
        weight, sums, all_products = self._weight, self._sums, self._products
        costs = [self.base_s, self.decode_s, self.token_s, self.context_s]
        for i, one in enumerate(told):
            weighted = weight * one
            sums[i] += weighted
            products = all_products[i]
            for k, other in enumerate(told):
                products[k] += weighted * other
        for i in range(len(told)):
            products, cost = all_products[i], costs[i]
            inertia = _INERTIA * weight / (cost * cost)
            explained = sum(map(operator.mul, products, costs)) - products[i] * cost
            least_squares = (sums[i] - explained + inertia * cost) / (products[i] + inertia)
            costs[i] = max(least_squares, cost / 2)
        self.base_s, self.decode_s, self.token_s, self.context_s = costs

    def _rescale(self) -> None:
        self._sums = [each / self._weight for each in self._sums]
        self._products = [[each / self._weight for each in products] for products in self._products]
        self._weight = 1.0

    def predict_s(self, work: Work) -> float:
        """Seconds that a step is expected to take."""
        prefill_s = work.prefill_tokens * self.token_s + work.prefill_context * self.context_s
        return self.base_s + work.decodes * self.decode_s + prefill_s

    def prefill_s(self, *, start: int, num_tokens: int) -> float:
        """Seconds that a chunk behind `start` tokens adds to a step."""
        return num_tokens * (self.token_s + self.context_s * (start + num_tokens / 2))

    def affordable_tokens(self, *, start: int, budget_s: float) -> int:
        """The longest chunk behind `start` tokens that adds at most `budget_s` to a step."""
        if budget_s <= 0:
            return 0
        # The positive root of context_s / 2 * n**2 + first_s * n = budget_s, without a division by context_s.
        first_s = self.token_s + self.context_s * start
        return int(2 * budget_s / (first_s + math.sqrt(first_s * first_s + 2 * self.context_s * budget_s)))
