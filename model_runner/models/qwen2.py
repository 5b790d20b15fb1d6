"""Qwen2 and Qwen2.5."""

from __future__ import annotations

from model_runner.model_config import ModelConfig

from .decoder import DecoderShape


def shape(config: ModelConfig) -> DecoderShape:
    """Always a bias on q, k and v, never on the other projections."""
    return DecoderShape(gguf_architecture="qwen2", has_qkv_bias=True)
