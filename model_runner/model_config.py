"""A model's shape, from the `config.json` that transformers writes. Knows no tensors and imports no torch."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, cast

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

_DEFAULT_ROPE_THETA = 10_000.0
_SLIDING, _FULL = "sliding_attention", "full_attention"


@dataclass(frozen=True, slots=True, kw_only=True)
class LinearScaling:
    """Position interpolation: all wavelengths of the rotary embedding are stretched alike."""

    factor: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Llama3Scaling:
    """How Llama 3.1 stretches the wavelengths of its rotary embedding."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_context_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class YarnScaling:
    """YaRN: stretches what turns less than `beta_slow` times in the original context, keeps what turns `beta_fast`.

    `attention_factor` multiplies cosines and sines; `is_truncated`: the ramp between begins and ends at whole dimensions.
    """

    factor: float
    attention_factor: float
    beta_fast: float
    beta_slow: float
    original_context_tokens: int
    is_truncated: bool


RopeScaling = LinearScaling | Llama3Scaling | YarnScaling


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
    raw = {**_DEFAULTS[family], **raw}
    _refuse_unsupported(raw, family)
    num_heads = _integer(raw, "num_attention_heads")
    num_kv_heads = _integer(raw, "num_key_value_heads", default=num_heads)
    hidden_size = _integer(raw, "hidden_size")
    if num_heads % num_kv_heads:
        raise ValueError(f"num_attention_heads {num_heads} is no multiple of num_key_value_heads {num_kv_heads}")
    head_dim = _integer(raw, "head_dim", default=hidden_size // num_heads)
    if head_dim % 2:
        raise ValueError(f"head_dim must be even for a rotary embedding, got {head_dim}")
    context_tokens = _integer(raw, "max_position_embeddings")
    num_layers = _integer(raw, "num_hidden_layers")
    rope, local_rope_theta = _rope_parameters(raw, family)
    return ModelConfig(
        family=family,
        vocabulary=_integer(raw, "vocab_size"),
        num_layers=num_layers,
        hidden_size=hidden_size,
        intermediate_size=_integer(raw, "intermediate_size"),
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        context_tokens=context_tokens,
        norm_eps=_number(raw, "rms_norm_eps", default=1e-6),
        rope_theta=_number(rope, "rope_theta", default=_DEFAULT_ROPE_THETA),
        rope_scaling=_rope_scaling(rope, context_tokens),
        local_rope_theta=local_rope_theta,
        windows=_windows(raw, family, num_layers),
        attention_scale=_number(raw, "query_pre_attn_scalar", default=head_dim) ** -0.5,
        final_softcap=_optional(raw, "final_logit_softcapping"),
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
    if family == "llama" or raw.get("sliding_window") is None:
        pass
    elif family in ("qwen2", "qwen3") and not raw.get("use_sliding_window"):
        pass
    elif family == "mistral":
        has_window = [True] * num_layers
    elif isinstance(kinds, list):
        if len(kinds) != num_layers or not {_SLIDING, _FULL}.issuperset(kinds):
            raise ValueError(f"layer_types must name {num_layers} times {_SLIDING} or {_FULL}, got {kinds}")
        has_window = [kind == _SLIDING for kind in kinds]
    elif family in ("qwen2", "qwen3"):
        first = _number(raw, "max_window_layers")
        has_window = [layer >= first for layer in range(num_layers)]
    elif family == "gemma3_text":
        pattern = _integer(raw, "sliding_window_pattern")
        has_window = [(layer + 1) % pattern > 0 for layer in range(num_layers)]
    window = _integer(raw, "sliding_window") if any(has_window) else None
    return tuple(window if has else None for has in has_window)


def _rope_parameters(raw: Mapping[str, object], family: Family) -> tuple[dict[str, object], float | None]:
    """All spellings as one, and the base of the layers with a window where they have one of their own.

    The spellings: `rope_parameters`, also by kind of layer, or the older `rope_theta` beside `rope_scaling`.
    """
    rope: dict[str, object] = {}
    if raw.get("rope_theta") is not None:
        rope["rope_theta"] = raw["rope_theta"]
    local: dict[str, object] = {"rope_theta": raw.get("rope_local_base_freq")}
    for key in ("rope_scaling", "rope_parameters"):
        value = raw.get(key)
        if not isinstance(value, Mapping):
            continue
        if not {_SLIDING, _FULL} & value.keys():
            rope |= value
            continue
        for part, kind in ((rope, _FULL), (local, _SLIDING)):
            of_kind = value.get(kind)
            part |= of_kind if isinstance(of_kind, Mapping) else {}
    if family != "gemma3_text":
        return rope, None
    if _kind(local) != "default":
        raise ValueError(f"rope_type {_kind(local)} is not supported in layers with a sliding window, only default")
    return rope, _number(local, "rope_theta")


def _kind(rope: Mapping[str, object]) -> object:
    return rope.get("rope_type", rope.get("type", "default"))


def _rope_scaling(rope: Mapping[str, object], context_tokens: int) -> RopeScaling | None:
    kind = _kind(rope)
    if kind == "default":
        return None
    if kind == "linear":
        return LinearScaling(factor=_number(rope, "factor"))
    if kind == "yarn":
        return _yarn_scaling(rope, context_tokens)
    if kind != "llama3":
        raise ValueError(f"rope_type {kind} is not supported; known ones are default, linear, llama3, yarn")
    return Llama3Scaling(
        factor=_number(rope, "factor"),
        low_freq_factor=_number(rope, "low_freq_factor"),
        high_freq_factor=_number(rope, "high_freq_factor"),
        original_context_tokens=_integer(rope, "original_max_position_embeddings", default=context_tokens),
    )


def _yarn_scaling(rope: Mapping[str, object], context_tokens: int) -> YarnScaling:
    original = _integer(rope, "original_max_position_embeddings", default=context_tokens)
    factor = _number(rope, "factor", default=context_tokens / original)

    def growth(key: str) -> float:
        return 0.1 * _number(rope, key, default=1) * math.log(factor) + 1 if factor > 1 else 1.0

    is_relative = rope.get("mscale") and rope.get("mscale_all_dim")
    grown = growth("mscale") / growth("mscale_all_dim") if is_relative else growth("")
    return YarnScaling(
        factor=factor,
        attention_factor=_number(rope, "attention_factor", default=grown),
        beta_fast=_number(rope, "beta_fast", default=32),
        beta_slow=_number(rope, "beta_slow", default=1),
        original_context_tokens=original,
        is_truncated=bool(rope.get("truncate", True)),
    )


def _optional(raw: Mapping[str, object], key: str) -> float | None:
    return None if raw.get(key) is None else _number(raw, key)


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
