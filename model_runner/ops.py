"""The arithmetic between the linears of a decoder, behind one seam: plain torch here, C++ in `kernels/ops.py`.

Knows no weights but norms', and no attention.
"""

# T tokens in batch · N query heads · K kv heads · H head dim · D model dim · I inner dim of the MLP · V vocabulary

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from .layers import Angles, RMSNorm, Rotary, rotate

Activation = Literal["silu", "gelu_tanh"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Heads:
    """How a fused row of q, k and v is cut, and the norms over each head of q and k, if there are any."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    q_norm: RMSNorm | None = None
    k_norm: RMSNorm | None = None


class Ops(Protocol):
    """What every family's layers are made of besides attention. Activations have the type that `activations` gives."""

    def activations(self, weights: torch.dtype) -> torch.dtype:
        """The type of activations beside weights of a type."""

    def angles(self, rotary: Rotary, positions_T: Tensor) -> Angles:
        """The angles of a step's positions, for `rotated_heads`."""

    def add_norm(self, hidden_TD: Tensor, added_TD: Tensor | None, norm: RMSNorm) -> Tensor:
        """Add to the hidden states in place, if anything, and give their norm."""

    def rotated_heads(self, qkv_TX: Tensor, heads: Heads, angles: Angles) -> tuple[Tensor, Tensor, Tensor]:
        """q [T, N, H], k and v [T, K, H] of fused rows, q and k normalised where norms are given, and turned."""

    def gated(self, gate_up_TX: Tensor, activation: Activation) -> Tensor:
        """The activated first half of each row times its second."""

    def softcapped(self, logits_BV: Tensor, cap: float) -> Tensor:
        """`cap * tanh(logits / cap)`; may change its argument."""


class TorchOps:
    """Plain torch: for every machine, and what the kernels are compared with."""

    def activations(self, weights: torch.dtype) -> torch.dtype:
        """That of the weights."""
        return weights

    def angles(self, rotary: Rotary, positions_T: Tensor) -> Angles:
        """Rounded to the serving type."""
        return rotary.angles(positions_T)

    def add_norm(self, hidden_TD: Tensor, added_TD: Tensor | None, norm: RMSNorm) -> Tensor:
        """Two ops."""
        return norm(hidden_TD if added_TD is None else hidden_TD.add_(added_TD))

    def rotated_heads(self, qkv_TX: Tensor, heads: Heads, angles: Angles) -> tuple[Tensor, Tensor, Tensor]:
        """Views and copies."""
        num_heads, num_qk = heads.num_heads, heads.num_heads + heads.num_kv_heads
        qkv = qkv_TX.view(len(qkv_TX), num_qk + heads.num_kv_heads, heads.head_dim)
        qk, v_TKH = qkv[:, :num_qk], qkv[:, num_qk:]
        if heads.q_norm is not None and heads.k_norm is not None:
            qk = torch.cat((heads.q_norm(qk[:, :num_heads]), heads.k_norm(qk[:, num_heads:])), dim=1)
        qk = rotate(qk, angles)
        return qk[:, :num_heads], qk[:, num_heads:], v_TKH

    def gated(self, gate_up_TX: Tensor, activation: Activation) -> Tensor:
        """Two ops."""
        gate, up = gate_up_TX.chunk(2, dim=-1)
        activated = F.silu(gate) if activation == "silu" else F.gelu(gate, approximate="tanh")
        return activated.mul_(up)

    def softcapped(self, logits_BV: Tensor, cap: float) -> Tensor:
        """Three ops."""
        return torch.tanh(logits_BV / cap) * cap
