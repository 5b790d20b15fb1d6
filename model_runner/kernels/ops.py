"""The arithmetic between a decoder's linears in the C++ kernels: float32 activations, whatever the weights' type."""

# T tokens in batch · N query heads · K kv heads · H head dim · D model dim · V vocabulary

from __future__ import annotations

import ctypes
from typing import ClassVar

import torch
from torch import Tensor

from model_runner.layers import Angles, RMSNorm, Rotary
from model_runner.ops import Activation, Heads, TorchOps

from .library import Float, Int, Library, Pointer

_Flag = ctypes.c_int32


class KernelOps:
    """`Ops` in the kernels. All tensors are contiguous."""

    DTYPES: ClassVar = (torch.float32, torch.bfloat16)
    """Of weights."""

    def __init__(self, library: Library, *, is_whole: bool = True) -> None:
        self.library = library
        self.is_whole = is_whole
        """Whether all layers may run in one call, where attention is the kernels' too."""
        function = library.function
        self._add_norm = function("axil_add_norm", Pointer, Pointer, Pointer, _Flag, Float, Pointer, Int, Int)
        self._rotate_heads = function("axil_rotate_heads", *5 * [Pointer], _Flag, Float, *4 * [Int])
        self._angles = function("axil_angles", Pointer, Pointer, Pointer, Float, Pointer, Pointer, Int, Int)
        self._softcap = function("axil_softcap", Pointer, Float, Int, Int)

    def activations(self, weights: torch.dtype) -> torch.dtype:
        """Always float32."""
        return torch.float32

    def angles(self, rotary: Rotary, positions_T: Tensor) -> Angles:
        """Cosines and sines [T, H / 2] in float32."""
        shape = (len(positions_T), len(rotary.frequencies))
        cosines, sines = torch.empty(shape), torch.empty(shape)
        self._angles(
            positions_T.data_ptr(),
            rotary.frequencies.data_ptr(),
            rotary.divisors.data_ptr(),
            rotary.scale,
            cosines.data_ptr(),
            sines.data_ptr(),
            *shape,
        )
        return Angles(cosines, sines)

    def add_norm(self, hidden_TD: Tensor, added_TD: Tensor | None, norm: RMSNorm) -> Tensor:
        """One pass over each row."""
        out_TD = torch.empty_like(hidden_TD)
        self._add_norm(
            hidden_TD.data_ptr(),
            None if added_TD is None else added_TD.data_ptr(),
            norm.weight.data_ptr(),
            norm.weight.dtype == torch.bfloat16,
            norm.eps,
            out_TD.data_ptr(),
            *hidden_TD.shape,
        )
        return out_TD

    def rotated_heads(self, qkv_TX: Tensor, heads: Heads, angles: Angles) -> tuple[Tensor, Tensor, Tensor]:
        """In place; gives views."""
        q_norm, k_norm = heads.q_norm, heads.k_norm
        self._rotate_heads(
            qkv_TX.data_ptr(),
            angles.cos.data_ptr(),
            angles.signed_sin.data_ptr(),
            None if q_norm is None else q_norm.weight.data_ptr(),
            None if k_norm is None else k_norm.weight.data_ptr(),
            q_norm is not None and q_norm.weight.dtype == torch.bfloat16,
            0.0 if q_norm is None else q_norm.eps,
            len(qkv_TX),
            heads.num_heads,
            heads.num_kv_heads,
            heads.head_dim,
        )
        num_heads, num_qk = heads.num_heads, heads.num_heads + heads.num_kv_heads
        qkv = qkv_TX.view(len(qkv_TX), num_qk + heads.num_kv_heads, heads.head_dim)
        return qkv[:, :num_heads], qkv[:, num_heads:num_qk], qkv[:, num_qk:]

    def gated(self, gate_up_TX: Tensor, activation: Activation) -> Tensor:
        """Behind torch's linears: the kernels' own open their gates themselves."""
        return TorchOps().gated(gate_up_TX, activation)

    def softcapped(self, logits_BV: Tensor, cap: float) -> Tensor:
        """In place."""
        self._softcap(logits_BV.data_ptr(), cap, *logits_BV.shape)
        return logits_BV
