"""Layers that the model families share: linear, norm, rotary embedding. Know no pages, rows or plans.

Parameters are allocated empty in the serving dtype; the weight loaders write into them. After that linears may be
packed: laid out as the CPU's kernels read them.
"""

# T tokens in batch · N heads · H head dim · D model dim

from __future__ import annotations

import functools
import logging
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from .rope_config import LinearScaling, Llama3Scaling, RopeScaling, YarnScaling

log = logging.getLogger(__name__)

MAX_PACKED_BYTES = 1 << 30
"""A larger weight stays as it is: while it is packed it is held twice, and one tied to the embedding stays twice."""

_EXPECTED_ROWS = 64
"""What oneDNN packs for. It takes a slower layout where told 1, and the same one for all numbers from 8 to 512."""


@dataclass(frozen=True, slots=True)
class Linear:
    """`x @ weight.T + bias`."""

    weight: Tensor
    bias: Tensor | None

    def __call__(self, x_TD: Tensor) -> Tensor:
        """Apply to every token; a row's result in bfloat16 does not depend on the number of rows."""
        if _rounds_otherwise(x_TD):
            return F.linear(x_TD.expand(2, -1), self.weight, self.bias)[:1]
        return F.linear(x_TD, self.weight, self.bias)


@dataclass(frozen=True, slots=True)
class PackedLinear:
    """A `Linear` whose weight lies in oneDNN's blocks: up to three times as fast for 2 to 64 rows from memory."""

    weight: Tensor
    bias: Tensor | None

    def __call__(self, x_TD: Tensor) -> Tensor:
        """Apply to every token, as `Linear` does."""
        if _rounds_otherwise(x_TD):
            return self._apply(x_TD.expand(2, -1).contiguous())[:1]
        return self._apply(x_TD)

    def _apply(self, x_TD: Tensor) -> Tensor:
        return cast("Tensor", torch.ops.mkldnn._linear_pointwise(x_TD, self.weight, self.bias, "none", [], ""))


AnyLinear: TypeAlias = Callable[[Tensor], Tensor]
"""A linear layer in any form: rows in, rows out."""


def packed(linear: Linear) -> AnyLinear:
    """The same layer packed, where this CPU can and the weight is no giant; else the layer itself."""
    if linear.weight.nbytes > MAX_PACKED_BYTES or not can_pack(linear.weight.dtype):
        return linear
    return PackedLinear(torch.ops.mkldnn._reorder_linear_weight(linear.weight, _EXPECTED_ROWS), linear.bias)


@functools.cache
def can_pack(dtype: torch.dtype) -> bool:
    """Whether this torch, on this CPU, multiplies packed weights of a type; says so once if not."""
    try:
        weight = torch.ops.mkldnn._reorder_linear_weight(torch.zeros(16, 16, dtype=dtype), _EXPECTED_ROWS)
        PackedLinear(weight, None)(torch.zeros(2, 16, dtype=dtype))
    except (RuntimeError, AttributeError) as error:
        log.info("weights stay unpacked dtype=%s reason=%r", dtype, str(error).partition("\n")[0])
        return False
    return True


def _rounds_otherwise(x_TD: Tensor) -> bool:
    """Whether oneDNN would take a kernel of its own, made for a single row."""
    return x_TD.shape[0] == 1 and x_TD.dtype == torch.bfloat16


def make_linear(in_features: int, out_features: int, *, has_bias: bool, dtype: torch.dtype) -> Linear:
    """A linear layer with parameters still to be written."""
    weight = torch.empty(out_features, in_features, dtype=dtype)
    return Linear(weight, torch.empty(out_features, dtype=dtype) if has_bias else None)


@dataclass(frozen=True, slots=True)
class RMSNorm:
    """Root mean square norm over the last dimension, computed in float32.

    The weight may be more precise than what is normalised: the product is rounded last then.
    """

    weight: Tensor
    eps: float

    def __call__(self, x: Tensor) -> Tensor:
        """Normalise the last dimension."""
        if self.weight.dtype != x.dtype:
            return F.rms_norm(x.to(self.weight.dtype), self.weight.shape, self.weight, self.eps).to(x.dtype)
        return F.rms_norm(x, self.weight.shape, self.weight, self.eps)


