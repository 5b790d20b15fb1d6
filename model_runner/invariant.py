"""Matrix products whose rows have the same bits alone and in any batch, from libraries that do not promise that.

A library chooses its kernel, and with it the order of sums, by the shape. So here the shape is always the same: tokens
are multiplied in blocks of as many rows, the last one filled up. Knows no model.
"""

# T tokens in batch · D inputs

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from .layers import Linear

BLOCK_ROWS = 128
"""About what a GPU multiplies in the time that it takes to read a weight."""


@dataclass(frozen=True, slots=True)
class BlockedLinear:
    """A `Linear` in blocks of `BLOCK_ROWS` tokens."""

    weight: Tensor
    bias: Tensor | None

    def __call__(self, x_TD: Tensor) -> Tensor:
        """Apply to every token; a row's result does not depend on the others, nor on how many they are."""
        num_tokens = len(x_TD)
        blocks = torch.split(F.pad(x_TD, (0, 0, 0, -num_tokens % BLOCK_ROWS)), BLOCK_ROWS)
        return torch.cat([F.linear(block, self.weight, self.bias) for block in blocks])[:num_tokens]


def blocked(linear: Linear) -> BlockedLinear:
    """The same layer, invariant."""
    return BlockedLinear(linear.weight, linear.bias)
