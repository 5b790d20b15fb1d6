"""A model's rotary embedding, from the `config.json` that transformers writes. Imports no torch."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from .config_fields import integer, number

SLIDING, FULL = "sliding_attention", "full_attention"
"""The kinds of layers in transformers' words."""


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

    `attention_factor` multiplies cosines and sines. `is_truncated`: the ramp between begins and ends at whole numbers.
    """

    factor: float
    attention_factor: float
    beta_fast: float
    beta_slow: float
    original_context_tokens: int
    is_truncated: bool


RopeScaling = LinearScaling | Llama3Scaling | YarnScaling


def rope_parameters(raw: Mapping[str, object], *, has_local: bool) -> tuple[dict[str, object], float | None]:
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
        if not {SLIDING, FULL} & value.keys():
            rope |= value
            continue
        for part, kind in ((rope, FULL), (local, SLIDING)):
            of_kind = value.get(kind)
            part |= of_kind if isinstance(of_kind, Mapping) else {}
    if not has_local:
        return rope, None
    if _kind(local) != "default":
        raise ValueError(f"rope_type {_kind(local)} is not supported in layers with a sliding window, only default")
    return rope, number(local, "rope_theta")


def _kind(rope: Mapping[str, object]) -> object:
    return rope.get("rope_type", rope.get("type", "default"))


def rope_scaling(rope: Mapping[str, object], context_tokens: int) -> RopeScaling | None:
    """The scaling that `rope_parameters` names, in a model of `context_tokens`.

    Raises:
        ValueError: it is unknown, or lacks a number; the message names it.
    """
    kind = _kind(rope)
    if kind == "default":
        return None
    if kind == "linear":
        return LinearScaling(factor=number(rope, "factor"))
    if kind == "yarn":
        return _yarn_scaling(rope, context_tokens)
    if kind != "llama3":
        raise ValueError(f"rope_type {kind} is not supported; known ones are default, linear, llama3, yarn")
    return Llama3Scaling(
        factor=number(rope, "factor"),
        low_freq_factor=number(rope, "low_freq_factor"),
        high_freq_factor=number(rope, "high_freq_factor"),
        original_context_tokens=integer(rope, "original_max_position_embeddings", default=context_tokens),
    )


def _yarn_scaling(rope: Mapping[str, object], context_tokens: int) -> YarnScaling:
    original = integer(rope, "original_max_position_embeddings", default=context_tokens)
    factor = number(rope, "factor", default=context_tokens / original)

    def growth(key: str) -> float:
        return 0.1 * number(rope, key, default=1) * math.log(factor) + 1 if factor > 1 else 1.0

    is_relative = rope.get("mscale") and rope.get("mscale_all_dim")
    grown = growth("mscale") / growth("mscale_all_dim") if is_relative else growth("")
    return YarnScaling(
        factor=factor,
        attention_factor=number(rope, "attention_factor", default=grown),
        beta_fast=number(rope, "beta_fast", default=32),
        beta_slow=number(rope, "beta_slow", default=1),
        original_context_tokens=original,
        is_truncated=bool(rope.get("truncate", True)),
    )
