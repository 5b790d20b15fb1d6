"""What steps have been costing, learned as they retire, and what the next one may therefore hold. Knows no requests."""

from __future__ import annotations

import math
import operator
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

_MEMORY = 0.99
"""What each observation leaves of the weight of those before it."""

_MOST_WEIGHT = 2.0**300
"""Beyond it all weights are divided by it: a power of two, so that nothing is rounded, whenever it is done."""

_AT_ONCE = 4096
"""Observations taken together, so few that their weights stay far from the largest number."""

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

    Least squares of the error relative to what was measured, over steps with decay. Measuring the error so, a step that
    was held up by something else weighs little; what the remembered steps do not tell apart stays as it was; no
    coefficient goes to zero. The coefficients follow by coordinate descent: one pass for each step with prefill; what
    steps without it tell waits until somebody asks, which nobody does while all rows decode.
    """

    base_s: float = 0.02
    decode_s: float = 0.001
    token_s: float = 0.001
    context_s: float = 0.001 / 8192
    _products: list[list[float]] = field(default_factory=lambda: [[0.0] * 4 for _ in range(4)])
    _sums: list[float] = field(default_factory=lambda: [0.0] * 4)
    _weight: float = 1.0
    _has_untaught: bool = False

    def observe(self, work: Work, *, elapsed_s: float) -> None:
        """Take one retired step into account. One without prefill tells of the first two coefficients only."""
        measured_s = max(elapsed_s, _LEAST_SHARE * self._present_s(work))
        # New observations gain weight instead of old ones losing it: what a step says nothing of is not touched.
        weight = self._weight = self._weight / _MEMORY
        one, decodes = 1 / measured_s, work.decodes / measured_s
        told: tuple[float, ...] = (one, decodes)
        if work.prefill_tokens:
            told = (one, decodes, work.prefill_tokens / measured_s, work.prefill_context / measured_s)
        for i, each in enumerate(told):
            weighted = weight * each
            self._sums[i] += weighted
            products = self._products[i]
            for k, other in enumerate(told):
                products[k] += weighted * other
        self._rescale()
        if work.prefill_tokens:
            if self._has_untaught:
                self._teach()
            self._descend()
        else:
            self._has_untaught = True

    def observe_decodes(self, decodes: int, *, elapsed_s: npt.NDArray[np.float64]) -> None:
        """Take steps of equally many decode rows into account, in order: to the last bit what one by one would give."""
        least_s = _LEAST_SHARE * self._present_s(Work(decodes=decodes))
        for start in range(0, len(elapsed_s), _AT_ONCE):
            measured_s = np.maximum(elapsed_s[start : start + _AT_ONCE], least_s)
            weights = np.full(len(measured_s) + 1, _MEMORY)
            weights[0] = self._weight
            weights = np.divide.accumulate(weights)[1:]
            self._weight = float(weights[-1])
            told = (1 / measured_s, decodes / measured_s)
            for i, each in enumerate(told):
                weighted = weights * each
                self._sums[i] = _summed(self._sums[i], weighted)
                for k, other in enumerate(told):
                    self._products[i][k] = _summed(self._products[i][k], weighted * other)
            self._has_untaught = True
            self._rescale()

    def _rescale(self) -> None:
        if self._weight > _MOST_WEIGHT:
            self._sums = [each / _MOST_WEIGHT for each in self._sums]
            self._products = [[each / _MOST_WEIGHT for each in products] for products in self._products]
            self._weight /= _MOST_WEIGHT

    def _teach(self) -> None:
        """Let the first two coefficients follow what steps without prefill have told: both at once, in closed form."""
        costs, products, sums = (self.base_s, self.decode_s), self._products, self._sums
        inertia_0, inertia_1 = (_INERTIA * self._weight / (cost * cost) for cost in costs)
        rest_0, rest_1 = (sums[i] - products[i][2] * self.token_s - products[i][3] * self.context_s for i in (0, 1))
        rest_0 += inertia_0 * costs[0]
        rest_1 += inertia_1 * costs[1]
        own_0, own_1, both = products[0][0] + inertia_0, products[1][1] + inertia_1, products[0][1]
        # Positive: the products alone give at least zero (Cauchy and Schwarz), and inertia adds to it.
        determinant = own_0 * own_1 - both * both
        self.base_s = max((own_1 * rest_0 - both * rest_1) / determinant, costs[0] / 2)
        self.decode_s = max((own_0 * rest_1 - both * rest_0) / determinant, costs[1] / 2)
        self._has_untaught = False

    def _descend(self) -> None:
        """One pass of coordinate descent."""
        costs = [self.base_s, self.decode_s, self.token_s, self.context_s]
        for i, products in enumerate(self._products):
            cost = costs[i]
            inertia = _INERTIA * self._weight / (cost * cost)
            explained = sum(map(operator.mul, products, costs)) - products[i] * cost
            least_squares = (self._sums[i] - explained + inertia * cost) / (products[i] + inertia)
            costs[i] = max(least_squares, cost / 2)
        self.base_s, self.decode_s, self.token_s, self.context_s = costs

    def predict_s(self, work: Work) -> float:
        """Seconds that a step is expected to take."""
        if self._has_untaught:
            self._teach()
        return self._present_s(work)

    def _present_s(self, work: Work) -> float:
        prefill_s = work.prefill_tokens * self.token_s + work.prefill_context * self.context_s
        return self.base_s + work.decodes * self.decode_s + prefill_s

    def prefill_s(self, *, start: int, num_tokens: int) -> float:
        """Seconds that a chunk behind `start` tokens adds to a step."""
        if self._has_untaught:
            self._teach()
        return num_tokens * (self.token_s + self.context_s * (start + num_tokens / 2))

    def affordable_tokens(self, *, start: int, budget_s: float) -> int:
        """The longest chunk behind `start` tokens that adds at most `budget_s` to a step."""
        if budget_s <= 0:
            return 0
        if self._has_untaught:
            self._teach()
        # The positive root of context_s / 2 * n**2 + first_s * n = budget_s, without a division by context_s.
        first_s = self.token_s + self.context_s * start
        return int(2 * budget_s / (first_s + math.sqrt(first_s * first_s + 2 * self.context_s * budget_s)))


def _summed(first: float, terms: npt.NDArray[np.float64]) -> float:
    """Add `terms` to `first` one after the other: numpy's own sum adds in another order, and rounds otherwise."""
    return float(np.add.accumulate(np.concatenate(([first], terms)))[-1])
