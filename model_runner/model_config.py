"""A model's shape, from the `config.json` that transformers writes. Knows no tensors and imports no torch."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, cast

from .config_fields import integer, number, optional_number
from .rope_config import FULL, SLIDING, RopeScaling, rope_parameters, rope_scaling

Family = Literal["llama", "mistral", "qwen2", "qwen3", "gemma3_text"]
"""A family's name is its `model_type` in transformers."""

ARCHITECTURES: dict[str, Family] = {
    "LlamaForCausalLM": "llama",
    "MistralForCausalLM": "mistral",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen3ForCausalLM": "qwen3",
    "Gemma3ForCausalLM": "gemma3_text",
}

_DEFAULTS: dict[str, dict[str, object]] = {
    "llama": {},
    "mistral": {"num_key_value_heads": 8, "sliding_window": 4096},
    "qwen2": {"num_key_value_heads": 32, "sliding_window": 4096, "max_window_layers": 28},
    "qwen3": {"num_key_value_heads": 32, "sliding_window": 4096, "max_window_layers": 28, "head_dim": 128},
    "gemma3_text": {
        "num_key_value_heads": 4,
        "sliding_window": 4096,
        "sliding_window_pattern": 6,
        "head_dim": 256,
        "query_pre_attn_scalar": 256,
        "tie_word_embeddings": True,
        "rope_theta": 1_000_000.0,
        "rope_local_base_freq": 10_000.0,
    },
}
"""What transformers takes for a key that `config.json` leaves out, where families differ."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """A decoder's shape; `has_attention_bias` and `has_mlp_bias` are what the file says, a family may say otherwise.

    `windows`: per layer, how many positions a query sees, its own included, or None for all. `local_rope_theta`: the
    base of the rotary embedding in the layers with a window, without scaling, where they have one of their own.
    """

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
    rope_scaling: RopeScaling | None
    local_rope_theta: float | None
    windows: tuple[int | None, ...]
    attention_scale: float
    final_softcap: float | None
    is_embedding_tied: bool
    has_attention_bias: bool
    has_mlp_bias: bool


def read_model_config(path: Path) -> ModelConfig:
    """Read a `config.json`.

    Raises:
        ValueError: it can't be read as one, or asks for something that is not supported; the message names it.
    """
    return parse_model_config(read_json(path))


def read_json(path: Path) -> dict[str, object]:
    """Decode a `config.json`.

    Raises:
        ValueError: it can't be read, or is none.
    """
    try:
        raw = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise ValueError(f"can't read the model's configuration {path}: {error}") from error
    if not isinstance(raw, dict):
        raise ValueError(f"{path} holds no JSON object")
    return raw


def parse_model_config(raw: Mapping[str, object]) -> ModelConfig:
    """Take a model's shape from a decoded `config.json`.

    Raises:
        ValueError: a key is missing or asks for something that is not supported; the message names it.
    """
    family = find_family(raw)
    if family is None:
        raise unknown_architecture(raw)
    raw = {**_DEFAULTS[family], **raw}
    _refuse_unsupported(raw, family)
    num_heads = integer(raw, "num_attention_heads")
    num_kv_heads = integer(raw, "num_key_value_heads", default=num_heads)
    hidden_size = integer(raw, "hidden_size")
    if num_heads % num_kv_heads:
        raise ValueError(f"num_attention_heads {num_heads} is no multiple of num_key_value_heads {num_kv_heads}")
    head_dim = integer(raw, "head_dim", default=hidden_size // num_heads)
    if head_dim % 2:
        raise ValueError(f"head_dim must be even for a rotary embedding, got {head_dim}")
    context_tokens = integer(raw, "max_position_embeddings")
    num_layers = integer(raw, "num_hidden_layers")
    rope, local_rope_theta = rope_parameters(raw, has_local=family == "gemma3_text")
    return ModelConfig(
        family=family,
        vocabulary=integer(raw, "vocab_size"),
        num_layers=num_layers,
        hidden_size=hidden_size,
        intermediate_size=integer(raw, "intermediate_size"),
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        context_tokens=context_tokens,
        norm_eps=number(raw, "rms_norm_eps", default=1e-6),
        rope_theta=number(rope, "rope_theta", default=10_000.0),
        rope_scaling=rope_scaling(rope, context_tokens),
        local_rope_theta=local_rope_theta,
        windows=_windows(raw, family, num_layers),
        attention_scale=number(raw, "query_pre_attn_scalar", default=head_dim) ** -0.5,
        final_softcap=optional_number(raw, "final_logit_softcapping"),
        is_embedding_tied=bool(raw.get("tie_word_embeddings", False)),
        has_attention_bias=bool(raw.get("attention_bias", False)),
        has_mlp_bias=bool(raw.get("mlp_bias", False)),
    )


def find_family(raw: Mapping[str, object]) -> Family | None:
    """The family that a decoded `config.json` names, if it is one of ours."""
    architectures = _architectures(raw)
    for name in architectures:
        if name in ARCHITECTURES:
            return ARCHITECTURES[name]
    if not architectures and raw.get("model_type") in ARCHITECTURES.values():
        return cast("Family", raw["model_type"])
    return None


def unknown_architecture(raw: Mapping[str, object]) -> ValueError:
    """The error for a model of a family that isn't ours."""
    asked = ", ".join(_architectures(raw)) or f"model_type {raw.get('model_type')}"
    return ValueError(f"unknown architecture {asked}; known ones are {', '.join(ARCHITECTURES)}")


def _architectures(raw: Mapping[str, object]) -> list[str]:
    names = raw.get("architectures")
    return list(map(str, names)) if isinstance(names, list) else []


def _refuse_unsupported(raw: Mapping[str, object], family: Family) -> None:
    key, known = ("hidden_activation", "gelu_pytorch_tanh") if family == "gemma3_text" else ("hidden_act", "silu")
    if raw.get(key, known) != known:
        raise ValueError(f"{key} {raw[key]} is not supported in {family}, only {known}")
    for key in ("attn_logit_softcapping", "use_bidirectional_attention"):
        if raw.get(key):
            raise ValueError(f"{key} is not supported; serve a model without it")
    if raw.get("quantization_config"):
        raise ValueError("quantization_config is not supported; serve unquantised safetensors or a .gguf file")


def _windows(raw: Mapping[str, object], family: Family, num_layers: int) -> tuple[int | None, ...]:
    """Which layers have a sliding window: as `layer_types` says, else by the family's rule."""
    has_window = [False] * num_layers
    kinds = raw.get("layer_types")
    is_off = family in ("qwen2", "qwen3") and not raw.get("use_sliding_window")
    if is_off or family == "llama" or raw.get("sliding_window") is None:
        pass
    elif family == "mistral":
        has_window = [True] * num_layers
    elif isinstance(kinds, list):
        if len(kinds) != num_layers or not {SLIDING, FULL}.issuperset(kinds):
            raise ValueError(f"layer_types must name {num_layers} times {SLIDING} or {FULL}, got {kinds}")
        has_window = [kind == SLIDING for kind in kinds]
    elif family in ("qwen2", "qwen3"):
        first = number(raw, "max_window_layers")
        has_window = [layer >= first for layer in range(num_layers)]
    elif family == "gemma3_text":
        pattern = integer(raw, "sliding_window_pattern")
        has_window = [(layer + 1) % pattern > 0 for layer in range(num_layers)]
    window = integer(raw, "sliding_window") if any(has_window) else None
    return tuple(window if has else None for has in has_window)
