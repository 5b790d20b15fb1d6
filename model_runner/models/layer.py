"""One layer of the shared decoder: its parameters. Knows no attention."""

from __future__ import annotations

from dataclasses import dataclass

from model_runner.layers import AnyLinear, RMSNorm
from model_runner.ops import Heads


@dataclass(slots=True, kw_only=True)
class Layer:
    """One layer's parameters; q, k, v and gate, up are fused."""

    input_norm: RMSNorm
    qkv: AnyLinear
    heads: Heads
    output: AnyLinear
    attention_output_norm: RMSNorm | None
    mlp_norm: RMSNorm
    gate_up: AnyLinear
    down: AnyLinear
    mlp_output_norm: RMSNorm | None
