"""Qwen3."""

from __future__ import annotations

from model_runner.model_config import ModelConfig

from .decoder import DecoderShape


def shape(config: ModelConfig) -> DecoderShape:
    """A norm over each head of q and k, before the rotary embedding."""
    return DecoderShape(
        gguf_architecture="qwen3",
        has_qkv_bias=config.has_attention_bias,
        has_output_bias=config.has_attention_bias,
        has_head_norms=True,
    )
