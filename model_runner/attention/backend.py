"""The one seam between models and attention: what FlashInfer's wrappers, own kernels and plain torch all fit.

A step calls `begin_step` once and `forward` once per layer. The backend owns the KV pool's layout.
"""

# T tokens in batch · N query heads · K kv heads · H head dim

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, TypeVar, runtime_checkable

import torch
from torch import Tensor

from model_runner.batch import BatchPlan
from model_runner.kv_pool import KVPool, make_kv_pool

Handle = TypeVar("Handle")


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionSpec:
    """The shape of a model's attention."""

    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    scale: float
    dtype: torch.dtype
    page_tokens: int
    softcap: float | None = None
    """A scaled score x becomes `softcap * tanh(x / softcap)`."""
    windows: tuple[int | None, ...] = ()
    """Per layer, how many positions a query sees, its own included; None, or no entry, is all before it."""

    def window(self, layer: int) -> int | None:
        """How many positions a query of this layer sees; None is all before it."""
        return self.windows[layer] if self.windows else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """What a backend can do; None means any."""

    dtypes: tuple[torch.dtype, ...]
    page_tokens: tuple[int, ...] | None
    head_dims: tuple[int, ...] | None
    is_order_fixed: bool
    """Whether a token's sums run in an order that depends on absolute positions only."""
    head_dim_multiple: int = 1
    """To what multiple the pool pads each head."""


class AttentionBackend(Protocol[Handle]):
    """Causal attention over the paged KV pool."""

    def capabilities(self) -> Capabilities:
        """What this backend can do."""

    def make_kv_pool(self, num_pages: int) -> KVPool:
        """Allocate the pool, in this backend's layout, and keep it."""

    def begin_step(self, batch: BatchPlan) -> Handle:
        """All work of a step that its layers share."""

    def forward(
        self, layer: int, q_TNH: Tensor, k_TKH: Tensor, v_TKH: Tensor, handle: Handle, out_TNH: Tensor
    ) -> Tensor:
        """Store the new tokens' K and V, then attend; writes and returns `out_TNH`."""


@runtime_checkable
class GraphBackend(AttentionBackend[Handle], Protocol[Handle]):
    """A backend whose decode steps can be recorded as CUDA graphs: `forward` reads the handle's memory only."""

    def begin_capture(self, batch: BatchPlan, *, max_pages: int) -> Handle:
        """A handle whose memory stays where it is, planned for these decode rows.

        Handles are made for falling numbers of rows; `max_pages` is the most that the rows of one will ever have.
        """

    def begin_replay(self, handle: Handle, batch: BatchPlan) -> None:
        """Plan the handle for other decode rows, as many as it was made for."""


def make_slot_pool(spec: AttentionSpec, num_pages: int, device: torch.device) -> KVPool:
    """A pool in the layout that is addressed by slots, for a model's attention."""
    return make_kv_pool(
        num_pages=num_pages,
        page_tokens=spec.page_tokens,
        num_layers=spec.num_layers,
        num_kv_heads=spec.num_kv_heads,
        head_dim=spec.head_dim,
        dtype=spec.dtype,
        device=device,
    )
