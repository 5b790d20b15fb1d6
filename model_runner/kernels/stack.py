"""All layers of a decoder in one call of the kernels: what `Decoder.forward` does op by op, bit for bit.

Knows layers and their weights; of attention it is given the pool and a step's work.
"""

# T tokens in batch · D model dim

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from model_runner.layers import Angles, AnyLinear, RMSNorm
from model_runner.ops import Heads

from .library import Int, Library, Pointer
from .linear import PackedWeight


class _Norm(ctypes.Structure):
    _fields_ = (("weight", Pointer), ("is_bf16", ctypes.c_int32), ("eps", ctypes.c_float))


class _Layer(ctypes.Structure):
    _fields_ = (
        *((name, _Norm) for name in ("input", "query", "key", "attention_output", "mlp", "mlp_output")),
        *((name, Pointer) for name in ("qkv", "output", "gate_up", "down", "pool")),
        ("window", Int),
        ("work", ctypes.c_int32),
        ("is_local", ctypes.c_int32),
    )


class Work(ctypes.Structure):
    """What the layers of one window do in a step, as the attention backend has cut it."""

    _fields_ = (
        ("items", Pointer),
        ("num_items", Int),
        ("tiles", Pointer),
        ("num_tiles", Int),
        ("partials", Pointer),
    )


class _Shape(ctypes.Structure):
    _fields_ = (
        *((name, Int) for name in ("num_layers", "hidden", "inner", "num_heads", "num_kv_heads", "head_dim")),
        ("is_kv_bf16", ctypes.c_int32),
    )


class _Angles(ctypes.Structure):
    _fields_ = (("cosines", Pointer), ("sines", Pointer))


@dataclass(frozen=True, slots=True, kw_only=True)
class StackLayer:
    """One layer; of the linears those of the kernels."""

    input_norm: RMSNorm
    heads: Heads
    attention_output_norm: RMSNorm | None
    mlp_norm: RMSNorm
    mlp_output_norm: RMSNorm | None
    linears: Sequence[PackedWeight]
    """Of q, k, v; the output; gate and up; down."""
    window: int | None


def kernel_linears(linears: Sequence[AnyLinear]) -> Sequence[PackedWeight] | None:
    """The same linears, if all are the kernels'."""
    own = [linear for linear in linears if isinstance(linear, PackedWeight)]
    return own if len(own) == len(linears) else None


class Stack:
    """The layers of one model over one pool. `windows` are the distinct ones, in the order of a step's work."""

    def __init__(
        self,
        library: Library,
        layers: Sequence[StackLayer],
        pools: Sequence[Tensor],
        windows: Sequence[int | None],
    ) -> None:
        first = layers[0]
        down = first.linears[3]
        self._shape = _Shape(
            len(layers),
            down.num_outputs,
            down.num_columns,
            first.heads.num_heads,
            first.heads.num_kv_heads,
            first.heads.head_dim,
            _is_bfloat16(pools[0]),
        )
        self._layers = (_Layer * len(layers))(
            *(_layer(layer, pool, windows.index(layer.window)) for layer, pool in zip(layers, pools, strict=True))
        )
        self._run = library.function("axil_run_layers", *6 * [Pointer], Int)
        self._keeps_alive = (tuple(layers), tuple(pools))

    def run(
        self,
        hidden_TD: Tensor,
        angles: tuple[Angles, Angles],
        step: ctypes.Structure,
        work: Sequence[Work],
    ) -> Tensor:
        """Run all layers over float32 hidden states, in place; `angles` of layers without and with a window."""
        addresses = (_Angles * 2)(*(_Angles(one.cos.data_ptr(), one.signed_sin.data_ptr()) for one in angles))
        pieces = (Work * len(work))(*work)
        self._run(
            ctypes.addressof(self._shape),
            ctypes.addressof(self._layers),
            ctypes.addressof(step),
            ctypes.addressof(pieces),
            ctypes.addressof(addresses),
            hidden_TD.data_ptr(),
            len(hidden_TD),
        )
        return hidden_TD


def _layer(layer: StackLayer, pool: Tensor, work: int) -> _Layer:
    norms = (
        layer.input_norm,
        layer.heads.q_norm,
        layer.heads.k_norm,
        layer.attention_output_norm,
        layer.mlp_norm,
        layer.mlp_output_norm,
    )
    return _Layer(
        *map(_norm, norms),
        *(ctypes.addressof(linear.layout) for linear in layer.linears),
        pool.data_ptr(),
        layer.window or 0,
        work,
        layer.window is not None,
    )


def _is_bfloat16(tensor: Tensor) -> bool:
    return tensor.dtype == torch.bfloat16


def _norm(norm: RMSNorm | None) -> _Norm:
    return _Norm() if norm is None else _Norm(norm.weight.data_ptr(), _is_bfloat16(norm.weight), norm.eps)
