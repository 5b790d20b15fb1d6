"""Whether all layers of a decoder can run in one call of the kernels, and that call. The same bits as op by op."""

# T tokens in batch · D model dim

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from torch import Tensor

from model_runner.attention.backend import AttentionBackend
from model_runner.attention.cpu_backend import CpuAttention, CpuStep
from model_runner.kernels.ops import KernelOps
from model_runner.kernels.stack import Stack, StackLayer, kernel_linears
from model_runner.layers import Angles
from model_runner.model_config import ModelConfig
from model_runner.ops import Ops

from .layer import Layer

WholeLayers: TypeAlias = Callable[[Tensor, tuple[Angles, Angles], Any], Tensor]
"""(hidden states [T, D] before the first layer, angles of layers without and with a window, the attention's handle)."""


def whole_layers(
    layers: Sequence[Layer],
    config: ModelConfig,
    ops: Ops,
    backend: AttentionBackend[Any],
) -> WholeLayers | None:
    """All layers in one call, if their ops, linears and attention are the kernels'."""
    if not isinstance(ops, KernelOps) or not ops.is_whole or not isinstance(backend, CpuAttention):
        return None
    own = []
    for layer, window in zip(layers, config.windows, strict=True):
        linears = kernel_linears((layer.qkv, layer.output, layer.gate_up, layer.down))
        if linears is None:
            return None
        own.append(
            StackLayer(
                input_norm=layer.input_norm,
                heads=layer.heads,
                attention_output_norm=layer.attention_output_norm,
                mlp_norm=layer.mlp_norm,
                mlp_output_norm=layer.mlp_output_norm,
                linears=linears,
                window=window,
            )
        )
    stack = Stack(ops.library, own, backend.layers, backend.windows)

    def run(hidden_TD: Tensor, angles: tuple[Angles, Angles], handle: CpuStep) -> Tensor:
        return stack.run(hidden_TD, angles, handle.step, handle.whole_work())

    return run
