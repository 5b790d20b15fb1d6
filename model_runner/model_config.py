"""A model's shape, from the `config.json` that transformers writes. Knows no tensors and imports no torch."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, cast

Family = Literal["llama", "qwen2", "qwen3"]

ARCHITECTURES: dict[str, Family] = {
    "LlamaForCausalLM": "llama",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen3ForCausalLM": "qwen3",
}

_DEFAULT_ROPE_THETA = 10_000.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Llama3Scaling:
    """How Llama 3.1 stretches the wavelengths of its rotary embedding."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_context_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """A decoder's shape; `has_attention_bias` and `has_mlp_bias` are what the file says, a family may say otherwise."""

    family: Family
    vocabulary: int
    num_layers: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    context_tokens: int
    norm_eps: float
    rope_theta: float
    rope_scaling: Llama3Scaling | None
    is_embedding_tied: bool
    has_attention_bias: bool
    has_mlp_bias: bool


def read_model_config(path: Path) -> ModelConfig:
    """Read a `config.json`.

    Raises:
        ValueError: it can't be read as one, or asks for something that is not supported; the message names it.
    """
    try:
        raw = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise ValueError(f"can't read the model's configuration {path}: {error}") from error
    if not isinstance(raw, dict):
        raise ValueError(f"{path} holds no JSON object")
    return parse_model_config(raw)


def parse_model_config(raw: Mapping[str, object]) -> ModelConfig:
    """Take a model's shape from a decoded `config.json`.

    Raises:
        ValueError: a key is missing or asks for something that is not supported; the message names it.
    """
    family = _family(raw)
    _refuse_unsupported(raw)
    num_heads = _integer(raw, "num_attention_heads")
    num_kv_heads = _integer(raw, "num_key_value_heads", default=num_heads)
    hidden_size = _integer(raw, "hidden_size")
    if num_heads % num_kv_heads:
        raise ValueError(f"num_attention_heads {num_heads} is no multiple of num_key_value_heads {num_kv_heads}")
    head_dim = _integer(raw, "head_dim", default=128 if family == "qwen3" else hidden_size // num_heads)
    if head_dim % 2:
        raise ValueError(f"head_dim must be even for a rotary embedding, got {head_dim}")
    context_tokens = _integer(raw, "max_position_embeddings")
    rope = _rope_parameters(raw)
    return ModelConfig(
        family=family,
        vocabulary=_integer(raw, "vocab_size"),
        num_layers=_integer(raw, "num_hidden_layers"),
        hidden_size=hidden_size,
        intermediate_size=_integer(raw, "intermediate_size"),
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        context_tokens=context_tokens,
        norm_eps=_number(raw, "rms_norm_eps", default=1e-6),
        rope_theta=_number(rope, "rope_theta", default=_DEFAULT_ROPE_THETA),
        rope_scaling=_rope_scaling(rope, context_tokens),
        is_embedding_tied=bool(raw.get("tie_word_embeddings", False)),
        has_attention_bias=bool(raw.get("attention_bias", False)),
        has_mlp_bias=bool(raw.get("mlp_bias", False)),
    )


def _family(raw: Mapping[str, object]) -> Family:
    names = raw.get("architectures")
    architectures = names if isinstance(names, list) else []
    for name in architectures:
        if name in ARCHITECTURES:
            return ARCHITECTURES[name]
    if not architectures and raw.get("model_type") in ARCHITECTURES.values():
        return cast("Family", raw["model_type"])
    asked = ", ".join(map(str, architectures)) or f"model_type {raw.get('model_type')}"
    raise ValueError(f"unknown architecture {asked}; known ones are {', '.join(ARCHITECTURES)}")


def _refuse_unsupported(raw: Mapping[str, object]) -> None:
    if raw.get("hidden_act", "silu") != "silu":
        raise ValueError(f"hidden_act {raw['hidden_act']} is not supported, only silu")
    if raw.get("use_sliding_window"):
        raise ValueError("use_sliding_window is not supported; serve a model with full attention")
    if raw.get("quantization_config"):
        raise ValueError("quantization_config is not supported; serve unquantised safetensors or a .gguf file")


def _rope_parameters(raw: Mapping[str, object]) -> dict[str, object]:
    """Both spellings as one: `rope_parameters`, or the older `rope_theta` beside `rope_scaling`."""
    rope: dict[str, object] = {}
    if raw.get("rope_theta") is not None:
        rope["rope_theta"] = raw["rope_theta"]
    for key in ("rope_scaling", "rope_parameters"):
        value = raw.get(key)
        if isinstance(value, Mapping):
            rope |= value
    return rope


def _rope_scaling(rope: Mapping[str, object], context_tokens: int) -> Llama3Scaling | None:
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind == "default":
        return None
    if kind != "llama3":
        raise ValueError(f"rope_type {kind} is not supported; known ones are default, llama3")
    return Llama3Scaling(
        factor=_number(rope, "factor"),
        low_freq_factor=_number(rope, "low_freq_factor"),
        high_freq_factor=_number(rope, "high_freq_factor"),
        original_context_tokens=_integer(rope, "original_max_position_embeddings", default=context_tokens),
    )


def _integer(raw: Mapping[str, object], key: str, *, default: int | None = None) -> int:
    value = _number(raw, key, default=default)
    if value != int(value) or value < 1:
        raise ValueError(f"{key} must be a positive whole number, got {value}")
    return int(value)


def _number(raw: Mapping[str, object], key: str, *, default: float | None = None) -> float:
    value = raw.get(key)
    if value is None:
        value = default
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"the model's configuration needs a number for {key}, got {value}")
    return value