def make_norm(features: int, *, eps: float, dtype: torch.dtype) -> RMSNorm:
    """A norm with a weight still to be written."""
    return RMSNorm(torch.empty(features, dtype=dtype), eps)


@dataclass(frozen=True, slots=True)
class Angles:
    """Cosines and signed sines of one step's positions, shared by its layers: [T, 1, H]."""

    cos: Tensor
    signed_sin: Tensor


@dataclass(frozen=True, slots=True)
class Rotary:
    """Rotary position embedding over the two halves of a head.

    `divisors` are 1 unless a GGUF file carries them (its form of Llama 3's scaling). `scale` multiplies the result.
    """

    frequencies: Tensor
    divisors: Tensor
    dtype: torch.dtype
    scale: float = 1.0

    def angles(self, positions_T: Tensor) -> Angles:
        """Angles of absolute positions, rounded to the serving dtype after the sine as transformers does."""
        phases = positions_T[:, None].float() * (self.frequencies / self.divisors)
        cos, sin = phases.cos().mul_(self.scale).to(self.dtype), phases.sin().mul_(self.scale).to(self.dtype)
        return Angles(torch.cat((cos, cos), dim=-1)[:, None], torch.cat((-sin, sin), dim=-1)[:, None])


def rotate(x_TNH: Tensor, angles: Angles) -> Tensor:
    """Turn every head by its token's angles."""
    half = x_TNH.shape[-1] // 2
    swapped_TNH = torch.cat((x_TNH[..., half:], x_TNH[..., :half]), dim=-1)
    return (x_TNH * angles.cos).add_(swapped_TNH.mul_(angles.signed_sin))


def make_rotary(head_dim: int, theta: float, scaling: RopeScaling | None, dtype: torch.dtype) -> Rotary:
    """The rotary embedding of base `theta`."""
    exponents = torch.arange(0, head_dim, 2, dtype=torch.float) / head_dim
    frequencies = 1.0 / (theta**exponents)
    scale = 1.0
    match scaling:
        case LinearScaling():
            frequencies = frequencies / scaling.factor
        case Llama3Scaling():
            frequencies = _llama3_stretched(frequencies, scaling)
        case YarnScaling():
            frequencies, scale = _yarn_stretched(frequencies, theta, scaling), scaling.attention_factor
    return Rotary(frequencies, torch.ones_like(frequencies), dtype, scale)


def _yarn_stretched(frequencies: Tensor, theta: float, scaling: YarnScaling) -> Tensor:
    """Divide low frequencies by the factor, keep high ones, and blend along the dimensions between."""
    head_dim = 2 * len(frequencies)

    def dimension(num_turns: float) -> float:
        turns_of_one = scaling.original_context_tokens / (num_turns * 2 * math.pi)
        return head_dim * math.log(turns_of_one) / (2 * math.log(theta))

    first, last = dimension(scaling.beta_fast), dimension(scaling.beta_slow)
    if scaling.is_truncated:
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, head_dim - 1)
    ramp = (torch.arange(len(frequencies)) - first) / ((last - first) or 0.001)
    slowed = ramp.clamp(0, 1)
    return frequencies / scaling.factor * slowed + frequencies * (1 - slowed)


def _llama3_stretched(frequencies: Tensor, scaling: Llama3Scaling) -> Tensor:
    """Divide low frequencies by the factor, keep high ones, and blend between."""
    low, high, context = scaling.low_freq_factor, scaling.high_freq_factor, scaling.original_context_tokens
    wavelengths = 2 * math.pi / frequencies
    blend = (context / wavelengths - low) / (high - low)
    blended = (1 - blend) * frequencies / scaling.factor + blend * frequencies
    is_medium = (wavelengths >= context / high) & (wavelengths <= context / low)
    slowed = torch.where(wavelengths > context / low, frequencies / scaling.factor, frequencies)
    return torch.where(is_medium, blended, slowed)
