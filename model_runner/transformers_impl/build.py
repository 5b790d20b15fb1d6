"""From a directory of safetensors to a verified model in transformers' code. Knows no flags and no memory limits."""

from __future__ import annotations

from pathlib import Path

import torch

from model_runner.attention.backend import AttentionSpec
from model_runner.attention.torch_backend import TorchAttention

from .model import TransformersModel
from .probe import probe, spec_of
from .source import Source, load_causal, refusal
from .verification import reference_logits, verify


def build_model(
    source: Source, directory: Path, dtype: torch.dtype, *, page_tokens: int
) -> tuple[TransformersModel, AttentionSpec]:
    """The model with its weights, and the shape of its attention.

    Raises:
        ValueError: the weights don't fit the configuration, or its attention is none that ours can compute.
    """
    causal = load_causal(source, directory, dtype)
    try:
        attentions = probe(causal, context_tokens=source.context_tokens)
        spec = spec_of(attentions, dtype, page_tokens=page_tokens)
        expected_TV = reference_logits(causal)
        model = TransformersModel(causal, tuple(one.module for one in attentions))
        verify(model, TorchAttention(spec), expected_TV, dtype)
    except ValueError as error:
        raise refusal(source.name, error) from error
    return model, spec
