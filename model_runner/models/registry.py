"""From a configuration to its family's model."""

from __future__ import annotations

import torch

from model_runner.model_config import ModelConfig

from . import llama, qwen2, qwen3
from .decoder import Decoder, make_decoder

_SHAPES = {"llama": llama.shape, "qwen2": qwen2.shape, "qwen3": qwen3.shape}


def make_model(config: ModelConfig, dtype: torch.dtype) -> Decoder:
    """The model that `config` describes, with parameters still to be written."""
    return make_decoder(config, _SHAPES[config.family](config), dtype)
