"""From a configuration to its family's model."""

from __future__ import annotations

from collections.abc import Callable

import torch

from model_runner.linears import Linears
from model_runner.model_config import Family, ModelConfig
from model_runner.ops import Ops
from model_runner.ranks import Ranks

from . import gemma3, llama, mistral, qwen2, qwen3
from .decoder import Decoder, DecoderShape, make_decoder

_SHAPES: dict[Family, Callable[[ModelConfig], DecoderShape]] = {
    "llama": llama.shape,
    "mistral": mistral.shape,
    "qwen2": qwen2.shape,
    "qwen3": qwen3.shape,
    "gemma3_text": gemma3.shape,
}


def shape_of(config: ModelConfig) -> DecoderShape:
    """What the model's family changes about the shared decoder."""
    return _SHAPES[config.family](config)


def make_model(
    config: ModelConfig,
    dtype: torch.dtype,
    ops: Ops | None = None,
    linears: Linears | None = None,
    ranks: Ranks | None = None,
) -> Decoder:
    """The model of `config`, or one rank's share of it, with parameters still to be written, as `make_decoder` does."""
    return make_decoder(config, shape_of(config), dtype, ops, linears, ranks)
