"""Attention in plain torch: the fallback for every CPU and the oracle for faster backends.

The KV range of a row is cut into blocks at fixed absolute positions. A query's softmax over one block gives a partial
(largest score, sum, weighted values); partials are merged in block order. So the order of a token's sums depends on its
position alone: not on where a chunk began, on which pages lie where, or on who shares the batch. What can still differ
in the last bits is the inside of one block, because another kernel takes the sum for another number of

- rows of a matrix product: a decode token has one query per head, a prefill tile up to 256;
- positions: a row's last block is read only as far as the row fills it, rounded up a little, so a token sees its own
  block in another width when it ends a chunk than when more of the block was computed with it;
- columns that are no multiple of 8, for exp2, whose vectorised body and scalar tail differ.

All of it is computed in float32, whatever the dtype of the pool. Pages are gathered once, K and V together, and the
matrix products read the heads in place, a token's whole row apart.
"""

# T tokens in batch · N query heads · K kv heads · H head dim

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from model_runner.batch import BatchPlan
from model_runner.kv_pool import KVPool

from .backend import AttentionSpec, Capabilities
from .blocks import Blocks
from .softmax import Scaling
from .torch_decode import Decodes, attend_decodes, plan_decodes
from .torch_extend import Extend, attend_extend, plan_extends


@dataclass(frozen=True, slots=True, kw_only=True)
class _Work:
    """What the layers of one window share."""

    decodes: Decodes | None
    extends: tuple[Extend, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchStep:
    """What all layers of a step share; the work is by window, None being none."""

    out_loc_T: Tensor
    work: dict[int | None, _Work]


class TorchAttention:
    """Grouped matrix products over gathered blocks."""

    def __init__(self, spec: AttentionSpec) -> None:
        self._spec = spec
        self._blocks = Blocks(spec)
        self._scaling = Scaling(spec.scale, spec.softcap)
        self._windows = dict.fromkeys(spec.window(layer) for layer in range(spec.num_layers))

    def capabilities(self) -> Capabilities:
        """Any shape, float32 and bfloat16."""
        return Capabilities(
            dtypes=(torch.float32, torch.bfloat16), page_tokens=None, head_dims=None, is_order_fixed=True
        )

    def make_kv_pool(self, num_pages: int) -> KVPool:
        """Allocate the pool."""
        return self._blocks.make_pool(num_pages)

    def begin_step(self, batch: BatchPlan) -> TorchStep:
        """Which pages each piece of work reads, and its masks."""
        return TorchStep(
            out_loc_T=batch.out_loc_T,
            work={
                window: _Work(
                    decodes=plan_decodes(batch, self._blocks, window),
                    extends=plan_extends(batch, self._blocks, window),
                )
                for window in self._windows
            },
        )

    def forward(
        self, layer: int, q_TNH: Tensor, k_TKH: Tensor, v_TKH: Tensor, handle: TorchStep, out_TNH: Tensor
    ) -> Tensor:
        """Store, then attend."""
        self._blocks.pool.store(layer, handle.out_loc_T, k_TKH, v_TKH)
        work = handle.work[self._spec.window(layer)]
        if work.decodes is not None:
            attend_decodes(layer, q_TNH, work.decodes, self._blocks, self._scaling, out_TNH)
        for extend in work.extends:
            attend_extend(layer, q_TNH, extend, self._blocks, self._scaling, out_TNH)
        return out_TNH
