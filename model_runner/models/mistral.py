"""Mistral."""

from __future__ import annotations

from model_runner.model_config import ModelConfig

from .decoder import DecoderShape


def shape(config: ModelConfig) -> DecoderShape:
    """No bias anywhere; llama.cpp writes it as a Llama, rotary halves included."""
    del config
    return DecoderShape(gguf_architecture="llama", is_gguf_interleaved=True)
