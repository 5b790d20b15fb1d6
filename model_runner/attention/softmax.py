"""Softmax in pieces: over some positions first, merged with that over others later. Knows no pages and no rows."""

# K kv heads · the rest of the shapes is the caller's

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

MASKED = -1e30
"""Added to the score of a position that isn't seen."""


@dataclass(frozen=True, slots=True)
class Scaling:
    """From products of queries and keys to the exponents of two that weights are.

    Two and not e: torch's exp is six times slower where it underflows, as at every masked position.
    """

    scale: float
    softcap: float | None

    @property
    def factor(self) -> float | None:
        """What products are multiplied with, where that is all."""
        return None if self.softcap is not None else self.scale * math.log2(math.e)

    def apply_(self, scores: Tensor) -> Tensor:
        """Turn products into exponents, in place."""
        if self.softcap is None:
            return scores.mul_(self.scale * math.log2(math.e))
        return scores.mul_(self.scale / self.softcap).tanh_().mul_(self.softcap * math.log2(math.e))


@dataclass(frozen=True, slots=True)
class Partial:
    """Softmax over some positions, not yet divided: largest score, sum of weights, weighted sum of values.

    Dimension 1 counts items, each of which is merged with others on its own.
    """

    largest: Tensor
    total: Tensor
    weighted: Tensor

    def first(self, count: int) -> Partial:
        """A view of the first items."""
        return Partial(self.largest[:, :count], self.total[:, :count], self.weighted[:, :count])

    def selected(self, index: Tensor) -> Partial:
        """A copy of some items."""
        return Partial(*(x.index_select(1, index) for x in (self.largest, self.total, self.weighted)))

    def merge_(self, later: Partial) -> None:
        """Take in the partial of later positions."""
        largest = torch.maximum(self.largest, later.largest)
        # exp, not exp2: exp2 rounds otherwise in the scalar tail of a small tensor, so by the row's place in the batch.
        own, other = ((one.largest - largest).mul_(math.log(2)).exp_() for one in (self, later))
        self.total.mul_(own).add_(later.total.mul_(other))
        self.weighted.mul_(own).add_(later.weighted.mul_(other))
        self.largest.copy_(largest)

    def result(self) -> Tensor:
        """The weighted mean of the values."""
        return self.weighted.div_(self.total)


def weigh_(scores: Tensor) -> tuple[Tensor, Tensor]:
    """Turn scores into weights relative to the largest, in place; gives the largest score and the sum of weights."""
    largest = scores.amax(dim=-1, keepdim=True)
    return largest, scores.sub_(largest).exp2_().sum(dim=-1, keepdim=True)


def concatenated(pieces: Sequence[Partial]) -> Partial:
    """The items of all pieces."""
    if len(pieces) == 1:
        return pieces[0]
    return Partial(
        torch.cat([piece.largest for piece in pieces], dim=1),
        torch.cat([piece.total for piece in pieces], dim=1),
        torch.cat([piece.weighted for piece in pieces], dim=1),
    )
