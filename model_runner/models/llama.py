"""Llama 2, Llama 3 and what is shaped like them (SmolLM2)."""

from __future__ import annotations

from model_runner.model_config import ModelConfig

from .decoder import DecoderShape


def shape(config: ModelConfig) -> DecoderShape:
    """Biases where the configuration has them; llama.cpp interleaves the rotary halves."""
    return DecoderShape(
        gguf_architecture="llama",
        has_qkv_bias=config.has_attention_bias,
        has_output_bias=config.has_attention_bias,
        has_mlp_bias=config.has_mlp_bias,
        is_gguf_interleaved=True,
    )
