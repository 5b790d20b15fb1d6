"""Gemma 3, text only."""

from __future__ import annotations

from model_runner.model_config import ModelConfig

from .decoder import DecoderShape


def shape(config: ModelConfig) -> DecoderShape:
    """Scaled embeddings, norms on both sides of attention and MLP and over the heads of q and k, gelu."""
    return DecoderShape(
        gguf_architecture="gemma3",
        activation="gelu_tanh",
        has_qkv_bias=config.has_attention_bias,
        has_output_bias=config.has_attention_bias,
        has_head_norms=True,
        has_output_norms=True,
        is_norm_centred=True,
        is_embedding_scaled=True,
    )
