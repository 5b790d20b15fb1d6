"""The arithmetic between linears in FlashInfer's fused kernels; what they don't take goes to plain torch."""

# T tokens in batch · N query heads · K kv heads · H head dim · D model dim · V vocabulary

from __future__ import annotations

from dataclasses import dataclass

import torch
from flashinfer import fused_add_rmsnorm, gelu_tanh_and_mul, rmsnorm, silu_and_mul
from flashinfer.rope import apply_rope_with_cos_sin_cache_inplace
from torch import Tensor

from .layers import Angles, RMSNorm, Rotary
from .ops import Activation, Heads, TorchOps

_ROW_BYTES = 16
"""Rows must be a multiple of it."""


@dataclass(frozen=True, slots=True)
class StepAngles(Angles):
    """Those of a step as FlashInfer looks them up: the cosines, then the sines of each token, under its number."""

    cos_sin_TH: Tensor
    tokens_T: Tensor


class FlashInferOps:
    """One kernel each for what takes torch several; PDL is off, as in attention."""

    def __init__(self) -> None:
        self._torch = TorchOps()

    def activations(self, weights: torch.dtype) -> torch.dtype:
        """That of the weights."""
        return weights

    def angles(self, rotary: Rotary, positions_T: Tensor) -> Angles:
        """In float32, for this step's positions only."""
        phases = positions_T[:, None].float() * (rotary.frequencies / rotary.divisors)
        cos, sin = phases.cos().mul_(rotary.scale), phases.sin().mul_(rotary.scale)
        tokens_T = torch.arange(len(positions_T), device=positions_T.device)
        return StepAngles(cos, sin, torch.cat((cos, sin), dim=-1), tokens_T)

    def add_norm(self, hidden_TD: Tensor, added_TD: Tensor | None, norm: RMSNorm) -> Tensor:
        """One kernel; overwrites what is added with the norm."""
        if norm.weight.dtype != hidden_TD.dtype or not _is_whole(hidden_TD):
            return self._torch.add_norm(hidden_TD, added_TD, norm)
        if added_TD is None:
            return _normed(hidden_TD, norm)
        fused_add_rmsnorm(added_TD, hidden_TD, norm.weight, norm.eps, enable_pdl=False)
        return added_TD

    def rotated_heads(self, qkv_TX: Tensor, heads: Heads, angles: Angles) -> tuple[Tensor, Tensor, Tensor]:
        """Turned in place; normalised heads are copies."""
        assert isinstance(angles, StepAngles), "angles come from the same ops"
        num_tokens, dim = len(qkv_TX), heads.head_dim
        sizes = [heads.num_heads * dim, *2 * [heads.num_kv_heads * dim]]
        q_TX, k_TX, v_TX = torch.split(qkv_TX, sizes, dim=-1)
        if heads.q_norm is not None and heads.k_norm is not None:
            q_TX, k_TX = self._normed_heads(q_TX, heads.q_norm, dim), self._normed_heads(k_TX, heads.k_norm, dim)
        apply_rope_with_cos_sin_cache_inplace(angles.tokens_T, q_TX, k_TX, dim, angles.cos_sin_TH)
        return q_TX.view(num_tokens, -1, dim), k_TX.view(num_tokens, -1, dim), v_TX.view(num_tokens, -1, dim)

    def gated(self, gate_up_TX: Tensor, activation: Activation) -> Tensor:
        """One kernel."""
        if not _is_whole(gate_up_TX[:, : gate_up_TX.shape[-1] // 2]):
            return self._torch.gated(gate_up_TX, activation)
        out_TI = gate_up_TX.new_empty(len(gate_up_TX), gate_up_TX.shape[-1] // 2)
        fused = silu_and_mul if activation == "silu" else gelu_tanh_and_mul
        fused(gate_up_TX, out=out_TI, enable_pdl=False)
        return out_TI

    def softcapped(self, logits_BV: Tensor, cap: float) -> Tensor:
        """Torch's."""
        return self._torch.softcapped(logits_BV, cap)

    def _normed_heads(self, x_TX: Tensor, norm: RMSNorm, head_dim: int) -> Tensor:
        x_TNH = x_TX.view(len(x_TX), -1, head_dim)
        if norm.weight.dtype != x_TX.dtype or not _is_whole(x_TNH):
            return norm(x_TNH).flatten(1)
        return _normed(x_TNH, norm).flatten(1)


def _normed(x: Tensor, norm: RMSNorm) -> Tensor:
    out = x.new_empty(x.shape)
    rmsnorm(x, norm.weight, norm.eps, out=out, enable_pdl=False)
    return out


def _is_whole(x: Tensor) -> bool:
    """Whether rows are as the kernels read them."""
    return x.shape[-1] * x.dtype.itemsize % _ROW_BYTES == 0
